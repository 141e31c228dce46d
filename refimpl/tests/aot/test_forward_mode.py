"""Forward-mode AD of what is compiled: tangents are eager's, or are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

from refimpl.backends import aot_eager, eager
from refimpl.backends.triton import triton
from refimpl.capture.captured import CaptureOptions
from refimpl.capture.compile import with_options
from refimpl.errors import UnsupportedByRefimpl
from refimpl.pipeline import compile_aot

Tensor = torch.Tensor


class OwnTangents(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * 5

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return tangents[0] * 7


def _writes(x: Tensor) -> Any:
    x.mul_(2)
    return x.sin()


def _writes_through_a_view(x: Tensor) -> Any:
    view = x.view(-1)[1:]
    view.mul_(3)
    return view, x * 1


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "pointwise": lambda x: x.sin() * 2,
    "detached": lambda x: x * x.detach() + x.sin(),
    "own rule": lambda x: OwnTangents.apply(x).sin(),
    "writes": _writes,
    "writes through a view": _writes_through_a_view,
    "views": lambda x: (x.view(3, 1), x),
}
WAYS: dict[str, Callable[[Any], Any]] = {
    "aot": compile_aot,
    "aot, symbols": lambda f: compile_aot(f, dynamic=True),
    "captured, eager": lambda f: with_options(f, CaptureOptions(backend=eager)),
    "captured, aot_eager": lambda f: with_options(f, CaptureOptions(backend=aot_eager)),
    "captured, triton": lambda f: with_options(f, CaptureOptions(backend=triton)),
}


def _duals(program: Callable[[Tensor], Any], *, requires_grad: bool) -> list[Any]:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones(3, requires_grad=requires_grad) * 1, torch.full((3,), 2.0))
        results = program(dual)
        results = results if isinstance(results, tuple) else (results,)
        return [tuple(forward_ad.unpack_dual(value)) for value in (*results, dual)]


@pytest.mark.fractional
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("way", WAYS)
def test_results_have_the_tangents_of_eager_mode(way: str, program: str, requires_grad: bool, is_first: bool) -> None:
    compiled = WAYS[way](PROGRAMS[program])
    if not is_first:
        compiled(torch.ones(3, requires_grad=requires_grad) * 1)
    found, expected = (_duals(f, requires_grad=requires_grad) for f in (compiled, PROGRAMS[program]))
    torch.testing.assert_close(found, expected)
    result = compiled(torch.ones(3, requires_grad=True) * 1)
    torch.testing.assert_close(result, PROGRAMS[program](torch.ones(3, requires_grad=True) * 1))


@pytest.mark.parametrize("way", WAYS)
def test_function_transforms_of_what_is_compiled(way: str) -> None:
    program = PROGRAMS["pointwise"]
    compiled = WAYS[way](program)
    x = torch.arange(3.0)
    for _ in range(2):
        torch.testing.assert_close(torch.func.jvp(compiled, (x,), (x,)), torch.func.jvp(program, (x,), (x,)))
        torch.testing.assert_close(torch.func.vmap(compiled)(x), program(x))
        gradient = torch.func.grad(lambda x: compiled(x).sum())(x)
        torch.testing.assert_close(gradient, x.cos() * 2)
        compiled(x)


@pytest.mark.parametrize("way", WAYS)
def test_a_level_that_the_program_enters(way: str) -> None:
    def program(x: Tensor) -> Any:
        y: Any = x.cos()
        with forward_ad.dual_level():
            tangent = forward_ad.unpack_dual(forward_ad.make_dual(x, x * 3).sin()).tangent
        return tangent * y

    x = torch.arange(3.0)
    compiled = WAYS[way](program)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), program(x))


@pytest.mark.parametrize("way", WAYS)
def test_a_gradient_that_has_a_tangent(way: str) -> None:
    x = torch.ones(3, requires_grad=True)
    result = WAYS[way](PROGRAMS["pointwise"])(x)
    with forward_ad.dual_level():
        arriving = forward_ad.make_dual(torch.ones(3), torch.full((3,), 2.0))
        if way == "captured, eager":
            (gradient,) = torch.autograd.grad(result, x, arriving)
            torch.testing.assert_close(forward_ad.unpack_dual(gradient).tangent, x.detach().cos() * 4)
            return
        with pytest.raises(UnsupportedByRefimpl, match="a gradient with a tangent"):
            torch.autograd.grad(result, x, arriving)
        torch.autograd.grad(result, x, torch.ones(3))
