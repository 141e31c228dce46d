"""Tests of builtins, functools and classes of constants inside of captured graphs."""

from __future__ import annotations

import copy
import enum
import functools
import math
import operator
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch

from refimpl.capture.captured import CaptureOptions
from refimpl.capture.compile import with_options
from refimpl.capture.entry import Entry
from refimpl.tests.capture.capturing import IN_EVERY_MODE, Recorder, assert_same_as_eager, captured_with, each_of, same


class Color(enum.Enum):
    RED = 1
    BLUE = "b"

    def scaled(self, x: Any) -> Any:
        return x * len(self.name)

    @property
    def lowered(self) -> str:
        return self.name.lower()


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Word(str, enum.Enum):
    YES = "yes"
    NO = "no"


class Named:
    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return f"named {self.name}"

    def __repr__(self) -> str:
        return f"Named({self.name!r})"

    def __format__(self, spec: str) -> str:
        return self.name + spec

    def __int__(self) -> int:
        return len(self.name)

    def __abs__(self) -> str:
        return "abs"


Point = namedtuple("Point", "x y")
CALLS: list[int] = []


@functools.lru_cache(maxsize=8)
def cached(size: int, name: str = "a") -> Any:
    return size * 2, name


@functools.cache
def cached_tensor(size: int) -> Any:
    return torch.ones(size)


@functools.lru_cache
def cached_with_effect(size: int) -> int:
    CALLS.append(size)
    return size


class Lazy:
    def __init__(self, value: Any) -> None:
        self.value = value

    @functools.cached_property
    def doubled(self) -> Any:
        return self.value * 2


def extremes(x: Any) -> Any:
    items = [3, 1, 2]
    rows = [("b", 2), ("a", 3), ("c", 1)]
    return (
        min(items),
        max(3, 7, 5),
        min(rows, key=lambda r: r[1]),
        max(rows, key=operator.itemgetter(0)),
        max([], default=x),
        min(x.shape),
        max("hello"),
        max((i for i in items), default=0),
        min([x, x + 1], key=lambda t: t.dim()),
        max({1, 5, 2}),
        max(x.dim(), 1.5),
    )


def orders(x: Any) -> Any:
    rows = [("b", x), ("a", x + 1), ("c", x + 2)]
    return (
        sorted(rows, key=lambda r: r[0]),
        sorted([3, 1, 2], reverse=True),
        sorted("hello", key=str.upper),
        sorted({"x": 1, "a": 2}),
        sorted([(1, "b"), (1, "a")]),
        sorted([x, x * 2], key=lambda t: 0, reverse=True),
        list(reversed({"a": 1, "b": 2})),
        list(reversed(range(4))),
        sorted(["b", "A"], key=str.lower),
    )


def numbers(x: Any) -> Any:
    return (
        divmod(7, 3),
        pow(3, 4, 5),
        round(2.567, 1),
        abs(-3),
        abs(-x),
        sum([x, x], x),
        sum([[1], [2]], []),  # noqa: RUF017 - `sum` with a start is tested
        math.sqrt(16) + math.floor(2.5),
        math.prod([2, 3]),
        int("12") + int(3.9),
        float("1.5"),
        complex(1, 2),
        hash((1, "a")) == hash((1, "a")),
        all([1, x.dim(), "a"]),
        any([0, None]),
        bool([]),
        callable(numbers),
        int(Named("abc")),
        abs(Named("a")),
        operator.index(3),
    )


def texts(x: Any) -> Any:
    made, size = Named("n"), x.shape
    return (
        f"{made} {made!r} {made:>x} {size} {[1, 'a']} {1.5:.2f} {(1,)} { ({'a': 1}) }",
        str(made),
        repr(made),
        str(size),
        "-".join(str(i) for i in range(3)),
        ",".join(["a", "b"]),
        "a b".split(),  # noqa: SIM905 - it is tested
        "%s-%d" % ("a", 3),  # noqa: UP031 - it is tested
        "{} {x}".format(1, x=2),  # noqa: UP032 - it is tested
        str([1, None]),
        format(3, "04d"),
        x + 1,
        str(Color.RED),
        repr(Level.LOW),
        f"{Level.HIGH} {Word.YES} {Color.BLUE}",
    )


def enumerations(x: Any) -> Any:
    found = Color(1)
    return (
        found is Color.RED,
        [member.name for member in Color],
        Color["BLUE"].value,
        Color("b") is Color.BLUE,
        Color.RED in Color,
        len(Color),
        found.scaled(x),
        found.lowered,
        found == Color.RED,
        found != Color.BLUE,
        Level.HIGH + 1,
        Level.LOW < Level.HIGH,
        x * Level.HIGH,
        [1, 2, 3][Level.LOW],
        Word.YES == "yes",
        Word.YES + "!",
        {Color.RED: 1}[found],
        isinstance(found, Color),
        isinstance(Level.LOW, int),
        {Level.LOW: "low"}[Level(1)],
        hasattr(Color, "RED"),
        hasattr(Color, "GREEN"),
        list(range(Level.HIGH)),
    )


