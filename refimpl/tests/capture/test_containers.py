"""Tests of lists, tuples, dicts and deques inside of captured graphs: methods, operators, keys, effects."""

from __future__ import annotations

import enum
import operator
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch

from refimpl.tests.capture.capturing import IN_EVERY_MODE, assert_same_as_eager, captured_with, each_of, same

Point = namedtuple("Point", "x y")


class Mode(enum.Enum):
    ON = 1
    OFF = 2


def attempted(action: Callable[[], Any]) -> Any:
    try:
        return action()
    except (LookupError, ValueError, TypeError, RuntimeError, StopIteration) as error:
        return type(error).__name__


def lists(x: Any) -> Any:
    items: list[Any] = [5, 3, 8, 3]
    found = [items.index(3), items.index(3, 2), items.count(3), 8 in items, 9 in items]
    items.remove(3)
    items.sort(reverse=True)
    items.insert(1, 7)
    items += (1, 2)
    items *= 2
    del items[0], items[-2:]
    items[1:3] = [x]
    items[::2] = ["a"] * len(items[::2])
    items.sort(key=lambda v: v if isinstance(v, int) else 0)
    items.extend(v + 1 for v in [x])
    again = 2 * [1, x] + list(range(3))
    return items, found, again, [1, 2] < [1, 3], [1, 2, 0] > [1, 2], [1, [2]] == [1, [2]], (1, 2) != (1, 3), [] == ()


def errors(x: Any) -> Any:
    items, table = [1, 2], {"a": 1}
    unhashable: Any = []
    index: Any = "a"
    actions = [
        lambda: items.index(7),
        lambda: items.remove(7),
        lambda: items.pop(9),
        lambda: items[4],
        lambda: table["b"],
        lambda: table.pop("b"),
        lambda: {}.popitem(),
        lambda: deque().popleft(),
        lambda: deque([1], 1).insert(0, 2),
        lambda: (1, 2).index(3),
        lambda: items[index],
        lambda: {unhashable: 1},
        lambda: operator.getitem(deque([1]), slice(1)),
        lambda: {**table} | table,
        lambda: defaultdict(None)["a"],
        lambda: max([]),
        lambda: next(iter([])),
        lambda: dict(**cast(Any, {1: 2})),
        lambda: items[::0],
        lambda: items.__delitem__(slice(None, None, 0)),
        lambda: slice(*cast(Any, ())),
        lambda: issubclass(cast(Any, 5), int),
        lambda: {}.update(**cast(Any, {1: 2})),
    ]
    return [attempted(action) for action in actions], x + 1


def tuples(x: Any) -> Any:
    point, other = Point(1, x), (1, 2, 3, 2)
    size = x.shape
    return (
        other * 2,
        2 * other,
        other + point,
        other.index(3),
        other.count(2),
        other[::-1],
        size * 2,
        size + other,
        size == (2, 2),
        (1,) < (1, 2),
        point[:1],
        tuple(size),
        point == (1, x),
        size.count(2),
        (1, (2, 3)) == (1, (2, 3)),
        (2, "b") > (2, "a"),
        Point(1, 2) == (1, 2),
    )


def dicts(x: Any) -> Any:
    table = dict([("a", 1), ("b", x)], c=3)
    other = {"b": 5, "d": 6}
    joined = table | other
    table |= {"e": 7}
    table.update({"a": 2}, f=x)
    table.update([("g", 1)])
    last = table.popitem()
    made = dict.fromkeys("xyz", x)
    merged = {**table, **other, "h": 1}
    return (
        table,
        joined,
        last,
        made,
        merged,
        table.get("zz", 3),
        table.setdefault("a", 9),
        list(reversed(table)),
        {"a": 1} == {"a": 1.0},
        {"a": [1]} != {"a": [2]},
        list(table.items())[1],
        "b" in table,
        dict(zip("ab", [x, 2], strict=True)),
        len(table.values()),
        {1: 1}.items() | {2},
        {2} | {1: 1}.items(),
        {1: 1}.items() == {(1, 1)},
        {(1, 1)} == {1: 1}.items(),
        {1: 1, 2: 2}.items() & {(1, 1)},
    )


