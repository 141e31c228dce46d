"""What special methods must return, `super()`, metaclasses that answer `isinstance`, annotations: captured as eager runs them."""

from __future__ import annotations

import abc
import collections
import dataclasses
import enum
import types
import typing
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from refimpl.capture.compile import compile
from refimpl.capture.config import config
from refimpl.capture.entry_points.reset import reset
from refimpl.tests.capture.capturing import Recorder, each_of, same

Tensor = torch.Tensor
T = typing.TypeVar("T")


class ReturnsWrongThings:
    """Each special method returns what Python refuses."""

    def __bool__(self) -> Any:
        return 1.5  # noqa: PLE0304 - this is what is tested

    def __str__(self) -> Any:
        return 5  # noqa: PLE0307 - this is what is tested

    def __repr__(self) -> Any:
        return 7

    def __int__(self) -> Any:
        return "a"

    def __float__(self) -> Any:
        return 3

    def __complex__(self) -> Any:
        return 3

    def __hash__(self) -> Any:
        return "h"  # noqa: PLE0309 - this is what is tested

    def __iter__(self) -> Any:
        return 5

    def __format__(self, spec: str) -> Any:
        return 3


class Sized:
    def __init__(self, length: Any) -> None:
        self.length = length

    def __len__(self) -> Any:
        return self.length


class Yielding:
    def __iter__(self) -> Iterator[int]:
        yield 1
        yield 2


class Iterated:
    def __iter__(self) -> Iterator[int]:
        return iter([3, 4])


class InitReturns:
    def __init__(self) -> Any:  # type: ignore[misc]
        return 3  # noqa: PLE0101 - this is what is tested


WRONG: Any = ReturnsWrongThings()


@pytest.mark.parametrize(
    "operation",
    [
        lambda: bool(WRONG), lambda: not WRONG, lambda: bool(Sized(-1)), lambda: bool(Sized(2.5)), lambda: len(Sized(-3)),
        lambda: len(Sized("a")), lambda: str(WRONG), lambda: repr(WRONG), lambda: int(WRONG), lambda: float(WRONG),
        lambda: complex(WRONG), lambda: hash(WRONG), lambda: iter(WRONG), lambda: [*WRONG], lambda: f"{WRONG}",
        lambda: format(WRONG, "x"), lambda: InitReturns(),
    ],
)  # fmt: skip
def test_a_special_method_that_returns_a_wrong_class_raises_as_in_eager(operation: Callable[[], Any]) -> None:
    def program(x: Tensor) -> Any:
        try:
            return x + 1, operation()
        except Exception as error:
            return x + 2, type(error).__name__, str(error)

    reset()
    expected = program(torch.ones(2))
    assert len(expected) == 3, "eager raises"
    assert same(compile(program, backend="eager", fullgraph=True)(torch.ones(2)), expected)


def right_results(x: Tensor) -> Any:
    first, second = Iterated()
    sizes = len(Sized(3)), bool(Sized(0)), not Sized(4), len(Sized(True))
    return x + first * second, sizes, [*Yielding()], list(Iterated())


def length_by_a_size(x: Tensor) -> Any:
    return x * len(Sized(x.shape[0])), bool(Sized(x.shape[0]))


class Base:
    constant = 4
    scales = (2, 3)

    def add(self, x: Tensor) -> Tensor:
        return x + 10


class Middle(Base):
    coefficient = 4

    def add(self, x: Tensor) -> Tensor:
        return x + 20

    @classmethod
    def cube(cls, x: Tensor) -> Tensor:
        return cls.coefficient * x * x * x

    @staticmethod
    def seven(x: Tensor) -> Tensor:
        return x * 7

    @property
    def five(self) -> int:
        return self.coefficient + 1


class Last(Middle):
    coefficient = 6

    def add(self, x: Tensor) -> Tensor:
        inherited = super().cube(x) + Base.add(self, x) + super(Middle, self).add(x) + super().seven(x)
        return inherited + super().constant * x + super().five * x + super().scales[1]

    @classmethod
    def made(cls, x: Tensor) -> Tensor:
        return super().cube(x) + super().constant


def through_super(x: Tensor) -> Any:
    return Last().add(x) + Last.made(x)


LAST = Last()


def through_super_of_an_object(x: Tensor) -> Any:
    return LAST.add(x)


