"""Gradients of what has no elements: fake kernels divided by their number, and a backward that eager mode gives was an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from refimpl.pipeline import compile_aot
from refimpl.tests.capture.capturing import same

PROGRAMS: dict[str, Callable[..., torch.Tensor]] = {
    "group norm": lambda x, weight, bias: F.group_norm(x, 2),
    "group norm with parameters": lambda x, weight, bias: F.group_norm(x, 2, weight, bias),
    "group norm of a slice": lambda x, weight, bias: F.group_norm(torch.cat([x, x])[x.shape[0] * 2 :], 2, weight, bias),
    "mean squared error": lambda x, weight, bias: F.mse_loss(x, x * 2),
    "smooth error": lambda x, weight, bias: F.smooth_l1_loss(x, x * 2),
    "huber's error": lambda x, weight, bias: F.huber_loss(x, x * 2),
}


def gradients(function: Callable[..., torch.Tensor], x: torch.Tensor) -> list[Any]:
    x = x.detach().clone().requires_grad_()
    weight, bias = (torch.ones(4, requires_grad=True) for _ in range(2))
    found = torch.autograd.grad(function(x, weight, bias).sum(), (x, weight, bias), allow_unused=True)
    return [None if g is None else (g.nan_to_num(7.0), g.stride(), g.dtype) for g in found]


@pytest.mark.fractional
@pytest.mark.parametrize("backend", ["eager", "triton"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_of_nothing(name: str, backend: str) -> None:
    program = PROGRAMS[name]
    for shape in ((2, 4, 0), (0, 4, 3), (2, 4, 0, 3), (1, 4, 0)):
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.ones(shape, dtype=dtype)
            assert same(gradients(compile_aot(program, backend=backend), x), gradients(program, x)), (shape, dtype)


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_of_what_symbols_say_is_nothing(name: str) -> None:
    """The same graph has elements elsewhere."""

    def program(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return PROGRAMS[name](x[..., 2:], weight, bias)

    compiled = compile_aot(program, dynamic=True)
    for length in (2, 3, 5, 2):
        x = torch.zeros(2, 4, length)
        assert same(gradients(compiled, x), gradients(program, x)), length


def test_a_program_may_ask_what_its_gradient_of_nothing_is() -> None:
    def program(x: torch.Tensor) -> list[torch.Tensor]:
        y = F.group_norm(x, 1)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        assert gradient.shape == x.shape
        assert gradient.is_contiguous()
        return [gradient + 1]

    def example() -> torch.Tensor:
        return torch.ones(2, 3, 2, 0).permute(0, 3, 1, 2).requires_grad_()

    assert same(compile_aot(program)(example()), program(example()))
