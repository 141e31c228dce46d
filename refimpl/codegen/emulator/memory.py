"""Buffers, loads, stores and atomics, with checks of bounds and races.

Note [races]: all programs run one instruction together, so an order between programs shows nowhere. What is recorded for each
element instead, if asked for: the last program that stored it and the programs that loaded it. A second program that stores
another value there, or loads what another program stored, is a race. Atomics are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from refimpl.codegen.emulator.errors import BadAccess, OutOfBounds, Race
from refimpl.codegen.emulator.types import SIGNED_OF_WIDTH, PointerType, Type, int1, int8
from refimpl.codegen.emulator.values import (
    Rejected,
    Unsupported,
    Value,
    align,
    cast_data,
    cast_value,
    common_shape,
    constant,
    method,
    to_value,
)

_NOBODY, _MANY = -1, -2


@dataclass
class RaceState:
    """Who stored and who loaded each element of one piece of memory, as program numbers."""

    writer: Tensor
    reader: Tensor


@dataclass
class Buffer:
    """The memory that one tensor argument spans: `flat` has the elements from its first to its last, gaps included."""

    parameter: str
    flat: Tensor  # 1-D view; unsigned and bool as signed integers of the width
    element: Type
    races: RaceState | None = None
    before: Tensor | None = None  # what to go back to if programs diverge
    races_before: tuple[Tensor, Tensor] | None = None

    @property
    def extent(self) -> int:
        return self.flat.numel()


@dataclass
class Running:
    """The programs that run now, and what is checked of them."""

    kernel: str = ""
    grid: tuple[int, int, int] = (1, 1, 1)
    programs: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.int64))  # linear numbers
    poison: bool = True  # masked lanes of a load without `other` are NaN or a pattern, not 0
    asserts: bool = False  # device_assert is checked
    may_diverge: bool = False
    line: Any = staticmethod(lambda: "")
    changed: list[Buffer] = field(default_factory=list)  # in the order of their first store
    largest: int = 1  # elements of the largest block so far

    def position(self, number: int) -> tuple[int, int, int]:
        x, y, _ = self.grid
        return number % x, number // x % y, number // (x * y)


class Context:
    """The launch that is running; there is one at a time."""

    running = Running()


def buffer_of(parameter: str, tensor: Tensor, element: Type) -> Buffer:
    """A flat view of the memory of `tensor`, from its first element to the last that its strides reach."""
    extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    flat = tensor.detach().as_strided((extent,), (1,), tensor.storage_offset())
    return Buffer(parameter, flat.view(_indexed(tensor.dtype)), element)


def _indexed(dtype: torch.dtype) -> torch.dtype:
    """The dtype itself, or signed integers of its width: torch lacks indexing of bool and of wide unsigned integers."""
    has_none = dtype == torch.bool or (not dtype.is_signed and dtype.itemsize > 1)
    return SIGNED_OF_WIDTH[8 * dtype.itemsize] if has_none else dtype


def poison_of(type_: Type) -> float | int:
    """The value of a lane that was not loaded: NaN, or the bytes 0x5A."""
    if type_.is_floating():
        return float("nan")
    return {8: 0x5A, 16: 0x5A5A, 32: 0x5A5A5A5A, 64: 0x5A5A5A5A5A5A5A5A}.get(type_.bits, 1)


# ------------------------------------------------------------------------------------------------------------------ access


def _pointer(pointer: Any, what: str) -> tuple[Value, PointerType, Buffer]:
    if not isinstance(pointer, Value) or not isinstance(pointer.dtype, PointerType):
        raise Rejected(f"{what} through {pointer!r}, which is no pointer")
    return pointer, pointer.dtype, pointer.buffer


def _lanes(pointer: Value, mask: Any) -> tuple[Tensor, Tensor | None]:
    """Places and mask in one shape; the mask is None where it lets all lanes through."""
    places = pointer.data
    if mask is None or mask is True:
        return places, None
    chooser = to_value(mask)
    if chooser.dtype is not int1:
        chooser = cast_value(chooser, int1)
    if places.dim() == 1 and chooser.data.dim() > 1 and chooser.data[0].numel() != 1:
        raise Rejected(f"a mask of shape {list(chooser.shape)} for a pointer to one element")
    places, mask_data = align((places, chooser.data))
    shape = common_shape((tuple(places.shape), tuple(mask_data.shape)))
    if shape[1:] != tuple(places.shape[1:]) and pointer.data.dim() > 1:
        raise Rejected(f"a mask of shape {list(chooser.shape)} for pointers of shape {list(pointer.shape)}")
    return places.expand(shape), mask_data.expand(shape)


def _check_bounds(what: str, buffer: Buffer, places: Tensor, mask: Tensor | None) -> None:
    if places.numel() == 0:
        return
    low, high = torch.aminmax(places)
    if int(low) >= 0 and int(high) < buffer.extent:
        return
    is_bad = (places < 0) | (places >= buffer.extent)
    if mask is not None:
        is_bad &= mask
    if bool(is_bad.any()):
        access = _access(buffer, is_bad, places)
        raise OutOfBounds(what, access, int(is_bad.sum()))


def _access(buffer: Buffer, is_bad: Tensor, places: Tensor) -> BadAccess:
    """The first lane of the first program for which `is_bad`; both of one shape, programs leading."""
    running = Context.running
    where = is_bad.nonzero()[0].tolist()
    number = running.programs[where[0] if is_bad.shape[0] > 1 else 0]
    return BadAccess(
        kernel=running.kernel, parameter=buffer.parameter, program=running.position(int(number)), lane=tuple(where[1:]),
        place=int(places[tuple(where)]), extent=buffer.extent, line=running.line(),
    )  # fmt: skip


def _from_memory(data: Tensor, element: Type) -> Tensor:
    if element is int1:
        return data != 0
    if element.name in ("uint16", "uint32"):
        return data.to(element.carrier) & (0xFFFF if element.bits == 16 else 0xFFFFFFFF)
    return data


def _to_memory(data: Tensor, buffer: Buffer) -> Tensor:
    return data if data.dtype == buffer.flat.dtype else data.to(buffer.flat.dtype)


def _gather(buffer: Buffer, places: Tensor) -> Tensor:
    return buffer.flat.index_select(0, places.reshape(-1)).reshape(places.shape)


def load(
    pointer: Any,
    mask: Any = None,
    other: Any = None,
    boundary_check: Sequence[int] = (),
    padding_option: str = "",
    cache_modifier: str = "",
    eviction_policy: str = "",
    volatile: bool = False,
) -> Value:
    """Load the elements at the pointers. Masked lanes get `other`; without it they are undefined, here poison."""
    pointer, dtype, buffer = _pointer(pointer, "a load")
    if boundary_check:
        raise Unsupported("block pointers")
    if other is not None and mask is None:
        raise Rejected("`other` of a load without a mask")
    running = Context.running
    running.largest = max(running.largest, pointer.data.numel() // pointer.data.shape[0])
    element = dtype.element_ty
    places, lanes = _lanes(pointer, mask)
    if lanes is not None and not bool(lanes.all()):
        _check_bounds("a load", buffer, torch.where(lanes, places, 0) if buffer.extent else places, lanes)
        if buffer.extent == 0:
            data = torch.zeros(places.shape, dtype=element.carrier)
        else:
            data = _from_memory(_gather(buffer, torch.where(lanes, places, 0)), element)
        if other is not None:
            rest = cast_value(to_value(other), element).data
            rest = align((rest, data))[0] if rest.dim() != data.dim() else rest
            data = torch.where(lanes, data, rest)
        else:
            rest = poison_of(element) if running.poison else 0
            data = torch.where(lanes, data, torch.tensor(rest, dtype=element.carrier))
    else:
        _check_bounds("a load", buffer, places, None)
        data = _from_memory(_gather(buffer, places), element)
    if buffer.races is not None:
        _saw_load(buffer, buffer.races, places, lanes)
    return Value(data, element)


def store(
    pointer: Any,
    value: Any,
    mask: Any = None,
    boundary_check: Sequence[int] = (),
    cache_modifier: str = "",
    eviction_policy: str = "",
) -> None:
    """Store the value, converted to the pointer's element type, at the pointers whose mask is set."""
    pointer, dtype, buffer = _pointer(pointer, "a store")
    if boundary_check:
        raise Unsupported("block pointers")
    places, lanes = _lanes(pointer, mask)
    data = _converted(value, dtype, pointer)
    _note_write(buffer)
    _write(buffer, places, lanes, data)


