"""A gradient that has a derivative in eager mode requires a gradient, and its derivative is an error; no other does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from refimpl.aot.errors import DoubleBackward
from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.pipeline import compile_aot
from refimpl.trace.options import DecompositionTable

DECOMPOSITIONS = {"not decomposed": {}, "decomposed": codegen_decompositions()}


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        return grad_outputs[0] * 2 * ctx.saved_tensors[0]


class SquareOnce(Square):
    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        return grad_outputs[0] * 2 * ctx.saved_tensors[0].detach()


PROGRAMS = {
    "of an intermediate": lambda x, w, c: (x * 2).sin() + w,
    "linear": lambda x, w, c: x * 2 + w * c,
    "product": lambda x, w, c: x * w,
    "of a product with data": lambda x, w, c: (x * c).sin() + w * 2,
    "of matrices": lambda x, w, c: (x.outer(w) @ c).sin(),
    "of a result": lambda x, w, c: x.relu() * 2 + w.sigmoid(),
    "of masks": lambda x, w, c: torch.maximum(x, c) + torch.where(x > 0, w, 0),
    "of detached": lambda x, w, c: x * (w * 2).detach() + w,
    "in place": lambda x, w, c: (x * 2).mul_(w).cos_(),
    "normalized": lambda x, w, c: F.layer_norm(x, (3,), w),
    "picked": lambda x, w, c: F.cross_entropy(x[None], torch.tensor([1])) + w[1:].sum(),
    "of a user's": lambda x, w, c: Square.apply(x) + w,
    "of a user's that detaches": lambda x, w, c: SquareOnce.apply(x) + w,
}


def gradients(function: Any, inputs: list[torch.Tensor], *, first_alone: bool = False) -> list[torch.Tensor]:
    results = function(*inputs, torch.tensor([1.0, 0.5, 2.0]))
    results = results if isinstance(results, tuple) else (results,)
    used = [result.sum() for result in (results[:1] if first_alone else results)]
    return list(torch.autograd.grad(used, inputs, create_graph=True))


def leaves() -> list[torch.Tensor]:
    return [torch.tensor([0.5, -1.0, 2.0], requires_grad=True), torch.tensor([1.0, 2.0, 3.0], requires_grad=True)]


@pytest.mark.fractional
@pytest.mark.parametrize("partition", ["default", "min_cut", None])
@pytest.mark.parametrize("decompositions", DECOMPOSITIONS.values(), ids=DECOMPOSITIONS)
@pytest.mark.parametrize("is_leaf", [True, False])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_gradients_require_gradients_as_in_eager_mode(
    program: Any, is_leaf: bool, decompositions: DecompositionTable, partition: Any
) -> None:
    compiled = compile_aot(program, partition=partition, decompositions=decompositions)
    inputs = leaves() if is_leaf else [leaf * 1 for leaf in leaves()]
    expected = gradients(program, inputs)
    actual = gradients(compiled, inputs)
    assert [g.requires_grad for g in actual] == [g.requires_grad for g in expected]
    torch.testing.assert_close(actual, expected)
    for gradient in actual:
        if gradient.requires_grad:
            with pytest.raises(DoubleBackward):
                torch.autograd.grad(gradient.sum(), inputs, allow_unused=True, retain_graph=True)


@pytest.mark.parametrize("partition", ["default", "min_cut"])
def test_it_hangs_on_which_results_are_used(partition: Any) -> None:
    def program(x: Any, w: Any, c: Any) -> Any:
        return x * 2 + w, (x * w).sin()

    compiled = compile_aot(program, partition=partition)
    for first_alone, is_required in ((True, [False, False]), (False, [True, True])):
        for function in (program, compiled):
            found = gradients(function, leaves(), first_alone=first_alone)
            assert [g.requires_grad for g in found] == is_required


@pytest.mark.parametrize("partition", ["default", "min_cut"])
def test_a_penalty_of_a_gradient_is_an_error_and_not_left_out(partition: Any) -> None:
    x = torch.tensor([0.5, -1.0], requires_grad=True)
    y = x * 1
    result = compile_aot(lambda y: (y * 2).sin(), partition=partition)(y).sum()
    (gradient,) = torch.autograd.grad(result, y, create_graph=True)
    with pytest.raises(DoubleBackward):
        torch.autograd.grad(result + (gradient**2).sum(), x)


def test_a_gradient_of_an_incoming_gradient_is_an_error() -> None:
    x, incoming = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    (gradient,) = torch.autograd.grad(compile_aot(lambda x: x * 2)(x), x, incoming, create_graph=True)
    assert gradient.requires_grad
    with pytest.raises(DoubleBackward):
        torch.autograd.grad(gradient.sum(), incoming)
