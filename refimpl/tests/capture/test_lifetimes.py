"""Tests of when objects of a captured program are freed: as early as in eager, also after graph breaks."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Generator
from typing import Any

import pytest
import torch

from refimpl.tests.capture.capturing import IN_EVERY_MODE, assert_same_as_eager, each_of


class Held:
    pass


class Failure(Exception):
    def __init__(self, held: Any) -> None:
        self.held = held


def a_variable(x: Any) -> Any:
    held = Held()
    known = weakref.ref(held)
    torch._dynamo.graph_break()
    held = None
    gc.collect()
    return known() is None, x + 1


def a_proxy(x: Any) -> Any:
    items = {"a", "b"}
    known = weakref.proxy(items)
    before = str(known) == str(items)
    items = None
    gc.collect()
    try:
        str(known)
    except ReferenceError:
        return before, x + 1
    return x - 1


def an_exception(x: Any) -> Any:
    held = Held()
    known = weakref.ref(held)
    try:
        raise Failure(held)
    except Failure:
        torch._dynamo.graph_break()
    held = None
    gc.collect()
    return known() is None, x + 1


def a_generator(x: Any) -> Any:
    held = Held()
    known = weakref.ref(held)

    def handling() -> Generator[None, None, None]:
        try:
            raise Failure(held)
        except Failure:
            yield

    handler: Any = handling()
    next(handler)
    handler.close()
    handler = held = None
    gc.collect()
    return known() is None, x + 1


def a_cycle(x: Any) -> Any:
    held: Any = Held()
    known = weakref.ref(held)
    pairs = {(held, 1)}
    held.rest = iter(pairs)
    del held, pairs
    gc.collect()
    return known() is None, x + 1


def a_destructor(x: Any) -> Any:
    seen = []

    class Ends:
        def __del__(self) -> None:
            seen.append(sys.exc_info())

    try:
        raise ValueError(Ends())
    except ValueError:
        pass
    gc.collect()
    return seen, x + 1


def a_destructor_of_a_variable(x: Any) -> Any:
    seen = []

    class Ends:
        def __del__(self) -> None:
            seen.append("end")

    first = Ends()
    second: Any = Ends()
    y = x * 2
    del first
    seen.append("deleted")
    y = y + 1
    second = None
    seen.append("assigned")
    return seen, second, y


@pytest.mark.fractional
@IN_EVERY_MODE
@each_of(a_variable, a_proxy, an_exception, a_generator, a_cycle, a_destructor, a_destructor_of_a_variable)
def test_an_object_is_freed_when_eager_frees_it(program: Callable[..., Any], mode: str) -> None:
    assert_same_as_eager(program, mode)
