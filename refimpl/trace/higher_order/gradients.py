"""The backward of torch.cond inside of a trace: a second cond, which computes gradients of operands and closed-over tensors.

Counterpart: torch/_higher_order_ops/cond.py CondAutogradOp
Differs: the branches are traced before autograd runs, which finds the tensors that they close over; upstream relies on a front
end for that, and traces the backward functions with its own tracer. Double backward is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from refimpl._torch import dispatch_keys, pytree, with_dispatch_keys
from refimpl.errors import UnsupportedByRefimpl
from refimpl.trace.higher_order.calls import CLOSED_OVER, Subgraph, TracedFunction, closed_over_by, with_shared_operands

Function = Callable[..., Any]


def cond(
    call: Function,
    trace_function: Callable[..., Subgraph],
    pred: Any,
    true_fn: Function,
    false_fn: Function,
    operands: Any,
) -> Any:
    """Run torch's operator, `call(pred, true_fn, false_fn, operands)`, as an autograd Function if gradients are needed."""
    functions = (true_fn, false_fn)
    subgraphs = [trace_function(function, tuple(operands), may_not_run=True) for function in functions]
    lifted = with_shared_operands(subgraphs)
    branches = [TracedFunction(subgraph) for subgraph in subgraphs]
    inputs = [*operands, *lifted]
    if not torch.is_grad_enabled() or not any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs):
        return call(pred, *branches, operands)
    under_way = _Cond(
        call=call, pred=pred, functions=functions, branches=branches, operands=operands, keys=dispatch_keys(),
        closed_over=CLOSED_OVER.get(),
    )  # fmt: skip
    leaves = _CondFunction.apply(under_way, *inputs)
    return pytree.tree_unflatten(list(leaves), pytree.tree_structure(subgraphs[0].result))


@dataclass(frozen=True, kw_only=True)
class _Cond:
    call: Function
    pred: Any
    functions: tuple[Function, Function]
    branches: list[TracedFunction]
    operands: Any
    keys: Any  # the dispatcher's included and excluded keys at the program's call
    closed_over: tuple[TorchFunctionMode, ...]  # what CLOSED_OVER was there


class _CondFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, under_way: _Cond, *inputs: Any) -> tuple[Any, ...]:
        ctx.under_way, ctx.inputs = under_way, inputs
        return tuple(pytree.tree_leaves(under_way.call(under_way.pred, *under_way.branches, under_way.operands)))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        under_way: _Cond = ctx.under_way
        needed = ctx.needs_input_grad[1:]
        count = len(under_way.operands)
        wanted = [x for x, is_needed in zip(ctx.inputs[count:], needed[count:], strict=True) if is_needed]
        given = [g for g in gradients if isinstance(g, torch.Tensor)]
        backwards = [_backward_of(function, needed[:count], wanted, under_way) for function in under_way.functions]
        found = iter(under_way.call(under_way.pred, *backwards, (*under_way.operands, *given)))
        return None, *(next(found) if is_needed else None for is_needed in needed)


def _backward_of(function: Function, needed: Sequence[bool], wanted: list[torch.Tensor], under_way: _Cond) -> Function:
    """A branch's backward: a function of operands and tangents that returns gradients of needed operands and of `wanted`.

    The branch runs again. Where it reads a module's parameters, it now finds the real ones: inputs replace them once more.
    """

    def backward(*values: Any) -> tuple[torch.Tensor, ...]:
        operands, given = values[: len(needed)], values[len(needed) :]
        with with_dispatch_keys(under_way.keys), torch.enable_grad():  # an operator's functions run below autograd
            inputs = [x.detach().requires_grad_() if n else x for x, n in zip(operands, needed, strict=True)]
            leaves = [x.detach().requires_grad_() for x in wanted]
            with closed_over_by(_Replaced(wanted, leaves), *under_way.closed_over):
                outputs = [x for x in pytree.tree_leaves(function(*inputs)) if isinstance(x, torch.Tensor)]
            _check_cut(outputs, wanted)
            targets = [*(x for x, is_needed in zip(inputs, needed, strict=True) if is_needed), *leaves]
            used = [(x, g) for x, g in zip(outputs, given, strict=True) if x.requires_grad]
            found: Sequence[torch.Tensor | None] = [None] * len(targets)
            if used:
                results, gradients = zip(*used, strict=True)
                found = torch.autograd.grad(results, targets, gradients, allow_unused=True)
        # Gradients of both branches must have the same strides.
        return tuple(
            torch.zeros(t.shape, dtype=t.dtype, device=t.device) if g is None else g.contiguous()
            for t, g in zip(targets, found, strict=True)
        )

    return backward


class _Replaced(TorchFunctionMode):
    """Replaces closed-over tensors by detached leaves in every call of a torch function, so that their gradients end there."""

    def __init__(self, originals: Sequence[torch.Tensor], replacements: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._by_id = {id(original): new for original, new in zip(originals, replacements, strict=True)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map_only(torch.Tensor, lambda t: self._by_id.get(id(t), t), (args, kwargs or {}))
        return func(*args, **kwargs)


def _check_cut(outputs: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> None:
    """Raises UnsupportedByRefimpl if a result still depends on a replaced tensor, so that a gradient would be lost."""
    around = [t.grad_fn for t in wanted if t.grad_fn is not None]
    seen: set[Any] = set()
    waiting = [t.grad_fn for t in outputs if t.grad_fn is not None]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in around or any(getattr(node, "variable", None) is t for t in wanted):
            raise UnsupportedByRefimpl(
                seen="a branch of torch.cond that passes a closed-over tensor with requires_grad=True to a function that no "
                "__torch_function__ sees, such as torch.autograd.Function.apply",
                supported="closed-over tensors that only torch functions use",
                do="pass the tensor as an operand of torch.cond",
            )
        waiting.extend(parent for parent, _ in node.next_functions if parent is not None)