class AnswersEverything(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return hasattr(instance, "shape")

    def __subclasscheck__(cls, subclass: type) -> bool:
        return subclass is int


class Asked(metaclass=AnswersEverything):
    pass


def instances_by_a_metaclass(x: Tensor) -> Any:
    return x + 1, isinstance(x, Asked), isinstance(3, Asked), isinstance(3, (Asked, int)), isinstance(Asked(), Asked)


def subclasses_by_a_metaclass(x: Tensor) -> Any:
    return x + 1, issubclass(int, Asked), issubclass(str, Asked), issubclass(str, (Asked, str))


def annotated(x: Tensor) -> Any:
    class Local:
        pass

    def inner(y: typing.List[Local], z: typing.Optional[Local] = None) -> Tensor:  # noqa: UP006, UP045 - what is tested
        return x + len(y)

    def called(function: typing.Callable[[T], T], y: T) -> T:
        return function(y)

    return called(lambda y: y * 2, inner([]))


def legacy_constructors(x: Tensor) -> Any:
    return torch.LongTensor([1, 2]) + x.long(), torch.FloatTensor(2, 3).shape, torch.BoolTensor(()).shape


def sizes_as_a_tensor(x: Tensor) -> Any:
    return x + torch._shape_as_tensor(x)[0]


def asks_a_number(x: Tensor) -> Any:
    return x + hasattr(4, "real"), torch.overrides.is_tensor_like(4), torch.overrides.is_tensor_like(x)


PROGRAMS = (
    right_results, length_by_a_size, through_super, through_super_of_an_object, instances_by_a_metaclass,
    subclasses_by_a_metaclass, annotated, legacy_constructors, sizes_as_a_tensor, asks_a_number,
)  # fmt: skip


@each_of(*PROGRAMS)
def test_one_graph_does_what_eager_does(program: Callable[..., Any]) -> None:
    recorder: Any = Recorder()
    compiled = compile(program, backend=recorder, fullgraph=True)
    for value in (1.0, 2.0):
        x = torch.full((2,), value)
        assert same(compiled(x), program(x))
    assert len(recorder.graphs) == 1


def asks_a_size(x: Tensor) -> Any:
    return x + 1, hasattr(x.shape[0], "real"), hasattr(x.shape[0], "missing")


def test_sizes_that_change_are_those_of_each_call() -> None:
    for program in (length_by_a_size, sizes_as_a_tensor, asks_a_size):
        compiled = compile(program, backend="eager", fullgraph=True, dynamic=True)
        for length in (3, 5):
            assert same(compiled(torch.ones(length)), program(torch.ones(length)))


def test_a_class_attribute_behind_super_is_guarded() -> None:
    compiled = compile(through_super, backend="eager", fullgraph=True)
    x = torch.ones(2)
    assert same(compiled(x), through_super(x))
    Base.constant = 5
    try:
        assert same(compiled(x), through_super(x))
    finally:
        Base.constant = 4


class AsksItsId(torch.nn.Module):
    def forward(self, x: Tensor, known: int) -> Tensor:
        return x * 2 if id(self) == known else x + 1


def test_the_id_of_a_module_is_the_module_s() -> None:
    module, x = AsksItsId(), torch.ones(2)
    compiled = compile(module, backend="eager", fullgraph=True)
    assert compiled(x, id(module)).tolist() == [2, 2]
    assert compiled(x, id(module) + 1).tolist() == [2, 2]
    assert same(compiled(x * 2, id(module) + 1), x * 2 + 1)


def test_arrays_take_classes_of_python_as_dtypes() -> None:
    def program(x: Any) -> Any:
        return (x * 5).astype(bool).astype(float).astype(int) + 8

    def layout(x: Any) -> Any:
        return x + 1, x.strides, x.T.strides, x.itemsize, x.size

    square = np.ones((2, 3))
    assert compile(layout, backend="eager", fullgraph=True)(square)[1:] == layout(square)[1:]
    array = np.array([0.5, 0.0])
    found = compile(program, backend="eager", fullgraph=True)(array)
    assert found.dtype == program(array).dtype
    assert found.tolist() == program(array).tolist()


def one_number(x: Tensor) -> Any:
    return torch.tensor(x[0].item()), torch.tensor([x[0].item()]), torch.tensor([[x[1].item()], [2.0]])


def mixed_numbers(x: Tensor) -> Any:
    read = x[0].int().item()
    return torch.tensor([read, 2]), torch.tensor([read, 2.5]), torch.tensor([x[1].item()], dtype=torch.float64)


def a_comparison(x: Tensor) -> Any:
    return torch.tensor(x[0].item() > 2), torch.tensor([x[0].item() > 2, True])


def as_truth(x: Tensor) -> Any:
    return bool(x[0]), bool((x > 2).all()), x * 2


@each_of(one_number, mixed_numbers, a_comparison, as_truth)
def test_tensors_of_numbers_that_are_read_from_data(program: Callable[..., Any]) -> None:
    recorder: Any = Recorder()
    with config.patch(capture_scalar_outputs=True):
        compiled = compile(program, backend=recorder, fullgraph=True)
        for value in (1.0, 3.0):
            x = torch.full((2,), value)
            assert same(compiled(x), program(x))
    assert len(recorder.graphs) == 1


class StaticForward(torch.nn.Module):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * 2


class ClassForward(torch.nn.Module):
    scale = 3

    @classmethod
    def forward(cls, x: Tensor) -> Tensor:
        return x * cls.scale


class Both(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = StaticForward(), ClassForward()

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) + self.other(x)


@pytest.mark.parametrize("module", [StaticForward(), ClassForward(), Both()], ids=lambda module: type(module).__name__)
def test_forward_may_be_a_static_or_class_method(module: Any) -> None:
    compiled = compile(module, backend="eager", fullgraph=True)
    assert same(compiled(torch.ones(2)), module(torch.ones(2)))


def test_the_state_of_autocast_by_its_older_names() -> None:
    def program(x: Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ x, torch.is_autocast_cpu_enabled(), torch.get_autocast_cpu_dtype()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        x = torch.ones(2, 2)
        assert same(compile(program, backend="eager", fullgraph=True)(x), program(x))


class Point(collections.namedtuple("Point", "a b")):
    def total(self) -> Any:
        return self.a + self.b

    @staticmethod
    def three() -> int:
        return 3

    @classmethod
    def named(cls) -> str:
        return cls.__name__

    @property
    def doubled(self) -> Any:
        return self.a * 2


def of_a_named_tuple(x: Tensor) -> Any:
    made = Point(x, x + 1)
    return made.total(), made.three(), made.named(), made.doubled


def tables_from_keys(x: Tensor) -> Any:
    plain = dict.fromkeys(["a", "b"], x + 1)
    sizes: Any = collections.defaultdict.fromkeys(iter(plain), x - 2)
    in_order = collections.OrderedDict.fromkeys(("a", "b"), value=x)
    return plain, dict(sizes), sizes.default_factory, [*in_order.items()]


def tensors_by_their_class(x: Tensor) -> Any:
    return torch.Tensor([1, 2]) + x, torch.Tensor(2, 3).shape


class Held:
    __match_args__ = ("a",)
    inherited = 9

    def __init__(self, a: Any, b: Any) -> None:
        self.a, self.b = a, b


def _matched(value: Any, x: Tensor) -> Any:
    match value:
        case Held(1, b=found):
            return "first", found
        case Held(a=found, c=_):
            return "never", found
        case Held(found):
            return "second", found
        case int(found) | str(found):
            return "itself", found
        case {"a": found, **rest}:
            return "mapping", found, rest
        case [first, *rest]:
            return "sequence", first, rest
        case _:
            return "none", x


def class_patterns(x: Tensor) -> Any:
    values = Held(1, x), Held(2, x), 5, "text", 2.5, {"a": x, "b": 1}, [x, 1, 2], None
    return [_matched(value, x) for value in values], x + 1


def texts_of_errors(x: Tensor) -> Any:
    texts = []
    for error in (ValueError(), KeyError("a"), TypeError(1, "b")):
        try:
            raise error
        except Exception as raised:
            texts.append((repr(raised), raised.args))
    return x + 1, texts


@each_of(of_a_named_tuple, tables_from_keys, tensors_by_their_class, class_patterns, texts_of_errors)
def test_containers_patterns_and_errors_in_one_graph(program: Callable[..., Any]) -> None:
    compiled = compile(program, backend="eager", fullgraph=True)
    for value in (1.0, 2.0):
        x = torch.full((2,), value)
        assert same(compiled(x), program(x))


def deletes(x: Tensor, held: Held) -> Any:
    del held.a
    held.extra = x + 1  # type: ignore[attr-defined]
    delattr(held, "extra")
    made = Held(x + 2, x + 3)
    del made.b
    return made.a, hasattr(held, "a"), hasattr(held, "extra"), hasattr(made, "b"), getattr(held, "a", 4)


def deletes_what_hides_the_class(x: Tensor, held: Held) -> Any:
    held.inherited = 5
    before = held.inherited
    del held.inherited
    return x + before + held.inherited


def reads_what_it_deleted(x: Tensor, held: Held) -> Any:
    del held.b
    try:
        return held.b
    except AttributeError:
        return x + held.a


@each_of(deletes, deletes_what_hides_the_class, reads_what_it_deleted)
def test_attributes_of_objects_are_deleted(program: Callable[..., Any]) -> None:
    compiled = compile(program, backend="eager", fullgraph=True)
    for value in (1.0, 2.0):
        x = torch.full((2,), value)
        held, other = Held(2, x), Held(2, x)
        assert same(compiled(x, held), program(x, other))
        assert [*vars(held)] == [*vars(other)]


def test_an_attribute_that_is_set_after_it_was_deleted_moves_to_the_end() -> None:
    def program(x: Tensor, held: Held) -> Any:
        del held.a
        held.a = x * 3
        return held.a + 1

    held, x = Held(1, 2), torch.ones(2)
    assert same(compile(program, backend="eager")(x, held), x * 3 + 1)
    assert [*vars(held)] == ["b", "a"]
    with pytest.raises(AttributeError):
        compile(deletes, backend="eager")(x, object.__new__(Held))


def test_a_class_between_that_gains_the_attribute_behind_super_is_seen() -> None:
    class First:
        found = 1

        def method(self) -> int:
            return 1

    class Second(First):
        pass

    class Third(Second):
        def read(self, x: Tensor) -> Any:
            return x * super().found + super().method()

    held, x = Third(), torch.ones(2)
    compiled = compile(lambda held, x: held.read(x), backend="eager")
    assert compiled(held, x).tolist() == [2, 2]
    Second.found = 10
    assert compiled(held, x).tolist() == [11, 11]
    Second.method = lambda self: 5
    assert compiled(held, x).tolist() == [15, 15]
    del Second.found, Second.method
    assert compiled(held, x).tolist() == [2, 2]


def test_whether_an_object_has_what_is_deleted_is_guarded() -> None:
    def deletes_late(x: Tensor, held: Any) -> Any:
        held.n = 1
        del held.k
        held.n = 2
        return x + 1

    def sets_and_deletes(x: Tensor, held: Any) -> Any:
        held.k = 7
        del held.k
        held.k2 = 3
        return x + 1, hasattr(held, "k")

    class Plain:
        def __init__(self, **attributes: Any) -> None:
            vars(self).update(attributes)

    def outcome(function: Any, **attributes: Any) -> Any:
        held = Plain(**attributes)
        try:
            return function(torch.ones(2), held), [*vars(held).items()]
        except AttributeError as error:
            return type(error).__name__, [*vars(held).items()]

    for program in (deletes_late, sets_and_deletes):
        compiled = compile(program, backend="eager")
        for attributes in ({"k": 3, "b": 1}, {"b": 1}, {"k": 4}, {}, {"k2": 1, "k": "text"}):
            assert same(outcome(compiled, **attributes), outcome(program, **attributes)), attributes


@pytest.mark.parametrize("is_inside", [False, True])
def test_the_state_of_another_device_s_autocast_is_guarded(is_inside: bool) -> None:
    """This holds also inside an autocast region for one device, and if the other device does not exist."""

    def program(x: Tensor) -> Any:
        with torch.autocast("cpu", enabled=is_inside):
            return x + 1, torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda")

    compiled, x = compile(program, backend="eager", fullgraph=True), torch.ones(2)
    before = torch.get_autocast_dtype("cuda")
    try:
        for dtype in (torch.float16, torch.bfloat16):
            torch.set_autocast_dtype("cuda", dtype)
            assert same(compiled(x), program(x))
        torch.set_autocast_enabled("cuda", True)
        assert same(compiled(x), program(x))
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", before)


def test_a_device_whose_autocast_has_no_guard_breaks_the_graph() -> None:
    def program(x: Tensor) -> Any:
        return x + 1, torch.get_autocast_dtype("xla")

    compiled, x = compile(program, backend="eager"), torch.ones(2)
    before = torch.get_autocast_dtype("xla")
    try:
        for dtype in (torch.float16, torch.bfloat16):
            torch.set_autocast_dtype("xla", dtype)
            assert same(compiled(x), program(x))
    finally:
        torch.set_autocast_dtype("xla", before)


class Loud(str, enum.Enum):
    FIRST = "a"

    __format__ = str.__format__

    def __str__(self) -> str:
        return self.name


class Permission(enum.IntFlag):
    READ = 4

    def __str__(self) -> str:
        return self.name or ""


class Hashed:
    def __init__(self, value: int) -> None:
        self.value = value

    def __hash__(self) -> int:
        return self.value


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int


class AddsNew:
    __iadd__ = None

    def __add__(self, other: Any) -> int:
        return 1


class Named:
    def __getattr__(self, name: str) -> str:
        return name


ORDER: list[str] = []


class Above(abc.ABC):  # noqa: B024 - classes are registered with it
    def __add__(self, other: Any) -> Any:
        ORDER.append("above")
        return NotImplemented

    def __lt__(self, other: Any) -> Any:
        ORDER.append("above")
        return NotImplemented


@Above.register
class Registered:
    def __radd__(self, other: Any) -> int:
        ORDER.append("registered")
        return 1

    def __gt__(self, other: Any) -> bool:
        ORDER.append("registered")
        return True


class ListsNames:
    __match_args__ = ["a"]
    a = 1


class Refuses(type):
    def __or__(cls, other: Any) -> Any:
        raise ZeroDivisionError("no union")


class NoUnion(metaclass=Refuses):
    pass


def matches_by_position(value: Any) -> Any:
    match value:
        case ListsNames(found):  # pyright: ignore[reportGeneralTypeIssues]
            return found
        case _:
            return None


def added_in_place(value: Any) -> Any:
    value += 1
    return value


def asked_in_order() -> Any:
    ORDER.clear()
    above: Any = Above()
    return above + Registered(), above < Registered(), list(ORDER)


def proxy_of(table: Any) -> Any:
    proxy = types.MappingProxyType(table)
    torch._dynamo.graph_break()
    copied = proxy.copy()
    return copied, type(copied).__name__, proxy | {"b": 2}


def rest_of_a_frozenset() -> Any:
    iterator = iter(frozenset([1, 2, 3]))
    first = next(iterator)
    torch._dynamo.graph_break()
    return first, sorted(iterator)


@pytest.mark.parametrize(
    "operation",
    [
        lambda: (format(Loud.FIRST), f"{Loud.FIRST}", "%s" % Loud.FIRST, "{}".format(Loud.FIRST)),  # noqa: UP031, UP032
        lambda: (format(Permission.READ, ""), f"{Permission.READ:>3}"),
        lambda: [hash(Hashed(value)) for value in (-1, 0, (1 << 61) - 1, 1 << 62, -1 << 63, 1 << 63)],
        lambda: hash(Frozen(1)) == hash((1,)),
        lambda: added_in_place(AddsNew()),
        lambda: (Named().__name__, hasattr(Hashed(1), "__name__")),
        asked_in_order,
        lambda: matches_by_position(ListsNames()),
        lambda: NoUnion | int,
        lambda: Exception[int],  # type: ignore[misc]
        lambda: proxy_of({"a": 1}),
        lambda: proxy_of(collections.OrderedDict(a=1)),
        rest_of_a_frozenset,
    ],
)
def test_special_cases_of_special_methods(operation: Callable[[], Any]) -> None:
    def program(x: Tensor) -> Any:
        return x + 1, operation()

    def outcome(function: Any) -> Any:
        try:
            return function(torch.ones(2))[1]
        except (TypeError, ZeroDivisionError) as error:
            return type(error), str(error)

    compiled = compile(program, backend="eager")
    assert [outcome(compiled), outcome(compiled)] == [outcome(program)] * 2
