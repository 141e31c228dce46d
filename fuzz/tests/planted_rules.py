"""Backends with one wrong rule each, for an operator in the middle of a large model: what the tests of `minimise` look for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx


def _with(gm: torch.fx.GraphModule, name: str, instead: Callable[..., Any]) -> Callable[..., Any]:
    """The graph with calls of this function or method replaced by calls of another function."""
    for node in gm.graph.nodes:
        called = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if node.op in ("call_function", "call_method") and called == name:
            node.op, node.target = "call_function", instead
    gm.recompile()
    return gm.forward


def gelu(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """gelu is the approximation by tanh, and a little larger still."""
    return _with(gm, "gelu", lambda x, **how: torch.nn.functional.gelu(x, approximate="tanh") * 1.001)


def layer_norm(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """layer_norm divides by n - 1 instead of n."""

    def wrong(x: torch.Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> torch.Tensor:
        dims = [*range(-len(shape), 0)]
        normal = (x - x.mean(dims, keepdim=True)) / torch.sqrt(x.var(dims, keepdim=True) + eps)
        normal = normal if weight is None else normal * weight
        return normal if bias is None else normal + bias

    return _with(gm, "layer_norm", wrong)


def floordiv(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """The integer // rounds towards zero."""

    def wrong(a: Any, b: Any) -> Any:
        if isinstance(a, torch.Tensor) and not a.is_floating_point():
            return torch.div(a, b, rounding_mode="trunc")
        return a // b

    return _with(gm, "floordiv", wrong)


class _TwiceTheGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        once = torch.sigmoid(x) * (1 - torch.sigmoid(x))
        return 2 * gradients[0] * once


def sigmoid_gradient(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """The gradient of sigmoid is twice too large."""
    return _with(gm, "sigmoid", lambda x: _TwiceTheGradient.apply(x))


def interpolate(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """interpolate is one too large."""
    return _with(gm, "interpolate", lambda x, *a, **how: torch.nn.functional.interpolate(x, *a, **how) + 1)


def sigmoid_error(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """sigmoid is refused."""

    def refused(x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("sigmoid is not supported")

    return _with(gm, "sigmoid", refused)


def stale(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """A graph with a sin returns the result of its first call ever after."""
    if not any(getattr(node.target, "__name__", "") == "sin" for node in gm.graph.nodes):
        return gm.forward
    kept: list[Any] = []

    def run(*args: Any) -> Any:
        kept.append(gm.forward(*args))
        return kept[0]

    return run


def lost_add_(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """add_ does not write."""
    return _with(gm, "add_", torch.add)
