"""`x[mask] = y` with a mask of no dimensions: values and gradients for either value of the mask, by one compiled program."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from refimpl.pipeline import compile_aot
from refimpl.tests.agreement import assert_agrees


def number(x: Tensor) -> Any:
    v = x.sum()
    v[v.clone() > 0] = 2
    return v * 3


def tensor(x: Tensor) -> Any:
    x[x.sum() > 0] = x[:1].clone() * 2
    return x.sin()


def longer_tensor(x: Tensor) -> Any:
    v = x * 1
    v[x.sum() > 0] = x.unsqueeze(0).exp()
    return v


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("program", [number, tensor, longer_tensor])
def test_values_and_gradients(program: Any, sign: int) -> None:
    def make() -> Any:
        source = (sign * torch.arange(1.0, 4.0)).requires_grad_()
        return [source], [source * 1]

    assert_agrees(program, make)


def test_one_program_serves_both_values() -> None:
    compiled = compile_aot(number)
    for x in (torch.ones(3), -torch.ones(3)):
        assert torch.equal(compiled(x), number(x))


def test_an_argument_is_written() -> None:
    def program(x: Tensor) -> None:
        x[x.clone() > 0] = -1

    compiled = compile_aot(program)
    for value, expected in ((2.0, -1.0), (-3.0, -3.0)):
        x = torch.tensor(value)
        compiled(x)
        assert x.item() == expected


def test_a_bool_that_decides_is_still_refused() -> None:
    def program(x: Tensor) -> Tensor:
        return x * 2 if (x.sum() > 0).item() else x

    with pytest.raises(RuntimeError, match="data-dependent"):
        compile_aot(program)(torch.ones(2))