def kinds(x: Any) -> Any:
    value: Any = 3
    return (
        isinstance(value, int | str),
        isinstance(x, torch.Tensor | None),
        value.__class__ is int,
        x.__class__ is torch.Tensor,
        [].__class__ is list,
        type(value)(4.5),
        type([])((1, 2)),
        type({1})([1]),
        issubclass(bool, int),
        torch.finfo(x.dtype).max,
        torch.iinfo(torch.int8).min,
        torch.device("cpu") == x.device,
        torch.Size([1, 2]) + x.shape,
        x.dtype.is_floating_point,
        x.new_zeros(torch.Size((2,))),
        type(Point(1, 2)).__name__,
    )


def named_tuples(x: Any) -> Any:
    point = Point(1, x)
    return point._replace(x=5), point._asdict(), Point._make([3, x]), point._fields, Point(*point), Point(y=1, x=2)


def caches(x: Any) -> Any:
    size, name = cached(3)
    return x * size, cached(3, name="b"), name, Lazy(x).doubled


def getters(x: Any) -> Any:
    rows = [Point(2, "a"), Point(1, "b")]
    return (
        sorted(rows, key=operator.attrgetter("x")),
        operator.itemgetter(1, 0)(["a", x]),
        operator.methodcaller("split", ",")("a,b"),
        list(map(operator.itemgetter("k"), [{"k": 1}, {"k": x}])),
    )


def plain(x: Any) -> Any:
    """What is wrapped."""
    return x + 1


def wrappers(x: Any) -> Any:
    @functools.wraps(plain)
    def outer(*args: Any) -> Any:
        """What wraps."""
        return plain(*args) * 2

    def inner() -> int:
        return 1

    again = functools.wraps(inner)(lambda: inner() + 1)
    named: Any = outer
    named.extra = 3
    kept = named.__name__, named.__doc__, named.__wrapped__ is plain, named.extra, named.__qualname__, named.__module__
    return outer(x), kept, again(), again.__name__, again.__wrapped__ is inner, again.__doc__, hasattr(inner, "missing")


def annotated(x: Any) -> Any:
    def inner(rows: list[Any], table: dict[str, tuple[int, ...]] | None = None) -> type[int]:
        rows.append(x)
        return int

    kind = dict[str, tuple[int, ...]]
    return inner([]) is int, list[int] is kind, x + 1


def copies(x: Any) -> Any:
    table: dict[str, Any] = {"a": [1, 2], "b": (3, 4)}
    shallow, deep = copy.copy(table), copy.deepcopy(table)
    table["a"].append(5)
    return shallow, deep, shallow["a"] is table["a"], deep["a"] is table["a"], copy.copy([1, x]), copy.copy(3), x + 1


@pytest.mark.fractional
@IN_EVERY_MODE
@each_of(
    extremes, orders, numbers, texts, enumerations, kinds, named_tuples, caches, getters, wrappers, annotated, copies,
)  # fmt: skip
def test_builtins_give_what_python_gives(program: Callable[..., Any], mode: str) -> None:
    assert_same_as_eager(program, mode, is_whole=True)


def test_a_cache_that_can_be_told_from_none_is_kept() -> None:
    captured, _, made = captured_with(
        lambda x: (x + cached_tensor(2), cached_tensor(2) is cached_tensor(2), cached_with_effect(5))
    )
    cached_with_effect.cache_clear()
    CALLS.clear()
    for _ in range(2):
        assert same(captured(torch.ones(2)), (torch.full((2,), 2.0), True, 5))
    assert CALLS == [5]
    assert made.breaks


FACTOR = [2]


@functools.cache
def cached_of_state(size: int) -> int:
    return size * (2 if FACTOR[0] == 2 else 5)


def test_a_cache_that_holds_what_was_is_asked() -> None:
    captured, _, _ = captured_with(lambda x: x * cached_of_state(3))
    for factor, clears, expected in (
        (2, True, 6.0),
        (5, False, 6.0),
        (5, True, 15.0),
        (2, False, 15.0),
        (2, True, 6.0),
    ):
        FACTOR[0] = factor
        if clears:
            cached_of_state.cache_clear()
        for _ in range(2):
            assert torch.equal(captured(torch.ones(2)), torch.full((2,), expected))


RATIO = [1]


@functools.cache
def cached_after_change(size: int) -> int:
    return size * RATIO[0]


def change_and_ask(x: Any) -> Any:
    RATIO[0] += 1
    return x * cached_after_change(3)


def test_a_cache_is_not_filled_from_what_a_change_will_make() -> None:
    RATIO[0] = 1
    cached_after_change.cache_clear()
    captured, _, _ = captured_with(change_and_ask)
    for _ in range(2):
        assert torch.equal(captured(torch.ones(2)), torch.full((2,), 6.0))
    assert cached_after_change(3) == 6


