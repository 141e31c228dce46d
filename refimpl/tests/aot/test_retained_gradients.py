"""Programs that call `retain_grad`: if the caller could see the effect, AOT compile refuses and capture breaks the graph."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from refimpl.backends import aot_eager
from refimpl.capture.captured import CaptureOptions
from refimpl.capture.compile import with_options
from refimpl.errors import UnsupportedByRefimpl
from refimpl.pipeline import compile_aot
from refimpl.tests.aot.test_hooks import leaf

Tensor = torch.Tensor


def _retained(x: Tensor) -> Tensor:
    y = x * 2
    y.retain_grad()
    return y


def _retained_and_written(x: Tensor) -> Tensor:
    y = _retained(x)
    y.mul_(3)
    return y


def _retained_view(x: Tensor) -> Tensor:
    y = (x * 2).view(-1)
    torch.Tensor.retain_grad(y)
    return y


@pytest.mark.parametrize("make", [_retained, _retained_and_written, _retained_view])
def test_gradients_that_the_program_retains(make: Callable[[Tensor], Tensor]) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = make(x)
        return y, y.sin()

    with pytest.raises(UnsupportedByRefimpl, match="retain_grad"):
        compile_aot(program)(leaf())
    found = []
    for function in (program, with_options(program, CaptureOptions(backend=aot_eager))):
        x = leaf()
        y, z = function(x)
        (y.sum() + z.sum()).backward()
        assert y.grad is not None
        found.append((x.grad, y.grad))
    torch.testing.assert_close(found[0], found[1])


def test_an_argument_whose_gradient_the_program_retains() -> None:
    def program(x: Tensor) -> Tensor:
        x.retain_grad()
        return x.sin()

    with pytest.raises(UnsupportedByRefimpl, match="retain_grad"):
        compile_aot(program)(leaf() * 1)


def test_gradients_retained_by_what_nobody_sees() -> None:
    def program(x: Tensor) -> Tensor:
        return _retained_and_written(x).sin()

    gradients = []
    for function in (program, compile_aot(program)):
        x = leaf()
        function(x).sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(gradients[0], gradients[1])


def test_a_leaf_retains_its_gradient_anyway() -> None:
    def program(x: Tensor) -> Tensor:
        x.retain_grad()
        return x.sin()

    x = leaf()
    compile_aot(program)(x).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, x.detach().cos())
