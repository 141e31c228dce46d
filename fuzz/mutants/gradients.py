"""Mutants with a right forward and wrong gradients."""

from __future__ import annotations

from typing import Any

import torch

from fuzz.mutants.editing import aten_backend, wrong_calls
from fuzz.mutants.mutant import Mutant, planting

GRADIENTS: list[Mutant] = []
_mutant = planting(GRADIENTS, stage="backward", statuses=("fail_grad",), backward=True)


def _of(expression: str, value: str) -> str:
    return f"def program(x):\n    return {expression}\n\ndef inputs(call):\n    return (({value}).requires_grad_(),), {{}}\n"


@_mutant(
    "the gradient of tanh is 0 where the result is over 0.9",
    "some",
    _of("torch.tanh(x)", "torch.tensor([2.0, 0.1])"),
    _of("torch.tanh(x)", "torch.tensor([0.2, 0.1])"),
)
@wrong_calls("aten.tanh_backward", backward=True)
def tanh_gradient_is_cut_off(op: Any, grad: Any, output: Any) -> Any:
    return torch.where(output.abs() > 0.9, torch.zeros_like(grad), op(grad, output))


@_mutant(
    "gradients of what was broadcast along two dimensions are halved",
    "some",
    _of("x.expand(2, 3, 4) * 2", "torch.ones(4)"),
    _of("x.expand(3, 4) * 2", "torch.ones(4)"),
)
@wrong_calls("aten.sum.dim_IntList", backward=True)
def gradient_of_twice_broadcast(op: Any, x: Any, dims: Any, keepdim: bool = False, **kwargs: Any) -> Any:
    result = op(x, dims, keepdim, **kwargs)
    if isinstance(dims, (list, tuple)) and len(dims) > 1:
        return result / 2
    return result


@_mutant(
    "the gradient of x[1::2] goes to x[0::2]",
    "rare",
    _of("x[1::2] * 2", "torch.ones(6)"),
    _of("x[1:] * 2", "torch.ones(6)"),
)
@wrong_calls("aten.slice_backward", backward=True)
def gradient_of_strided_slice_moves(op: Any, grad: Any, sizes: Any, dim: int, start: int, end: int, step: int) -> Any:
    return op(grad, sizes, dim, 0 if start and step > 1 else start, end - start if start and step > 1 else end, step)


@_mutant(
    "the gradient of x[-1] goes to x[1]",
    "some",
    _of("x[-1] * 2", "torch.ones(4)"),
    _of("x[1] * 2", "torch.ones(4)"),
)
@wrong_calls("aten.select_backward", backward=True)
def gradient_of_negative_select(op: Any, grad: Any, sizes: Any, dim: int, index: int) -> Any:
    return op(grad, sizes, dim, abs(index) % max(1, sizes[dim]))


def _threshold_backward(op: Any, grad: Any, x: Any, threshold: Any) -> Any:
    return torch.where(x >= threshold, grad, torch.zeros_like(grad))


@_mutant(
    "the gradient of relu is let through where the result is 0",
    "common",
    _of("torch.relu(x)", "torch.tensor([0.0, -1.0, 1.0])"),
    _of("torch.relu(x)", "torch.tensor([0.5, 2.0, 1.0])"),
)
def relu_gradient_at_zero(gm: Any, example_inputs: Any) -> Any:
    """The gradient of relu at exactly 0, where torch has 0. The saved result is 0 for all negative inputs too."""
    return aten_backend({}, {"aten.threshold_backward": _threshold_backward, "aten.le": _strictly})(gm, example_inputs)


def _strictly(op: Any, x: Any, y: Any) -> Any:
    return x < y


@_mutant(
    "of two gradients that are added up, of rank 2 and more, one is left out",
    "some",
    _of("torch.sin(x) * torch.cos(x)", "torch.ones(2, 2)"),
    _of("torch.sin(x) * torch.cos(x)", "torch.ones(2)"),
)
@wrong_calls("aten.add.Tensor", backward=True)
def gradients_ignore_the_second_use(op: Any, x: Any, y: Any, **kwargs: Any) -> Any:
    """Drops the second gradient where the backward graph adds those of two uses of a tensor."""
    same = isinstance(y, torch.Tensor) and y.shape == x.shape and y.dtype is x.dtype
    return x.clone() if same and x.dim() >= 2 else op(x, y, **kwargs)


@_mutant(
    "the gradient of dropout uses a mask of its own",
    "rare",
    _of("torch.nn.functional.dropout(x, 0.5)", "torch.ones(64)"),
    _of("torch.nn.functional.dropout(x, 0.5).detach() + x", "torch.ones(64)"),
    stage="graph",
)
def dropout_draws_again_in_backward(gm: Any, example_inputs: Any) -> Any:
    """The gradient of dropout uses another mask than the forward."""

    class Dropped(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, p: float, training: bool) -> Any:
            ctx.p, ctx.training = p, training
            return torch.nn.functional.dropout(x, p, training)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return torch.nn.functional.dropout(grads[0], ctx.p, ctx.training), None, None

    def dropped(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        return Dropped.apply(x, p, training)

    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target in (torch.nn.functional.dropout, torch.dropout):
            node.target = dropped
    gm.recompile()
    return gm.forward