def _converted(value: Any, dtype: PointerType, pointer: Value) -> Tensor:
    element = int8 if dtype.element_ty is int1 else dtype.element_ty  # bools are bytes in memory
    new = constant(value, element) if isinstance(value, (bool, int, float)) else cast_value(to_value(value), element)
    if pointer.data.dim() == 1 and new.data.dim() > 1 and new.data[0].numel() != 1:
        raise Rejected(f"a block of shape {list(new.shape)} stored through a pointer to one element")
    return new.data


def _write(buffer: Buffer, places: Tensor, lanes: Tensor | None, data: Tensor) -> None:
    places, data = align((places, data)) if places.dim() != data.dim() else (places, data)
    shape = common_shape((tuple(places.shape), tuple(data.shape)))
    places, data = places.expand(shape), _to_memory(data, buffer).expand(shape)
    lanes = (
        lanes.reshape(lanes.shape[0], *[1] * (len(shape) - lanes.dim()), *lanes.shape[1:]).expand(shape)
        if lanes is not None
        else None
    )
    if lanes is not None and not bool(lanes.all()):
        kept = lanes.reshape(-1).nonzero().squeeze(-1)
        flat_places, flat_data = places.reshape(-1)[kept], data.reshape(-1)[kept]
        if not _all_inside(buffer, flat_places):
            _check_bounds("a store", buffer, places, lanes)
    else:
        kept = None
        _check_bounds("a store", buffer, places, None)
        flat_places, flat_data = places.reshape(-1), data.reshape(-1)
    if flat_places.numel() == 0:
        return
    if buffer.races is not None:
        _saw_store(buffer, buffer.races, places, kept, flat_places, flat_data)
    else:
        _scatter(buffer.flat, flat_places, flat_data)