def keys(x: Any) -> Any:
    table: dict[Any, Any] = {
        (1, "a"): 1,
        Mode.ON: x,
        int: 3,
        keys: 4,
        None: 5,
        2.5: 6,
        torch.float32: 7,
        (): 8,
        True: 9,
        frozenset({1}): 10,
    }
    table[1] = "one"
    y = x + 1
    tensors = {x: "x", y: "y"}
    point: dict[Any, Any] = {Point(1, 2): x}
    return (
        table[(1, "a")],
        table[Mode.ON],
        table[int],
        table[keys],
        table[1.0],
        list(table)[8],
        tensors[y],
        x in tensors,
        Mode.OFF in table,
        point[(1, 2)],
        table[frozenset({1})],
        len(table),
        list(table.values())[:3],
    )


def ordered(x: Any) -> Any:
    table: OrderedDict[str, Any] = OrderedDict([("a", 1), ("b", x), ("c", 3)])
    table.move_to_end("a")
    table.move_to_end("c", last=False)
    first = table.popitem(last=False)
    copied: Any = table.copy()
    copied["z"] = 0
    return (
        table,
        first,
        copied,
        type(copied).__name__,
        table == OrderedDict(table),
        OrderedDict(a=1, b=2) == OrderedDict(b=2, a=1),
        list(table),
    )


def defaults(x: Any) -> Any:
    groups: defaultdict[str, list[Any]] = defaultdict(list)
    for index, name in enumerate("abca"):
        groups[name].append(x * index)
    counts: defaultdict[str, int] = defaultdict(int, {"z": 4})
    for name in "abca":
        counts[name] += 1
    nested: Any = defaultdict(lambda: defaultdict(set))
    nested["a"]["b"].add(1)
    return (
        groups,
        counts,
        nested["a"]["b"],
        "q" in groups,
        groups.get("q"),
        counts.default_factory is int,
        groups.copy() == groups,
    )


def counters(x: Any) -> Any:
    counts: Any = Counter("aab")
    counts["z"] += 1
    counts.update([1, "a"])
    return (
        counts["a"],
        counts["q"],
        len(counts),
        "b" in counts,
        sorted(counts.items(), key=str),
        sum(counts.values()),
        x + 1,
    )


def deques(x: Any) -> Any:
    window: deque[Any] = deque(maxlen=3)
    for index in range(5):
        window.append(x + index)
    other: deque[Any] = deque([1, 2, 3])
    other.appendleft(0)
    other.extend([4, 5])
    other.extendleft([-1, -2])
    other.rotate(2)
    other.insert(1, "new")
    other.remove(3)
    other[0] = "first"
    del other[1]
    short = deque([1, 2, 3, 4], 2)
    short.appendleft(9)
    return (
        list(window),
        window.maxlen,
        other,
        other.popleft(),
        other.pop(),
        other.count(1),
        other.index(0),
        len(window),
        other[1],
        short,
        other + deque([1]),
        deque([1]) == deque([1]),
        sum(window),
        list(reversed(other)),
        bool(deque()),
        5 in other,
    )


def changed_while_iterated(x: Any) -> Any:
    items, seen = [1, 2, 3], []
    for item in items:
        if len(items) < 6:
            items.append(item * 10)
        seen.append(item)
    grown = deque([1, 2])
    try:
        for item in grown:
            grown.append(item)
    except RuntimeError as error:
        seen.append(str(error))
    return seen, x + 1


def across_breaks(x: Any) -> Any:
    made = [OrderedDict(a=x), defaultdict(list, {"a": [1]}), deque([1, x], 3), {Mode.ON: x, (1, 2): 3}, {x: 1}]
    print(end="")
    made[1]["b"].append(2)
    made[2].extend([3, 4])
    made[0]["b"] = x + 1
    shared = made[2]
    print(end="")
    walked = []
    for item in shared:
        print(end="")
        walked.append(item)
    return [type(v).__name__ for v in made], made[:4], made[2].maxlen, walked, made[1]["zz"], made[4][x]


@pytest.mark.fractional
@IN_EVERY_MODE
@each_of(lists, errors, tuples, dicts, keys, ordered, defaults, counters, deques, changed_while_iterated, across_breaks)
def test_containers_are_what_python_has(program: Callable[..., Any], mode: str) -> None:
    assert_same_as_eager(program, mode, is_whole=program is not across_breaks)


def changes_inputs(x: Any, window: deque[Any], table: Any, groups: Any, keyed: Any) -> Any:
    window.append(x)
    window.rotate(1)
    table.move_to_end("a")
    table["new"] = x
    groups["a"].append(x)
    groups["b"].append(1)
    keyed[Mode.OFF] = keyed.pop(Mode.ON)
    return x + len(window), window[0] is x, list(table), window


