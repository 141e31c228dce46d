"""Tests of arguments of nodes, such as named tuples and tensors in the place of numbers, and of what is told of arguments."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import has_static_value, is_concrete_int

from refimpl.capture.compile import compile
from refimpl.capture.config import config
from refimpl.capture.entry_points.decorators import allow_in_graph, mark_unbacked
from refimpl.capture.public.errors import Unsupported
from refimpl.tests.capture.capturing import Recorder, captured_with, each_of, same

Tensor = torch.Tensor


@dataclasses.dataclass(frozen=True)
class Weights:
    first: Tensor
    second: Tensor
    scales: list[int] = dataclasses.field(default_factory=lambda: [3])
    more: Any = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Named:
    weights: Weights
    scale: float = 2.0


@dataclasses.dataclass
class Mutable:
    first: Tensor


@dataclasses.dataclass(frozen=True)
class Checked:
    first: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "first", self.first + 1)


class Pair(typing.NamedTuple):
    first: Any
    second: Any


@allow_in_graph
def weighed(weights: Any) -> Tensor:
    return weights.first * weights.scales[0] + weights.second


@allow_in_graph
def weighed_by_name(named: Any) -> Tensor:
    return named.weights.first * named.scale


@allow_in_graph
def added(pair: Any) -> Tensor:
    assert type(pair) is Pair
    return pair.first + pair.second


@allow_in_graph
def first_of(holder: Any) -> Tensor:
    return holder.first * 2


def given_an_instance(x: Tensor) -> Tensor:
    return weighed(Weights(x, x + 1)) + weighed(Weights(x, x, [5], more=(x, None)))


def given_one_in_another(x: Tensor) -> Tensor:
    return weighed_by_name(Named(weights=Weights(x, x), scale=3.0))


def given_a_named_tuple(x: Tensor) -> Tensor:
    return added(Pair(x, x * 2)) + torch.zeros(Pair(2, 2)).sum()


@each_of(given_an_instance, given_one_in_another, given_a_named_tuple)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_arguments_of_a_node(program: Callable[[Tensor], Tensor], backend: str) -> None:
    compiled = compile(program, backend=backend, fullgraph=True)
    for value in (1.0, 2.0):
        x = torch.full((2, 2), value, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        expected, found = program(x), compiled(y)
        assert same(expected, found)
        expected.sum().backward()
        found.sum().backward()
        assert same(x.grad, y.grad)


def test_an_instance_of_the_program() -> None:
    recorder: Any = Recorder()
    compiled = compile(lambda given: weighed(given) + 1, backend=recorder, fullgraph=True)
    for value in (1.0, 2.0):
        given = Weights(torch.full((2,), value), torch.ones(2))
        assert same(compiled(given), weighed(given) + 1)
    assert len(recorder.graphs) == 1


@each_of(lambda x: first_of(Mutable(x)), lambda x: first_of(Checked(x)))
def test_an_object_that_may_change_is_no_argument(program: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(Unsupported, match="is given to a torch function"):
        compile(program, backend="eager", fullgraph=True)(torch.ones(2))
    captured, _, _ = captured_with(program)
    assert same(captured(torch.ones(2)), program(torch.ones(2)))


def test_tensors_in_a_list_of_numbers() -> None:
    def program(x: Tensor, y: Tensor) -> Any:
        return (
            torch.tensor([x, 3, y]),
            torch.tensor([[x], [y]], dtype=torch.float64),
            torch.tensor([x, y.to(torch.bool)]),
        )

    captured, recorder, made = captured_with(program)
    for number in (20, 21):
        given = torch.tensor(number, dtype=torch.int32), torch.tensor(number + 0.5)
        assert same(captured(*given), program(*given))
    assert not made.breaks
    assert len(recorder.graphs) == 1


def test_a_tensor_in_the_place_of_a_number_is_read() -> None:
    def program(a: Tensor, b: Tensor, low: Tensor) -> Any:
        return torch.addcdiv(a, b, b, value=2) + torch.full_like(a, low)  # pyright: ignore[reportArgumentType]

    compiled = compile(program, backend="eager", fullgraph=True)
    for value in (0.25, 0.5):
        given = torch.tensor([0.1, 0.4, 0.9]), torch.ones(3), torch.tensor(value)
        assert same(compiled(*given), program(*given))


def test_the_id_of_a_tensor_is_compared_and_does_not_keep_it() -> None:
    def program(x: Tensor, holder: dict[str, Any], wanted: int) -> Any:
        return x + 1 if id(holder["x"]) == wanted else x - 1

    captured, recorder, made = captured_with(program)
    holder: dict[str, Any] = {"x": torch.ones(2)}
    address = id(holder["x"])
    assert same(captured(torch.ones(2), holder, address), torch.full((2,), 2.0))
    holder["x"], kept = torch.ones(2), holder["x"]
    assert same(captured(torch.ones(2), holder, address), torch.zeros(2))
    assert id(kept) == address
    assert not made.breaks
    assert len(recorder.graphs) == 2


def test_a_gradient_is_assigned() -> None:
    def program(x: Tensor, leaf: Tensor) -> Any:
        y = x + 10
        y.grad = x * 2
        leaf.grad = y.grad + 1
        return y, leaf.grad

    captured, _, made = captured_with(program)
    for value in (1.0, 2.0):
        leaves = [torch.ones(2, requires_grad=True) for _ in range(2)]
        x = torch.full((2,), value)
        (y, gradient), (expected, wanted) = captured(x, leaves[0]), program(x, leaves[1])
        assert same([y, y.grad, gradient, leaves[0].grad], [expected, expected.grad, wanted, leaves[1].grad])
        assert leaves[0].grad is gradient
    assert not made.breaks


@each_of(
    lambda x: setattr(x + 1, "grad", x.sum()), lambda x: setattr(x + 1, "grad", x.double()),
    lambda x: setattr(x + 1, "grad", 1),
)  # fmt: skip
def test_a_gradient_that_torch_refuses(program: Callable[[Tensor], Any]) -> None:
    captured, _, _ = captured_with(program)
    for function in (program, captured):
        with pytest.raises((RuntimeError, TypeError)):
            function(torch.ones(2))


def test_what_is_known_of_a_number_is_no_constant() -> None:
    def program(x: Tensor) -> Any:
        return x + 1, has_static_value(x.shape[0]), is_concrete_int(x.shape[0]), has_static_value(4.0)

    compiled = compile(program, backend="eager", fullgraph=True, dynamic=True)
    assert compiled(torch.ones(5))[1:] == (False, False, True)


def test_a_divisor_that_is_read_is_asserted_not_to_be_zero() -> None:
    def program(x: Tensor) -> Any:
        first, second = x.tolist()
        return torch.zeros(2) + first // (first + second)

    with config.patch(capture_scalar_outputs=True):
        compiled = compile(program, backend="eager", fullgraph=True)
        assert same(compiled(torch.tensor([6, -3])), program(torch.tensor([6, -3])))
        with pytest.raises((RuntimeError, ZeroDivisionError)):
            compiled(torch.tensor([3, -3]))


def test_a_strictly_unbacked_size_that_is_specialized() -> None:
    x = torch.ones(5, 5)
    mark_unbacked(x, 0)
    assert same(compile(lambda x, y: x * y, backend="eager", fullgraph=True)(x, torch.ones(5, 5)), torch.ones(5, 5))
    mark_unbacked(x, 0, strict=True)
    with pytest.raises(RuntimeError, match="specialized to 5"):
        compile(lambda x, y: y * x, backend="eager", fullgraph=True)(x, torch.ones(5, 5))


def test_sources_that_are_symbols_from_the_first_call_on() -> None:
    recorder: Any = Recorder()
    compiled = compile(lambda x: torch.ones(5) * x, backend=recorder)
    with config.patch(dynamic_sources="L['x']"):
        for number in (1, 2, 0):
            assert same(compiled(number), torch.ones(5) * number)
    assert len(recorder.graphs) == 1
