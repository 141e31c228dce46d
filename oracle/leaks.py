"""Leaks: a subject that keeps results or arguments of every call, so that memory grows with each.

The plan's own calls show a suspicion: after them, memory of every call but the last is still there, and in eager it is not. Then
the subject and eager make more calls on other values, enough to tell a leak from a cache: a compiled function may keep tensors of
its first call, of its last ones, or of each call for which it compiled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from oracle.observe.memory import grows
from oracle.observe.outcome import InMemory, Outcome, Returned
from oracle.program.build import Instance

MORE_CALLS = 10  # a cache of so many last calls would be taken for a leak
LEAK = "leak: "  # the beginning of the symptom
_SHOWN = 3  # paths in the symptom


def may_leak(eager: Outcome | None, seen: Outcome) -> bool:
    """Whether memory of every call but the last is still there, and is not in eager."""
    if not isinstance(eager, Returned) or not isinstance(seen, Returned):
        return False
    return grows({one.call for one in _only_here(eager, seen)}, len(seen.calls))


def with_more_calls(instance: Instance) -> Instance | None:
    """The instance with more calls like its last one, on other values; None for a plan whose last call cannot be repeated."""
    calls = instance.program.calls
    if calls[-1].outside:
        return None
    last, made = len(calls) - 1, instance.namespace.get("inputs")
    if made is not None:
        instance.namespace["inputs"] = _up_to(last, made)
    return instance.with_calls((*calls, *[dataclasses.replace(calls[-1], before="")] * MORE_CALLS))


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


def _only_here(eager: Returned, seen: Returned) -> list[InMemory]:
    """Memory that is still there, and is not in eager."""
    kept = {(one.call, one.path) for one in eager.memory if one.is_alive}
    return [one for one in seen.memory if one.is_alive and (one.call, one.path) not in kept]
