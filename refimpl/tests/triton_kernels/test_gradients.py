"""Gradients of programs that launch Triton kernels are eager mode's: autograd does not see what a kernel writes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import refimpl

pytest.importorskip("triton")

from refimpl.tests.triton_kernels.programs import Program, kernels

PROGRAMS: dict[str, Program] = {}
ROADS: dict[str, Callable[[Program], Program]] = {
    "compile": lambda function: refimpl.compile(function, fullgraph=True, backend="aot_eager"),
    "compile_aot": refimpl.compile_aot,
}


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


@program
def result_has_no_history(x: Any, y: Any) -> Any:
    return kernels.add(x, y) * 2


@program
def other_results_have_a_history(x: Any, y: Any) -> Any:
    return kernels.add(x, y) * x + y


@program
def an_intermediate_keeps_its_history(x: Any, y: Any) -> Any:
    z = x * y
    kernels.scale_kernel[(2,)](z, 20, 2.0)
    return z.sin()


@program
def a_leaf_is_written(x: Any, y: Any) -> Any:
    kernels.scale_kernel[(2,)](x, 20, 2.0)
    return x * y


@program
def a_view_of_a_leaf_is_written(x: Any, y: Any) -> Any:
    kernels.scale_kernel[(1,)](x[3:], 5, 2.0)
    return x * y


@program
def a_saved_leaf_is_written(x: Any, y: Any) -> Any:
    """The backward of `sin` reads what the kernel has written, since autograd does not count the write."""
    z = x.sin()
    kernels.scale_kernel[(2,)](x, 20, 2.0)
    return z * y


@program
def a_saved_intermediate_is_written(x: Any, y: Any) -> Any:
    z = x * y
    w = z.sin()
    kernels.scale_kernel[(2,)](z, 20, 2.0)
    return w + z


@program
def a_saved_result_is_written(x: Any, y: Any) -> Any:
    z = (x / 10).exp()
    kernels.scale_kernel[(2,)](z, 20, 2.0)
    return z * y


@program
def a_saved_view_is_written(x: Any, y: Any) -> Any:
    z = x * y
    v = z[4:]
    w = v.exp()
    kernels.scale_kernel[(1,)](v, 6, 2.0)
    return w.sum() + z


@program
def a_write_of_the_program_comes_after(x: Any, y: Any) -> Any:
    z = x * y
    kernels.scale_kernel[(1,)](z, 6, 2.0)
    z.mul_(y)
    return z


@program
def a_result_that_is_saved_is_written_again(x: Any, y: Any) -> Any:
    out = kernels.add(x, y)
    found = out * y
    kernels.scale_kernel[(1,)](out, 6, 2.0)
    return found


@program
def without_gradients(x: Any, y: Any) -> Any:
    with torch.no_grad():
        z = x * 2
        kernels.scale_kernel[(1,)](z, 5, 2.0)
    return z * y


class AddedByKernels(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        ctx.save_for_backward(x)
        return kernels.add(x, y)

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> Any:
        (x,) = ctx.saved_tensors
        out = torch.empty_like(x)
        kernels.add_kernel[(3,)](tangents[0], x, out, 20, BLOCK=8)
        return out, tangents[0]


@program
def in_an_autograd_function(x: Any, y: Any) -> Any:
    return AddedByKernels.apply(x, y) * x


@program
def in_a_checkpoint(x: Any, y: Any) -> Any:
    return checkpoint(lambda a: kernels.add(a, a).sin() * a, x, use_reentrant=False) + y


@program
def through_an_operator_with_gradients(x: Any, y: Any) -> Any:
    return kernels.differentiable_operator(x, y) * x


def seen(function: Program) -> list[Any]:
    """Result, whether it has a history, the leaf afterwards, its version, and gradients. No warning is allowed."""
    x = torch.arange(20.0).requires_grad_()
    y = torch.linspace(-1, 1, 20).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = function(x, y)
        if result.requires_grad:
            result.sum().backward()
    return [result.detach(), result.requires_grad, x.detach(), x._version, x.grad, y.grad]


@pytest.mark.fractional
@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_those_of_eager_mode(name: str, road: str) -> None:
    expected, actual = seen(PROGRAMS[name]), seen(ROADS[road](PROGRAMS[name]))
    for one, other in zip(expected, actual, strict=True):
        if isinstance(one, torch.Tensor):
            torch.testing.assert_close(other, one)
        else:
            assert other == one
