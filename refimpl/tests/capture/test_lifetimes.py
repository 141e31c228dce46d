"""Tests of when objects of a captured program are freed: as early as in eager, also after graph breaks."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Generator
from typing import Any

import pytest
import torch

from refimpl.capture.entry_points.decorators import disable
from refimpl.tests.capture.capturing import IN_EVERY_MODE, assert_same_as_eager, captured_with, each_of

HELD: Any = None


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


class Ending:
    """Notes in a list that it ends."""

    def __init__(self, seen: list[str], name: str) -> None:
        self.seen, self.name = seen, name

    def __del__(self) -> None:
        self.seen.append(f"end of {self.name}")


class Holder:
    def __init__(self, held: Any) -> None:
        self.held = held


def in_place_of_an_attribute(holder: Any, seen: list[str]) -> None:
    holder.held = None


def of_a_deleted_attribute(holder: Any, seen: list[str]) -> None:
    del holder.held


def out_of_a_list(holder: Any, seen: list[str]) -> None:
    holder.items.pop()


def in_a_list_that_is_cleared(holder: Any, seen: list[str]) -> None:
    holder.items.append(1)
    seen.append("appended")
    holder.items.clear()


def in_place_of_an_item(holder: Any, seen: list[str]) -> None:
    holder.items[0] = None


def out_of_a_dict(holder: Any, seen: list[str]) -> None:
    del holder.table["key"]


def in_place_of_a_value(holder: Any, seen: list[str]) -> None:
    holder.table["key"] = 1


def out_of_a_set(holder: Any, seen: list[str]) -> None:
    holder.members.clear()


def of_a_held_holder(holder: Any, seen: list[str]) -> None:
    holder.holders.pop()


def with_a_finalizer(holder: Any, seen: list[str]) -> None:
    holder.finalized.pop()


def of_a_temporary_object(holder: Any, seen: list[str]) -> None:
    seen.append(Ending(seen, "temporary").name)


@pytest.mark.fractional
@IN_EVERY_MODE
@each_of(
    in_place_of_an_attribute, of_a_deleted_attribute, out_of_a_list, in_a_list_that_is_cleared, in_place_of_an_item,
    out_of_a_dict, in_place_of_a_value, out_of_a_set, of_a_held_holder, with_a_finalizer, of_a_temporary_object,
)  # fmt: skip
def test_code_at_the_end_of_an_object_runs_where_eager_drops_it(program: Callable[..., Any], mode: str) -> None:
    def whole(x: Any) -> Any:
        seen: list[str] = []
        holder = disable(made)(seen)
        y = dropping(x, holder, seen)
        return y, [*seen]

    def made(seen: list[str]) -> Any:
        holder: Any = Holder(Ending(seen, "attribute"))
        holder.items = [Ending(seen, "item")]
        holder.table = {"key": Ending(seen, "value")}
        holder.members = {Ending(seen, "member")}
        holder.holders = [Holder(Ending(seen, "held"))]
        finalized = Holder(None)
        weakref.finalize(finalized, lambda: seen.append("finalized"))
        holder.finalized = [finalized]
        return holder

    def dropping(x: Any, holder: Any, seen: list[str]) -> Any:
        y = x.sin()
        program(holder, seen)
        seen.append("dropped")
        return y.cos()

    assert_same_as_eager(whole, mode)


def test_a_variable_of_a_closure_and_a_global_one_drop_objects_where_eager_does() -> None:
    seen: list[str] = []
    held: Any = Ending(seen, "nonlocal")
    globals()["HELD"] = Ending(seen, "global")

    def program(x: Any) -> Any:
        nonlocal held
        global HELD
        held = None
        seen.append("nonlocal dropped")
        HELD = None
        seen.append("global dropped")
        return x + 1

    captured, _, _ = captured_with(program)
    for _ in range(2):
        captured(torch.ones(2))
    dropped = ["nonlocal dropped", "global dropped"]
    assert seen == ["end of nonlocal", "nonlocal dropped", "end of global", "global dropped", *dropped]


def test_objects_that_end_without_code_are_dropped_within_the_graph() -> None:
    def program(x: Any, holder: Any, items: list[Any], table: dict[str, Any]) -> Any:
        y = x.sin()
        holder.held = None
        items.pop()
        del table["key"]
        return y.cos()

    captured, recorder, _ = captured_with(program, fullgraph=True)
    captured(torch.ones(2), Holder(Holder(1)), [Holder(2)], {"key": Holder(3)})
    assert recorder.targets == ["sin", "cos"]


@pytest.mark.fractional
@IN_EVERY_MODE
@each_of(a_variable, a_proxy, an_exception, a_generator, a_cycle, a_destructor, a_destructor_of_a_variable)
def test_an_object_is_freed_when_eager_frees_it(program: Callable[..., Any], mode: str) -> None:
    assert_same_as_eager(program, mode)


_HELD_BY_A_CLASS = """
import gc, weakref
import torch
from refimpl.capture.compile import compile

def run(freed):
    held = torch.nn.Parameter(torch.ones(3))

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.held = held

        def forward(self, x):
            return x * self.held

    weakref.finalize(held, freed.append, True)
    torch.testing.assert_close(compile(Module(), backend="eager")(torch.ones(3)), torch.ones(3))

freed = []
run(freed)
gc.collect()
print(freed)
"""


def test_what_a_class_of_the_program_holds_is_freed_with_its_segments(run_fresh: Callable[..., Any]) -> None:
    """The methods of the class have the tensor in their closures. In a process of its own: one that has run hundreds of other
    programs has kept the tensor now and then.
    """
    assert run_fresh(_HELD_BY_A_CLASS).stdout.strip() == "[True]"
