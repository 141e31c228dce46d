"""Leaks: a subject that keeps results or arguments of every call, so that memory grows with each.

The plan's own calls show a suspicion: after them, memory of every call but the last is still there, and in eager it is not. Then
the subject and eager make more calls on other values: a compiled function may keep tensors of its first call, of its last ones,
or of each call for which it compiled. If memory of every one of these stays too, many more are made. A cache has an end, so it
has dropped what came after its first calls and before its last ones; a leak has not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from oracle.observe.memory import grows
from oracle.observe.outcome import InMemory, Outcome, Returned
from oracle.program.build import Instance

MORE_CALLS = 10  # a cache of so many last calls is a suspect
MANY_CALLS = 100  # of a suspect: a cache of more than half as many last calls would be taken for a leak
_MOST_BYTES = (
    512 * 2**20
)  # of the results, arguments and gradients of these, which stay in memory until the last one was made
_MOST_SECONDS = 30.0  # that the subject may take for these
LEAK = "leak: "  # the beginning of the symptom
_SHOWN = 3  # paths in the symptom


def may_leak(eager: Outcome | None, seen: Outcome) -> bool:
    """Whether memory of every call but the last is still there, and is not in eager."""
    if not isinstance(eager, Returned) or not isinstance(seen, Returned):
        return False
    return grows({one.call for one in _only_here(eager, seen)}, len(seen.calls))


def with_more_calls(instance: Instance, count: int = MORE_CALLS) -> Instance | None:
    """The instance with more calls like its last one, on other values; None for a plan whose last call cannot be repeated."""
    calls = instance.program.calls
    if calls[-1].outside:
        return None
    last, made = len(calls) - 1, instance.namespace.get("inputs")
    if made is not None:
        instance.namespace["inputs"] = _up_to(last, made)
    return instance.with_calls((*calls, *[dataclasses.replace(calls[-1], before="")] * count))


def _up_to(last: int, made: Callable[[int], Any]) -> Callable[[int], Any]:
    return lambda call: made(min(call, last))


def leak_text(eager: Outcome, seen: Outcome) -> str | None:
    """The symptom, if memory of every added call but the last is still there, and is not in eager."""
    if not isinstance(eager, Returned) or not isinstance(seen, Returned):
        return None
    last = len(seen.calls) - 1
    added = range(last - MORE_CALLS + 1, last)
    held = [one for one in _only_here(eager, seen) if one.call in added]
    if not {one.call for one in held}.issuperset(added):
        return None
    total = sum(one.call in added for one in seen.memory)
    paths = [*dict.fromkeys(one.path for one in held)]
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return (
        f"{LEAK}{len(held)} of {total} results and arguments of {len(added)} calls stay in memory after the caller dropped them, "
        f"which in eager they do not: {', '.join(paths[:_SHOWN])}{more}"
    )


def calls_of_longer_look(seen: Outcome) -> int:
    """How many more calls to make of a suspect, to see whether its memory stops growing; 0 if they would cost too much.

    seen: the run with MORE_CALLS that made it a suspect.
    """
    if not isinstance(seen, Returned):
        return 0
    last = seen.calls[-1]
    leaves = (*last.outputs, *last.inputs_after, *last.gradients)
    size = sum(leaf.value.nbytes for leaf in leaves if isinstance(leaf.value, torch.Tensor) and leaf.facts is not None)
    seconds = max(call.seconds for call in seen.calls[-MORE_CALLS:])
    most = min(MANY_CALLS, _MOST_BYTES // max(1, size), int(_MOST_SECONDS / max(seconds, 1e-9)))
    return most if most > 2 * MORE_CALLS else 0


def stops_growing(eager: Outcome, seen: Outcome, count: int) -> bool:
    """Whether a longer look, with `count` added calls, shows an end of the growth.

    That is so if nothing is left of the second quarter of these calls. What keeps one call in so many, for ever, has some of it.
    """
    if not isinstance(eager, Returned) or not isinstance(seen, Returned):
        return False
    first = len(seen.calls) - count
    dropped = range(first + count // 4, first + count // 2)
    return not any(one.call in dropped for one in _only_here(eager, seen))


def _only_here(eager: Returned, seen: Returned) -> list[InMemory]:
    """Memory that is still there, and is not in eager."""
    kept = {(one.call, one.path) for one in eager.memory if one.is_alive}
    return [one for one in seen.memory if one.is_alive and (one.call, one.path) not in kept]
