"""Tests of objects whose class derives from dict: made in a segment, found there, and what may not be done to those."""

from __future__ import annotations

import copy
import dataclasses
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch

from refimpl.tests.capture.capturing import (
    IN_EVERY_MODE,
    MODES,
    WHERE_IT_MUST,
    assert_same_as_eager,
    captured_with,
    each_of,
    same,
)


class Registry(dict[Any, Any]):
    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(str(key), value)

    def get(self, key: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().get(str(key)) or {}


class Counting(dict[Any, Any]):
    reads = 0

    def __getitem__(self, key: Any) -> Any:
        self.reads += 1
        return super().__getitem__(key)


@dataclasses.dataclass
class Output(OrderedDict[Any, Any]):
    loss: Any = None
    logits: Any = None

    def __post_init__(self) -> None:
        for entry in dataclasses.fields(self):
            value = self.__dict__.get(entry.name)
            if value is not None:
                self[entry.name] = value

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else tuple(self[name] for name in self.keys())[key]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("loss", "logits") and value is not None:
            super().__setitem__(name, value)
        super().__setattr__(name, value)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)


REGISTRY = Registry()
REGISTRY["a"] = {"scale": 3.0}


def made(x: Any) -> Any:
    output = Output(logits=x * 2)
    output.loss = output.logits.sum()
    return output


def used(x: Any) -> Any:
    output = Output(x + 1, x * 2)
    names = list(output)
    return output[0], output["logits"], len(output), "loss" in output, names, bool(output), list(output.keys())


def found(x: Any) -> Any:
    scale = REGISTRY.get("a").get("scale", 1.0)
    return x * scale, REGISTRY.get("b"), "a" in REGISTRY, len(REGISTRY), list(REGISTRY)


def plain(x: Any) -> Any:
    counting = Counting(a=x, b=2)
    counting["c"] = counting["a"] + counting["b"]
    del counting["b"]
    return counting, counting.reads, dict(counting.items()), counting.pop("a") is x


def attributes(x: Any) -> Any:
    counting = Counting()
    counting.name = "n"  # type: ignore[attr-defined]
    seen = dict(counting.__dict__)
    counting.other = 1  # type: ignore[attr-defined]
    return x + 1, seen, "other" in counting.__dict__, counting.__dict__["name"]


def parts(value: Any) -> Any:
    """What `same` compares of an object: class, items in order and attributes."""
    if isinstance(value, tuple):
        return tuple(parts(item) for item in value)
    if isinstance(value, dict) and type(value) is not dict:
        return type(value).__name__, list(OrderedDict.items(value) if isinstance(value, OrderedDict) else dict.items(value)), (
            vars(value)
        )  # fmt: skip
    return value


@pytest.mark.fractional
@IN_EVERY_MODE
@each_of(made, used, found, plain, attributes)
def test_the_object_is_what_it_is(program: Callable[..., Any], mode: str) -> None:
    calls = [(torch.arange(3.0),)] * 2
    assert_same_as_eager(program, mode, calls, is_whole=True, graphs=1, observed=lambda f, x: parts(f(x)))


def test_what_is_inside_is_guarded() -> None:
    x = torch.ones(2)
    captured, recorder, _ = captured_with(found)
    try:
        assert captured(x)[0][0] == 3
        REGISTRY["a"] = {"scale": 5.0}
        assert captured(x)[0][0] == 5
        REGISTRY["c"] = {}
        assert captured(x)[3] == 2
    finally:
        dict.clear(REGISTRY)
        REGISTRY["a"] = {"scale": 3.0}
    assert len(recorder.graphs) == 3


class Ordered(OrderedDict[Any, Any]):
    pass


class OrderedRegistry(OrderedDict[Any, Any]):
    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(str(key), value)


def by_items(x: Any, table: Any) -> Any:
    table[1] = x + 1
    table["a"] = table["a"] + table[1] if 1 in table else x
    del table["b"]
    return x * len(table), [*table]


def by_methods(x: Any, table: Any) -> Any:
    table.update(c=x, d=2)
    popped = table.pop("a"), table.pop("no", None)
    return popped, table.setdefault("a", x * 2), table.setdefault("b", x), [*table.items()]


def all_at_once(x: Any, table: Any) -> Any:
    before = dict(table)
    table.clear()
    table["b"] = before["b"] + x
    table.count = len(before)
    return table.popitem(), len(table), bool(table), table.count


def under_two_names(x: Any, table: Any) -> Any:
    other = [table, table.items()]
    other[0]["b"] = x * 3
    torch._dynamo.graph_break()
    other[0]["c"] = x * table["b"]
    return [value * 2 for _, value in other[1] if isinstance(value, torch.Tensor)]


def undone(x: Any, table: Any) -> Any:
    try:
        table["b"] = x
        table["missing"]
    except KeyError:
        table["b"] = table.copy()["b"] + 1
    return iter(table), x + 1


def put_in_order(x: Any, table: Any) -> Any:
    first = table.pop("a")
    table["a"] = first * x
    return x + 1, [*table.values()]


