"""Tests of operators on objects of the program's classes: which methods are asked, in which order, and what they give."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from refimpl.tests.capture.capturing import IN_EVERY_MODE, assert_same_as_eager, captured_with, each_of

ASKED: list[str] = []


class Scaled:
    def __init__(self, value: Any) -> None:
        self.value: Any = value

    def __add__(self, other: Any) -> Any:
        ASKED.append("add")
        return Scaled(self.value + other.value) if isinstance(other, Scaled) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        ASKED.append("radd")
        return Scaled(other + self.value)

    def __mul__(self, other: Any) -> Any:
        return Scaled(self.value * other)

    __rmul__ = __mul__

    def __iadd__(self, other: Any) -> Any:
        ASKED.append("iadd")
        self.value = self.value + (other.value if isinstance(other, Scaled) else other)
        return self

    def __neg__(self) -> Any:
        return Scaled(-self.value)

    def __invert__(self) -> str:
        return "inverted"

    def __matmul__(self, other: Any) -> Any:
        return self.value @ other

    def __len__(self) -> int:
        return 3

    def __contains__(self, item: Any) -> Any:
        return item == "known"

    def __getitem__(self, key: Any) -> Any:
        return key

    def __setitem__(self, key: Any, item: Any) -> None:
        self.value = (key, item)

    def __delitem__(self, key: Any) -> None:
        self.value = key

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return len(args), kwargs

    def __class_getitem__(cls, key: Any) -> Any:
        return cls.__name__, key


class Special(Scaled):
    def __radd__(self, other: Any) -> Any:
        ASKED.append("special radd")
        return "special"


class Ordered:
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __lt__(self, other: Any) -> Any:
        ASKED.append("lt")
        return self.rank < other.rank if isinstance(other, Ordered) else NotImplemented

    def __eq__(self, other: object) -> Any:
        ASKED.append("eq")
        return self.rank == other.rank if isinstance(other, Ordered) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


@functools.total_ordering
class Total:
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __lt__(self, other: Any) -> Any:
        return self.rank < other.rank

    def __eq__(self, other: object) -> Any:
        return isinstance(other, Total) and self.rank == other.rank

    __hash__ = None  # type: ignore[assignment]


class Untrue:
    def __bool__(self) -> bool:
        return False


class Empty:
    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[int]:
        return iter([4, 5])


@dataclasses.dataclass
class Config:
    size: int
    tensor: Any = dataclasses.field(default=None, compare=sys.version_info < (3, 13))  # no tuples are compared since
    names: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(order=True)
class Version:
    major: int
    minor: int = 0


def asking(function: Callable[..., Any], *arguments: Any) -> Any:
    """What it gives, and the methods that are asked for it."""
    ASKED.clear()
    return function(*arguments), list(ASKED)


SCALED, ORDERED = Scaled(2), Ordered(1)


def arithmetic(x: Any) -> Any:
    a, b = Scaled(x), Scaled(2)
    c = a + b
    d = 1 + a
    e = a * 3 + b * x
    f = 2 * a
    g = -a
    h = a @ x
    total = sum([a, b], Scaled(0))
    return c.value, d.value, e.value, f.value, g.value, h, ~a, total.value, (SCALED + a).value, (x * SCALED).value


def in_place(x: Any) -> Any:
    a = b = Scaled(x)
    a += 1
    b += Scaled(x)
    a *= 2
    return a.value, b.value, a is b


def subclasses_first(x: Any) -> Any:
    return Scaled(x) + Special(1), (Special(x) + Special(1)).value, (Special(x) + Scaled(1)).value


def not_known(x: Any) -> Any:
    found = []
    for left, right in ((Scaled(1), "a"), (Ordered(1), 2), (Untrue(), Untrue())):
        for action in (lambda a, b: a - b, lambda a, b: a < b):
            try:
                found.append(action(left, right))
            except TypeError:
                found.append("TypeError")
    return found, Ordered(1) == 3, Ordered(1) != 3, Untrue() == 1, Scaled(1) == Scaled(1), x + 1


def comparisons(x: Any) -> Any:
    low, high = Ordered(1), Ordered(2)
    return (
        low < high,
        low > high,
        low == Ordered(1),
        low != high,
        low == ORDERED,
        [low, high] == [Ordered(1), high],
        low in [high, Ordered(1)],
        [high, low].index(Ordered(1)),
        [low, high, low].count(low),
        (low, 1) != (high, 1),
        Total(1) <= Total(2),
        Total(2) > Total(1),
        Total(3) >= Total(3),
        {"a": low} == {"a": Ordered(1)},
        min(high, low).rank,
        max([low, high]).rank,
        x + 1,
    )


def containers(x: Any) -> Any:
    made = Scaled(x)
    found = [len(made), "known" in made, "other" not in made, made[1:2], made["a"], Scaled[int], made(1, a=2)]
    made[3] = 4
    found.append(made.value)
    del made[5]
    return found, made.value, 4 in Empty(), 7 in Empty(), list(Empty()), x + 1


def truths(x: Any) -> Any:
    found = [
        bool(Untrue()),
        not Untrue(),
        bool(Empty()),
        not Empty(),
        1 if Scaled(1) else 2,
        Untrue() or 3,
        (Empty() and 4) or 5,
    ]
    while Untrue():
        x = x + 1
    return [v for v in found if type(v) in (bool, int)], x + 1, any([Untrue(), 0]), all([Scaled(1), Empty()])


def data_classes(x: Any) -> Any:
    config = Config(3, x)
    other = dataclasses.replace(config, size=4)
    return (
        config == Config(3, x),
        config != Config(4, x),
        other.size,
        other.tensor is x,
        [f.name for f in dataclasses.fields(config)],
        Version(1, 2) < Version(1, 3),
        Version(2) == Version(2, 0),
        sorted([Version(2), Version(1, 5)], key=lambda v: (v.major, v.minor))[0].minor,
        config.names,
        x + config.size,
    )


def across_breaks(x: Any) -> Any:
    made = Scaled(x)
    print(end="")
    made += 2
    made = made + Scaled(1)
    print(end="")
    return made.value, Ordered(1) < Ordered(2)


@pytest.mark.fractional
@IN_EVERY_MODE
@each_of(
    arithmetic, in_place, subclasses_first, not_known, comparisons, containers, truths, data_classes, across_breaks,
)  # fmt: skip
def test_operators_ask_as_python_does(program: Callable[..., Any], mode: str) -> None:
    assert_same_as_eager(program, mode, is_whole=program is not across_breaks, observed=asking)


def test_another_method_is_noticed() -> None:
    class Plain:
        def __add__(self, other: Any) -> Any:
            return other + 1

    made = Plain()
    captured, _, _ = captured_with(lambda x: made + x)
    assert torch.equal(captured(torch.ones(2)), torch.full((2,), 2.0))
    Plain.__add__ = lambda self, other: other + 5
    assert torch.equal(captured(torch.ones(2)), torch.full((2,), 6.0))
