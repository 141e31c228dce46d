"""Tests of exports of programs that use torch.func: another input than the exported one gives eager's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.func
from torch.func import functional_call, grad, jacfwd, jacrev, jvp, vmap

from refimpl import export
from refimpl._torch import transform_depth

vjp: Any = torch.func.vjp  # which returns two or three objects
LAYER = torch.nn.Linear(3, 2)


def products(x: Any) -> Any:
    """The function that vjp returns is called outside of the transform, and keeps tensors of it."""
    out, product = vjp(lambda a: (a.sin(), (a**2).sum()), x)
    return out, product(out), product((x, torch.ones(())))


def per_sample(x: Any) -> Any:
    parameters = {name: parameter.detach() for name, parameter in LAYER.named_parameters()}
    return vmap(grad(lambda p, row: functional_call(LAYER, p, (row,)).tanh().sum()), in_dims=(None, 0))(parameters, x)


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "vmap": lambda x: vmap(lambda a, b: a * b.sum(), in_dims=(0, 1), out_dims=1)(x, x),
    "vmap in chunks": lambda x: vmap(lambda a: a.softmax(0), chunk_size=2)(x),
    "grad": lambda x: grad(lambda a: (a.sin() * x).sum())(x),
    "vmap of grad": lambda x: vmap(grad(lambda a: (a**3).sum()))(x),
    "vjp": products,
    "jvp": lambda x: jvp(lambda a: a.sin() * a, (x,), (x + 1,)),
    "jacobians": lambda x: (jacrev(torch.sin)(x[0]), jacfwd(torch.exp)(x[0]), jacrev(torch.sin, chunk_size=1)(x[0])),
    "gradients per sample": per_sample,
    "cond in vmap": lambda x: vmap(lambda a: torch.cond(a.sum() > 0, torch.sin, torch.cos, (a,)))(x),
}


class Called(torch.nn.Module):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function
        self.layer = LAYER

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


@pytest.mark.fractional
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("strict", [False, True])
def test_an_export_computes_what_eager_computes(name: str, strict: bool) -> None:
    module, x = Called(PROGRAMS[name]), torch.linspace(-1.0, 2.0, 9).reshape(3, 3)
    exported = export.export(module, (x,), strict=strict).module()
    assert not transform_depth()
    for given in (x, x.flip(0) + 0.5):
        torch.testing.assert_close(exported(given), module(given))


def test_a_failed_export_leaves_its_transforms() -> None:
    def program(x: Any) -> Any:
        return vmap(lambda a: a if a.sum() > 0 else -a)(x)

    for strict in (False, True):
        with pytest.raises(RuntimeError):
            export.export(Called(program), (torch.ones(2, 3),), strict=strict)
        assert not transform_depth()
