"""Backends for torch.compile that have one wrong rule each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Compiled = Callable[..., Any]


def _replaced(gm: torch.fx.GraphModule, name: str, rule: Callable[..., Any]) -> Compiled:
    """The graph, with `rule` for every call of the function or method `name`."""
    for node in gm.graph.nodes:
        target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if node.op in ("call_function", "call_method") and target == name:
            node.op, node.target = "call_function", rule
    gm.recompile()
    return gm.forward


def wrong_softmax(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Compiled:
    """The softmax of a tensor of four dimensions is over the third."""

    def softmax(x: torch.Tensor, dim: int) -> torch.Tensor:
        return torch.softmax(x, dim=2 if x.dim() == 4 else dim)

    return _replaced(gm, "softmax", softmax)


def wrong_floor_divide(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Compiled:
    """`//` rounds towards zero."""
    return _replaced(gm, "floordiv", lambda a, b: torch.div(a, b, rounding_mode="trunc"))


def wrong_interpolate(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Compiled:
    """The nearest pixel is one too far to the right."""

    def interpolate(x: torch.Tensor, size: Any = None, **options: Any) -> torch.Tensor:
        return F.interpolate(x, size, **options).roll(-1, dims=-1)

    return _replaced(gm, "interpolate", interpolate)


def wrong_index_add(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Compiled:
    """The last index is lost."""

    def index_add_(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return x.index_add_(dim, index[:-1], source.narrow(dim, 0, max(len(index) - 1, 0)))

    return _replaced(gm, "index_add_", index_add_)


def wrong_cumsum(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Compiled:
    """A sum does not have its own element."""
    return _replaced(gm, "cumsum", lambda x, dim: torch.cumsum(x, dim) - x)


class _Sigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = torch.sigmoid(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (y,) = ctx.saved_tensors
        return grads[0] * y  # it should be y * (1 - y)


def wrong_sigmoid_gradient(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Compiled:
    """Right in the forward, wrong in the backward."""

    def sigmoid(x: torch.Tensor) -> torch.Tensor:
        return _Sigmoid.apply(x)

    return _replaced(gm, "sigmoid", sigmoid)


def refuses(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Compiled:
    """It compiles nothing."""
    raise NotImplementedError("no kernel")