def _scatter(flat: Tensor, places: Tensor, data: Tensor) -> None:
    """Write the data at the places. bfloat16 goes as integers: torch converts it by way of float32, which changes NaN's bits."""
    if flat.dtype is torch.bfloat16:
        flat, data = flat.view(torch.int16), data.view(torch.int16)
    flat.scatter_(0, places, data)


def _all_inside(buffer: Buffer, flat_places: Tensor) -> bool:
    if flat_places.numel() == 0:
        return True
    low, high = torch.aminmax(flat_places)
    return int(low) >= 0 and int(high) < buffer.extent


def _note_write(buffer: Buffer) -> None:
    """Keep a copy of the memory if programs may still diverge, in which case they start again."""
    if Context.running.may_diverge and buffer.before is None:
        buffer.before = buffer.flat.clone()
        Context.running.changed.append(buffer)
        if buffer.races is not None:
            buffer.races_before = (buffer.races.writer.clone(), buffer.races.reader.clone())


def roll_back(running: Running) -> None:
    """Restore memory to what it was when these programs started; in reverse order, since arguments may share memory."""
    for buffer in reversed(running.changed):
        assert buffer.before is not None
        buffer.flat.copy_(buffer.before)
        if buffer.races is not None and buffer.races_before is not None:
            buffer.races.writer.copy_(buffer.races_before[0])
            buffer.races.reader.copy_(buffer.races_before[1])
    forget(running)


def forget(running: Running) -> None:
    for buffer in running.changed:
        buffer.before = buffer.races_before = None
    running.changed.clear()


# ------------------------------------------------------------------------------------------------------------------- races


def _program_of_lanes(places: Tensor, kept: Tensor | None) -> Tensor:
    """Program number of each lane, flat. Lanes with the same value in all programs count as the first program's."""
    programs = Context.running.programs
    numbers = programs if places.shape[0] == programs.numel() else programs[:1]
    flat = numbers.to(torch.int32).reshape(-1, *[1] * (places.dim() - 1)).expand(places.shape).reshape(-1)
    return flat if kept is None else flat[kept]


