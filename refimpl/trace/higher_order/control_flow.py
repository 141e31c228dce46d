"""Rules of cond and while_loop.

Counterpart: torch/_higher_order_ops/cond.py trace_cond, cond_fake_tensor_mode, _merge_output; while_loop.py while_loop_tracing,
while_loop_fake_tensor_mode
Differs: in real mode the operator runs the branch that the predicate chooses. Ints carried by a loop are refused in real mode,
because their final values would be constants of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from refimpl._torch import SYMBOLIC_TYPES, FakeTensor, pytree
from refimpl.errors import MismatchedBranches, UnsupportedByRefimpl
from refimpl.trace.higher_order.calls import (
    HigherOrderCall,
    Recorded,
    Subgraph,
    strides_in_order_of,
    with_shared_operands,
)
from refimpl.trace.higher_order.loop_writes import functional_loop
from refimpl.trace.higher_order.returned_writes import ReturnedWrites
from refimpl.trace.layouts import is_same_number, is_same_shape

Function = Callable[..., Any]
_COMPARED = ("dtype", "device", "layout", "is_quantized")  # must be equal in both branches' results


def cond(call: HigherOrderCall, pred: Any, true_fn: Function, false_fn: Function, operands: Any = ()) -> Recorded:
    """Node: cond(pred, true_graph_0, false_graph_0, operands)."""
    true_graph, false_graph = (call.trace(function, operands, may_not_run=True) for function in (true_fn, false_fn))
    lifted = with_shared_operands((true_graph, false_graph))
    check_same_containers("cond", "the true branch", true_graph.result, "the false branch", false_graph.result)
    writes = ReturnedWrites.of_branches(call, (true_graph, false_graph), [*pytree.tree_leaves(operands), *lifted])
    true_node, false_node = call.attach(
        {"true_graph_": true_graph.graph_module, "false_graph_": false_graph.graph_module}
    )
    operands = (*operands, *lifted)
    if call.fake_mode is None:
        for a, b in zip(*(pytree.tree_leaves(each.result) for each in (true_graph, false_graph)), strict=True):
            _check_branches(a, b)
        result = call.run(pred, true_graph.graph_module, false_graph.graph_module, operands)
    else:
        result = merged(call, true_graph.result, false_graph.result)
    args = (pred, true_node, false_node, operands)
    return writes.recorded(Recorded(args=args, kwargs={}, result=result))


def while_loop(
    call: HigherOrderCall,
    cond_fn: Function,
    body_fn: Function,
    carried_inputs: Sequence[Any],
    additional_inputs: Sequence[Any] = (),
    **kwargs: Any,
) -> Recorded:
    """Node: while_loop(while_loop_cond_graph_0, while_loop_body_graph_0, carried, additional)."""
    initial, loop_cond, loop_body = _loop_graphs(call, cond_fn, body_fn, carried_inputs, additional_inputs)
    lifted = with_shared_operands((loop_cond, loop_body))

    def with_additional(function: Function) -> Function:
        return lambda *operands: function(*operands, *additional_inputs)

    functional = functional_loop(
        call,
        (with_additional(cond_fn), with_additional(body_fn)),
        (loop_cond, loop_body),
        carried_inputs,
        (*additional_inputs, *lifted),
        lambda condition, body, carried: while_loop(call, condition, body, carried, **kwargs),
    )
    if functional is not None:
        return functional
    additional = (*additional_inputs, *call.lifted(loop_cond, loop_body))
    writes = ReturnedWrites.of_loop(call, loop_cond, loop_body, carried_inputs, additional)
    cond_node, body_node = call.attach(_names(loop_cond, loop_body))
    if call.fake_mode is None:
        result = call.run(loop_cond.graph_module, loop_body.graph_module, tuple(carried_inputs), additional, **kwargs)
    else:
        result = tuple(call.unbacked_int() if is_int(x) else call.fresh(x) for x in initial)
    carried, additional = (*carried_inputs, *writes.values), writes.without(additional, len(carried_inputs))
    return writes.recorded(Recorded(args=(cond_node, body_node, carried, additional), kwargs=kwargs, result=result))


def while_loop_stack_output(
    call: HigherOrderCall,
    cond_fn: Function,
    body_fn: Function,
    carried_inputs: Sequence[Any],
    additional_inputs: Sequence[Any] = (),
) -> Recorded:
    """Like while_loop, but each result has a new first dimension, with one element per iteration."""
    initial, loop_cond, loop_body = _loop_graphs(call, cond_fn, body_fn, carried_inputs, additional_inputs)
    additional = (*additional_inputs, *call.lifted(loop_cond, loop_body))
    cond_node, body_node = call.attach(_names(loop_cond, loop_body))
    if call.fake_mode is None:
        result: Any = call.run(loop_cond.graph_module, loop_body.graph_module, tuple(carried_inputs), additional)
    else:
        count = call.unbacked_int()  # at least 1: a loop of no rounds gives its initial values
        call.shape_env.constrain_symbol_range(count.node.expr, 1, _bounds(call, count)[1])
        result = tuple(call.unbacked_int() if is_int(x) else stacked(call, x, count) for x in initial)
    return Recorded(args=(cond_node, body_node, tuple(carried_inputs), additional), kwargs={}, result=result)


def _names(loop_cond: Subgraph, loop_body: Subgraph) -> dict[str, torch.fx.GraphModule]:
    return {"while_loop_cond_graph_": loop_cond.graph_module, "while_loop_body_graph_": loop_body.graph_module}


def _loop_graphs(
    call: HigherOrderCall, cond_fn: Function, body_fn: Function, carried: Sequence[Any], additional: Sequence[Any]
) -> tuple[tuple[Any, ...], Subgraph, Subgraph]:
    """The carry that both functions are traced on, which must be valid for every iteration, and their subgraphs."""
    if call.fake_mode is None and any(map(is_int, carried)):
        raise UnsupportedByRefimpl(
            seen="an int among the carried inputs of a while_loop that is traced in real mode",
            supported="carried tensors in real mode; ints too in fake and symbolic mode",
            do="trace with tracing_mode='symbolic', or carry a 0-dim tensor",
        )
    if any(map(is_int, carried)):
        with call.shape_env.ignore_fresh_unbacked_symbols():  # these symbols only occur in the two subgraphs
            initial = tuple(call.unbacked_int() if is_int(x) else x for x in carried)
    else:
        initial = tuple(carried)
    # Fresh fakes, because a constant in the initial carry is not constant in later iterations.
    operands = [call.fresh(x) if isinstance(x, FakeTensor) else x for x in initial]
    loop_cond = call.trace(cond_fn, (*operands, *additional))
    loop_body = call.trace(body_fn, (*operands, *additional), may_not_run=True)
    check_same_containers("while_loop", "the carry", tuple(initial), "what the body returns", tuple(loop_body.result))
    for before, after in zip(initial, loop_body.result, strict=True):
        check_like("while_loop", "the carry", before, "what the body returns", after)
    return initial, loop_cond, loop_body


# ------------------------------------------------------------------------------------------------------- results


def is_int(value: Any) -> bool:
    """Whether the value is an int or SymInt, which another run may change."""
    return isinstance(value, torch.SymInt) or type(value) is int


def stacked(call: HigherOrderCall, slice_: torch.Tensor, count: Any) -> torch.Tensor:
    """A contiguous fake tensor of `count` such slices."""
    assert call.fake_mode is not None
    with call.fake_mode:
        return torch.empty((count, *slice_.shape), dtype=slice_.dtype, device=slice_.device)


def merged(call: HigherOrderCall, a: Any, b: Any) -> Any:
    """The fake result of a cond whose branches return `a` and `b`."""
    leaves_a, spec = pytree.tree_flatten(a)
    leaves_b = pytree.tree_leaves(b)
    return pytree.tree_unflatten([_merged_leaf(call, x, y) for x, y in zip(leaves_a, leaves_b, strict=True)], spec)


def _merged_leaf(call: HigherOrderCall, a: Any, b: Any) -> Any:
    _check_branches(a, b)
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        sizes = [_merged_size(call, m, n) for m, n in zip(a.shape, b.shape, strict=True)]
        return _merged_layout(call, a, b, sizes)
    if is_int(a) and is_int(b):
        return _merged_size(call, a, b)
    if type(a) is type(b) and a == b:
        return a
    raise MismatchedBranches("cond", repr(a), repr(b))


def _check_branches(a: Any, b: Any) -> None:
    """Raises MismatchedBranches if two tensors have different dtypes, devices, layouts or numbers of dimensions."""
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return
    for name in _COMPARED:
        if getattr(a, name) != getattr(b, name):
            raise MismatchedBranches("cond", f"{name} {getattr(a, name)}", f"{name} {getattr(b, name)}")
    if a.dim() != b.dim():
        raise MismatchedBranches("cond", f"{a.dim()} dimensions", f"{b.dim()} dimensions")


def _merged_size(call: HigherOrderCall, a: Any, b: Any) -> Any:
    if call.recording.can_find(a) and call.recording.can_find(b) and is_same_number(a, b):
        return a
    size = call.unbacked_int()
    (low_a, high_a), (low_b, high_b) = _bounds(call, a), _bounds(call, b)
    call.shape_env.constrain_symbol_range(size.node.expr, min(low_a, low_b), max(high_a, high_b))
    return size


def _bounds(call: HigherOrderCall, number: Any) -> tuple[Any, Any]:
    if type(number) is int:
        return number, number
    found = call.shape_env.bound_sympy(number.node.expr)
    return found.lower, found.upper


def _merged_layout(call: HigherOrderCall, a: torch.Tensor, b: torch.Tensor, sizes: list[Any]) -> torch.Tensor:
    """The merged tensor: equal strides are kept; if both tensors are dense with dimensions in the same order, strides follow from
    the merged sizes; else raises MismatchedBranches."""
    assert call.fake_mode is not None
    if is_same_shape(a.stride(), b.stride()) and is_same_shape(sizes, a.shape):
        with call.fake_mode:
            return torch.empty_strided(sizes, a.stride(), dtype=a.dtype, device=a.device)
    told_apart = [n if type(n) is int and n == 1 else index + 2 for index, n in enumerate(sizes)]
    are_dense = all(is_same_shape(strides_in_order_of(t, t.shape), t.stride()) for t in (a, b))
    if not are_dense or strides_in_order_of(a, told_apart) != strides_in_order_of(b, told_apart):
        raise MismatchedBranches("cond", f"strides {tuple(a.stride())}", f"strides {tuple(b.stride())}")
    return call.empty(sizes, a)


def check_same_containers(operator: str, name_a: str, a: Any, name_b: str, b: Any) -> None:
    """Raises MismatchedBranches unless both have the same pytree structure."""
    spec_a, spec_b = pytree.tree_structure(a), pytree.tree_structure(b)
    if spec_a != spec_b:
        raise MismatchedBranches(
            operator, f"{spec_a.num_leaves} values {spec_a}", f"{spec_b.num_leaves} values {spec_b}", (name_a, name_b)
        )


def check_like(operator: str, name_a: str, a: Any, name_b: str, b: Any) -> None:
    """Raises MismatchedBranches unless both are ints, or tensors of the same shape, dtype and device."""
    if is_int(a) and is_int(b):
        return
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        if type(a) is type(b) and not isinstance(a, SYMBOLIC_TYPES):
            return
        raise MismatchedBranches(operator, repr(a), repr(b), (name_a, name_b))
    for name in ("dtype", "device"):
        if getattr(a, name) != getattr(b, name):
            raise MismatchedBranches(
                operator, f"{name} {getattr(a, name)}", f"{name} {getattr(b, name)}", (name_a, name_b)
            )
    if not is_same_shape(a.shape, b.shape):
        raise MismatchedBranches(operator, f"shape {tuple(a.shape)}", f"shape {tuple(b.shape)}", (name_a, name_b))
