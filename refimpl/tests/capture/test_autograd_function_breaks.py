"""Tests of `torch.autograd.Function` in captured code where it is no node: eager runs it."""

# pyright: reportIncompatibleMethodOverride=false
from __future__ import annotations

from typing import Any

import pytest
import torch

from refimpl.capture.public.errors import Unsupported
from refimpl.tests.capture.capturing import captured_with, same

FACTOR = torch.tensor([2.0, 3.0, 4.0, 5.0])


calls: list[int] = []


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2


class Turned(torch.autograd.Function):
    """Its backward applies it."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.flip(0)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return Turned.apply(gradient)


class Counting(Doubling):
    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        calls.append(1)
        return gradient * 2


class Asking(Doubling):
    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * (3 if torch.is_grad_enabled() else 2)


class Strided(Doubling):
    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * (3 if gradient.is_contiguous() else 2)


class Written(torch.autograd.Function):
    """Writes to its argument and does not say so."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        x.mul_(3)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * 5


class Global(torch.autograd.Function):
    """Gives a tensor that is no argument: autograd changes that tensor itself."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return FACTOR[0] if x.shape[0] < 0 else OTHER

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * 5


class Boxed(torch.autograd.Function):
    """Gives tensors that autograd does not see."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2 if x.dim() > 1 else [x * 2, x * 3]

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient


class Raising(Doubling):
    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        raise ArithmeticError


OTHER = torch.ones(2)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (Counting, "effect_in_branch"),
        (Asking, "unsupported_operation"),
        (Strided, "unsupported_operation"),
        (Written, "operator_mutates"),
        (Global, "unsupported_operation"),
        (Raising, "exception_leaves"),
        (Turned, "unsupported_operation"),
    ],
    ids=lambda case: getattr(case, "__name__", case),
)
def test_what_is_no_node_is_run_as_it_is(function: Any, reason: str) -> None:
    def program(x: Any) -> Any:
        seen = [1]
        y = x * 2
        z = function.apply(y)
        seen.append(2)
        return z, y, seen

    captured, _, options = captured_with(program)
    for _ in range(2):
        results = []
        for run in (program, captured):
            del calls[:]
            OTHER.detach_()
            x = torch.ones(2, requires_grad=True)
            z, y, seen = run(x)
            try:
                gradient = torch.autograd.grad(z.sum(), y)[0]
            except ArithmeticError as error:
                gradient = type(error)
            results.append((z.detach().clone(), y.detach(), gradient, seen, [*calls]))
        assert same(*results)
    assert options.breaks[0].kind.name == reason
    refused, _, _ = captured_with(program, fullgraph=True)
    OTHER.detach_()
    with pytest.raises(Unsupported, match=options.breaks[0].kind.id):
        refused(torch.ones(2, requires_grad=True))


def test_tensors_in_a_list_that_comes_out_have_no_gradient() -> None:
    def program(x: Any) -> Any:
        first, second = Boxed.apply(x)
        return first + 1, second, first.requires_grad

    captured, _, options = captured_with(program)
    for _ in range(2):
        x = torch.ones(2, requires_grad=True)
        assert same(captured(x), program(x))
    assert options.breaks
    refused, _, _ = captured_with(program, fullgraph=True)
    with pytest.raises(Unsupported, match="gives tensors in it"):
        refused(torch.ones(2, requires_grad=True))
