"""Gradients that are constants, such as the zeros of `sgn`: they are added to other gradients only if their tangent arrives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from refimpl.backends import aot_eager
from refimpl.backends.triton import triton
from refimpl.capture.captured import CaptureOptions
from refimpl.capture.compile import with_options
from refimpl.pipeline import compile_aot
from refimpl.tests.capture.capturing import same

WAYS: dict[str, Callable[[Any], Any]] = {
    "default": lambda f: compile_aot(f, partition="default"),
    "min_cut": lambda f: compile_aot(f, partition="min_cut"),
    "captured": lambda f: with_options(f, CaptureOptions(backend=aot_eager)),
    "kernels": lambda f: with_options(f, CaptureOptions(backend=triton)),
}
CONSTANT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sgn": torch.sgn,
    "sgn twice": lambda x: x.sgn().exp().sgn(),
    "sgn of a part": lambda x: x[0].sgn(),
    "power": lambda x: x**0,
    "angle": torch.angle,  # not a number, where the argument is none
}
REDUCED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(),
    "row": lambda x: x[0].sum(),
    "amax": lambda x: x[:, :1].amax(),
}


@pytest.mark.fractional
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("constant", CONSTANT)
def test_a_constant_is_not_added_where_nothing_arrives_for_it(constant: str, way: str) -> None:
    for reduced in REDUCED.values():

        def program(x: torch.Tensor) -> Any:
            y = x.swapaxes(1, 0)
            return y, CONSTANT[constant](y), reduced(y)  # noqa: B023

        compiled = WAYS[way](program)
        for layout in ((3, 1), (1, 2)):
            x = torch.tensor([1.0, -2, 3, 4, 5, torch.nan]).as_strided((2, 3), layout).requires_grad_()
            (expected,), (actual,) = (torch.autograd.grad(function(x)[2], x) for function in (program, compiled))
            assert same(actual, expected)
            assert actual.stride() == expected.stride()


@pytest.mark.fractional
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("constant", CONSTANT)
def test_nothing_is_computed_of_others_where_a_constant_is_given_alone(constant: str, way: str) -> None:
    """Zeros in their place would do no harm but for a derivative that is infinite."""

    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        a, b = x.swapaxes(1, 0), y.t()
        return CONSTANT[constant](a), a.sqrt(), b.sgn(), a.sum() + b.sum()

    compiled = WAYS[way](program)
    for used in ([0], [0, 2], [0, 3], [1], [1, 2], [2], [2, 3], [0, 1, 2, 3]):
        found = []
        for function in (program, compiled):
            x, y = torch.tensor([[0.0, 1, 2], [3, 4, 5]], requires_grad=True), torch.ones(2, 3, requires_grad=True)
            made = function(x, y)
            incoming = [torch.ones_like(made[i]) for i in used]
            gradients = torch.autograd.grad([made[i] for i in used], [x, y], incoming, allow_unused=True)
            found.append(
                [None if one is None else ((one + torch.zeros(2, 3)).tolist(), one.stride()) for one in gradients]
            )
        assert found[0] == found[1], used
