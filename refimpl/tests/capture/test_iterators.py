"""Tests of iterators that C has: their functions and sources may be the program's; after a break they go on where they are."""

from __future__ import annotations

import functools
import itertools
import operator
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from refimpl.capture.values.classes import ends_with_code
from refimpl.tests.capture.capturing import IN_EVERY_MODE, assert_same_as_eager, captured_with, each_of


def numbers(x: Any, count: int = 3) -> Iterator[Any]:
    for index in range(count):
        yield x + index


def double(value: Any) -> Any:
    return value * 2


def power(base: int, exponent: int) -> Any:
    return base**exponent


def tenth(value: int) -> int:
    return 10 // value


class Countdown:
    def __init__(self, begin: int) -> None:
        self.now = begin

    def __iter__(self) -> Countdown:
        return self

    def __next__(self) -> int:
        if self.now <= 0:
            raise StopIteration
        self.now -= 1
        return self.now


class Pair:
    def __init__(self, first: Any, second: Any) -> None:
        self.items = [first, second]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


def maps_and_filters(x: Any) -> Any:
    doubled = map(double, numbers(x))
    paired = map(operator.add, [x, x], (1, 2, 3))
    odd = filter(lambda i: i % 2, range(6))
    return (
        list(doubled),
        tuple(paired),
        list(odd),
        list(filter(None, [0, 1, "", "a", None])),
        sum(map(int, "123")),
        x + 1,
    )


def pairs(x: Any) -> Any:
    rows = []
    for index, (left, right) in enumerate(zip(numbers(x), itertools.count(5), strict=False), start=2):
        rows.append(left * right + index)
    found = []
    for strict in (False, True):
        try:
            found.append(list(zip([1, 2], (v for v in (3,)), strict=strict)))
        except ValueError as error:
            found.append(type(error).__name__)
    return rows, found, dict(zip("ab", numbers(x), strict=False)), list(zip()), list(enumerate(Pair(x, 2)))


def chains(x: Any) -> Any:
    flat = itertools.chain([x], numbers(x), "ab")
    nested = itertools.chain.from_iterable([[1, 2], (3,), Pair(4, 5)])
    return list(flat), list(nested), list(itertools.chain()), [*itertools.islice(itertools.count(3, 2), 4)]


def slices(x: Any) -> Any:
    source = iter(range(20))
    first = list(itertools.islice(source, 3))
    second = list(itertools.islice(source, 2, 9, 3))
    third = next(source)
    everything = list(itertools.islice(numbers(x), None))
    return (
        first,
        second,
        third,
        everything,
        list(itertools.islice("abc", 0)),
        list(itertools.islice([1, 2, 3], 1, None)),
    )


def repeats(x: Any) -> Any:
    cycled = itertools.cycle([1, x, "c"])
    return (
        [next(cycled) for _ in range(7)],
        list(itertools.repeat(x, 2)),
        list(zip("ab", itertools.repeat(4), strict=False)),
    )


def combinations(x: Any) -> Any:
    return (
        list(itertools.product([1, 2], "ab")),
        list(itertools.product(range(2), repeat=3)),
        list(itertools.permutations([1, x, 3], 2)),
        list(itertools.combinations("abcd", 2)),
        list(itertools.combinations_with_replacement("ab", 2)),
        list(itertools.product(numbers(x, 2), [5])),
        list(itertools.product()),
        x + 1,
    )


def conditions(x: Any) -> Any:
    items = [1, 3, 4, 5, 2]
    return (
        list(itertools.takewhile(lambda i: i < 4, items)),
        list(itertools.dropwhile(lambda i: i < 4, items)),
        list(itertools.filterfalse(lambda i: i < 4, items)),
        list(itertools.compress(numbers(x), [1, 0, 1])),
        list(itertools.starmap(power, [(2, 3), (3, 2)])),
        list(itertools.pairwise([1, x, 3])),
        list(itertools.pairwise([1])),
        list(itertools.zip_longest([1, 2, 3], "a", fillvalue=x)),
        list(itertools.zip_longest(*[])),
        x + 1,
    )


def accumulations(x: Any) -> Any:
    return (
        list(itertools.accumulate([1, 2, 3])),
        list(itertools.accumulate([x, x], initial=x)),
        functools.reduce(operator.mul, [x, 2, x]),
        list(itertools.accumulate([3, 1, 4], max)),
        list(itertools.accumulate(numbers(x), lambda a, b: a - b)),
        functools.reduce(lambda a, b: a + b, numbers(x), 10),
        list(itertools.accumulate([])),
    )


def groups(x: Any) -> Any:
    found = []
    for key, group in itertools.groupby([1, 3, 5, 2, 4, 7], key=lambda i: i % 2):
        found.append((key, list(group)))
    for key, group in itertools.groupby("aabbbc"):
        found.append((key, next(group)))
    waiting = itertools.groupby([1, 1, 2])
    _, first = next(waiting)
    next(waiting)
    left, right = itertools.tee(numbers(x), 2)
    return found, list(first), list(left), next(right), list(right)


