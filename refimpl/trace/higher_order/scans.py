"""Rules of scan, associative_scan and map: the body is traced on one slice of the scanned tensors.

Counterpart: torch/_higher_order_ops/scan.py trace_scan, associative_scan.py trace_associative_scan, map.py trace_map,
map_fake_tensor_mode
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from refimpl._torch import pytree
from refimpl.errors import MismatchedBranches
from refimpl.trace.higher_order.calls import HigherOrderCall, Recorded, Subgraph
from refimpl.trace.higher_order.control_flow import check_like, stacked

Function = Callable[..., Any]
_select = torch.ops.aten.select_copy.int


def scan(
    call: HigherOrderCall,
    combine_fn: Function,
    init: Sequence[Any],
    xs: Sequence[Any],
    additional_inputs: Sequence[Any] = (),
) -> Recorded:
    """Node: scan(scan_combine_graph_0, init, xs, additional). Result: the last carry, then all outputs stacked."""
    combine = call.trace(combine_fn, (*map(_unaliased(call), init), *_slices(xs), *additional_inputs))
    outputs = _outputs(combine)
    if len(outputs) < len(init):
        raise MismatchedBranches(
            "scan", f"{len(init)} values", f"{len(outputs)} values", ("init", "what the body returns")
        )
    for before, after in zip(init, outputs, strict=False):
        check_like("scan", "init", before, "the carry", after)
    additional = (*additional_inputs, *call.lifted(combine))
    (node,) = call.attach({"scan_combine_graph_": combine.graph_module})
    if call.fake_mode is None:
        result = call.run(combine.graph_module, init, xs, additional)
    else:
        carry, ys = outputs[: len(init)], outputs[len(init) :]
        result = (*call.fresh(tuple(carry)), *(stacked(call, y, xs[0].shape[0]) for y in ys))
    return Recorded(args=(node, init, xs, additional), kwargs={}, result=result)


def associative_scan(
    call: HigherOrderCall, combine_fn: Function, xs: Sequence[Any], additional_inputs: Sequence[Any] = ()
) -> Recorded:
    """Node: associative_scan(associative_scan_combine_graph_0, xs, additional). Result: like `xs`."""
    combine = call.trace(combine_fn, (*_slices(xs), *_slices(xs), *additional_inputs))
    outputs = _outputs(combine)
    if len(outputs) != len(xs):
        raise MismatchedBranches(
            "associative_scan", f"{len(xs)} values", f"{len(outputs)} values", ("xs", "what the body returns")
        )
    for x, output in zip(_slices(xs), outputs, strict=True):
        check_like("associative_scan", "a slice of xs", x, "what the body returns", output)
    additional = (*additional_inputs, *call.lifted(combine))
    (node,) = call.attach({"associative_scan_combine_graph_": combine.graph_module})
    if call.fake_mode is None:
        result: Any = call.run(combine.graph_module, xs, additional)
    else:
        result = tuple(x.clone() for x in xs)
    return Recorded(args=(node, xs, additional), kwargs={}, result=result)


def map_impl(call: HigherOrderCall, f: Function, xs: Sequence[Any], pos_args: Sequence[Any] = ()) -> Recorded:
    """Node: map_impl(body_graph_0, xs, pos_args). Result: what the body returns, each tensor stacked."""
    body = call.trace(f, (*_slices(xs), *pos_args))
    pos_args = [*pos_args, *call.lifted(body)]
    (node,) = call.attach({"body_graph_": body.graph_module})
    if call.fake_mode is None:
        result = call.run(body.graph_module, xs, pos_args)
    else:
        count = xs[0].shape[0]
        result = pytree.tree_map_only(torch.Tensor, lambda y: stacked(call, y, count), body.result)
    return Recorded(args=(node, list(xs), pos_args), kwargs={}, result=result)


def _slices(xs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of the first slices, which share no storage with `xs`."""
    return [_select(x, 0, 0) for x in xs]


def _unaliased(call: HigherOrderCall) -> Callable[[Any], Any]:
    """A function for the initial carry: fake copies, so that results of the body are not mistaken for the operands themselves."""
    return call.fresh if call.fake_mode is not None else lambda value: value


def _outputs(subgraph: Subgraph) -> list[Any]:
    return pytree.tree_leaves(subgraph.result)