def _saw_load(buffer: Buffer, races: RaceState, places: Tensor, lanes: Tensor | None) -> None:
    kept = None if lanes is None else lanes.reshape(-1).nonzero().squeeze(-1)
    flat = places.reshape(-1) if kept is None else places.reshape(-1)[kept]
    if flat.numel() == 0:
        return
    mine = _program_of_lanes(places, kept)
    writer = races.writer[flat]
    is_bad = (writer != _NOBODY) & (writer != mine)
    if bool(is_bad.any()):
        raise _race("a load of an element that another program stores,", buffer, is_bad, flat, mine, writer)
    if places.shape[0] == 1 and Context.running.programs.numel() > 1:
        races.reader[flat] = _MANY
        return
    before = races.reader[flat]
    races.reader[flat] = torch.where((before == _NOBODY) | (before == mine), mine, _MANY)
    again = races.reader[flat]
    races.reader[flat] = torch.where(again == mine, again, _MANY)
    # Two programs read the element in this load: one of them was overwritten, and marks the element as read by many.
    lost = flat[again != mine]
    races.reader[lost] = _MANY


def _saw_store(
    buffer: Buffer, races: RaceState, places: Tensor, kept: Tensor | None, flat: Tensor, data: Tensor
) -> None:
    mine = _program_of_lanes(places, kept)
    old, writer, reader = buffer.flat[flat], races.writer[flat], races.reader[flat]
    changes = ~_same(old, data)
    is_bad = changes & (writer != _NOBODY) & (writer != mine)
    if bool(is_bad.any()):
        raise _race("two programs store other values to", buffer, is_bad, flat, mine, writer)
    is_bad = changes & (reader != _NOBODY) & (reader != mine)
    if bool(is_bad.any()):
        others = torch.where(reader == _MANY, _NOBODY, reader)
        raise _race("a store to an element that another program loads,", buffer, is_bad, flat, mine, others)
    _scatter(buffer.flat, flat, data)
    races.writer.scatter_(0, flat, mine)
    is_bad = ~_same(buffer.flat[flat], data)
    if bool(is_bad.any()):
        winner = races.writer[flat]
        raise _race(
            "two lanes store other values to", buffer, is_bad, flat, mine, torch.where(winner == mine, _NOBODY, winner)
        )


def _same(a: Tensor, b: Tensor) -> Tensor:
    return (a == b) | ((a != a) & (b != b))


def _race(what: str, buffer: Buffer, is_bad: Tensor, flat: Tensor, mine: Tensor, others: Tensor) -> Race:
    running = Context.running
    at = int(is_bad.nonzero()[0])
    access = BadAccess(
        kernel=running.kernel, parameter=buffer.parameter, program=running.position(int(mine[at])), lane=(at,),
        place=int(flat[at]), extent=buffer.extent, line=running.line(),
    )  # fmt: skip
    other = int(others[at])
    return Race(what, access, running.position(other) if other >= 0 else None)


# ----------------------------------------------------------------------------------------------------------------- atomics

_DISCARDED = {
    "add": lambda flat, places, data: flat.index_add_(0, places, data),
    "max": lambda flat, places, data: flat.scatter_reduce_(0, places, data, "amax"),
    "min": lambda flat, places, data: flat.scatter_reduce_(0, places, data, "amin"),
}
_ONE_BY_ONE = {
    "add": lambda old, new: old + new,
    "max": torch.maximum,
    "min": torch.minimum,
    "and": lambda old, new: old & new,
    "or": lambda old, new: old | new,
    "xor": lambda old, new: old ^ new,
    "xchg": lambda old, new: new,
}


