"""Tests that a call notices which attributes and special methods have come or gone since the function was captured."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from refimpl.capture.compile import compile


class Plain:
    pass


class Slotted:
    __slots__ = ("tag",)


def own_class() -> Any:
    return type("Own", (), {})


def instance_of_its_own_class() -> Any:
    return own_class()()


def function() -> Any:
    def found() -> None:
        pass

    return found


MAKERS = {
    "an object": Plain,
    "an object with slots": Slotted,
    "a class": own_class,
    "a module of Python": lambda: ModuleType("made"),
    "a module of torch": lambda: torch.nn.Linear(1, 1),
    "a function": function,
    "a tensor": lambda: torch.ones(1),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_an_attribute_that_comes_and_goes(kind: str) -> None:
    owner: Any = MAKERS[kind]()

    def program(x: Any) -> Any:
        return x + 1 if hasattr(owner, "tag") else x - 1

    captured = compile(program)
    owner.tag = 1
    assert captured(torch.ones(1)).item() == 2
    del owner.tag
    assert captured(torch.ones(1)).item() == 0
    owner.tag = 1
    assert captured(torch.ones(1)).item() == 2


def is_callable(owner: Any) -> bool:
    return callable(owner)


def is_true(owner: Any) -> bool:
    return bool(owner)


def has_a_tag(owner: Any) -> bool:
    return hasattr(owner, "tag")


def makes_one_with_a_tag(owner: Any) -> bool:
    return hasattr(type(owner)(), "tag")


@pytest.mark.parametrize(
    ("question", "name"),
    [
        (is_callable, "__call__"),
        (is_true, "__len__"),
        (is_true, "__bool__"),
        (has_a_tag, "tag"),
        (makes_one_with_a_tag, "tag"),
    ],
)
def test_a_method_that_its_class_gains_and_loses(question: Callable[[Any], bool], name: str) -> None:
    owner = instance_of_its_own_class()
    captured = compile(lambda x: (x + 1, question(owner)))
    for _ in range(2):
        assert captured(torch.ones(1))[1] == question(owner)
        setattr(type(owner), name, lambda self: 0 if name == "__len__" else False)
        assert captured(torch.ones(1))[1] == question(owner)
        delattr(type(owner), name)
        setattr(owner, name, len)  # Python looks up special methods in the class only
        assert captured(torch.ones(1))[1] == question(owner)
        delattr(owner, name)


class Asked(type):
    def __contains__(cls, item: int) -> bool:
        return item == 1

    def __iter__(cls) -> Any:
        return iter((1, 2))


def test_a_class_says_by_its_metaclass_what_it_contains() -> None:
    class Numbers(metaclass=Asked):
        pass

    def program(x: Any) -> Any:
        return x + 1, 1 in Numbers, 2 in Numbers, 2 not in Numbers, list(Numbers)

    assert compile(program, fullgraph=False)(torch.ones(1))[1:] == (True, False, True, [1, 2])


class Refusing:
    def __get__(self, owner: Any, class_: Any) -> Any:
        raise AttributeError


class RefusingToWrite(Refusing):
    def __set__(self, owner: Any, value: Any) -> None:
        pass


class Refused:
    reading = Refusing()
    writing = RefusingToWrite()


def test_a_descriptor_may_say_that_there_is_no_attribute() -> None:
    owner = Refused()

    def program(x: Any) -> Any:
        return x + 1, hasattr(owner, "reading"), hasattr(owner, "writing"), getattr(owner, "writing", 5)

    captured = compile(program)
    assert captured(torch.ones(1))[1:] == (False, False, 5)
    owner.__dict__["reading"] = 1
    assert captured(torch.ones(1))[1:] == (True, False, 5)


class Either:
    def __new__(cls, kind: Any) -> Any:
        return [kind] if isinstance(kind, str) else object.__new__(Special if kind else cls)


class Special(Either):
    def __init__(self, kind: Any) -> None:
        self.kind = kind


def test_new_may_make_an_object_of_a_subclass() -> None:
    def program(x: Any) -> Any:
        return x + 1, Either("a"), Either(1).kind, Special(2).kind, type(Either(0)).__name__

    assert compile(program)(torch.ones(1))[1:] == (["a"], 1, 2, "Either")


def test_a_class_that_gets_another_name_and_other_bases() -> None:
    class Base:
        pass

    class Named(Base):
        pass

    def program(x: Any) -> Any:
        return x + 1, Named.__name__, len(Named.__mro__), [base.__name__ for base in Named.__bases__]

    captured = compile(program)
    assert captured(torch.ones(1))[1:] == program(torch.ones(1))[1:]
    Named.__name__ = "Renamed"
    assert captured(torch.ones(1))[1] == "Renamed"
    Named.__bases__ = (type("Other", (Base,), {}),)
    assert captured(torch.ones(1))[1:] == ("Renamed", 4, ["Other"])
