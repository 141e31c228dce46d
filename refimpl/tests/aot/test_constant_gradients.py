"""Backwards of `autograd.Function` that return constants or saved tensors, if only some results get a tangent."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from refimpl.backends import aot_eager
from refimpl.backends.triton import triton
from refimpl.capture.captured import CaptureOptions
from refimpl.capture.compile import with_options
from refimpl.errors import UnsupportedByRefimpl
from refimpl.pipeline import compile_aot

Tensor = torch.Tensor
BACKWARDS: dict[str, Callable[..., Any]] = {
    "ones": lambda x, first, second: torch.ones(3),
    "saved": lambda x, first, second: x * 5,
    "the input": lambda x, first, second: x,
    "zeros": lambda x, first, second: torch.zeros(3),
    "like what arrives": lambda x, first, second: torch.ones_like(second),
    "more than what arrives": lambda x, first, second: first + 1,
    "what arrives": lambda x, first, second: first * 2 + second,
    "nothing": lambda x, first, second: None,
}


def _function(backward: Callable[..., Any]) -> Any:
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            ctx.save_for_backward(x)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx: Any, *grad_outputs: Any) -> Any:
            return backward(*ctx.saved_tensors, *grad_outputs)

    return Function


PROGRAMS: dict[str, Callable[[Any, Tensor], Any]] = {
    "beside another": lambda f, x: (f.apply(x)[0], x.sin()),
    "both results": lambda f, x: (*f.apply(x), x * 5),
    "beside zeros": lambda f, x: (lambda y: (y[0] + x.sgn(), y[1], x * 5))(f.apply(x)),
    "inside": lambda f, x: (lambda y: (f.apply(y)[1] * 3, y.sin()))(x * 3),
    "twice": lambda f, x: (f.apply(x)[0] * 2, f.apply(x.sin())[1] * 3, x * 5),
    "of itself": lambda f, x: (f.apply(f.apply(x)[0])[0], x * 5),
    "behind each": lambda f, x: (lambda y: (y.sin(), y.cos()))(f.apply(x)[0]),
}
WAYS: dict[str, Callable[[Any], Any]] = {
    "default": lambda f: compile_aot(f, partition="default"),
    "min_cut": lambda f: compile_aot(f, partition="min_cut"),
    "captured": lambda f: with_options(f, CaptureOptions(backend=aot_eager)),
}


def _gradient(program: Callable[[Tensor], Any], used: tuple[int, ...]) -> Tensor | None:
    x = torch.tensor([0.5, 1.0, 2.0], requires_grad=True)
    results = program(x)
    torch.stack([results[index].sum() for index in used]).sum().backward()
    return x.grad


@pytest.mark.fractional
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("backward", BACKWARDS)
def test_gradients_are_eager_modes_for_every_choice_of_results(backward: str, program: str, way: str) -> None:
    function = _function(BACKWARDS[backward])

    def run(x: Tensor) -> Any:
        return PROGRAMS[program](function, x)

    compiled = WAYS[way](run)
    count = len(run(torch.ones(3)))
    for size in range(1, count + 1):
        for used in itertools.combinations(range(count), size):
            expected, found = _gradient(run, used), _gradient(compiled, used)
            assert (expected is None) == (found is None), used
            if expected is not None and found is not None:
                torch.testing.assert_close(found, expected)


def _rectified(x: Tensor, first: Tensor) -> Tensor:
    left = first.clone()
    left[x < 1] = 0
    return left


# Of what arrives: zeros of zeros.
SCALING: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "itself": lambda x, first: first,
    "times a number": lambda x, first: first * 3,
    "times values": lambda x, first: x.cos() * first + first / 2,
    "where": lambda x, first: torch.where(x > 1, first, torch.zeros_like(first)),
    "rectified": _rectified,
    "masked": lambda x, first: first.masked_fill(x > 1, 0),
    "within limits": lambda x, first: first.clamp(-1, 1),
    "by parts": lambda x, first: torch.stack([first[0], first[1:].sum(), first[2]]),
    "by a matrix": lambda x, first: torch.outer(x, x) @ first,
}
ADDING: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a number": lambda x, first: first + 1,
    "values": lambda x, first: first - x,
    "ones where": lambda x, first: torch.where(x > 1, first, torch.ones_like(first)),
    "within other limits": lambda x, first: first.clamp(1, 2),
    "a cosine": lambda x, first: first.cos(),
    "ones": lambda x, first: torch.ones(3),
}


def _beside_a_view(backward: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor], Any]:
    """Zeros of the size of all of it are made of nothing that is there."""
    function = _function(lambda x, first, second: backward(x, first))
    return lambda x: (function.apply(x)[0][1:], x.sin())


@pytest.mark.parametrize("backward", [*SCALING, *ADDING])
def test_no_zeros_stand_for_gradients_where_sizes_are_symbols(backward: str) -> None:
    run = _beside_a_view({**SCALING, **ADDING}[backward])
    compiled = compile_aot(run, dynamic=True)
    for used in ((0,), (1,), (0, 1)):
        torch.testing.assert_close(_gradient(compiled, used), _gradient(run, used))


# For what a TwoTensor can do.
OF_WRAPPERS = {
    name: backward for name, backward in {**SCALING, **ADDING}.items() if name not in ("rectified", "by parts")
}
OF_WRAPPERS["ones like it"] = lambda x, first: torch.ones_like(first)


@pytest.mark.parametrize("backward", OF_WRAPPERS)
def test_of_wrapper_subclasses_too(backward: str) -> None:
    function = _function(lambda x, first, second: OF_WRAPPERS[backward](x, first))

    def run(x: Tensor) -> Any:
        return function.apply(x)[0], x * 3

    def gradient(program: Callable[[Tensor], Any], *used: int) -> Tensor:
        x: Any = TwoTensor(torch.tensor([0.5, 1.0, 2.0]), torch.tensor([0.0, 3.0, 1.0])).requires_grad_()
        results = program(x)
        (found,) = torch.autograd.grad([results[index].sum() for index in used], x)
        return torch.stack([getattr(found, "a", found), getattr(found, "b", found)])

    compiled = compile_aot(run)
    for used in ((0,), (0, 1), (1,)):
        if used == (1,) and backward not in SCALING:
            with pytest.raises(UnsupportedByRefimpl, match="whose results get no gradient"):
                gradient(compiled, *used)
        else:
            torch.testing.assert_close(gradient(compiled, *used), gradient(run, *used))


@pytest.mark.parametrize("kinds", [(False, True), (True, False), (True, True)])
def test_gradients_given_unread_beside_wrapper_subclasses(kinds: tuple[bool, bool]) -> None:
    """The gradients of `x ** 0` are zeros, not None."""

    def run(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x**0, x * y, y**0

    def gradients(program: Callable[..., Any], used: tuple[int, ...]) -> list[Any]:
        values: list[Any] = [torch.tensor([0.5, 1.0, 2.0]) for _ in kinds]
        leaves = [
            TwoTensor(value, value + 1) if is_wrapper else value
            for value, is_wrapper in zip(values, kinds, strict=True)
        ]
        results = program(*[leaf.requires_grad_() for leaf in leaves])
        found = torch.autograd.grad([results[index].sum() for index in used], leaves, allow_unused=True)
        return [None if g is None else [getattr(g, "a", g), getattr(g, "b", g)] for g in found]

    compiled = compile_aot(run)
    for used in ((0,), (1,), (2,), (0, 2), (0, 1)):
        torch.testing.assert_close(gradients(compiled, used), gradients(run, used))


@pytest.mark.parametrize("arriving", [float("nan"), float("inf"), 0.0])
def test_its_values_are_kept_whatever_arrives(arriving: float) -> None:
    values = torch.tensor([-0.0, float("-inf"), 3.0])
    function = _function(lambda x, first, second: values * 1)

    def run(x: Tensor) -> Any:
        return function.apply(x)[0], x.sin()

    x = torch.ones(3, requires_grad=True)
    result = with_options(run, CaptureOptions(backend=triton))(x)[0]
    (gradient,) = torch.autograd.grad(result, x, torch.full((3,), arriving))
    assert torch.equal(gradient, values)
    assert torch.equal(gradient.signbit(), values.signbit())


class UsesUp(torch.autograd.Function):
    """Its backward can run once, and reads nothing that arrives."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.factors = [3]
        return x * 1

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> torch.Tensor:
        return torch.ones(2) * ctx.factors.pop()


def test_a_backward_of_the_user_s_is_asked_once() -> None:
    compiled = compile_aot(lambda x: (UsesUp.apply(x), x**2))
    for _ in range(2):
        x = torch.ones(2, requires_grad=True)
        first, second = compiled(x)
        (gradient,) = torch.autograd.grad(first.sum() + second.sum(), x)
        assert gradient.tolist() == [5, 5]
