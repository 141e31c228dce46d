"""Classes with `__new__` or a metaclass, what classes tell of themselves, TorchScript functions: captured in one graph."""

from __future__ import annotations

import sys
import threading
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
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


class Singleton(type):
    made: dict[Any, Any] = {}

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls not in cls.made:
            cls.made[cls] = super().__call__(*args, **kwargs)
        return cls.made[cls]


class Settings(metaclass=Singleton):
    def __init__(self, scale: int) -> None:
        self.scale = scale


class Noting(type):
    def __call__(cls, *args: Any) -> Any:
        made: Any = cls.__new__(cls)  # pyright: ignore[reportCallIssue]
        cls.__init__(made, *args)
        made.is_noted = True
        return made


class Bare(metaclass=Noting):
    pass


class Noted(metaclass=Noting):
    is_noted = False

    def __init__(self, x: Any) -> None:
        self.x = x


ON_THREAD = threading.local()
ON_THREAD.scale = 3


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


def by_a_metaclass(x: Tensor) -> Any:
    made = Noted(x * 2)
    return (
        made.x + made.is_noted,
        Bare().is_noted,
        type(made) is Noted,
        type(made).__bases__ == (object,),
        Noted.is_noted,
    )


def derived_classes(x: Tensor) -> Any:
    return x * len(WithNew.__subclasses__()), [class_.__name__ for class_ in WithNew(1).__class__.__subclasses__()]


def names(x: Tensor) -> Any:
    return x * 1, WithNew.__module__, WithNew.__qualname__, dict.__module__, sys.intern("na" + "me")


def texts_of_functions(x: Tensor) -> Any:
    return x * 1, str(made_with_new), repr(made_with_new), f"{made_with_new}", f"{made_with_new!r}"


def named_tuples(x: Tensor) -> Any:
    Pair = namedtuple("Pair", "first second", defaults=(3,))
    Other = namedtuple("Other", ["first"], rename=True)
    pair = Pair(x)
    first, second = pair._replace(first=x * 2)
    return first * second, Pair._fields, Pair.__module__, Pair.__name__, Other(1) == (1,), Pair is Other


def local_to_a_thread(x: Tensor) -> Any:
    scale, ON_THREAD.other = ON_THREAD.scale, x + 1
    return x * scale, ON_THREAD.other, hasattr(ON_THREAD, "scale"), hasattr(ON_THREAD, "missing")


class BehindProperty:
    def __init__(self, content: Any) -> None:
        self.__dict__["content"] = content

    content = property(lambda self: self.__dict__["content"])


def sets_past_a_property(x: Tensor) -> Any:
    made = BehindProperty(x + 1)
    made.__dict__["other"] = 3
    return made.content * made.other, vars(made)["content"], [*made.__dict__]  # pyright: ignore[reportAttributeAccessIssue]


def rebuilds_past_a_property(x: Tensor) -> Any:
    return vars(BehindProperty(x + 1))


@dataclass(frozen=True)
class Place:
    row: int
    column: Any
    note: str = field(default="", compare=False)


@dataclass(frozen=True)
class Area:
    place: Place
    size: int


@dataclass(frozen=True)
class OtherPlace:
    row: int
    column: Any


def keys_by_fields(x: Tensor) -> Any:
    table = {Place(1, "a", "first"): 2, Area(Place(1, "b"), 3): 5, OtherPlace(1, "a"): 7}
    table[Place(1, "a", "second")] = 11  # the key stays the first
    sizes = table[Place(1, "a")], table[OtherPlace(1, "a")], table[Area(Place(1, "b"), 3)]
    notes = [key.note for key in table if isinstance(key, Place)]
    return x * len(table), sizes, notes, Place(2, "a") in table, Area(Place(1, "b"), 4) in table


def flags_of_a_class(x: Tensor) -> Any:
    return x * 1, WithNew.__flags__ & 1 << 9, type(x).__basicsize__ > 0, WithNew.__dictoffset__ != 0


def without_weak_references(x: Tensor) -> Any:
    return x * 1, WithNew(1).__weakref__


class Doubling(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


class MadeElsewhere(torch.nn.Module):
    def __new__(cls) -> Any:
        return Doubling()


def module_by_new(x: Tensor) -> Any:
    return MadeElsewhere()(x)


def iterators_by_their_method(x: Tensor) -> Any:
    return x * next(range(3, 5).__iter__()), [*"ab".__iter__()], [*x.__iter__()], next((7, 8).__iter__())


def gradient_of_a_new_tensor(x: Tensor) -> Any:
    made = torch.ones(2)
    return x + made, made.grad, torch.zeros(2, requires_grad=True).grad


PROGRAMS = (
    sets_past_a_property, keys_by_fields, flags_of_a_class, without_weak_references, module_by_new,
    iterators_by_their_method, gradient_of_a_new_tensor, rebuilds_past_a_property,
    by_a_metaclass, derived_classes, names, texts_of_functions, named_tuples, local_to_a_thread,
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


def test_a_metaclass_may_keep_the_only_object() -> None:
    def program(x: Tensor, scale: int) -> Any:
        return x * Settings(scale).scale, Settings(scale)

    for captured in (program, compile(program, backend="eager", fullgraph=True)):
        Singleton.made.clear()
        found = [captured(torch.ones(2), scale) for scale in (3, 4, 4)]
        assert [value.tolist() for value, _ in found] == [[3, 3]] * 3
        assert {id(one) for _, one in found} == {id(Singleton.made[Settings])}


def test_each_call_makes_a_named_tuple_class_of_its_own() -> None:
    def program(x: Tensor) -> Any:
        Pair = namedtuple("Pair", ["first", "second"])
        return Pair(x, 1), Pair

    compiled = compile(program, backend="eager", fullgraph=True)
    (one, first), (two, second) = compiled(torch.ones(2)), compiled(torch.ones(2))
    assert (type(one), type(two)) == (first, second)
    assert first is not second
    assert one._fields == ("first", "second")


def test_a_new_derived_class_is_captured_again() -> None:
    class Base:
        pass

    def program(x: Tensor) -> Any:
        return x * len(Base.__subclasses__())

    compiled = compile(program, backend="eager", fullgraph=True)
    kept = []
    for _ in range(2):
        kept.append(type("Made", (Base,), {}))
        assert same(compiled(torch.ones(2)), program(torch.ones(2)))


def test_what_is_local_to_a_thread_is_that_of_the_thread_that_calls() -> None:
    def program(x: Tensor) -> Any:
        own.count = own.count + 1
        return x * own.count

    own, found = threading.local(), {}
    compiled = compile(program, backend="eager", fullgraph=True)

    def call(count: int) -> None:
        own.count = count
        found[count] = compiled(torch.ones(2)).tolist(), own.count

    call(1)
    thread = threading.Thread(target=call, args=(5,))
    thread.start()
    thread.join()
    assert found == {1: ([2, 2], 2), 5: ([6, 6], 6)}
    assert own.count == 2


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