@pytest.mark.parametrize("mode", [*MODES][:2])
@pytest.mark.parametrize("class_", [Registry, Ordered, OrderedRegistry])
@each_of(by_items, by_methods, all_at_once, under_two_names, put_in_order)
def test_one_that_was_there_is_changed(program: Callable[..., Any], class_: Any, mode: str) -> None:
    captured, recorder, made = captured_with(program, breaks_at=MODES[mode])
    for value in (1.0, 2.0, 2.0):
        x, given = torch.full((2,), value), []
        for _ in range(2):
            given.append(class_(a=x * 3, b=value))
        assert same(captured(x, given[0]), program(x, given[1]))
        assert same(parts(given[0]), parts(given[1]))
    if mode == WHERE_IT_MUST and program is by_items:
        assert not made.breaks
        assert len(recorder.graphs) == 1


def test_an_iterator_over_one_that_has_changed() -> None:
    captured, _, _ = captured_with(undone)
    for _ in range(2):
        ours, theirs = Counting(a=1, b=2), Counting(a=1, b=2)
        assert [*captured(torch.ones(2), ours)[0]] == [*undone(torch.ones(2), theirs)[0]]
        assert same(dict(ours), dict(theirs))


def of_two(x: Any, one: Any, other: Any) -> Any:
    one["a"] = x
    return x + other["b"] if "a" in other else x - 1


def test_one_that_is_changed_is_none_of_the_others() -> None:
    captured, _, _ = captured_with(of_two)
    for is_one in (False, True, False):
        given = []
        for _ in range(2):
            one = Counting(b=2)
            given.append((torch.ones(2), one, one if is_one else Counting(b=3)))
        assert same(captured(*given[0]), of_two(*given[1]))
        assert same(dict(given[0][1]), dict(given[1][1]))


def reads_attributes(x: Any, holder: Any) -> Any:
    scale = holder.__dict__.get("scale", 1)
    holder.count = holder.count + 1
    return x * scale, holder.__dict__["count"]


class Holder:
    def __init__(self, scale: int) -> None:
        self.scale = scale
        self.count = 0


@IN_EVERY_MODE
def test_attributes_read_as_a_dict_are_those_of_now(mode: str) -> None:
    x = torch.ones(2)
    captured, _, _ = captured_with(reads_attributes, breaks_at=MODES[mode])
    ours, theirs = Holder(3), Holder(3)
    for _ in range(3):
        assert same(captured(x, ours), reads_attributes(x, theirs))
    ours.scale = theirs.scale = 4
    assert same(captured(x, ours), reads_attributes(x, theirs))


def copied_after_a_write(x: Any, holder: Any) -> Any:
    attributes = holder.__dict__
    attributes["first"] = x
    holder.count = 1
    copies = {**attributes}
    holder.last = 3
    return copies, list(attributes)


def read_after_a_write_to_the_dict(x: Any, holder: Any) -> Any:
    attributes = holder.__dict__
    torch._dynamo.graph_break()
    attributes["scale"] = x
    return holder.scale + 1, hasattr(holder, "count")


def viewed_while_written(x: Any, holder: Any) -> Any:
    attributes = holder.__dict__
    torch._dynamo.graph_break()
    keys, pairs = attributes.keys(), iter(attributes.items())
    holder.scale = x * 2
    holder.last = 4
    del holder.count
    return list(keys), x + 1, pairs is not None, len(attributes)


def deleted_from_the_dict(x: Any, holder: Any) -> Any:
    attributes = vars(holder)
    torch._dynamo.graph_break()
    del attributes["scale"]
    return hasattr(holder, "scale"), len(holder.__dict__), x + 1


def compared_with_itself(x: Any, holder: Any) -> Any:
    attributes = holder.__dict__
    torch._dynamo.graph_break()
    return attributes is holder.__dict__, x + 1


@pytest.mark.fractional
@IN_EVERY_MODE
@each_of(
    copied_after_a_write,
    read_after_a_write_to_the_dict,
    viewed_while_written,
    deleted_from_the_dict,
    compared_with_itself,
)
def test_a_variable_is_the_dict_of_an_object(program: Callable[..., Any], mode: str) -> None:
    captured, _, _ = captured_with(program, breaks_at=MODES[mode])
    for _ in range(2):
        ours, theirs = Holder(3), Holder(3)
        assert same(captured(torch.ones(2), ours), program(torch.ones(2), theirs))
        assert same(vars(ours), vars(theirs))


def shared(x: Any, one: Any, other: Any) -> Any:
    one.scale = one.scale + 1
    one.last = x
    return x * other.scale, hasattr(other, "last")


def test_objects_share_the_dict_of_their_attributes() -> None:
    for program in (shared, captured_with(shared)[0]):
        one, other = Holder(3), Holder(4)
        other.__dict__ = one.__dict__
        for given in ((one, other), (other, one), (one, one)):
            scale = one.scale + 1
            assert same(program(torch.ones(2), *given), (torch.ones(2) * scale, True))