def iterators_of_the_program(x: Any) -> Any:
    total = x
    for value in Countdown(3):
        total = total + value
    first, second = Pair(x, 5)
    rest = Countdown(4)
    return (
        total,
        first,
        second,
        list(Countdown(2)),
        next(rest),
        next(rest),
        sum(rest),
        next(rest, "end"),
        [*Pair(1, x)],
        max(Pair(2, 3)),
        list(map(double, Countdown(3))),
        sorted(Pair(3, 1)),
        3 in Pair(1, 3),
        list(zip(Countdown(2), Pair(1, 2), strict=True)),
    )


def unpacks(x: Any) -> Any:
    first, second = Countdown(2)
    found = []
    for source in (Countdown(3), Pair(1, 2), Countdown(1), numbers(x)):
        try:
            left, right = source
            found.append((left, right))
        except ValueError as error:
            found.append(str(error))
    return first, second, found, x + 1


def until(x: Any) -> Any:
    source = iter([1, 2, 3, 0, 5])
    return list(iter(lambda: next(source), 0)), next(source), list(iter(Pair(x, 1))), x + 1


def ends(x: Any) -> Any:
    items = [1, 2]
    walk = iter(items)
    taken = [*walk]
    items.append(3)  # an iterator that has ended stays so
    found: list[Any] = [next(walk, "end")]
    for step in range(3):
        try:
            table = {"a": 1, "b": 2}
            for key in table:
                if step == 0:
                    table[key + "x"] = 1
                elif step == 1:
                    table[key] = 5
                else:
                    del table[key]
            found.append(table)
        except RuntimeError as error:
            found.append(str(error))
    values = {"a": 1, "b": 2}
    for key, value in values.items():
        values["b"] = 7
        found.append((key, value))
    return taken, found, x + 1


def across_breaks(x: Any) -> Any:
    made = [
        map(double, [x, x + 1, x + 2]),
        filter(lambda i: i % 2, range(9)),
        enumerate(numbers(x), 3),
        zip([1, 2, 3], numbers(x), strict=False),
        itertools.chain([1], [2, 3], [4]),
        itertools.islice(range(20), 3, 15, 4),
        itertools.repeat(x, 3),
        itertools.count(4, 3),
        itertools.cycle([1, 2, 3]),
        itertools.accumulate([1, 2, 3, 4]),
        itertools.takewhile(lambda i: i < 3, [1, 2, 3, 4]),
        itertools.dropwhile(lambda i: i < 2, [1, 2, 1, 4]),
        itertools.product("ab", [1, 2]),
        itertools.permutations([1, 2, 3]),
        itertools.pairwise([1, 2, 3, 4]),
        itertools.starmap(power, [(2, 1), (2, 2), (2, 3)]),
        itertools.zip_longest([1, 2, 3], "a"),
        itertools.compress("abcd", [1, 0, 1, 1]),
        itertools.filterfalse(None, [0, 1, 0, 0]),
        iter(range(5)),
        iter([1, 2, 3, 4]),
        iter({"a": 1, "b": 2, "c": 3}),
        itertools.accumulate([1, 2, 3], initial=7),
        iter([2, 3, 4, 5].pop, 2),
    ]
    found = [next(it) for it in made]
    print(end="")
    kinds = [type(it) for it in made]
    found += [next(it) for it in made]
    print(end="")
    return found, [list(itertools.islice(it, 5)) for it in made], kinds


def groups_across_breaks(x: Any) -> Any:
    found = []
    for key, group in itertools.groupby([1, 1, 2, 3, 3]):
        print(end="")
        found.append((key, [v * x for v in group]))
    left, right = itertools.tee([1, 2, 3])
    found.append(next(left))
    print(end="")
    return found, list(left), list(right)


def partials(x: Any) -> Any:
    scaled = functools.partial(lambda a, b, *, by=1: a * by + b, x, by=3)
    again = functools.partial(scaled, by=4)
    made = functools.partial(dict, a=1)
    return (
        scaled(1),
        scaled(2, by=1),
        again(5),
        again.keywords,
        again.args,
        made(b=2),
        list(map(functools.partial(pow, 2), [1, 2])),
        type(made),
    )


def partials_across_breaks(x: Any) -> Any:
    scaled = functools.partial(operator.mul, x)
    print(end="")
    return scaled(3), scaled.func is operator.mul, scaled.args


BREAKING = (unpacks, across_breaks, groups_across_breaks, partials_across_breaks)


@pytest.mark.fractional
@IN_EVERY_MODE
@each_of(
    maps_and_filters, pairs, chains, slices, repeats, combinations, conditions, accumulations, groups,
    iterators_of_the_program, until, ends, partials, unpacks, across_breaks, groups_across_breaks,
    partials_across_breaks,
)  # fmt: skip
def test_iterators_are_what_python_has(program: Callable[..., Any], mode: str) -> None:
    assert_same_as_eager(program, mode, is_whole=program not in BREAKING)


def test_iterators_that_go_on_after_a_break_break_once() -> None:
    captured, _, made = captured_with(across_breaks, recompile_limit=64)  # from 3.12 on comprehensions are in the frame
    captured(torch.ones(2, 2))
    assert [reason.kind.name for reason in made.breaks].count("output_of_program") == 2


