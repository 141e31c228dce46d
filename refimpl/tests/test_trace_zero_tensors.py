"""Gradients that are zero whatever arrives: zeros without memory in eager mode, which stay zero in products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from refimpl._torch import FakeTensorMode
from refimpl.pipeline import compile_aot
from refimpl.trace.make_fx import make_fx

PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "plain": lambda x: x.sgn(),
    "a sum": lambda x: x.sum().sgn(),
    "repeated": lambda x: x.repeat_interleave(3).sgn(),
    "expanded": lambda x: x.expand(4, 3).sgn(),
    "a part of several": lambda x: x.unbind()[1].sgn(),
    "times infinity": lambda x: (x * torch.tensor([torch.inf, torch.nan, 1.0])).sgn(),
    "times a view of infinity": lambda x: (x.view(3, 1).t() * torch.full((2, 1), torch.inf)).sgn(),
    "by zero": lambda x: (x / torch.zeros(3)).sgn(),
    "added to a gradient": lambda x: (x * torch.tensor([torch.inf, 1.0, 1.0])).sgn() + x.sin(),
    "half types": lambda x: (x.bfloat16() * torch.inf).sgn().float(),
}


def gradient(function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    x = torch.tensor([0.5, -0.0, 2.0], requires_grad=True)
    result = function(x)
    return (
        torch.autograd.grad(result, x, torch.ones_like(result))[0].clone().tolist()
    )  # they may have no memory to read


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_of_signs(name: str, is_first: bool) -> None:
    """Fake tensors keep what they found out: the second time is another way through them."""
    program = PROGRAMS[name]
    if is_first:
        FakeTensorMode.cache_clear()
    else:
        gradient(compile_aot(program))
    assert gradient(compile_aot(program)) == gradient(program)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_what_is_written_over_them_is_multiplied(mode: Any) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._efficientzerotensor.default([3]).view(1, 3).add_(x).mul(2)

    x = torch.tensor([1.0, 2.0, torch.inf])
    assert make_fx(program, tracing_mode=mode)(x)(x).tolist() == [[2.0, 4.0, torch.inf]]
