"""Class statements in captured functions: what only defines names costs no graph, what does more runs when the program says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from refimpl.tests.capture.capturing import IN_EVERY_MODE, assert_same_as_eager, captured_with, each_of

MADE: list[str] = []


class Registry:
    """A base that notes what derives from it."""

    def __init_subclass__(cls) -> None:
        MADE.append(cls.__name__)


def unused(x: torch.Tensor) -> Any:
    scale = x.shape[0]

    class Plan:
        """Not needed."""

        kind = "plan"

        @staticmethod
        def times(y: Any, by: int = 2, *, plus: int = 1) -> Any:
            return y * by * scale + plus

        @property
        def name(self) -> str:
            return "plan"

    return x.sin() + scale


def given_back(x: torch.Tensor) -> Any:
    scale = x.shape[0]

    class Base:
        def run(self, y: Any) -> Any:
            return y + 1

    class Plan(Base):
        factor = 3

        @staticmethod
        def times(y: Any, by: int = 2, *, plus: int = 1) -> Any:
            return y * by * scale + plus

        @classmethod
        def again(cls, y: Any) -> Any:
            return Plan.times(y, cls.factor)

        def run(self, y: Any) -> Any:
            return super().run(y) * 2

    return x.sin(), Plan


def given_back_and_called(x: torch.Tensor) -> Any:
    y, plan = given_back(x)
    mro = [class_.__qualname__ for class_ in plan.__mro__]
    return y, plan.times(x), plan.again(x), plan().run(x), mro, plan.__module__, plan.__doc__


def used_at_once(x: torch.Tensor) -> Any:
    class Holder:
        def __init__(self, held: Any) -> None:
            self.held = held

        def get(self) -> Any:
            return self.held * 2

    return Holder(x.sin()).get().cos(), isinstance(x, Holder)


def differentiated(x: torch.Tensor) -> Any:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, y: torch.Tensor) -> torch.Tensor:
            return y * 2

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return grads[0] * 3

    y = x.detach().requires_grad_()
    out = Doubled.apply(y.sin())
    return torch.autograd.grad(out.sum(), y)


def with_a_body_that_counts(x: torch.Tensor) -> Any:
    seen: list[str] = []

    class Plan:
        seen.append("body")

    seen.append("after")
    return x.sin(), seen


def of_a_base_that_is_told(x: torch.Tensor) -> Any:
    before = len(MADE)

    class Plan(Registry):
        pass

    return x.sin(), len(MADE) - before


def of_a_base_defined_here_that_is_told(x: torch.Tensor) -> Any:
    class Base:
        @classmethod
        def __init_subclass__(cls) -> None:
            MADE.append(cls.__name__)

    before = len(MADE)

    class Plan(Base):
        pass

    return x.sin(), len(MADE) - before


def with_slots(x: torch.Tensor) -> Any:
    try:

        class Plan:
            __slots__ = ("no name",)

    except TypeError:
        return x.cos()
    return x.sin()


def of_what_has_no_subclasses(x: torch.Tensor) -> Any:
    try:

        class Plan(bool):  # pyright: ignore[reportGeneralTypeIssues]
            pass

    except TypeError:
        return x.cos()
    return x.sin()


def with_a_decorator_of_its_own(x: torch.Tensor) -> Any:
    seen: list[str] = []

    def staticmethod(function: Any) -> Any:
        seen.append(function.__name__)
        return function

    class Plan:
        @staticmethod
        def run(self) -> Any:
            return self

    return x.sin(), seen


@pytest.mark.fractional
@IN_EVERY_MODE
@each_of(
    unused, given_back_and_called, used_at_once, differentiated, with_a_body_that_counts, of_a_base_that_is_told,
    of_a_base_defined_here_that_is_told, with_slots, of_what_has_no_subclasses, with_a_decorator_of_its_own,
)  # fmt: skip
def test_a_program_with_a_class_statement_gives_what_it_gives(program: Callable[..., Any], mode: str) -> None:
    assert_same_as_eager(program, mode, [(torch.randn(rows, 3),) for rows in (2, 2, 3)], recompile_limit=8)


def test_a_class_that_nothing_uses_costs_no_graph() -> None:
    captured, recorder, _ = captured_with(unused, fullgraph=True)
    captured(torch.randn(2, 3))
    assert recorder.targets == ["sin", "add"]


def test_a_class_that_leaves_the_graph_is_made_anew_by_every_call() -> None:
    captured, recorder, _ = captured_with(given_back, fullgraph=True)
    x = torch.randn(2, 3)
    (_, first), (_, second) = captured(x), captured(x)
    assert first is not second
    assert first.again.__closure__ is None or first.again.__func__.__closure__[0].cell_contents is first
    assert torch.equal(first.again(x), x * 6 + 1)
    assert len(recorder.graphs) == 1


def test_a_function_that_calls_itself_is_one_object() -> None:
    def program(x: torch.Tensor) -> Any:
        def down(y: torch.Tensor, count: int) -> torch.Tensor:
            return y if count == 0 else down(y.sin(), count - 1)

        return down

    captured, _, _ = captured_with(program)
    made = captured(torch.randn(2))
    assert made.__closure__[0].cell_contents is made


def test_a_break_names_what_a_definition_does() -> None:
    captured, _, options = captured_with(with_a_body_that_counts)
    captured(torch.randn(2))
    assert "a body that does more than to define names" in str(options.breaks[0])
