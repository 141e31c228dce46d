"""Tests of single rules of capture: what has a state, an identity or code of the user's behind it."""

from __future__ import annotations

import dataclasses
import math
import operator
import weakref
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch

from refimpl.capture.entry_points.decorators import allow_in_graph
from refimpl.tests.capture.capturing import IN_EVERY_MODE, SQUARES, assert_same_as_eager, captured_with, each_of, same


def by_functions_of_operator(x: Any) -> Any:
    numbers = [1, [2], 3]
    operator.setitem(numbers, 0, x)
    grown = operator.iadd(numbers, [4])
    operator.delitem({"a": 1, "b": 2}, "a")
    inner = operator.getitem(numbers, 1)
    inner.append(5)
    return numbers, grown is numbers, inner is numbers[1], operator.is_(inner, numbers[1]), operator.is_not(x, inner)


def questions_of_operator(x: Any) -> Any:
    items = [1, 2, 2]
    return (
        operator.contains(items, 2), operator.truth(items), operator.not_(items), operator.countOf(items, 2),
        operator.add(x, 1), operator.mul(2, x), operator.neg(x), operator.lt(1, 2), operator.eq((1, 2), (1, 2)),
        operator.getitem(x, 0), operator.length_hint(items), operator.concat(items, items),
    )  # fmt: skip


def a_changed_list_in_a_list(x: Any) -> Any:
    rows = [[2], [1]]
    first, second = sorted(rows)
    first.append(7)
    return rows, second is rows[0], sorted([3, 1, 2], reverse=True), x


def writes_while_it_iterates(x: Any) -> Any:
    table = OrderedDict(a=1, b=2, c=3)
    for key in table:
        print(end="")
        table[key] += 1
        x = x + table[key]
    return x, table


