"""Programs that have to be one graph: what strict export met in features and models that capture stopped at."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import refimpl
from refimpl._torch import FakeTensorMode
from refimpl.capture.public.errors import Unsupported
from refimpl.export import export
from refimpl.tests.capture.capturing import each_of, same


class Doubling:
    """A data descriptor."""

    def __set_name__(self, owner: Any, name: str) -> None:
        self.slot = f"_{name}"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else getattr(instance, self.slot)

    def __set__(self, instance: Any, value: Any) -> None:
        setattr(instance, self.slot, value * 2)


class Holder:
    value = Doubling()

    def __init__(self, value: Any) -> None:
        self.value = value


def descriptor(x: torch.Tensor) -> Any:
    holder = Holder(x)
    holder.value = holder.value + 1
    return holder.value, sorted(vars(holder))


class Scaled(Doubling):
    """The same, which on the class gives a number."""

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return getattr(instance, self.slot, 1) * 1.5


class ScaledHolder(Holder):
    value = Scaled()


class InheritedHolder(ScaledHolder):
    pass


def descriptor_that_hides_on_the_class(x: torch.Tensor) -> Any:
    holder = InheritedHolder(x)
    return holder.value + ScaledHolder(x + 1).value


class Writing:
    """A descriptor that receives assignments and deletions, and leaves reading to the instance."""

    def __set__(self, instance: Any, value: Any) -> None:
        object.__setattr__(instance, "_value", value * 2)

    def __delete__(self, instance: Any) -> None:
        object.__setattr__(instance, "_value", 0)


class WritingHolder:
    value: Any = Writing()


class Deleting:
    def __delete__(self, instance: Any) -> None: ...


class DeletingHolder:
    value: Any = Deleting()


def descriptor_that_only_writes(x: torch.Tensor) -> Any:
    holder: Any = WritingHolder()
    holder.value = x
    return holder._value, type(holder.value).__name__, hasattr(holder, "value"), sorted(vars(holder))


def written_from_outside(x: torch.Tensor, holder: Any) -> Any:
    before = holder.value
    try:
        holder.value = 3
    except AttributeError as error:
        return x + 1, before, str(error)
    return x * holder._value, before, holder.value


def deleted(x: torch.Tensor) -> Any:
    holder: Any = WritingHolder()
    vars(holder)["value"] = 5
    del holder.value
    return x * holder.value, holder._value


def added(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.value + x


def bound_by_hand(x: torch.Tensor) -> torch.Tensor:
    return MethodType(added, Holder(x))(x)


def cause_of_an_error(x: torch.Tensor) -> Any:
    try:
        try:
            raise IndexError("three")
        except IndexError as error:
            raise RuntimeError("outer") from error
    except RuntimeError as error:
        first = type(error.__cause__).__name__
    try:
        raise ValueError from None
    except ValueError as error:
        second = error.__cause__
    try:
        raise KeyError from ValueError
    except KeyError as error:
        third = type(error.__cause__).__name__
    return x + 1, first, second, third


WEIGHTS = torch.nn.ParameterList(torch.nn.Parameter(torch.randn(3, 3)) for _ in range(3))


def sliced_parameters(x: torch.Tensor) -> Any:
    for weight in WEIGHTS[:2]:
        x = x @ weight
    return x, len(WEIGHTS[1:])


def items_of_a_tensor(x: torch.Tensor) -> Any:
    counts = x.abs().round().to(torch.int64) + 1
    total = sum(counts.tolist())
    return torch.ones(total), [[float(item) * 2 for item in row] for row in counts.reshape(3, 1).tolist()]


@contextlib.contextmanager
def level(names: list[str], name: str) -> Iterator[int]:
    names.append(name)
    try:
        yield len(names)
    finally:
        names.append(f"not {name}")


def exit_stack(x: torch.Tensor) -> Any:
    names: list[str] = []
    with contextlib.ExitStack() as stack:
        for name in ("a", "b"):
            x = x + stack.enter_context(level(names, name))
    return x, names


@dataclasses.dataclass(slots=True)
class Pair:
    first: Any
    second: Any = 1


class Slotted:
    __slots__ = ("x", "y")

    def __init__(self, x: Any) -> None:
        self.x = x


def slots(x: torch.Tensor) -> Any:
    pair, slotted = Pair(x), Slotted(x)
    pair.second = x + 1
    told = []
    try:
        slotted.z = 3  # pyright: ignore[reportAttributeAccessIssue]
    except AttributeError:
        told.append("no such slot")
    try:
        told.append(slotted.y)
    except AttributeError:
        slotted.y = x * 2
    try:
        vars(slotted)
    except TypeError:
        told.append("no dict")
    return pair.first + pair.second, slotted.y, told, hasattr(slotted, "y"), hasattr(slotted, "__dict__")


class Access(enum.IntFlag):
    READ = enum.auto()
    WRITE = enum.auto()


class Part(enum.Flag):
    HEAD = enum.auto()
    BODY = enum.auto()
    TAIL = enum.auto()


def flags(x: torch.Tensor) -> Any:
    both, access = Part.HEAD | Part.TAIL, Access.READ | Access.WRITE
    y = x + 1 if access & Access.WRITE else x - 1
    if both & Part.BODY:
        y = y * 2
    held = [str(both), both & Part.HEAD is Part.HEAD, Part.BODY in both, str(Part(6)), both ^ Part.TAIL is Part.HEAD]
    return y, held, int(access), access ^ Access.READ is Access.WRITE


def a_tree(x: torch.Tensor) -> Any:
    leaves, spec = pytree.tree_flatten({"a": [x, x + 1], "b": (x * 2, torch.float32)})
    return pytree.tree_unflatten(leaves[::-1], spec), spec.num_leaves


@each_of(
    descriptor, descriptor_that_hides_on_the_class, descriptor_that_only_writes, bound_by_hand, cause_of_an_error,
    sliced_parameters, items_of_a_tensor, exit_stack, slots, flags, a_tree,
)  # fmt: skip
def test_a_program_is_one_graph_and_gives_what_eager_gives(program: Callable[[Any], Any]) -> None:
    captured = refimpl.compile(program, fullgraph=True)
    for x in (torch.tensor([1.0, 2.0, 0.0]), torch.tensor([0.0, 3.0, 5.0])):
        assert same(captured(x), program(x))


def test_the_dict_is_read_where_a_descriptor_only_writes() -> None:
    x = torch.ones(2)
    for class_ in (WritingHolder, DeletingHolder):
        for stored in ({}, {"value": 7}):
            holders = [class_(), class_()]
            for holder in holders:
                vars(holder).update(stored)
            captured, eager = (refimpl.compile(written_from_outside), written_from_outside)
            assert same(captured(x, holders[0]), eager(x, holders[1]))
            assert vars(holders[0]) == vars(holders[1])
    assert same(refimpl.compile(deleted)(x), deleted(x))


class Once:
    """A descriptor that the object's own dict hides."""

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return instance.count * 10


