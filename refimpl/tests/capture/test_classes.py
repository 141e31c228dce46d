"""Classes with `__new__` or a metaclass, what classes tell of themselves, TorchScript functions: captured in one graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from refimpl.capture.compile import compile
from refimpl.tests.capture.capturing import Recorder, same

Tensor = torch.Tensor


class WithNew:
    def __new__(cls, a: int) -> Any:
        made = super().__new__(cls)
        made.extra = a * 2
        return made

    extra: int

    def __init__(self, a: int) -> None:
        self.a = a


class OnlyNew:
    def __new__(cls, a: int, *, b: int = 1) -> Any:
        made = object.__new__(cls)
        made.sum = a + b
        return made

    sum: int


class GivesAnother:
    def __new__(cls) -> Any:
        return 7

    def __init__(self) -> None:
        raise ValueError("not reached: the object is of another class")


class Derived(WithNew):
    pass


class Meta(type):
    @property
    def five(cls) -> int:
        return 5

    def six(cls) -> int:
        return 6


class OfMeta(metaclass=Meta):
    own = 3


@torch.jit.script
def scripted(x: Tensor) -> Tensor:
    return x * 2 + 1


traced: Any = torch.jit.trace(lambda x: x.sin() * 2, (torch.ones(2),))


def made_with_new(x: Tensor) -> Any:
    made = WithNew(3)
    return x * made.extra + made.a, made.extra


def returned_object(x: Tensor) -> Any:
    made = Derived(3)
    return x + made.extra, type(made).__name__


def made_without_init(x: Tensor) -> Any:
    return x * OnlyNew(2).sum + OnlyNew(1, b=4).sum


def another_object(x: Tensor) -> Any:
    made: Any = GivesAnother()
    return x * made


def of_the_metaclass(x: Tensor) -> Any:
    return x * OfMeta.five + OfMeta.six() + OfMeta.own


def order_of_classes(x: Tensor) -> Any:
    names = [class_.__name__ for class_ in Derived.__mro__]
    return x * len(Derived.__mro__) + len(type(WithNew(1)).__bases__), names


def names_of_a_class(x: Tensor) -> Any:
    return x + ("__new__" in WithNew.__dict__) + ("a" in WithNew.__dict__), "a" in WithNew(1).__dict__


def of_torchscript(x: Tensor) -> Any:
    return scripted(x) + traced(x)


def named_for_a_profiler(x: Tensor) -> Any:
    with torch.profiler.record_function("part"):
        y = x * 2
    return y


PROGRAMS = (
    made_with_new, returned_object, made_without_init, another_object, of_the_metaclass, order_of_classes, names_of_a_class,
    of_torchscript, named_for_a_profiler,
)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_one_graph_does_what_eager_does(program: Callable[..., Any]) -> None:
    recorder: Any = Recorder()
    compiled = compile(program, backend=recorder, fullgraph=True)
    for value in (1.0, 2.0):
        x = torch.full((2,), value, requires_grad=True)
        assert same(compiled(x), program(x))
    assert len(recorder.graphs) == 1


def test_a_class_that_changes_is_captured_again() -> None:
    def program(x: Tensor) -> Tensor:
        return x * WithNew(3).extra

    def other(cls: Any, a: int) -> Any:
        made = object.__new__(cls)
        made.extra = a
        return made

    compiled = compile(program, backend="eager", fullgraph=True)
    before = WithNew.__dict__["__new__"]
    assert compiled(torch.ones(1)).item() == 6
    try:
        setattr(WithNew, "__new__", staticmethod(other))
        assert compiled(torch.ones(1)).item() == 3
    finally:
        setattr(WithNew, "__new__", before)
    assert compiled(torch.ones(1)).item() == 6


def test_a_gradient_is_removed_after_the_graph() -> None:
    def program(x: Tensor) -> Tensor:
        x.grad = None
        return x * 2

    x = torch.ones(2, requires_grad=True)
    x.sum().backward()
    compiled = compile(program, backend="eager", fullgraph=True)
    compiled(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2]


def break_in_a_named_block(x: Tensor) -> Any:
    with torch.profiler.record_function("part"):
        y = x * 2
        torch._dynamo.graph_break()
        y = y + 1
    return y


def named_block_begins_after_a_break(x: Tensor) -> Any:
    named = torch.profiler.record_function("part")
    torch._dynamo.graph_break()
    with named:
        y = x * 2
    return y, named.name


@pytest.mark.parametrize("program", [break_in_a_named_block, named_block_begins_after_a_break])
def test_a_block_that_is_named_for_a_profiler_may_hold_a_break(program: Callable[..., Any]) -> None:
    compiled = compile(program, backend="eager")
    for value in (1.0, 2.0):
        x = torch.full((2,), value)
        assert same(compiled(x), program(x))