class Odd(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return True

    def __subclasscheck__(cls, subclass: Any) -> bool:
        return True

    def __str__(cls) -> str:
        return "odd"


class Everything(metaclass=Odd):
    pass


class Plain:
    pass


def asks_a_metaclass(x: Any) -> Any:
    things = Plain()
    return [isinstance(thing, Everything) for thing in (x, things, 1, [])], issubclass(int, Everything), str(Everything)


def asks_torchs_classes(x: Any) -> Any:
    parameter = torch.nn.Parameter
    return (
        isinstance(x, (parameter, int)), isinstance(x, torch.Tensor), isinstance(x.double(), torch.DoubleTensor),
        isinstance(x.long(), torch.FloatTensor), isinstance([x], Iterator), isinstance(x.shape, tuple),
    )  # fmt: skip


def a_list_in_itself(x: Any) -> Any:
    items: list[Any] = [1]
    items.append(items)
    return str(items), x + 1


@dataclasses.dataclass
class Scaled:
    value: Any
    factor: int = 3

    def total(self) -> Any:
        return self.value * self.factor


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: Any


class Base:
    limit = 4

    def __init__(self, scale: int) -> None:
        self.scale = scale

    def apply(self, x: Any) -> Any:
        return x * self.scale


class Derived(Base):
    __slots__ = ("kept",)

    def __init__(self) -> None:
        super().__init__(3)
        self.kept = self.limit + 1

    @property
    def twice(self) -> int:
        return self.kept * 2

    @twice.setter
    def twice(self, value: int) -> None:
        self.kept = value // 2

    @staticmethod
    def less(x: Any) -> Any:
        return x - 1

    @classmethod
    def limited(cls, x: Any) -> Any:
        return x * cls.limit

    def __call__(self, x: Any) -> Any:
        return self.apply(x) + 1

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> int:
        return index * 2

    def __enter__(self) -> int:
        self.inside = True
        return self.kept

    def __exit__(self, *error: object) -> None:
        self.inside = False


Point = namedtuple("Point", "x y", defaults=[5])


class Segment(NamedTuple):
    start: Any
    end: Any = 2

    def middle(self) -> Any:
        return (self.start + self.end) / 2


class NeverTrue(Point):
    def __bool__(self) -> bool:
        return False

    def __len__(self) -> int:
        return 7


NEVER_TRUE = NeverTrue(1, 2)


def makes_objects(x: Any) -> Any:
    made, scaled, frozen = Derived(), Scaled(x), Frozen(x)
    with made as kept:
        x = x + kept
        inside = made.inside
    made.twice = 8
    other = made
    del made.inside
    return (
        scaled.total(), made(x), made.twice, Derived.less(x), made.limited(x), len(made), made[3], inside, other is made,
        hasattr(made, "inside"), isinstance(made, Base), type(made) is Derived, frozen.value, made == other, vars(scaled),
    )  # fmt: skip


def makes_named_tuples(x: Any) -> Any:
    point, segment = Point(x, y=2), Segment(x, x + 1)
    first, second = point
    untrue = NeverTrue(x, 3)
    x = x + (1 if untrue else 2) + (3 if NEVER_TRUE else 4) + len(untrue) + len(NEVER_TRUE)
    return point, point.x * point.y, Point(x).y, segment.middle(), first is point[0], second, tuple(point), segment


def objects_across_breaks(x: Any) -> Any:
    made: Any = Derived()
    made.more = [x]
    print(end="")
    made.more.append(made.kept)
    made.kept += 1
    print(end="")
    return made.more, made.kept


def modes(x: Any) -> Any:
    with torch.no_grad():
        y = x * 2
        with torch.enable_grad():
            z = x * 3
        print(end="")
        w = y * 4
    return y, y.requires_grad, z.requires_grad, w.requires_grad, torch.is_grad_enabled()


@torch.no_grad()
def without_gradient(x: Any) -> Any:
    y = x * 2
    return y, y.requires_grad


def leaves_a_mode(x: Any) -> Any:
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(not before)
    y = x * 2
    torch.set_grad_enabled(before)
    return y, y.requires_grad


def numbers(x: Any) -> Iterator[Any]:
    yield x
    got = yield x + 1
    yield from (x * 2, got)
    return 7


def delegates(x: Any) -> Iterator[Any]:
    result = yield from numbers(x)
    yield x + result


def generators(x: Any) -> Any:  # what is unnecessary about them is what is tested
    rows = enumerate([x, x + 1])
    return (
        [v if v is None else v + 1 for v in delegates(x)], sum(v * i for i, v in rows), any(i > 1 for i in range(3)),
        all(i > 1 for i in range(3)), list(i for i in (1, 2)), tuple(v for v in x), max(i for i in (3, 1)),  # noqa: C400
        sorted((i for i in (3, 1, 2)), reverse=True), [*(i for i in "ab")], dict((i, x) for i in range(2)),  # noqa: C402
        sum((i for i in range(3)), 10),
    )  # fmt: skip


def steps(x: Any) -> Any:
    waiting = numbers(x)
    first = next(waiting)
    print(end="")
    second = next(waiting)
    rest = list(waiting)
    return first, second, rest, next(waiting, None), next((v for v in (x, 2)), None)


def unpacks_generators(x: Any) -> Any:
    first, *rest = numbers(x)
    one, two = (v for v in (x, 3))
    return first, rest, one, two


CLEANED: list[int] = []


def cleans_up(x: Any) -> Iterator[Any]:
    try:
        yield x
        yield x + 1
    finally:
        CLEANED.append(1)


def drops_a_generator(x: Any) -> Any:
    CLEANED.clear()
    for value in cleans_up(x):
        x = value * 2
        break
    before = list(CLEANED)
    waiting = cleans_up(x)
    next(waiting)
    del waiting
    return x, before, list(CLEANED)


ASKED: list[str] = []


class Renamed:
    names = {"old": "new"}

    def __init__(self) -> None:
        self.new = 3
        self.other = 4

    def __getattribute__(self, name: str) -> Any:
        ASKED.append(name)
        names = super().__getattribute__("names")
        return super().__getattribute__(names.get(name, name))


class OwnDict(dict[str, int]):
    scale = 5

    def scaled(self, x: Any) -> Any:
        return x * self.scale


RENAMED = Renamed()
OWN_DICT = OwnDict(a=1)
LAYERS = torch.nn.ModuleList([torch.nn.ReLU(), torch.nn.Tanh()])
STEPS = torch.nn.Sequential(torch.nn.Tanh(), torch.nn.ReLU())
NAMED = torch.nn.ModuleDict({"first": torch.nn.ReLU(), "second": torch.nn.Tanh()})


def finds_attributes(x: Any) -> Any:
    code = makes_objects.__code__
    return (
        RENAMED.old * x + RENAMED.other, OWN_DICT.scaled(x), code.co_varnames[: code.co_argcount], makes_objects.__name__,
        numbers.__defaults__,
    )  # fmt: skip


def goes_through_modules(x: Any) -> Any:
    for index, layer in enumerate(LAYERS):
        x = layer(x) + index
    for layer, step in zip(LAYERS, STEPS, strict=False):
        x = step(layer(x))
    for layer in STEPS:
        x = layer(x)
    return x, list(NAMED), [module(x) for module in NAMED.values()], len(LAYERS), LAYERS[0] is list(LAYERS)[0]  # noqa: RUF015


def bound_in_the_second_round(x: Any) -> Any:
    for i in range(3):
        for j in range(i, 3):
            last = j
        if i:
            deleted = x * j  # pyright: ignore[reportPossiblyUnboundVariable]
        print(end="")
        x = x - j  # pyright: ignore[reportPossiblyUnboundVariable]
        if i == 1:
            print(end="")
            del deleted  # pyright: ignore[reportPossiblyUnboundVariable]
    return x, [j + 1 for j in range(2)], j, last, deleted  # pyright: ignore[reportPossiblyUnboundVariable]


@pytest.mark.fractional
@IN_EVERY_MODE
@each_of(
    finds_attributes, goes_through_modules, bound_in_the_second_round, generators, steps, unpacks_generators,
    drops_a_generator, makes_objects, makes_named_tuples, objects_across_breaks, modes, without_gradient,
    leaves_a_mode, by_functions_of_operator, questions_of_operator, a_changed_list_in_a_list, writes_while_it_iterates,
    asks_a_metaclass, asks_torchs_classes, a_list_in_itself,
)  # fmt: skip
def test_a_rule_does_what_python_does(program: Callable[..., Any], mode: str) -> None:
    last = torch.full((2, 2), 3.0, requires_grad=True)
    assert_same_as_eager(
        program, mode, [*SQUARES, (last,)], is_whole=program in (without_gradient, leaves_a_mode, generators), graphs=2
    )


def test_code_that_finds_attributes_runs_as_often_as_in_eager() -> None:
    def program(x: Any) -> Any:
        return x * RENAMED.old + RENAMED.other

    captured, _, _ = captured_with(program)
    for value in (3, 3, 5):
        RENAMED.new = value
        asked = []
        for run in (program, captured):
            ASKED.clear()
            assert torch.equal(run(torch.ones(2)), torch.full((2,), value + 4.0))
            asked.append(list(ASKED))
        assert asked[0] == asked[1]
    RENAMED.new = 3


def test_a_mode_that_is_left_on_is_left_on() -> None:
    captured, _, _ = captured_with(lambda x: torch._C._set_grad_enabled(False) or x * 2)
    try:
        for _ in range(2):
            torch.set_grad_enabled(True)
            assert not captured(torch.ones(2, requires_grad=True)).requires_grad
            assert not torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)