class Computing:
    value: Any = Doubling()
    once: Any = Once()

    def __init__(self) -> None:
        self.value, self.count = 1, 0

    @functools.cached_property
    def table(self) -> Any:
        self.count += 1
        return torch.full((2,), 3.0)


def of_a_found_object(x: torch.Tensor, found: Any) -> Any:
    found.value = found.value + 1
    return x * found.value + found.table, found.once, found.table is found.table


def test_descriptors_of_a_found_object_are_in_the_graph() -> None:
    x = torch.ones(2)
    captured = refimpl.compile(of_a_found_object, fullgraph=True)
    holders = [Computing(), Computing()]
    for step in range(3):
        assert same(captured(x, holders[0]), of_a_found_object(x, holders[1])), step
        assert same(vars(holders[0]), vars(holders[1])), step
    vars(holders[0])["once"] = vars(holders[1])["once"] = 7
    assert same(captured(x, holders[0]), of_a_found_object(x, holders[1]))


def test_a_flag_with_operators_of_its_own_is_asked() -> None:
    class Inverted(enum.Flag):
        ONE = 1
        TWO = 2

        def __bool__(self) -> bool:
            return not self._value_

        def __or__(self, other: Any) -> Any:
            return self

    def program(x: torch.Tensor) -> Any:
        return (x + 1 if Inverted.ONE else x - 1), (Inverted.ONE | Inverted.TWO) is Inverted.ONE

    x = torch.ones(2)
    assert same(refimpl.compile(program)(x), program(x))


def test_another_descriptor_is_seen() -> None:
    class Holder:
        value: Any = Doubling()

    def program(x: torch.Tensor, found: Any) -> Any:
        found.value = 3
        return x * found.value

    captured, x = refimpl.compile(program), torch.ones(2)
    assert same(captured(x, Holder()), x * 6)
    Holder.value = Writing()
    holder = Holder()
    vars(holder)["value"] = 5
    assert same(captured(x, holder), x * 5)
    assert vars(holder) == {"value": 5, "_value": 6}


def test_the_truth_of_a_tensor_is_a_result() -> None:
    class Truth(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x + 1, bool(x.sum() > 0), float(x.shape[0])

    program = export(Truth(), (torch.ones(3),), strict=True).module()
    assert [program(torch.full((3,), value))[1] for value in (1.0, -1.0)] == [True, False]


def test_a_long_tensor_is_not_read_item_by_item() -> None:
    captured = refimpl.compile(lambda x: sum(x.tolist()), fullgraph=True)
    with pytest.raises(Exception, match=r"Tensor.tolist\(\) reads a value out of a tensor"):
        captured(torch.ones(1000))


def test_an_operator_is_called_by_a_name_that_nobody_has_asked_for() -> None:
    with torch.library._scoped_library("refimpl_bound_late", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        captured = refimpl.compile(lambda x: torch.ops.refimpl_bound_late.twice(x) + 1, fullgraph=True)
        assert torch.equal(captured(torch.ones(3)), torch.full((3,), 3.0))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_fake_tensors_in_their_own_mode_are_captured_like_others(backend: str) -> None:
    def program(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x.sin() * x.shape[0] + weight

    captured = refimpl.compile(program, backend=backend, fullgraph=True)
    with FakeTensorMode() as mode:
        for sizes in ((3, 4), (3, 4), (5, 4)):
            x, weight = torch.ones(sizes), torch.ones(4, requires_grad=True)
            found = captured(x, weight)
            assert (found.shape, found.fake_mode, found.requires_grad) == (x.shape, mode, True)
    x = torch.ones(3, 4)
    torch.testing.assert_close(captured(x, x), program(x, x))
    with pytest.raises(Unsupported):  # outside of the mode of a fake, real and fake tensors may meet
        refimpl.compile(program, backend=backend, fullgraph=True)(mode.from_tensor(x), mode.from_tensor(x))
