"""Tests of objects whose class derives from list or tuple: made in a segment, changed, returned, and given to torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from refimpl.capture.entry_points.decorators import graph_break
from refimpl.tests.capture.capturing import (
    IN_EVERY_MODE,
    MODES,
    WHERE_IT_MUST,
    assert_same_as_eager,
    captured_with,
    each_of,
    same,
)

MORE = [4]


class Row(list[Any]):
    def total(self) -> Any:
        return sum(self)

    @property
    def ends(self) -> Any:
        return self[0], self[-1]


class Scaled(list[Any]):
    def __init__(self, scale: int, *items: Any) -> None:
        super().__init__(items)
        self.scale = scale

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index) * self.scale

    def append(self, item: Any) -> None:
        super().append(item + 1)

    def __iter__(self) -> Any:
        for index in range(len(self)):
            yield self[index]

    def __add__(self, other: Any) -> Any:
        return Scaled(self.scale, *self, *other)


class Pair(tuple[Any, Any]):
    def swapped(self) -> Pair:
        return type(self)((self[1], self[0]))


class Point(tuple[Any, Any]):
    def __new__(cls, first: Any, second: Any = 2) -> Any:
        return super().__new__(cls, (first, second))

    def __add__(self, other: Any) -> Any:
        return Point(self[0] + other[0], self[1] + other[1])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and self[1] is other[1]

    __hash__ = None  # type: ignore[assignment]


def made_and_changed(x: Any) -> Any:
    row = Row([x, x * 2])
    row.append(x * 3)
    row.extend([1, 2])
    row.insert(0, 5)
    row[1] = x - 1
    del row[-1]
    row.reverse()
    last = row.pop()
    row += [x]
    same_row = row
    same_row *= 1
    return (
        row.total() + last,
        len(row),
        row.ends,
        type(row) is Row,
        isinstance(row, list),
        1 in Row([1]),
        Row([2, 1]).index(1),
    )


def returned(x: Any) -> Any:
    row = Row([x, x * 2])
    row.tag = "rows"  # type: ignore[attr-defined]
    row.append(row[0])
    return row, row.tag, [row], Pair((row, 1))  # type: ignore[attr-defined]


def parts_are_lists(x: Any) -> Any:
    row = Row((x, x * 2, 3))
    return (
        row[1:],
        row + MORE,
        MORE + row,
        row * 2,
        row.copy(),
        [*row],
        (*row,),
        type(row[:1]) is list,
        type(row + row) is list,
    )


def compared(x: Any) -> Any:
    one, other = Row([1, 2]), Row([1, 3])
    return (
        one == [1, 2],
        one == other,
        one != other,
        one < other,
        one == [1, 2],
        Pair((1, 2)) == (1, 2),
        bool(Row()),
        x * 1,
    )


def iterated(x: Any) -> Any:
    row = Row([x, x * 2])
    first, second = row
    found = [value + index for index, value in enumerate(row)]
    return (
        first + second,
        found,
        list(zip(row, row, strict=True)),
        max(Row([1, 3, 2])),
        sorted(Row([3, 1])),
        list(map(type, row)),
    )


def with_own_methods(x: Any) -> Any:
    scaled = Scaled(3, x, x * 2)
    scaled.append(x)
    more = [x * 5]
    longer = scaled + more
    return scaled[0] + scaled[2], [*scaled], len(longer), longer[3], longer.scale


def tuples(x: Any) -> Any:
    pair = Pair((x, x * 2))
    swapped = pair.swapped()
    first, second = swapped
    return (
        first - second,
        swapped[0],
        type(swapped) is Pair,
        Pair((1, 2)).count(1),
        pair[:1],
        pair + tuple(MORE),
        len(Pair()),
        len(Pair([1])),
    )


def tuples_with_a_constructor(x: Any) -> Any:
    point = Point(x) + Point(x * 2, 3)
    return point[0] * point[1], type(point) is Point, point == Point(1, point[1]), point == (1, 5), point


def given_to_torch(x: Any) -> Any:
    return torch.stack(Row([x, x * 2])), torch.cat(Pair((x, x))), x.new_zeros(Row([2, 3])), x.sum(Pair((0, 1)))


def nested(x: Any) -> Any:
    grid = Row([Row([x]), Row([x * 2])])
    grid[0].append(7)
    return grid, grid[1][0] + grid[0][1]


@pytest.mark.fractional
@IN_EVERY_MODE
@each_of(
    made_and_changed,
    returned,
    parts_are_lists,
    compared,
    iterated,
    with_own_methods,
    tuples,
    tuples_with_a_constructor,
    given_to_torch,
    nested,
)
def test_objects_are_what_eager_makes(program: Any, mode: str) -> None:
    def observed(function: Any, x: Any) -> Any:
        return described(function(x))

    assert_same_as_eager(program, mode, is_whole=True, graphs=1, observed=observed)


def described(value: Any) -> Any:
    """The value with the classes and attributes of lists and tuples."""
    if isinstance(value, (list, tuple)):
        items = [described(item) for item in tuple.__iter__(value)] if isinstance(value, tuple) else None
        items = [described(item) for item in list.__iter__(value)] if items is None else items  # type: ignore[arg-type]
        return type(value).__name__, items, vars(value) if hasattr(value, "__dict__") else None
    return value if isinstance(value, (torch.Tensor, int, str)) else repr(value)


def test_an_iterator_that_is_returned_iterates_over_the_object() -> None:
    def program(x: Any) -> Any:
        row = Row([x, x * 2])
        iterator = iter(row)
        next(iterator)
        return row, iterator

    for function in (program, captured_with(program)[0]):
        row, iterator = function(torch.ones(2))
        row.append(5)
        assert same([*iterator], [torch.full((2,), 2.0), 5])


def test_an_object_that_contains_itself_is_rebuilt() -> None:
    def program(x: Any) -> Any:
        row = Row([x * 2])
        row.append(row)
        return row

    captured, recorder, _ = captured_with(program)
    for _ in range(2):
        row = captured(torch.ones(2))
        assert type(row) is Row
        assert row[1] is row
    assert len(recorder.graphs) == 1


def read(x: Any, row: Any, pair: Any) -> Any:
    first, *others = row
    found = [value * 2 for value in row]
    in_order = row.index(2), row.count(2), 2 in row, len(row), row[-1], row[1:], row + MORE, row == [1, 2], bool(row)
    return x * row.total() + first, others, found, in_order, pair.swapped(), pair[0] + 1, row.copy(), x.new_zeros(row)


def test_an_object_of_the_program_is_read() -> None:
    captured, recorder, made = captured_with(read)
    x = torch.ones(2)
    for row, pair in (([1, 2], (x, 1)), ([1, 2], (x * 2, 1)), ([1, 2, 3], (x, 1)), ([2, 2], (x, 2)), ([1, 2], (x, 1))):
        given = Row(row), Pair(pair)
        assert same(described(captured(x, *given)), described(read(x, *given)))
    assert not made.breaks
    assert len(recorder.graphs) <= 4


def test_the_items_of_an_object_are_guarded() -> None:
    def program(x: Any, rows: Any) -> Any:
        return x * rows[0][1], type(rows[0]).__name__

    captured, recorder, _ = captured_with(program)
    rows = [Row([1, 2.0])]
    for change in (lambda: None, lambda: rows[0].append(1), lambda: list.__setitem__(rows[0], 1, 5.0), lambda: None):
        change()
        assert same(captured(torch.ones(2), rows), program(torch.ones(2), rows))
    assert len(recorder.graphs) == 3


FOUND = Row([1, 2])


def test_an_object_of_the_program_is_changed_as_in_eager() -> None:
    def program(x: Any) -> Any:
        FOUND.append(3)
        FOUND.pop(0)
        return x * FOUND.total(), len(FOUND)

    results = []
    for function in (program, captured_with(program)[0]):
        FOUND[:] = [1, 2]
        results.append([function(torch.ones(2)) for _ in range(3)])
        results[-1].append(list(FOUND))
    assert same(results[0], results[1])


@pytest.mark.parametrize("is_broken", [False, True])
@pytest.mark.parametrize(
    "make", [lambda *items: items, lambda *items: Pair(items), lambda *items: frozenset(items[:1])]
)
def test_a_tuple_that_an_item_of_it_contains_is_made_once(make: Any, is_broken: bool) -> None:
    class Holder:
        pass

    def program(x: Any) -> Any:
        holder: Any = Holder()
        made = make(holder, [x])
        holder.made = made
        if is_broken:
            graph_break()
        return made, [x * 2], (x,)

    captured = captured_with(program)[0]
    x = torch.ones(2)
    made, doubled, (same_x,) = captured(x)
    holder = next(item for item in made if isinstance(item, Holder))
    assert holder.made is made  # type: ignore[attr-defined]
    assert same(doubled, [x * 2])
    assert same_x is x


class Tenfold(list[Any]):
    def append(self, item: Any) -> None:
        super().append(item * 10)


class Wrapped(dict[Any, Any]):
    def __setitem__(self, key: Any, item: Any) -> None:
        super().__setitem__(key, (item,))

    def pop(self, key: Any) -> Any:  # type: ignore[override]
        return super().pop(key)[0]


def test_a_method_of_super_behind_a_break_is_not_the_one_that_calls_it() -> None:
    def program(x: Any, given: Any) -> Any:
        given.append(x)
        return x * len(given)

    def of_dict(x: Any, given: Any) -> Any:
        given[1] = x
        given[2] = given.pop(1) + 1
        return x * len(given)

    for function, made in ((program, Tenfold), (of_dict, Wrapped)):
        captured, (x, theirs, ours) = captured_with(function)[0], (torch.ones(2), made(), made())
        for _ in range(3):
            assert same(captured(x, ours), function(x, theirs))
            assert same(described(ours), described(theirs))


ROWS: Any = Row
PAIRS: Any = Pair


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: ROWS(1),
        lambda: PAIRS(1, 2),
        lambda: Row([1])[3],
        lambda: Row([1]).index(4),
        lambda: object.__new__(Row),
        lambda: list.__new__(PAIRS),
    ],
)
def test_errors_are_eager_s(wrong: Any) -> None:
    def program(x: Any) -> Any:
        y = x + 1
        try:
            wrong()
        except (TypeError, IndexError, ValueError) as error:
            return y, type(error).__name__, str(error)
        return y

    assert_same_as_eager(program)


def changed(x: Any, row: Any, other: Any) -> Any:
    row.append(x)
    row.extend(other)
    row.insert(0, x + 1)
    row[1] = 5
    del row[2]
    row += [x * 2]
    other.tag = len(row)
    other.reverse()
    return row, row[0] + row[-1], len(row), 7 in other[1:], [*other], other.tag


def changed_by_its_methods(x: Any, row: Any, other: Any) -> Any:
    row.append(1)
    row.scale = row.scale + 1
    other.pop()
    return [value * x for value in row], row[0], other


@IN_EVERY_MODE
@pytest.mark.parametrize(
    ("program", "make"),
    [(changed, Row), (changed_by_its_methods, lambda items: Scaled(3, *items))],
    ids=["changed", "changed_by_its_methods"],
)
def test_a_list_that_is_an_argument_is_changed_as_in_eager(program: Any, make: Any, mode: str) -> None:
    captured, recorder, made = captured_with(program, breaks_at=MODES[mode])
    x = torch.ones(2)
    for items in ([1, 2], [1, x, 4], [1, 2]):
        ours, theirs = (make(items), Row([7, x])), (make(items), Row([7, x]))
        assert same(described(captured(x, *ours)), described(program(x, *theirs)))
        assert same(described(ours), described(theirs))
    if mode == WHERE_IT_MUST:
        assert not made.breaks
        assert len(recorder.graphs) == 2


def test_a_list_that_is_two_arguments_is_changed_as_in_eager() -> None:
    def program(x: Any, row: Any, other: Any) -> Any:
        row.append(x)
        return x * len(other)

    captured, x = captured_with(program)[0], torch.ones(2)
    for is_same in (False, True, False):
        given = [Row([1]) for _ in range(4)]
        pairs = (
            [(given[0], given[0]), (given[1], given[1])] if is_same else [(given[0], given[2]), (given[1], given[3])]
        )
        assert same(captured(x, *pairs[0]), program(x, *pairs[1]))
        assert same(described(pairs[0]), described(pairs[1]))