def test_a_graph_that_raises_leaves_the_mode_as_with_leaves_it() -> None:
    def program(x: Any, index: Any) -> Any:
        with torch.no_grad():
            return x[index]

    captured, _, _ = captured_with(program)
    captured(torch.ones(3), torch.tensor([1]))
    with pytest.raises(IndexError):
        captured(torch.ones(3), torch.tensor([7]))
    assert torch.is_grad_enabled()


def test_a_break_in_a_constructor_names_the_users_lines_only() -> None:
    class Prints:
        def __init__(self) -> None:
            print(end="")

    def program(x: Any) -> Any:
        Prints()
        return x + 1

    captured, _, made = captured_with(program)
    captured(torch.ones(2))
    assert [line.function for line in made.breaks[0].stack] == ["program", "__init__"]


def extremes_of_tensors(a: Any, b: Any) -> Any:
    return max(a, 0), max(0, a), min(a, b), max(a, b, 1.5), min([b, 2, a]), max(2, 3)


@pytest.mark.parametrize("pair", [(2.0, 1.0), (-2.0, 4.0), (float("nan"), 1.0), (1.0, float("nan")), (1.5, 1.5)])
def test_extremes_of_tensors_are_selected_where_there_must_be_one_graph(pair: tuple[float, float]) -> None:
    a, b = map(torch.tensor, pair)
    expected = extremes_of_tensors(a, b)
    captured, _, made = captured_with(extremes_of_tensors)
    assert same(captured(a, b), expected) or any(map(math.isnan, pair))
    assert [type(item) for item in captured(a, b)] == [type(item) for item in expected]
    assert made.breaks
    whole, recorder, _ = captured_with(extremes_of_tensors, fullgraph=True)
    for actual, wanted in zip(whole(a, b), expected, strict=True):
        torch.testing.assert_close(
            torch.as_tensor(actual), torch.as_tensor(wanted).to(torch.as_tensor(actual)), equal_nan=True
        )
    assert len(recorder.graphs) == 1


