"""Gradients where only some of the incoming ones arrive: nothing is computed of the others, as in eager mode.

Zeros in their place would do in most programs: not where a derivative is infinite, or a backward of the user's adds to them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from refimpl.backends import aot_eager, triton
from refimpl.capture.captured import CaptureOptions
from refimpl.capture.compile import with_options
from refimpl.pipeline import compile_aot
from refimpl.tests.capturing import same


class AddsOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> torch.Tensor:
        return grad_outputs[0] * 2 + 1


def infinite(x: Any, y: Any) -> Any:
    return x.sqrt(), x * 2 + y, y.log()


def own_backward(x: Any, y: Any) -> Any:
    return AddsOne.apply(x), x * y, AddsOne.apply(y * 2)


def parts(x: Any, y: Any) -> Any:
    first, second = x.sqrt().split(2)
    return first, second * y[:2], torch.stack([x, y.log()]).unbind()[1]


def several_sums(x: Any, y: Any) -> Any:
    z = x.log()
    return z + y, (z * y).sin() + z, y.rsqrt() * x


def transposed(x: Any, y: Any) -> Any:
    z = (x.reshape(2, 2).t() * 2).sqrt()
    return z.t(), z * y.reshape(2, 2), x.reshape(2, 2).t().contiguous()


PROGRAMS = (infinite, own_backward, parts, several_sums, transposed)
WAYS: dict[str, Callable[[Any], Any]] = {
    "default": lambda f: compile_aot(f, partition="default"),
    "min_cut": lambda f: compile_aot(f, partition="min_cut"),
    "captured": lambda f: with_options(f, CaptureOptions(backend=aot_eager)),
    "kernels": lambda f: with_options(f, CaptureOptions(backend=triton)),
}


def gradients(function: Any, used: tuple[int, ...]) -> Any:
    x = torch.tensor([0.0, 1.0, 4.0, 0.25], requires_grad=True)
    y = torch.tensor([1.0, 0.0, 2.0, 0.0], requires_grad=True)
    results = function(x, y)
    torch.autograd.backward([results[i].sum() for i in used])
    return [None if leaf.grad is None else torch.nan_to_num(leaf.grad, nan=77.0) for leaf in (x, y)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_only_what_arrives_is_computed(program: Callable[..., Any], way: str) -> None:
    compiled = WAYS[way](program)
    for used in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)):
        assert same(gradients(compiled, used), gradients(program, used)), used


def test_no_gradient_is_none_behind_a_graph_too() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t):  # a break
            z = x.neg()
        return y.neg(), z.neg()

    for function in (program, with_options(program, CaptureOptions(backend=aot_eager))):
        x, y = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
        function(x, y)[0].sum().backward()
        assert x.grad is None
        assert same(y.grad, -torch.ones(1))


def test_results_of_one_op_have_the_gradients_of_their_own_operand() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return torch._foreach_expm1([x, y, y])[2]

    for function in (program, with_options(program, CaptureOptions(backend=aot_eager))):
        leaf = torch.ones(1, requires_grad=True)
        x = leaf.clone()
        function(x, x.detach()).sum().backward()
        assert leaf.grad is None