def tried(action: Callable[[], Any]) -> str:
    try:
        return str(action())
    except (KeyError, RuntimeError) as error:
        return f"{type(error).__name__} {error}"


def moves(table: Any) -> Any:
    for key in table:
        table.move_to_end(key)


def iterated_after_a_break(x: Any) -> Any:
    made, found = Ordered(a=1, b=2), Ordered.fromkeys("ab")
    views = made.items(), iter(found.keys())
    next(views[1])
    torch._dynamo.graph_break()
    made["c"] = 3
    found["d"] = 4
    return list(views[0]), tried(lambda: next(views[1])), x + 1


def moved_while_iterated(x: Any) -> Any:
    return tried(lambda: moves(Ordered(a=1, b=2))), tried(lambda: moves(Ordered.fromkeys("ab"))), x + 1


def copied(x: Any) -> Any:
    table = Ordered(a=1)
    table.name = "t"  # type: ignore[attr-defined]
    torch._dynamo.graph_break()
    return [(type(made).__name__, getattr(made, "name", None)) for made in (table.copy(), copy.copy(table))], x + 1


def changed_past_the_order(x: Any) -> Any:
    found = []
    for change in (dict.clear, lambda table: dict.pop(table, "a"), lambda table: dict.__delitem__(table, "a")):
        table = OrderedDict(a=1, b=2)
        change(table)
        found.append((len(table), tried(lambda table=table: list(table.items()))))
    return found, x + 1


class Pair:
    def __init__(self) -> None:
        self.a, self.b = 1, 2


def attributes_after_a_break(x: Any) -> Any:
    pair = Pair()
    views = pair.__dict__.items(), iter(vars(pair))
    next(views[1])
    torch._dynamo.graph_break()
    pair.a = 3
    return sorted(views[0]), list(views[1]), x + 1


@pytest.mark.fractional
@IN_EVERY_MODE
@each_of(attributes_after_a_break, iterated_after_a_break, moved_while_iterated, copied, changed_past_the_order)
def test_an_ordered_dict_of_the_program(program: Callable[..., Any], mode: str) -> None:
    assert_same_as_eager(program, mode, [(torch.ones(2),)] * 2)


class Key:
    pass


PARAMETER, KEY = torch.nn.Parameter(torch.ones(2)), Key()


def read_and_changed(x: Any, found: Any) -> Any:
    own = found[PARAMETER]
    own["step"] += 1
    own["mean"] = own["mean"] + x
    found[x] = x + found[KEY]
    del found[KEY]
    missing = x * 2
    return found[x] * found["scale"] + found[Key], len(found), PARAMETER in found, missing in found, Key() in found


def of_found_keys(x: Any, found: Any) -> Any:
    return [key * 2 if isinstance(key, torch.Tensor) else item for key, item in found.items() if item != 4], x + 1


@pytest.mark.parametrize("class_", [dict, lambda pairs: defaultdict(list, pairs)], ids=["dict", "defaultdict"])
@pytest.mark.parametrize("program", [read_and_changed, of_found_keys])
def test_a_dict_of_the_program_may_have_tensors_and_objects_as_keys(program: Any, class_: Any) -> None:
    captured, recorder, made = captured_with(program)
    for scale in (2, 2, 3):
        x, given = torch.full((2,), float(scale)), []
        for _ in range(2):
            own = {"step": 1, "mean": torch.zeros(2)} if program is read_and_changed else 4
            given.append(class_({PARAMETER: own, KEY: 3, "scale": scale, Key: 5}))
        assert same(captured(x, given[0]), program(x, given[1]))
        assert [*given[0]][1:-1] == [*given[1]][1:-1]
        assert same([*given[0].values()], [*given[1].values()])
    assert not made.breaks
    assert len(recorder.graphs) == 2


def test_the_keys_of_a_dict_are_guarded_where_they_are_objects() -> None:
    def program(x: Any, y: Any, found: Any) -> Any:
        return x * found.get(y, 7) + len(found)

    captured, (x, y, z) = captured_with(program)[0], (torch.ones(2), torch.ones(2), torch.ones(2))
    for found in ({y: 2}, {z: 2}, {x: 2}, {y: 3}, {y: 2, z: 3}, {z: 3, y: 2}, {KEY: 2}, {}):
        assert same(captured(x, y, found), program(x, y, found))
    assert same(captured(y, y, {y: 2}), program(y, y, {y: 2}))


def test_a_dict_may_have_many_objects_as_keys() -> None:
    def program(x: Any, found: Any) -> Any:
        return x + sum(found.values())

    captured, recorder, _ = captured_with(program)
    found, x = {Key(): number for number in range(300)}, torch.ones(2)
    for _ in range(2):
        assert same(captured(x, found), program(x, found))
    assert len(recorder.graphs) == 1
    moved = dict(reversed([*found.items()]))
    assert same(captured(x, moved), program(x, moved))
    assert len(recorder.graphs) == 2