class Setting(torch.nn.Module):
    """Reads its parts after it has written an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.part, self.scale = 0, torch.nn.Linear(2, 2), torch.nn.Parameter(torch.ones(2))
        self.register_buffer("shift", torch.ones(2))

    def forward(self, x: Any) -> Any:
        self.count += 1
        self.shift = self.shift + self.count
        return self.part(x) * self.scale + self.shift, self.count


def test_parts_of_a_module_are_read_after_an_attribute_was_written() -> None:
    torch.manual_seed(0)
    module, eager = Setting(), Setting()
    eager.load_state_dict(module.state_dict())
    captured, _, made = captured_with(module)
    for _ in range(3):
        assert same(captured(torch.ones(2)), eager(torch.ones(2)))
    assert same(dict(module.named_buffers()), dict(eager.named_buffers()))
    assert made.breaks == []


class Noted(OrderedDict[str, Any]):
    """Assignments to its attributes run code."""

    first: Any

    def __setattr__(self, name: str, value: Any) -> Any:
        super().__setitem__(name, value)
        super().__setattr__(name, value)
        return 3


def sets_by_name(x: Any) -> Any:
    noted = Noted()
    names = ["first"]
    given = [setattr(noted, name, x + 1) for name in names]
    return given, list(noted.items()), noted.first, torch._C._len_torch_dispatch_stack()


def test_setattr_runs_code_of_the_class() -> None:
    captured, _, made = captured_with(sets_by_name)
    expected = [None], [("first", torch.full((2,), 2.0))], torch.full((2,), 2.0), 0
    assert same(captured(torch.ones(2)), expected)
    assert made.breaks == []


def test_attention_of_torch_is_one_graph() -> None:
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(4, 2, batch_first=True).eval()
    captured, recorder, _ = captured_with(module)
    x = torch.randn(1, 3, 4)
    with torch.no_grad():
        assert same(captured(x, x, x), module(x, x, x))
    assert len(recorder.graphs) == 1


class Above:
    factor = 3

    @classmethod
    def scaled(cls, x: Any) -> Any:
        return x * cls.factor

    @staticmethod
    def shifted(x: Any) -> Any:
        return x + 1

    def plain(self: Any, x: Any) -> Any:
        return x - 1


class Below(Above):
    factor = 5

    @classmethod
    def scaled(cls, x: Any) -> Any:
        return super().shifted(super().scaled(x)), super().plain(cls, x), cls

    def plain(self: Any, x: Any) -> Any:
        return super().shifted(super().plain(x))


def test_super_in_methods_of_classes() -> None:
    below = Below()
    captured, _, made = captured_with(lambda x: (Below.scaled(x), below.scaled(x), below.plain(x)))
    x = torch.ones(2)
    assert same(captured(x), (Below.scaled(x), below.scaled(x), below.plain(x)))
    assert made.breaks == []


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_recurrent_modules_are_one_graph(kind: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    module = kind(3, 2, num_layers=2, bidirectional=True)
    captured, recorder, made = captured_with(module)
    x = torch.randn(4, 1, 3)
    for given in (x, x + 1):
        assert same(captured(given), module(given))
    assert len(recorder.graphs) == 1
    assert made.breaks == []
    module.weight_hh_l0 = torch.nn.Parameter(torch.ones_like(module.weight_hh_l0))
    assert same(captured(x), module(x))


def test_a_weak_reference_is_followed() -> None:
    class Referent:
        scale = 2

    captured, _, made = captured_with(lambda x, ref: x * ref().scale if ref() is not None else x)
    first = Referent()
    ref = weakref.ref(first)
    assert same(captured(torch.ones(2), ref), torch.full((2,), 2.0))
    first.scale = 3
    assert same(captured(torch.ones(2), ref), torch.full((2,), 3.0))
    assert made.breaks == []
    del first
    assert ref() is None  # no segment holds it
    assert same(captured(torch.ones(2), ref), torch.ones(2))


class Finding(ModuleType):
    def __getattr__(self, name: str) -> Any:
        return 7 if name == "seven" else super().__getattribute__(name)


FINDING = Finding("finding")


def asks_a_module_that_finds(x: Any) -> Any:
    try:
        return x * FINDING.seven
    except AttributeError:
        return x


def test_a_module_may_find_attributes_by_code_of_its_class() -> None:
    captured, _, _ = captured_with(asks_a_module_that_finds)
    assert same(captured(torch.ones(2)), torch.full((2,), 7.0))


def test_classes_among_arguments_are_code_that_runs() -> None:
    zeros: Any = torch.zeros

    def program(x: Any) -> Any:
        made = zeros(2, dtype=float), x.to("cpu", int), x.sum(dtype=complex)
        return x.to(bool), x.type(torch.DoubleTensor), allowed(x, int), allowed(x, str), made

    @allow_in_graph
    def allowed(x: Any, class_: type) -> Any:
        return x + {int: 1, str: 2}[class_]

    captured, recorder, _ = captured_with(program, fullgraph=True)
    x = torch.tensor([0.0, 2.0])
    assert same(captured(x), program(x))
    (graph,) = recorder.graphs
    graph.recompile()
    assert same(graph(x), tuple(leaf for part in program(x) for leaf in (part if isinstance(part, tuple) else (part,))))
    assert "torch.bool" in graph.code
    assert "<class" not in graph.code
