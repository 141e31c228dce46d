"""Iterators over lists, tuples and ranges that are under way where a segment begins, as after a break in a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from refimpl.tests.capture.capturing import IN_EVERY_MODE, assert_same_as_eager, captured_with, each_of, same


def stop() -> None:
    """A graph break: what is printed is nothing."""
    print(end="")


def over(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def program(x: Any) -> Any:
        for item in make(x):
            stop()
            x = x * 2 + item
        return x

    return program


def between_breaks(x: Any) -> Any:
    it = iter((1, 2, 3, 4, 5))
    x = x + next(it)
    stop()
    x = x + next(it) * next(it)
    stop()
    x = x + next(it)
    return x, list(it), next(it, "nothing")


def two_names(x: Any) -> Any:
    it = iter([1, 2, 3, 4])
    pair = (it, it)
    stop()
    first, second = next(pair[0]), next(pair[1])
    stop()
    return x * first + second, [*pair[0]], pair[0] is it


def list_that_grows(x: Any) -> Any:
    items = [1, 2]
    for item in items:
        stop()
        x = x + item
        if len(items) < 6:
            items.append(item + len(items))
    return x, items


def list_that_shrinks(x: Any) -> Any:
    items = [1, 2, 3, 4, 5]
    for item in items:
        stop()
        x = x * item
        items.remove(item)
    return x, items


def list_that_is_changed_ahead(x: Any) -> Any:
    items = [1, 2, 3, 4]
    for item in items:
        stop()
        items[-1] = item * 7
        x = x + item
        x = x.relu()
    return x, items


def list_that_was_changed_before(x: Any) -> Any:
    items = [1, 2, 3]
    it = iter(items)
    stop()
    items[0] = 5
    items.append(6)
    x = x + 1
    return x, [*it]


def list_that_grows_after_the_end(x: Any) -> Any:
    items = [1, 2, 3]
    it = iter(items)
    stop()
    for item in it:
        x = x + item
    items.append(4)
    stop()
    return x, [*it], items


def list_that_grows_at_the_end(x: Any) -> Any:
    items = [1, 2]
    it = iter(items)
    x = x + next(it) + next(it)
    stop()
    items.append(3)
    return x, [*it], items


def exhausted(x: Any) -> Any:
    it = iter([1])
    next(it)
    ended = iter([])
    empty = next(ended, None)
    stop()
    return x, [*it], [*ended], empty, next(it, 3)


def nested(x: Any) -> Any:
    total = []
    for row in [(1, 2), (3,), ()]:
        for item in row:
            stop()
            x = x + item
        total.append(x.sum())
    return x, total


def together(x: Any) -> Any:
    left, right = iter([1, 2, 3]), iter(range(5, 9))
    stop()
    for a, (b, c) in zip(left, enumerate(right), strict=False):
        x = x * a + b - c
    stop()
    return x, [*left], [*right]


def in_a_generator(x: Any) -> Any:
    def halves(items: Any) -> Iterator[Any]:
        for item in items:
            yield item / 2

    made = halves([2, 4, 6])
    x = x + next(made)
    stop()
    return x + next(made), [*made]


def ends_by_an_exception(x: Any) -> Any:
    it = iter([1])
    stop()
    try:
        while True:
            x = x + next(it)
    except StopIteration:
        return x - 1, [*it]


OVER: dict[str, Callable[[Any], Any]] = {
    "a list": over(lambda x: [1, 2.5, x]),
    "a tuple": over(lambda x: (x, 2, x)),
    "a range": over(lambda x: range(2, 9, 3)),
    "a long range": over(lambda x: range(0, -2000, -1000)),
}
CALLS = [(torch.full((2,), number),) for number in (1.0, 2.0, 2.0)]


@pytest.mark.fractional
@IN_EVERY_MODE
@each_of(
    between_breaks, two_names, list_that_grows, list_that_shrinks, list_that_is_changed_ahead,
    list_that_was_changed_before, list_that_grows_after_the_end, list_that_grows_at_the_end, exhausted, nested,
    together, in_a_generator, ends_by_an_exception,
)  # fmt: skip
def test_iterators_go_on(program: Callable[..., Any], mode: str) -> None:
    assert_same_as_eager(program, mode, CALLS, recompile_limit=8)


@IN_EVERY_MODE
@pytest.mark.parametrize("program", OVER.values(), ids=OVER)
def test_a_loop_with_breaks_goes_on(program: Callable[..., Any], mode: str) -> None:
    assert_same_as_eager(program, mode, CALLS, recompile_limit=8)


def test_an_iterator_that_is_given_is_advanced() -> None:
    captured, _, made = captured_with(lambda x, it: (x + next(it), next(it)))
    for items in ((1, 2, 3), (1, 2), (1, 2, 4, 5)):
        it = iter(items)
        assert same(captured(torch.ones(2), it), (torch.full((2,), 2.0), 2))
        assert (*it,) == items[2:]
    assert made.breaks == []
    (code,) = made.functions.values()
    assert len(code.cache.segments()) == 1


def test_every_step_of_a_loop_is_the_same_segment() -> None:
    def program(x: Any, items: Any) -> Any:
        for item in items:
            x = x * item
            stop()
        return x

    captured, recorder, _ = captured_with(program)
    items = [torch.full((2,), float(index)) for index in range(1, 9)]
    assert same(captured(torch.ones(2), items), torch.full((2,), 40320.0))
    assert len(recorder.graphs) == 2


def test_the_end_of_an_iterator_is_guarded() -> None:
    def program(x: Any, it: Any) -> Any:
        for item in it:
            x = x + item
        return x

    captured, _, _ = captured_with(program)
    for items in ([1, 1], [1, 1, 1], [1], [], [1, 1]):
        it = iter(items)
        assert same(captured(torch.zeros(2), it), torch.full((2,), float(len(items))))
        assert next(it, None) is None


def test_an_iterator_that_has_ended_is_not_one_at_the_end() -> None:
    def program(x: Any, items: Any, it: Any) -> Any:
        items.append(x)
        return x + 1, [*it]

    captured, _, _ = captured_with(program)
    for has_ended in (True, False, True):
        items: list[Any] = [1]
        it = iter(items)
        next(it)
        assert not has_ended or next(it, None) is None
        x = torch.ones(2)
        assert same(captured(x, items, it)[1], [] if has_ended else [x])