def test_looking_at_a_partial_function_changes_nothing() -> None:
    inner = functools.partial(pow, 2)
    assert not ends_with_code(inner)
    assert functools.partial(inner, 3).func is functools.partial(functools.partial(pow, 2), 3).func


def test_a_partial_function_that_is_an_input() -> None:
    def program(x: Any, function: Any) -> Any:
        return function(x), function.func is operator.mul, function.args

    partial = functools.partial
    functions = partial(operator.mul, 3), partial(operator.mul, 4), partial(torch.add, alpha=2, other=1)
    calls = [(torch.ones(2), function) for function in functions]
    assert_same_as_eager(program, calls=calls, is_whole=True, graphs=3)


def test_an_error_of_a_function_leaves_the_iterator_where_c_leaves_it() -> None:
    def program(x: Any) -> Any:
        source = map(tenth, [5, 0, 2])
        found = []
        for _ in range(3):
            try:
                found.append(next(source))
            except ZeroDivisionError:
                found.append("zero")
        return found, x + 1

    assert_same_as_eager(program, calls=[(torch.ones(2),)])


def reversed_under_way(x: Any) -> Any:
    items, seen = [1, 2, 3, 4], []
    for item in reversed(items):
        seen.append(item)
        if item == 3:
            items.pop(0)
            items[0] = 7
    whole = list(reversed(items))
    items.append(x.shape[0])
    backwards = reversed(items)
    first = next(backwards)
    torch._dynamo.graph_break()
    items[0] = 9
    return x + 1, seen, items, whole, first, list(backwards)


@IN_EVERY_MODE
def test_a_list_that_changes_under_a_reversed_iterator_is_seen(mode: str) -> None:
    assert_same_as_eager(reversed_under_way, mode, [(torch.ones(2),)] * 2)


def tried(action: Callable[[], Any]) -> str:
    try:
        return str(action())
    except (RuntimeError, TypeError) as error:
        return str(error)


def loops_over(table: Any, change: Callable[[Any, Any], None]) -> list[Any]:
    seen = []
    for key in table:
        seen.append(key)
        change(table, key)
    return seen


def replaces(table: Any, key: Any) -> None:
    del table[key]
    table[key] = 0


def adds_at_the_end(table: Any, key: Any) -> None:
    if key == 2:
        table[3] = 0


def takes_one_away(table: Any, key: Any) -> None:
    if key == 1:
        del table[1]
        table[5] = 0


def turns(items: Any, key: Any) -> None:
    items.append(items.popleft())


def assigns(items: Any, key: Any) -> None:
    items[1] = 7


def changed_under_way(x: Any) -> Any:
    found = [
        tried(lambda: loops_over({0: 0}, replaces)),
        tried(lambda: loops_over({1: 0, 2: 0}, adds_at_the_end)),
        tried(lambda: loops_over({1: 0, 2: 0}, takes_one_away)),
        tried(lambda: loops_over(OrderedDict({1: 0, 2: 0}), adds_at_the_end)),
        tried(lambda: loops_over(OrderedDict({1: 0, 2: 0}), lambda table, key: table.move_to_end(key))),
        tried(lambda: loops_over(deque([1, 2, 3]), turns)),
        tried(lambda: loops_over(deque([1, 2, 3]), assigns)),
        tried(lambda: loops_over(deque([1, 2, 3]), lambda items, key: items.extend([]))),
    ]
    return found, x + 1


def changed_before_a_break(x: Any) -> Any:
    table = {1: 1, 2: 2}
    grown, shrunk = iter(table), iter(table)
    next(grown)
    table[3] = 3
    torch._dynamo.graph_break()
    first = tried(lambda: next(grown))
    del table[1], table[2]
    table[4] = 4
    return first, tried(lambda: next(shrunk)), x + 1


@IN_EVERY_MODE
@each_of(changed_under_way, changed_before_a_break)
def test_a_container_that_changes_while_it_is_iterated(program: Callable[..., Any], mode: str) -> None:
    assert_same_as_eager(program, mode, [(torch.ones(2),)] * 2)


def returns_seven() -> Iterator[int]:
    yield 1
    return 7


def what_ends_a_generator(x: Any) -> Any:
    found = []
    for step in (next, lambda generator: generator.__next__(), lambda generator: generator.send(None)):
        generator = returns_seven()
        next(generator)
        for _ in range(2):
            try:
                step(generator)
            except StopIteration as stop:
                found.append(stop.value)
    return found, next(returns_seven(), 5), x + 1


def empty_ones(x: Any) -> Any:
    longest: Any = itertools.zip_longest()  # pyright: ignore[reportCallIssue]
    found: Any = zip(), zip(strict=True), longest, reversed(range(3))
    torch._dynamo.graph_break()
    return [list(each) for each in found], type(found[3]).__name__, x + 1


@IN_EVERY_MODE
@each_of(what_ends_a_generator, empty_ones)
def test_iterators_at_their_end(program: Callable[..., Any], mode: str) -> None:
    assert_same_as_eager(program, mode, [(torch.ones(2),)] * 2)
