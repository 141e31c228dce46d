"""Tests of what a segment reads and assigns of objects that the program made before: their `__dict__`, descriptors, `__setattr__`
and `__getattribute__` of their classes, modules, named tuples with attributes, and objects that are mappings.
"""

from __future__ import annotations

import collections
import functools
import sys
import types
import typing
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from refimpl.tests.capture.capturing import MODES, WHERE_IT_MUST, captured_with, same

Tensor = torch.Tensor


class Plain:
    def __init__(self) -> None:
        self.scale = 2
        self.shift = 1


class Doubling:
    """A descriptor that keeps twice what it is given in the object's dict."""

    def __set__(self, object_: Any, value: Any) -> None:
        object_.__dict__["kept"] = object_.__dict__.get("kept", 0) + 2 * value


class Kept:
    kept = Doubling()


class Checked:
    """A descriptor that answers reads too."""

    def __get__(self, object_: Any, class_: Any) -> Any:
        return object_.__dict__["_checked"] + 1

    def __set__(self, object_: Any, value: Any) -> None:
        object_.__dict__["_checked"] = value


class WithChecked:
    checked = Checked()

    def __init__(self) -> None:
        self._checked = 3


class Prefixed:
    """Keeps its attributes under other names."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(f"pfx_{name}", value)

    def __getattr__(self, name: str) -> Any:
        return self.__dict__[f"pfx_{name}"]


class Renamed:
    """Reads some attributes under other names, and makes up another one."""

    def __init__(self) -> None:
        self.names = {"old": "new"}
        self.new = 4

    def __getattribute__(self, name: str) -> Any:
        if name == "made_up":
            raise AttributeError(name)
        names = {} if name == "names" else super().__getattribute__("names")
        return super().__getattribute__(names.get(name, name))

    def __getattr__(self, name: str) -> Any:
        if name == "made_up":
            return 7
        raise AttributeError(name)


class Answering:
    def __call__(self, object_: Any) -> int:
        return object_.scale + 5


def halved(object_: Any, by: int) -> int:
    return object_.scale // by


class WithProperties(Plain):
    called = property(Answering())
    partial = property(functools.partial(halved, by=2))


class Slotted:
    __slots__ = ("first",)


class SlottedMore(Slotted):
    __slots__ = ("second",)

    def __init__(self, first: Any) -> None:
        self.first, self.second = first, first + 1


class Shadowing(type):
    @property
    def __mro__(cls) -> Any:
        return ("another",)


class Shadowed(metaclass=Shadowing):
    marker = 7


class Mapping:
    """A mapping that derives from nothing, and gives no pairs when it is iterated."""

    def __init__(self) -> None:
        self.held = {"ab": 1, "cd": 2}

    def keys(self) -> Any:
        return self.held.keys()

    def __getitem__(self, key: str) -> int:
        return self.held[key]

    def __iter__(self) -> Iterator[str]:
        yield from self.held


class Pairs(dict[str, int]):
    """A dict whose items are taken as they are."""

    def __getitem__(self, key: str) -> int:
        return -super().__getitem__(key)


class Frozen(OrderedDict[str, int]):
    """An OrderedDict whose items are asked for."""

    def __getitem__(self, key: str) -> int:
        return -super().__getitem__(key)


class Pair(typing.NamedTuple):
    first: Any
    second: Any


class PairWithMore(Pair):
    pass


class PairWithItems(typing.NamedTuple):
    first: Any
    second: Any

    def __getitem__(self, index: Any) -> Any:
        return -1


def more() -> PairWithMore:
    made: Any = PairWithMore(1, 2)
    made.third = 3
    return made


def sets_by_dict(x: Tensor, found: Any) -> Any:
    found.__dict__["added"] = x.sum()
    found.scale += 1
    names = [*found.__dict__]
    return x * found.scale + found.added, names, len(vars(found))


def sets_before_it_reads_the_dict(x: Tensor, found: Any) -> Any:
    found.other = x + 1
    found.shift = 5
    return x + vars(found)["shift"], [*vars(found)], vars(found).get("other"), "other" in found.__dict__


def adds_by_descriptor(x: Tensor, found: Any) -> Any:
    found.kept = 10
    found.kept = 1
    return x + found.kept


def checks_by_descriptor(x: Tensor, found: Any) -> Any:
    found.checked = 5
    return x + found.checked, found._checked


def sets_under_another_name(x: Tensor, found: Any) -> Any:
    found.one = x + 1
    found.two = found.one * 2
    setattr(found, "three", 3)
    return found.two + found.three, sorted(vars(found))


def sets_past_the_class(x: Tensor, found: Any) -> Any:
    object.__setattr__(found, "one", 1)
    return x + found.__dict__["one"], [*vars(found)]


def reads_by_two(x: Tensor, found: Any) -> Any:
    return x * found.old + found.new + found.made_up


def takes_the_mapping(x: Tensor, found: Any) -> Any:
    made, other = dict(found), {"ab": 0}
    other.update(found, more=3)
    ordered = OrderedDict(found)
    ordered |= found
    return x + sum(made.values()), made, other, [*ordered.items()]


def gives_it_by_name(x: Tensor, found: Any) -> Any:
    def named(**given: int) -> Any:
        return given

    return x + 1, named(**found), {"ab": 5, **found}


def reads_more_of_a_tuple(x: Tensor, found: Any) -> Any:
    found.fourth = x + found.third
    try:
        missing = found.fifth
    except AttributeError:
        missing = 0
    return found.fourth + missing, found[1], found.third


def reads_fields(x: Tensor, found: Any) -> Any:
    return x + found.first * found.second, found[0], [*found]


def reads_by_properties(x: Tensor, found: Any) -> Any:
    return x * found.called + found.partial, isinstance(type(found).called, property)


def makes_one_with_slots(x: Tensor, found: Any) -> Any:
    made = found(x)
    return made.first + made.second, isinstance(found.second, types.MemberDescriptorType)


def asks_past_the_metaclass(x: Tensor, found: Any) -> Any:
    names, order = type.__dict__["__dict__"].__get__(found), type.__dict__["__mro__"].__get__(found)
    return x + names["marker"] + len(order)


def asks_a_bound_method(x: Tensor, found: Any) -> Any:
    return x + 1 if found("a") else x - 1, found("b")


def reads_a_field_of_the_class(x: Tensor, found: Any) -> Any:
    return x + 1, found.first.__doc__


def sets_attributes_of_a_function(x: Tensor, found: Any) -> Any:
    is_there = hasattr(found, "seen")
    found.seen = x.sum()
    found.count = getattr(found, "count", 0) + 1
    return x + found.seen, found.count, is_there, hasattr(found, "seen")


def local_function() -> Any:
    def made() -> None:
        """Does nothing."""

    return made


def read_before(module: types.ModuleType) -> Callable[[Tensor, Any], Any]:
    def program(x: Tensor, found: Any) -> Any:
        module.count = module.count + found.scale  # pyright: ignore[reportAttributeAccessIssue]
        module.other = 1  # pyright: ignore[reportAttributeAccessIssue]
        return (
            x + module.count + module.added(1),
            hasattr(module, "count"),
            hasattr(module, "other"),
            hasattr(module, "no"),
        )

    return program


def state(found: Any) -> Any:
    """What one can see of an object: its own attributes, and what is inside."""
    inside = [*found.items()] if isinstance(found, dict) else [*tuple(found)] if isinstance(found, tuple) else []
    own = {} if isinstance(found, type) else getattr(found, "__dict__", {})
    return [*own.items()], inside


PROGRAMS: dict[str, tuple[Callable[[], Any], Callable[[Tensor, Any], Any]]] = {
    "dict of attributes": (Plain, sets_by_dict),
    "attributes, then the dict": (Plain, sets_before_it_reads_the_dict),
    "descriptor that sets": (Kept, adds_by_descriptor),
    "descriptor that sets and gets": (WithChecked, checks_by_descriptor),
    "__setattr__": (Prefixed, sets_under_another_name),
    "past __setattr__": (Prefixed, sets_past_the_class),
    "__getattribute__ and __getattr__": (Renamed, reads_by_two),
    "mapping": (Mapping, takes_the_mapping),
    "dict": (lambda: Pairs(ab=1, cd=2), takes_the_mapping),
    "ordered dict": (lambda: Frozen(ab=1, cd=2), takes_the_mapping),
    "mapping by name": (Mapping, gives_it_by_name),
    "dict by name": (lambda: Pairs(ab=1, cd=2), gives_it_by_name),
    "ordered dict by name": (lambda: Frozen(ab=1, cd=2), gives_it_by_name),
    "user dict": (lambda: collections.UserDict(ab=1, cd=2), takes_the_mapping),
    "named tuple with attributes": (more, reads_more_of_a_tuple),
    "named tuple with special methods": (lambda: PairWithItems(3, 4), lambda x, found: x + found.first * found.second),
    "named tuple": (lambda: Pair(3, 4), reads_fields),
    "properties that call objects": (WithProperties, reads_by_properties),
    "class with slots": (lambda: SlottedMore, makes_one_with_slots),
    "class with a metaclass": (lambda: Shadowed, asks_past_the_metaclass),
    "bound method of a set": (lambda: frozenset("a").__contains__, asks_a_bound_method),
    "function": (local_function, sets_attributes_of_a_function),
    "field of a class": (lambda: Pair, reads_a_field_of_the_class),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("mode", MODES)
def test_objects_of_the_program(name: str, mode: str) -> None:
    make, program = PROGRAMS[name]
    captured, _, made = captured_with(program, breaks_at=MODES[mode], recompile_limit=64)
    for value in (1.0, 2.0):
        mine, theirs = make(), make()
        x = torch.full((2,), value)
        assert same(captured(x.clone(), mine), program(x, theirs))
        assert same(state(mine), state(theirs))
    if mode == WHERE_IT_MUST:
        assert not made.breaks, [str(reason) for reason in made.breaks]


def test_a_function_that_has_attributes_already() -> None:
    mine, theirs = local_function(), local_function()
    captured, _, made = captured_with(sets_attributes_of_a_function)
    for value in (1.0, 2.0, 3.0):
        x = torch.full((2,), value)
        assert same(captured(x, mine), sets_attributes_of_a_function(x, theirs))
        assert same(state(mine), state(theirs))
    assert not made.breaks


def test_a_module_of_the_program() -> None:
    """An assigned attribute is a global variable of the functions of the module, also in the segment."""
    modules = [types.ModuleType("mine"), types.ModuleType("theirs")]
    for module in modules:
        exec("count = 1\ndef added(y): return y + count", vars(module))
    captured, recorder, made = captured_with(read_before(modules[0]))
    eager = read_before(modules[1])
    for value in (1.0, 2.0):
        assert same(captured(torch.full((2,), value), Plain()), eager(torch.full((2,), value), Plain()))
        assert vars(modules[0])["count"] == vars(modules[1])["count"]
    assert not made.breaks
    assert recorder.graphs


def test_warnings_are_caught_within_a_graph() -> None:
    def program(x: Tensor) -> Tensor:
        with warnings.catch_warnings(record=True):
            y = x.sin()
        return y + 1

    before = [*warnings.filters], warnings.showwarning
    captured, recorder, made = captured_with(program)
    for value in (1.0, 2.0):
        x = torch.full((2,), value)
        assert same(captured(x), x.sin() + 1)
    assert ([*warnings.filters], warnings.showwarning) == before
    assert not made.breaks
    assert len(recorder.graphs) == 1


def test_a_name_of_sys_modules_guards_that_name_alone() -> None:
    def program(x: Tensor) -> Tensor:
        is_there = "a module that is not there" in sys.modules
        other = sys.modules.get("another that is not there")
        return x + sys.modules["math"].pi + is_there + (other is not None)

    captured, recorder, _ = captured_with(program)
    x = torch.ones(2)
    first = captured(x)
    sys.modules["imported since"] = types.ModuleType("imported since")
    try:
        assert same(captured(x), first)
        assert len(recorder.graphs) == 1
        sys.modules["a module that is not there"] = types.ModuleType("it is")
        assert same(captured(x), first + 1)
    finally:
        del sys.modules["imported since"]
        sys.modules.pop("a module that is not there", None)
    assert len(recorder.graphs) == 2