@IN_EVERY_MODE
def test_containers_that_were_there_are_changed_in_place(mode: str) -> None:
    def observed(function: Callable[..., Any], x: Any) -> Any:
        given = deque([1, 2], 3), OrderedDict(a=1, b=2), defaultdict(list, {"a": [0]}), {Mode.ON: "on", int: "int"}
        result = function(x, *given)
        return result, given, result[3] is given[0]

    assert_same_as_eager(changes_inputs, mode, [(torch.ones(2),)] * 2, observed=observed)


def test_another_key_or_limit_is_noticed() -> None:
    captured, recorder, _ = captured_with(lambda x, table: [x + 1, *table])
    for table in ({1: 2}, {True: 2}, {1.5: 2}, {Mode.ON: 1}, {Mode.OFF: 1}, {(1, 2): 1}, {(True, 2): 1}, {"a": 1}):
        assert same(captured(torch.ones(2), table), [torch.ones(2) + 1, *table])
    assert len(recorder.graphs) == 8
    captured, _, _ = captured_with(lambda x, window: (window.append(x), len(window), window.maxlen))
    for limit in (2, 3, None):
        assert same(captured(torch.ones(2), deque([1, 2], limit)), (None, min(limit or 3, 3), limit))


def test_a_slice_is_an_input() -> None:
    def program(x: Any, part: slice) -> Any:
        return [1, 2, 3, 4][part], "abcd"[part], (1, 2, 3)[part], x[part]

    parts = slice(1, 3), slice(None), slice(0, 3, 2), slice(1, 2), slice(-3, None), slice(2, 4), slice(1, 3)
    assert_same_as_eager(program, calls=[(torch.arange(6.0), part) for part in parts], is_whole=True)


def test_a_break_in_an_operation_leaves_iterators_where_they_were() -> None:
    def program(x: Any) -> Any:
        walk = iter([1, 2, object()])
        return sorted(walk, key=str)[:2], list(walk), x + 1

    def takes_all(x: Any) -> Any:
        walk = iter([x.sum(), x.sum() * 2])
        return max(walk) + 1, list(walk)

    for function in (program, takes_all):
        assert_same_as_eager(function, calls=[(torch.ones(2),)])


class Emptying:
    def __init__(self, *lists: list[Any]) -> None:
        self.lists = lists

    def __eq__(self, other: object) -> bool:
        for items in self.lists:
            items.clear()
        return True

    __hash__ = None  # type: ignore[assignment]


def emptied_by_a_comparison(x: Any) -> Any:
    one: list[Any] = []
    other: list[Any] = [1, 2]
    one += [Emptying(one, other), 2]
    return one == other, one, other, x + 1


def the_same_tuple(x: Any) -> Any:
    pair: Any = (1, x)
    return [
        found is pair
        for found in (
            pair * 1,
            pair[:],
            pair[0:2],
            operator.add(pair, cast(Any, ())),
            operator.add(cast(Any, ()), pair),
        )
    ], x + 1


def contains_itself(x: Any) -> Any:
    items: list[Any] = [1]
    items.append(items)
    torch._dynamo.graph_break()
    return len(items), items[1] is items, x + 1


def deeply_nested(x: Any) -> Any:
    items: list[Any] = []
    for _ in range(1500):
        items = [items]
    torch._dynamo.graph_break()
    depth = 0
    while items:
        items, depth = items[0], depth + 1
    return depth, x + 1


def behind_a_proxy(x: Any) -> Any:
    table: dict[str, int] = {}
    proxy = table.keys().mapping
    table["a"] = 1
    return dict(proxy), proxy == table, x + 1


@each_of(emptied_by_a_comparison, the_same_tuple, contains_itself, deeply_nested, behind_a_proxy)
def test_objects_that_are_shared(program: Callable[..., Any]) -> None:
    assert_same_as_eager(program, calls=[(torch.ones(2),)] * 2)


def named_methods(x: Any) -> Any:
    items, table, numbers = [1, 2], {"a": 1}, {1}
    items.__delitem__(0)
    table.__delitem__("a")
    return (
        items,
        table,
        items.__add__([3]),
        [1].__eq__([1]),
        {"a": 1}.__or__({"b": 2}),
        tuple(range(1, 2)).__lt__((2,)),
        numbers.__or__({2}),
        numbers.__le__({1, 2}),
        list(numbers.__iter__()),
        x + 1,
    )


def test_special_methods_are_called_by_name() -> None:
    assert_same_as_eager(named_methods, calls=[(torch.ones(2),)], is_whole=True, graphs=1)
