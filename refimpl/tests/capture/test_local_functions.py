"""Functions that other functions make: one graph serves all that have the same code, as long as nothing asks which one it is."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

from refimpl.capture.compile import compile
from refimpl.tests.capture.capturing import Recorder, each_of, same

Tensor = torch.Tensor


def calls_what_it_made(x: Tensor) -> Tensor:
    def inner(y: Tensor, *, z: int = 3) -> Tensor:
        return x + y * z

    torch._dynamo.graph_break()
    return inner(torch.ones(1))


def calls_a_lambda(x: Tensor, by: int = 2) -> Tensor:
    scaled = lambda y: x * y + by  # noqa: E731 - what is tested
    torch._dynamo.graph_break()
    return scaled(torch.ones(1))


def hands_it_on(x: Tensor) -> Tensor:
    def inner(y: Tensor) -> Tensor:
        return x - y

    torch._dynamo.graph_break()
    return functools.partial(inner, x)() + inner(x * 2)


@each_of(calls_what_it_made, calls_a_lambda, hands_it_on)
def test_a_function_made_in_each_call_is_captured_once(program: Callable[..., Any]) -> None:
    recorder: Any = Recorder()
    compiled = compile(program, backend=recorder)
    for value in range(4):
        x = torch.full((2,), float(value))
        assert same(compiled(x), program(x))
    assert len(recorder.graphs) == 1


def scaled_by(factor: Any, default: Any = 1) -> Callable[..., Any]:
    def scaled(x: Tensor, more: Any = default) -> Any:
        return x * factor + more

    return scaled


def test_what_it_closes_over_and_its_defaults_are_guarded() -> None:
    def program(function: Callable[..., Any], x: Tensor) -> Any:
        return function(x) + 1

    recorder: Any = Recorder()
    compiled = compile(program, backend=recorder)
    x = torch.ones(2)
    for factor, default in ((2, 1), (2, 1), (3, 1), (2, 5), (3, 1), (x * 4, 1), (x * 5, 1)):
        function = scaled_by(factor, default)
        assert same(compiled(function, x), program(function, x))
    assert len(recorder.graphs) == 4


def another(x: Tensor) -> Tensor:
    return x


def compares(first: Any, second: Any, x: Tensor) -> Any:
    return x + 1, first is second, first == second, first in [second], first in (another, second)


def looks_up(first: Any, second: Any, x: Tensor) -> Any:
    table = {second: 2, another: 3}
    return x + 1, table.get(first, 0), first in {second}


def reads_attributes(first: Any, second: Any, x: Tensor) -> Any:
    names = first.__name__, first.__qualname__, first.__doc__, first.__defaults__, str(inspect.signature(first))
    names = *names, str(first), f"{first}"
    return x + 1, names, callable(second), getattr(first, "extra", None), hasattr(second, "extra")


def returns_it(first: Any, second: Any, x: Tensor) -> Any:
    return first, [second, first], x + 1


@each_of(compares, looks_up, reads_attributes, returns_it)
def test_which_function_it_is_decides_where_that_is_asked(program: Callable[..., Any]) -> None:
    compiled = compile(program, backend="eager", fullgraph=True)
    x = torch.ones(2)
    first, second = scaled_by(2), scaled_by(2)
    renamed: Any = scaled_by(2)
    renamed.__name__ = "renamed"
    marked: Any = scaled_by(2, 7)
    marked.extra = 4
    pairs = [(first, second), (first, first), (second, second), (renamed, first), (marked, first), (first, marked)]
    for pair in pairs:
        assert same(compiled(*pair, x), program(*pair, x))


def test_a_new_default_of_the_same_function_is_seen() -> None:
    def program(function: Any, x: Tensor) -> Any:
        return function(x)

    compiled = compile(program, backend="eager")
    function, x = scaled_by(2), torch.ones(2)
    for default in (1, 4):
        function.__defaults__ = (default,)
        assert same(compiled(function, x), program(function, x))


@pytest.mark.parametrize("by", [torch.enable_grad, torch.no_grad, torch.no_grad()])
def test_a_function_decorated_in_the_graph_sets_the_grad_mode(by: Any) -> None:
    def program(x: Tensor) -> Any:
        def inner(y: Tensor) -> Tensor:
            return y.sin()

        with torch.no_grad():
            inner = by(inner)
            before = torch.is_grad_enabled()
        return inner(x), before, torch.is_grad_enabled()

    x = torch.ones(3, requires_grad=True)
    found, expected = compile(program, backend="eager", fullgraph=True)(x), program(x)
    assert same(found, expected)
    assert found[0].requires_grad == expected[0].requires_grad


def annotated(a: int) -> int:
    """What it does."""
    return a + 1


@pytest.mark.parametrize("is_made", [True, False])
def test_a_wrapper_has_the_annotations_of_what_it_wraps(is_made: bool) -> None:
    def program(x: Any) -> Any:
        def made(a: Tensor, b: int = 1) -> Tensor:
            return a + b

        wrapped: Any = made if is_made else annotated

        @functools.wraps(wrapped)
        def wrapper(c: float) -> Any:
            return wrapped(c)

        return wrapper(x), wrapper, wrapped

    result, wrapper, wrapped = compile(program, backend="eager")(torch.ones(2))
    assert same(result, torch.ones(2) + 1)
    assert wrapper.__annotations__ is wrapped.__annotations__
    assert wrapper.__annotations__ == program(torch.ones(2))[2].__annotations__
    assert wrapper.__doc__ == wrapped.__doc__


def test_a_string_that_a_function_returns_is_not_its_documentation() -> None:
    def program(x: Tensor) -> Any:
        def made() -> str:
            return "not this"

        return x + 1, made.__doc__, (lambda: "nor this").__doc__

    assert compile(program, backend="eager")(torch.ones(2))[1:] == (None, None)


def test_a_function_is_bound_by_its_own_get() -> None:
    def scaled(self: Any, x: torch.Tensor) -> torch.Tensor:
        return x * self["scale"]

    def program(x: torch.Tensor) -> Any:
        def shifted(self: Any, y: torch.Tensor) -> torch.Tensor:
            return y + self["shift"]

        held = {"scale": 3, "shift": 2}
        bound = shifted.__get__(held)
        method = torch.nn.Identity.forward.__get__(None, torch.nn.Identity)
        return bound(scaled.__get__(held, dict)(x)), bound.__self__ is held, method is torch.nn.Identity.forward

    recorder: Any = Recorder()
    x = torch.randn(2)
    found = compile(program, backend=recorder, fullgraph=True)(x)
    assert same(found, program(x))
    assert recorder.targets == ["mul", "add"]


def test_a_function_is_not_bound_to_none_without_a_class() -> None:
    def program(x: torch.Tensor) -> Any:
        try:
            return torch.nn.Identity.forward.__get__(None)
        except TypeError as error:
            return x + 1, str(error)

    x = torch.randn(2)
    assert same(compile(program, backend="eager")(x), program(x))
