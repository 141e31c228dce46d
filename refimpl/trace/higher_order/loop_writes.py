"""Makes a while_loop functional whose condition writes, or whose body writes to its carry: another loop, which carries more.

    while_loop(lambda a: count.add_(1) < 3, lambda a: (a * 2,), (x,))

becomes a loop that carries the answer of the condition as well. The first answer is computed before the loop, each other one by
the body, and so the writes are those of the program or of the body, as any other (refimpl.trace.higher_order.returned_writes).

What a body writes to its carry is seen after the loop in the first round only, where the carry is the caller's own tensor: each
later round gets new tensors. The loop carries whether a round is the first, and what that tensor holds after it.

Counterpart: none; torch refuses such functions when it makes a loop functional
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from refimpl.trace.higher_order.calls import HigherOrderCall, Recorded, Subgraph
from refimpl.trace.higher_order.functional_checks import returned_bases, writes_of
from refimpl.trace.higher_order.returned_writes import are_writes_returned, do_share

Function = Callable[..., Any]
Loop = Callable[[Function, Function, tuple[Any, ...]], Recorded]  # (cond_fn, body_fn, carried)


def functional_loop(
    call: HigherOrderCall,
    functions: tuple[Function, Function],
    graphs: tuple[Subgraph, Subgraph],
    carried: Sequence[Any],
    additional: Sequence[Any],
    again: Loop,
) -> Recorded | None:
    """The call as that of another loop, made by `again`; None if it has no such writes, or cannot be made functional.

    functions, graphs: the condition and the body. additional: what both close over.
    """
    if not are_writes_returned(call):
        return None
    cond, body = (subgraph.graph_module.graph for subgraph in graphs)
    if writes_of(cond):
        return _with_answer_carried(call, functions, carried, again) if _is_tensor(graphs[0].result) else None
    placeholders = body.find_nodes(op="placeholder")
    writes = [write for write in writes_of(body) if write.base in placeholders[: len(carried)]]
    places = sorted({placeholders.index(write.base) for write in writes})
    operands = [*carried, *additional]
    is_shared = any(
        do_share(operand, operands[place]) for place in places for i, operand in enumerate(operands) if i != place
    )
    is_returned = not returned_bases(body).isdisjoint(placeholders[place] for place in places)
    if not places or is_shared or is_returned or not all(write.is_of_data for write in writes):
        return None
    return _with_first_round_kept(call, functions, carried, places, again)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.bool


def _with_answer_carried(
    call: HigherOrderCall, functions: tuple[Function, Function], carried: Sequence[Any], again: Loop
) -> Recorded:
    cond_fn, body_fn = functions

    def body(answer: Any, *operands: Any) -> tuple[Any, ...]:
        values = tuple(body_fn(*operands))
        return cond_fn(*values), *values

    with call.recording:
        first = cond_fn(*carried)
    recorded = again(lambda answer, *operands: answer.clone(), body, (first, *carried))
    return replace(recorded, seen_of=lambda results: _seen(recorded, results)[1:])


def _with_first_round_kept(
    call: HigherOrderCall,
    functions: tuple[Function, Function],
    carried: Sequence[Any],
    places: Sequence[int],
    again: Loop,
) -> Recorded:
    cond_fn, body_fn = functions
    written = [carried[place] for place in places]
    added = 1 + len(places)

    def body(is_first: Any, *values: Any) -> tuple[Any, ...]:
        kept, operands = values[: len(places)], list(values[len(places) :])
        for place in places:
            operands[place] = operands[place].clone()
        results = tuple(body_fn(*operands))
        after = (torch.where(is_first, operands[place], old) for place, old in zip(places, kept, strict=True))
        return torch.zeros_like(is_first), *after, *results

    with call.recording:
        is_first = torch.ones((), dtype=torch.bool, device=written[0].device)
        before = [tensor.clone() for tensor in written]
    recorded = again(lambda *values: cond_fn(*values[added:]), body, (is_first, *before, *carried))

    def seen_of(results: Any) -> Any:
        seen = _seen(recorded, results)
        for operand, value in zip(written, seen[1:added], strict=True):
            call.recording.record_write(operand, value)
        return seen[added:]

    return replace(recorded, seen_of=seen_of)


def _seen(recorded: Recorded, results: Any) -> Any:
    return results if recorded.seen_of is None else recorded.seen_of(results)
