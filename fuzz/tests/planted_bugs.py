"""Backends with one small bug each, one for every kind of symptom: what the tests of reduction reduce."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch


def _with(gm: torch.fx.GraphModule, name: str, instead: Callable[..., Any]) -> Callable[..., Any]:
    """The graph with calls of this function or method replaced by calls of another function."""
    for node in gm.graph.nodes:
        called = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if node.op in ("call_function", "call_method") and called == name:
            node.op, node.target = "call_function", instead
    gm.graph.lint()
    gm.recompile()
    return gm.forward


def integer_value(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """bitwise_xor is off by one."""
    return _with(gm, "bitwise_xor", lambda a, b: torch.bitwise_xor(a, b) + 1)


def number_in_one_place(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """hypot is wrong in the last element of a row of more than four."""

    def wrong(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        result = torch.hypot(a, b)
        if result.dim() and result.shape[-1] > 4:
            result[..., -1] += 1
        return result

    return _with(gm, "hypot", wrong)


def aten_sin(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """aten.sin is wrong; the sin of Python is not."""
    for node in gm.graph.nodes:
        if node.target is torch.ops.aten.sin.default:
            node.target = torch.ops.aten.cos.default
    gm.recompile()
    return gm.forward


def lost_write(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """mul_ does not write."""
    return _with(gm, "mul_", torch.mul)


def lost_alias(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """narrow is a copy."""
    return _with(gm, "narrow", lambda x, *where: torch.narrow(x, *where).clone())


def lost_stride(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """atan is contiguous."""
    return _with(gm, "atan", lambda x: torch.atan(x).contiguous())


def wrong_gradient(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """The gradient of asinh is twice too large."""

    def wrong(x: torch.Tensor) -> torch.Tensor:
        result = torch.asinh(x)
        if result.requires_grad:
            result.register_hook(lambda gradient: gradient * 2)
        return result

    return _with(gm, "asinh", wrong)


def drawing_gradient(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """The backward of acosh draws a random number, which nobody uses."""

    def wrong(x: torch.Tensor) -> torch.Tensor:
        result = torch.acosh(x)
        if result.requires_grad:
            result.register_hook(lambda gradient: gradient + 0 * torch.rand(()))
        return result

    return _with(gm, "acosh", wrong)


def small_error(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """expm1 is off by a millionth: little beside one, much beside a thousandth."""
    return _with(gm, "expm1", lambda x: torch.expm1(x) + 1e-6)


def uneven_gradient(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """The gradient of sinh is wrong where the tangents differ from one another."""

    def wrong(x: torch.Tensor) -> torch.Tensor:
        result = torch.sinh(x)
        if result.requires_grad:
            result.register_hook(lambda gradient: 2 * gradient - gradient.mean())
        return result

    return _with(gm, "sinh", wrong)


def wrong_exception(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """take raises a KeyError where it should raise an IndexError."""

    def wrong(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        try:
            return torch.take(x, index)
        except IndexError as error:
            raise KeyError("take") from error

    return _with(gm, "take", wrong)


def refuses(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """cumprod is not supported."""

    def wrong(x: torch.Tensor, dim: int) -> torch.Tensor:
        raise NotImplementedError(f"cumprod of shape {tuple(x.shape)}")

    return _with(gm, "cumprod", wrong)


def crashes(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """erfinv kills the process."""

    def wrong(x: torch.Tensor) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGKILL)
        return x

    return _with(gm, "erfinv", wrong)


def hangs(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """digamma never ends."""

    def wrong(x: torch.Tensor) -> torch.Tensor:
        time.sleep(1000)
        return x

    return _with(gm, "digamma", wrong)


def stale_number(fn: Callable[..., Any], *, dynamic: bool | None = None) -> Callable[..., Any]:
    """A compiler that keeps the first call's last argument, a number."""
    kept: list[Any] = []

    def compiled(*args: Any) -> Any:
        if args and isinstance(args[-1], int):
            kept.append(args[-1])
            args = (*args[:-1], kept[0])
        return fn(*args)

    return compiled


_FIRST_NUMBER: list[int] = []


def keeps_across_compiles(fn: Callable[..., Any], *, dynamic: bool | None = None) -> Callable[..., Any]:
    """A compiler that is right the first time, and from then on uses the first number it was ever given."""
    kept = [*_FIRST_NUMBER]

    def compiled(*args: Any) -> Any:
        if args and isinstance(args[-1], int):
            _FIRST_NUMBER.append(args[-1])
            args = (*args[:-1], kept[0]) if kept else args
        return fn(*args)

    return compiled
