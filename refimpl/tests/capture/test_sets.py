"""Tests of sets inside of captured graphs: content, order, effects, identity."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import pytest
import torch

from refimpl.tests.capture.capturing import IN_EVERY_MODE, assert_same_as_eager, captured_with, each_of, same

WORDS = {"one", "two", "three", "four", "five"}
KINDS = frozenset({int, str, list})
LAYERS = [torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)]


class Color(enum.Enum):
    RED = 1
    BLUE = 2


def displays(x: Any) -> Any:
    numbers, squares = {1, 2, x.dim()}, {i * i for i in range(7)}
    return numbers, squares, {*numbers, *squares, 100}, [x * i for i in squares], list({"a", "bb", "ccc", "dddd"})


def methods(x: Any) -> Any:
    found = set()
    for index in range(40):
        found.add((index * 37) % 101)
    found.discard(5)
    found.discard(1000)
    found.remove(37)
    first = found.pop()
    found.update([1000, 2000], (3, 4), {5: 6})
    copied = found.copy()
    found.clear()
    found |= {"x", "y"}
    return found, copied, list(copied), first, len(copied), x * len(found)


def operators(x: Any) -> Any:
    a, b, c = {1, 2, 3, "a", None}, {2, 3, "b", 7.5}, frozenset([3, 4, 5, 1])
    made = [
        a | b,
        a & b,
        a - b,
        a ^ b,
        a | c,
        c | a,
        c & a,
        c - a,
        b.union(a, [9, 8]),
        a.intersection([3, 1]),
        c.difference(a),
    ]
    asked = [
        a <= b,
        a >= {1},
        a < a | b,
        a == {1, 2, 3, "a", None},
        a != c,
        c == {1, 3, 4, 5},
        a.isdisjoint([9]),
        {1} <= c,
    ]
    asked += [
        a.issubset(a | b),
        a.issuperset([1]),
        3 in a,
        "z" in a,
        {3} in {frozenset({3})},
        a == 3,
        bool(set()),
        bool(c),
    ]
    a &= {1, 2}
    a -= {2}
    a ^= {7}
    c |= a
    return [list(s) for s in made], made, asked, a, c, [type(s).__name__ for s in made], x + len(a)


def elements(x: Any) -> Any:
    found = {1, True, 1.0, (1, 2), (1, 2.0), frozenset({1}), Color.RED, int, displays, None, torch.float32, 2.5}  # noqa: B033 - equal ones
    return (
        len(found),
        (1, 2) in found,
        Color.RED in found,
        Color.BLUE in found,
        float in found,
        displays in found,
        x + 1,
    )


def equal_ones(x: Any) -> Any:
    first, second = {1, 2}, {True, 3}
    return (
        [type(v) for v in first | second],
        [type(v) for v in second | first],
        [type(v) for v in first & {True}],
        x + 1,
    )


def inputs(x: Any) -> Any:
    order = [word for word in WORDS]  # noqa: C416 - iterating is tested
    return (
        order,
        WORDS | {"six"} == {*WORDS, "six"},
        int in KINDS,
        float in KINDS,
        x * len(WORDS),
        sorted(WORDS),
        max(WORDS),
    )


def by_identity(x: Any) -> Any:
    seen, y = set(), x + 1
    for layer in [*LAYERS, LAYERS[0]]:
        if layer not in seen:
            seen.add(layer)
            x = layer(x)
    tensors = {x, y}
    return x, len(seen), x in tensors, y in tensors, LAYERS[1] in seen, len(tensors), y


def errors(x: Any) -> Any:
    found = []
    for step in range(4):
        try:
            if step == 0:
                {1}.remove(2)
            elif step == 1:
                set().pop()
            elif step == 2:
                unhashable: Any = []
                items = {unhashable}
            else:
                items = {1, 2, 3}
                for item in items:
                    items.add(item + 10)
        except (LookupError, TypeError, RuntimeError) as error:
            found.append((type(error).__name__, str(error)))
    return found, x + 1


def of_iterables(x: Any) -> Any:
    made = [set("abcabc"), frozenset(range(5)), set(i % 3 for i in range(9)), set({1: 2, 3: 4}), set(enumerate("ab"))]  # noqa: C401
    same_one = frozenset([1, 2])
    return (
        made,
        [list(s) for s in made],
        frozenset(same_one) is same_one,
        same_one.copy() is same_one,
        sum(made[1]),
        x + 1,
    )


def views(x: Any) -> Any:
    left, right = {"a": 1, "b": 2, "c": x}, {"b": 3, "d": 4}
    both, either = left.keys() & right.keys(), left.keys() | right.keys()
    asked = left.keys() == {"a", "b", "c"}, "a" in left.keys(), ("b", 2) in left.items()  # noqa: SIM118 - views are tested
    return sorted(both), sorted(either), left.keys() - right, asked, x + 1


def across_breaks(x: Any) -> Any:
    found = {"alpha", "beta"}
    other = found | {"gamma"}
    print(end="")
    found.add("delta")
    copied = set(found)
    found.discard("alpha")
    print(end="")
    walked = []
    for word in copied:
        print(end="")
        walked.append(word)
    return found, other, copied, walked, list(copied), x * len(found)


@pytest.mark.fractional
@IN_EVERY_MODE
@each_of(
    displays, methods, operators, elements, equal_ones, inputs, by_identity, errors, of_iterables, views,
    across_breaks,
)  # fmt: skip
def test_sets_are_what_python_has(program: Callable[..., Any], mode: str) -> None:
    assert_same_as_eager(program, mode, is_whole=program is not across_breaks)


def test_a_set_that_was_there_is_changed_in_place() -> None:
    def program(x: Any, found: set[Any], other: set[Any]) -> Any:
        found.add(x.dim())
        found.discard("a")
        found |= {"c"}
        found -= {"zz"}
        return x + len(found), found is other, "a" in found, sorted(found, key=str)

    captured, recorder, _ = captured_with(program)
    for content in ({"a", "b"}, {"a"}, {7}, set()):
        mine, expected = set(content), set(content)
        result = captured(torch.ones(2), mine, mine)
        assert same(result, program(torch.ones(2), expected, expected))
        assert mine == expected
    assert len(recorder.graphs) == 4


def test_another_content_or_class_of_an_element_is_noticed() -> None:
    captured, recorder, _ = captured_with(lambda x, found: [x, *found])
    for found in ({1, 2}, {1, 2}, {True, 2}, {1, 2, 3}, frozenset({1, 2}), {1.5}):
        assert same(captured(torch.ones(2), found), [torch.ones(2), *found])
    assert len(recorder.graphs) == 0  # nothing is computed


def test_a_set_that_others_were_made_of_is_changed_after_that() -> None:
    def program(x: Any, found: set[Any]) -> Any:
        before = found.copy()
        found.add("later")
        return x + len(before), before, before | found

    captured, _, _ = captured_with(program)
    for _ in range(2):
        mine, expected = {"a", "b"}, {"a", "b"}
        assert same(captured(torch.ones(2), mine), program(torch.ones(2), expected))
        assert mine == expected


def test_objects_that_are_keys_may_be_others_the_next_time() -> None:
    def program(x: Any, first: Any, second: Any) -> Any:
        return x * len({first, second})

    one, other = torch.nn.ReLU(), torch.nn.ReLU()
    captured, _, _ = captured_with(program)
    for pair in ((one, other), (other, one), (one, one), (other, torch.nn.ReLU())):
        assert same(captured(torch.ones(2), *pair), program(torch.ones(2), *pair))
