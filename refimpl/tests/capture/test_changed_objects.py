"""An object that a segment changes is none of the others that it reads: a later call with one object in two places gets a segment
of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from refimpl.capture.compile import compile
from refimpl.tests.capture.capturing import each_of, same

Tensor = torch.Tensor


class Holder:
    def __init__(self) -> None:
        self.count = 1


def counter() -> Callable[[Tensor], Tensor]:
    count = 0

    def counted(x: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return x + count

    return counted


def of_lists(one: list[int], other: list[int], x: Tensor) -> Tensor:
    one.append(1)
    return x + len(other)


def of_dicts(one: dict[str, int], other: dict[str, int], x: Tensor) -> Tensor:
    one["a"] = 5
    return x + other.get("a", 0)


def of_sets(one: set[int], other: set[int], x: Tensor) -> Tensor:
    one.add(5)
    return x + len(other)


def of_attributes(one: Holder, other: Holder, x: Tensor) -> Tensor:
    one.count += 1
    other.count += 1
    return x + other.count


def of_deleted_attributes(one: Holder, other: Holder, x: Tensor) -> Any:
    del one.count
    return x + getattr(other, "count", 7)


def of_cells(one: Callable[[Tensor], Tensor], other: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return one(x) + 10 * other(x)


MAKERS: dict[Callable[..., Any], Callable[[], Any]] = {
    of_lists: list,
    of_dicts: dict,
    of_sets: set,
    of_attributes: Holder,
    of_deleted_attributes: Holder,
    of_cells: counter,
}


@each_of(*MAKERS)
@pytest.mark.parametrize("is_first", [False, True])
def test_one_object_in_two_places(program: Callable[..., Any], is_first: bool) -> None:
    compiled = compile(program, backend="eager")
    x, make = torch.ones(2), MAKERS[program]
    for is_one in (is_first, not is_first, is_first):
        results = []
        for called in (program, compiled):
            one = make()
            results.append(called(one, one if is_one else make(), x))
        assert same(*results)


def with_keyword(x: Tensor, *, by: int = 2) -> Tensor:
    return x * by


def test_a_call_sees_changed_defaults_of_keywords() -> None:
    def program(x: Tensor) -> Tensor:
        defaults: Any = with_keyword.__kwdefaults__
        defaults["by"] = defaults["by"] + 1
        return with_keyword(x)

    compiled = compile(program, backend="eager")
    for _ in range(2):
        results = []
        for called in (program, compiled):
            with_keyword.__kwdefaults__ = {"by": 2}
            results.append(called(torch.ones(2)))
        assert same(*results)


def test_more_defaults_move_the_first_ones() -> None:
    def of_two(x: Tensor, a: int, b: int) -> Tensor:
        return x * a + b

    def program(x: Tensor) -> Tensor:
        return of_two(x, 5)  # pyright: ignore[reportCallIssue]

    compiled = compile(program, backend="eager")
    for defaults in ((1, 2), (0, 2, 9), (2,)):
        of_two.__defaults__ = defaults
        assert same(compiled(torch.ones(2)), program(torch.ones(2)))


class Base:
    pass


class OtherBase:
    pass


class Derived(Base):
    pass


class Disguised:
    """Has the class that it says it has."""

    said: type = OtherBase

    @property
    def __class__(self) -> type:  # type: ignore[override]
        return self.said


def asks_an_object(x: Tensor, of: Any) -> Tensor:
    return x + 1 if isinstance(of, Base) else x - 1


def asks_a_class(x: Tensor, of: Any) -> Tensor:
    return x + 1 if issubclass(Derived, Base) else x - 1


@each_of(asks_an_object, asks_a_class)
def test_a_call_sees_changed_bases(program: Callable[..., Any]) -> None:
    compiled, of = compile(program, backend="eager"), Derived()
    for bases in ((Base,), (OtherBase,), (Base,)):
        Derived.__bases__ = bases
        assert same(compiled(torch.ones(2), of), program(torch.ones(2), of))


def test_an_object_says_of_which_class_it_is() -> None:
    compiled, of = compile(asks_an_object, backend="eager"), Disguised()
    for said in (OtherBase, Derived, OtherBase):
        of.said = said
        assert same(compiled(torch.ones(2), of), asks_an_object(torch.ones(2), of))
