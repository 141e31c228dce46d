"""What special methods must return, `super()`, metaclasses that answer `isinstance`, annotations: captured as eager runs them."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from refimpl.capture.compile import compile
from refimpl.capture.entry_points.reset import reset
from refimpl.tests.capture.capturing import Recorder, each_of, same

Tensor = torch.Tensor
T = typing.TypeVar("T")


class ReturnsWrongThings:
    """Each special method returns what Python refuses."""

    def __bool__(self) -> Any:
        return 1.5  # noqa: PLE0304 - this is what is tested

    def __str__(self) -> Any:
        return 5  # noqa: PLE0307 - this is what is tested

    def __repr__(self) -> Any:
        return 7

    def __int__(self) -> Any:
        return "a"

    def __float__(self) -> Any:
        return 3

    def __complex__(self) -> Any:
        return 3

    def __hash__(self) -> Any:
        return "h"  # noqa: PLE0309 - this is what is tested

    def __iter__(self) -> Any:
        return 5

    def __format__(self, spec: str) -> Any:
        return 3


class Sized:
    def __init__(self, length: Any) -> None:
        self.length = length

    def __len__(self) -> Any:
        return self.length


class Yielding:
    def __iter__(self) -> Iterator[int]:
        yield 1
        yield 2


class Iterated:
    def __iter__(self) -> Iterator[int]:
        return iter([3, 4])


class TrueAsInt:
    def __int__(self) -> int:
        return True


class InitReturns:
    def __init__(self) -> Any:  # type: ignore[misc]
        return 3  # noqa: PLE0101 - this is what is tested


WRONG: Any = ReturnsWrongThings()


@pytest.mark.parametrize(
    "operation",
    [
        lambda: bool(WRONG), lambda: not WRONG, lambda: bool(Sized(-1)), lambda: bool(Sized(2.5)), lambda: len(Sized(-3)),
        lambda: len(Sized("a")), lambda: str(WRONG), lambda: repr(WRONG), lambda: int(WRONG), lambda: float(WRONG),
        lambda: complex(WRONG), lambda: hash(WRONG), lambda: iter(WRONG), lambda: [*WRONG], lambda: f"{WRONG}",
        lambda: format(WRONG, "x"), lambda: InitReturns(),
    ],
)  # fmt: skip
def test_a_special_method_that_returns_a_wrong_class_raises_as_in_eager(operation: Callable[[], Any]) -> None:
    def program(x: Tensor) -> Any:
        try:
            return x + 1, operation()
        except Exception as error:
            return x + 2, type(error).__name__, str(error)

    reset()
    expected = program(torch.ones(2))
    assert len(expected) == 3, "eager raises"
    assert same(compile(program, backend="eager", fullgraph=True)(torch.ones(2)), expected)


def right_results(x: Tensor) -> Any:
    first, second = Iterated()
    sizes = len(Sized(3)), bool(Sized(0)), not Sized(4), len(Sized(True))
    return x + first * second, sizes, [*Yielding()], list(Iterated())


def length_by_a_size(x: Tensor) -> Any:
    return x * len(Sized(x.shape[0])), bool(Sized(x.shape[0]))


class Base:
    constant = 4
    scales = (2, 3)

    def add(self, x: Tensor) -> Tensor:
        return x + 10


class Middle(Base):
    coefficient = 4

    def add(self, x: Tensor) -> Tensor:
        return x + 20

    @classmethod
    def cube(cls, x: Tensor) -> Tensor:
        return cls.coefficient * x * x * x

    @staticmethod
    def seven(x: Tensor) -> Tensor:
        return x * 7

    @property
    def five(self) -> int:
        return self.coefficient + 1


class Last(Middle):
    coefficient = 6

    def add(self, x: Tensor) -> Tensor:
        inherited = super().cube(x) + Base.add(self, x) + super(Middle, self).add(x) + super().seven(x)
        return inherited + super().constant * x + super().five * x + super().scales[1]

    @classmethod
    def made(cls, x: Tensor) -> Tensor:
        return super().cube(x) + super().constant


def through_super(x: Tensor) -> Any:
    return Last().add(x) + Last.made(x)


LAST = Last()


def through_super_of_an_object(x: Tensor) -> Any:
    return LAST.add(x)


class AnswersEverything(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return hasattr(instance, "shape")

    def __subclasscheck__(cls, subclass: type) -> bool:
        return subclass is int


class Asked(metaclass=AnswersEverything):
    pass


def instances_by_a_metaclass(x: Tensor) -> Any:
    return x + 1, isinstance(x, Asked), isinstance(3, Asked), isinstance(3, (Asked, int)), isinstance(Asked(), Asked)


def subclasses_by_a_metaclass(x: Tensor) -> Any:
    return x + 1, issubclass(int, Asked), issubclass(str, Asked), issubclass(str, (Asked, str))


def annotated(x: Tensor) -> Any:
    class Local:
        pass

    def inner(y: typing.List[Local], z: typing.Optional[Local] = None) -> Tensor:  # noqa: UP006, UP045 - what is tested
        return x + len(y)

    def called(function: typing.Callable[[T], T], y: T) -> T:
        return function(y)

    return called(lambda y: y * 2, inner([]))


def legacy_constructors(x: Tensor) -> Any:
    return torch.LongTensor([1, 2]) + x.long(), torch.FloatTensor(2, 3).shape, torch.BoolTensor(()).shape


def sizes_as_a_tensor(x: Tensor) -> Any:
    return x + torch._shape_as_tensor(x)[0]


def asks_a_number(x: Tensor) -> Any:
    return x + hasattr(4, "real"), torch.overrides.is_tensor_like(4), torch.overrides.is_tensor_like(x)


PROGRAMS = (
    right_results, length_by_a_size, through_super, through_super_of_an_object, instances_by_a_metaclass,
    subclasses_by_a_metaclass, annotated, legacy_constructors, sizes_as_a_tensor, asks_a_number,
)  # fmt: skip


@each_of(*PROGRAMS)
def test_one_graph_does_what_eager_does(program: Callable[..., Any]) -> None:
    recorder: Any = Recorder()
    compiled = compile(program, backend=recorder, fullgraph=True)
    for value in (1.0, 2.0):
        x = torch.full((2,), value)
        assert same(compiled(x), program(x))
    assert len(recorder.graphs) == 1


def test_sizes_that_change_are_those_of_each_call() -> None:
    for program in (length_by_a_size, sizes_as_a_tensor):
        compiled = compile(program, backend="eager", fullgraph=True, dynamic=True)
        for length in (3, 5):
            assert same(compiled(torch.ones(length)), program(torch.ones(length)))


def test_a_class_attribute_behind_super_is_guarded() -> None:
    compiled = compile(through_super, backend="eager", fullgraph=True)
    x = torch.ones(2)
    assert same(compiled(x), through_super(x))
    Base.constant = 5
    try:
        assert same(compiled(x), through_super(x))
    finally:
        Base.constant = 4


class AsksItsId(torch.nn.Module):
    def forward(self, x: Tensor, known: int) -> Tensor:
        return x * 2 if id(self) == known else x + 1


def test_the_id_of_a_module_is_the_module_s() -> None:
    module, x = AsksItsId(), torch.ones(2)
    compiled = compile(module, backend="eager", fullgraph=True)
    assert compiled(x, id(module)).tolist() == [2, 2]
    assert compiled(x, id(module) + 1).tolist() == [2, 2]
    assert same(compiled(x * 2, id(module) + 1), x * 2 + 1)


def test_arrays_take_classes_of_python_as_dtypes() -> None:
    def program(x: Any) -> Any:
        return (x * 5).astype(bool).astype(float).astype(int) + 8

    array = np.array([0.5, 0.0])
    found = compile(program, backend="eager", fullgraph=True)(array)
    assert found.dtype == program(array).dtype
    assert found.tolist() == program(array).tolist()