def test_a_cache_is_asked_after_a_change_that_it_does_not_read() -> None:
    RATIO[0] = 1
    cached.cache_clear()

    def program(x: Any) -> Any:
        RATIO[0] = 2
        return x * cached(3)[0]

    captured, _, made = captured_with(program)
    for _ in range(2):
        assert torch.equal(captured(torch.ones(2)), torch.full((2,), 6.0))
    assert made.breaks == []
    assert RATIO == [2]


TOLD: list[int] = []
TELLS = [False]
SIZED = [torch.ones(2)]


@functools.cache
def cached_that_may_tell(size: int) -> int:
    if TELLS[0]:
        TOLD.append(size)
    return size


@functools.cache
def cached_that_may_tell_of_a_tensor(size: int) -> int:
    if SIZED[0].shape[0] == 3:
        TOLD.append(size)
    return size


def _tell(_: Any) -> None:
    TELLS[0] = True


def _grow(_: Any) -> None:
    SIZED[0] = torch.ones(3)


@pytest.mark.parametrize(
    ("cached", "change"), [(cached_that_may_tell, _tell), (cached_that_may_tell_of_a_tensor, _grow)]
)
def test_a_guard_runs_what_a_cache_wraps_only_where_nobody_sees_it(cached: Any, change: Callable[[Any], None]) -> None:
    TELLS[0], SIZED[0] = False, torch.ones(2)
    TOLD.clear()
    cached.cache_clear()

    def program(x: Any) -> Any:
        rank = SIZED[0].dim()
        return [None, x * cached(3)][rank]

    captured, _, made = captured_with(program)
    for _ in range(2):
        assert torch.equal(captured(torch.ones(2)), torch.full((2,), 3.0))
    assert made.breaks == []
    (code,) = made.functions.values()
    (segment,) = code.cache.segments()
    slots = Entry(program).slots((torch.ones(2),), {}) or []
    assert segment.check_contents(slots, ()) is not None
    cached.cache_clear()
    change(None)
    assert segment.check_contents(slots, ()) is None
    assert TOLD == []
    assert torch.equal(captured(torch.ones(2)), torch.full((2,), 3.0))
    assert TOLD == [3]


def test_a_member_of_an_enumeration_is_an_input() -> None:
    captured, recorder, made = captured_with(
        lambda x, color, level: (x * level, color.value, color is Color.RED, x[level - 1])
    )
    for color, level in (
        (Color.RED, Level.LOW),
        (Color.BLUE, Level.LOW),
        (Color.RED, Level.HIGH),
        (Color.RED, Level.LOW),
    ):
        expected = torch.ones(2) * int(level), color.value, color is Color.RED, torch.tensor(1.0)
        assert same(captured(torch.ones(2), color, level), expected)
    assert (len(recorder.graphs), made.breaks) == (3, [])


def test_the_least_of_tensors_is_one_of_them() -> None:
    def program(x: Any) -> Any:
        low = min(x[0], 3)
        return low, max(x[0], x[1]) + 1, type(low)

    assert_same_as_eager(program, calls=[(torch.tensor([1.0, 2.0]),), (torch.tensor([5.0, 4.0]),)])


@pytest.mark.parametrize(
    "call",
    [
        lambda x: isinstance(x, torch.Tensor, strict=True),  # pyright: ignore[reportCallIssue]
        lambda x: hasattr(x, "shape", None),  # pyright: ignore[reportCallIssue]
        lambda x: getattr(x, "shape", default=3),  # pyright: ignore[reportCallIssue]
        lambda x: callable(x, x),  # pyright: ignore[reportCallIssue]
        lambda x: issubclass(int),  # pyright: ignore[reportCallIssue]
    ],
)  # fmt: skip
def test_a_builtin_refuses_the_arguments_that_python_refuses(call: Callable[[Any], Any]) -> None:
    def program(x: Any) -> Any:
        try:
            return x + 1, call(x)
        except TypeError:
            return x - 1

    assert_same_as_eager(program, is_whole=True, graphs=1)


def updates_a_set(x: Any) -> Any:
    found = {4}
    found.update(map(int, ["1", "2"]))
    return x * len(found), sorted(found)


def orders_dims(x: Any) -> Any:
    return x + 1, x.T.dim_order()


@each_of(updates_a_set, orders_dims)
def test_one_graph_does_what_eager_does(program: Callable[..., Any]) -> None:
    assert_same_as_eager(program, is_whole=True, graphs=1)


def test_an_overload_may_be_read_first_in_captured_code() -> None:
    def program(x: Any) -> Any:
        return torch.ops.refimpl_read_first.twice.default(x)

    with torch.library._scoped_library("refimpl_read_first", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        compiled = with_options(program, CaptureOptions(backend=Recorder(), fullgraph=True))
        assert same(compiled(torch.ones(2)), torch.full((2,), 2.0))
