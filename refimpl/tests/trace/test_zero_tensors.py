"""Gradients that are zero whatever arrives: zeros without memory in eager mode, which stay zero in products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

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
    # They may have no memory to read.
    return torch.autograd.grad(result, x, torch.ones_like(result))[0].clone().tolist()


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


# Autograd takes zeros without memory for the tangents of numbers too.
OF_NUMBERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a product": lambda x: x * 2,
    "a sum": lambda x: x + 1.5,
    "a sum of a product": lambda x: torch.add(x, 1, alpha=3),
    "a quotient": lambda x: 2.0 / x,
    "a truth value": lambda x: x * True,
    "a complex number": lambda x: torch.view_as_real(x * 2j + (1 + 1j)),
    "without dimensions": lambda x: torch.add(x.bfloat16().sum() * 2.5, 1.5, alpha=2),
    "in place": lambda x: x.sin().mul_(2).add_(1, alpha=3),
    "infinite": lambda x: x / 0.0 * 2,
    "times infinity": lambda x: x * torch.inf,
    "of a list": lambda x: torch._foreach_mul([x], 2.0)[0],
}
TRACED: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "real": lambda program, x: make_fx(program)(x),
    "fake": lambda program, x: make_fx(program, tracing_mode="fake")(x),
    "symbolic": lambda program, x: make_fx(program, tracing_mode="symbolic")(x),
    "aot": lambda program, x: compile_aot(program),
}


def with_tangent(program: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], Any]:
    def both(x: torch.Tensor) -> Any:
        with forward_ad.dual_level():
            primal, tangent = forward_ad.unpack_dual(program(forward_ad.make_dual(x, x.cos())))
            assert tangent is not None
            return primal * 1, tangent * 1

    return both


@pytest.mark.fractional
@pytest.mark.parametrize("way", TRACED)
@pytest.mark.parametrize("name", OF_NUMBERS)
def test_tangents_beside_numbers(name: str, way: str) -> None:
    program = with_tangent(OF_NUMBERS[name])
    x = torch.tensor([0.5, -1.0, torch.inf])
    torch.testing.assert_close(TRACED[way](program, x)(x), program(x), equal_nan=True)


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_tangents_of_numbers_are_numbers_in_a_graph(mode: Any) -> None:
    graph = make_fx(with_tangent(OF_NUMBERS["a sum"]), tracing_mode=mode)(torch.ones(3)).graph
    (added,) = [
        n.args[1] for n in graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor) if n.args[1] != 1.5
    ]
    assert type(added) is float