def _atomic(name: str, pointer: Any, val: Any, mask: Any, is_discarded: bool) -> Value:
    """Run an atomic lane after lane, in the order of programs. Returns the values before each."""
    pointer, dtype, buffer = _pointer(pointer, f"atomic_{name}")
    element = dtype.element_ty
    if (element.is_int() and element.bits < 32) or (element.bits == 16 and name != "add"):
        raise Rejected(f"atomic_{name} on {element}")
    if element.is_floating() and name in ("and", "or", "xor"):
        raise Rejected(f"atomic_{name} on {element}")
    places, lanes = _lanes(pointer, mask)
    data = cast_data(to_value(val).data, _scalar(to_value(val)), element)
    places, data = align((places, data))
    count = Context.running.programs.numel()  # an atomic happens once in every program, even where all are alike
    shape = common_shape((tuple(places.shape), tuple(data.shape), (count, *[1] * (places.dim() - 1))))
    places, data = places.expand(shape), _to_memory(data, buffer).expand(shape)
    active = torch.ones(shape, dtype=torch.bool) if lanes is None else align((lanes, places))[0].expand(shape)
    _check_bounds(f"atomic_{name}", buffer, torch.where(active, places, 0) if buffer.extent else places, active)
    _note_write(buffer)
    kept = active.reshape(-1).nonzero().squeeze(-1)
    flat_places, flat_data = places.reshape(-1)[kept], data.reshape(-1)[kept]
    result = torch.zeros(shape, dtype=buffer.flat.dtype).reshape(-1)
    is_wide_unsigned = element.name in ("uint16", "uint32", "uint64")
    if is_discarded and name in _DISCARDED and not (is_wide_unsigned and name != "add"):
        _DISCARDED[name](buffer.flat, flat_places, flat_data)
    elif flat_places.unique().numel() == flat_places.numel() and not is_wide_unsigned:
        old = buffer.flat[flat_places]
        result[kept] = old
        buffer.flat[flat_places] = _ONE_BY_ONE[name](old, flat_data)
    else:
        function = _ONE_BY_ONE[name]
        for lane, place, new in zip(kept.tolist(), flat_places.tolist(), flat_data, strict=True):
            old = buffer.flat[place].clone()
            result[lane] = old
            a, b = _from_memory(old, element), _from_memory(new, element)
            buffer.flat[place] = function(a, b).to(buffer.flat.dtype)
    return Value(_from_memory(result.reshape(shape), element), element)


def _scalar(value: Value) -> Type:
    if isinstance(value.dtype, PointerType):
        raise Rejected("an atomic on pointers")
    return value.dtype


def _define(name: str) -> Any:
    def atomic(
        pointer: Any,
        val: Any,
        mask: Any = None,
        sem: str | None = None,
        scope: str | None = None,
        *,
        _discard: bool = False,
    ) -> Value:
        return _atomic(name, pointer, val, mask, _discard)

    atomic.__name__ = f"atomic_{name}"
    return method(atomic.__name__)(atomic)


ATOMICS = {f"atomic_{name}": _define(name) for name in _ONE_BY_ONE}


def atomic_cas(
    pointer: Any, cmp: Any, val: Any, sem: str | None = None, scope: str | None = None, *, _discard: bool = False
) -> Value:
    """Compare and swap, lane after lane, in the order of programs."""
    pointer, dtype, buffer = _pointer(pointer, "atomic_cas")
    element = dtype.element_ty
    if element.bits < 16:
        raise Rejected(f"atomic_cas on {element}")
    expected, new = (cast_data(to_value(x).data, _scalar(to_value(x)), element) for x in (cmp, val))
    places, expected, new = align((pointer.data, expected, new))
    count = Context.running.programs.numel()
    shape = common_shape(
        (tuple(places.shape), tuple(expected.shape), tuple(new.shape), (count, *[1] * (places.dim() - 1)))
    )
    places = places.expand(shape)
    _check_bounds("atomic_cas", buffer, places, None)
    _note_write(buffer)
    result = torch.empty(shape, dtype=buffer.flat.dtype).reshape(-1)
    expected, new = (_to_memory(x, buffer).expand(shape).reshape(-1) for x in (expected, new))
    for lane, place in enumerate(places.reshape(-1).tolist()):
        result[lane] = buffer.flat[place]
        if bool(result[lane] == expected[lane]):
            buffer.flat[place] = new[lane]
    return Value(_from_memory(result.reshape(shape), element), element)


method("atomic_cas")(atomic_cas)
method("store")(store)
