"""Prints a scheduled group of nests as one Triton kernel.

A kernel without reductions goes over one run of points in blocks. One with reductions has a block of kept points by a block of
reduced ones: the whole of the reduced axes if that is short (persistent), else a loop over blocks of them, once for each phase,
a phase being all reductions that do not need one another's results. What a phase computes for all points is not kept for the
next: it is computed again from memory, which costs less than keeping it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch

from refimpl.codegen.index_text import IndexTextState
from refimpl.codegen.indices import ONE, product
from refimpl.codegen.kernel import POINTER_TYPES, Kernel, Parameter
from refimpl.codegen.loop_ir import Axis, Buffer, Nest, ReductionKind, new_axis
from refimpl.codegen.nests import can_merge, index_expressions, reindexed_nest
from refimpl.codegen.scalars import Apply, FromIndex, Guarded, Literal, Load, Scalar, StructuresState, walk
from refimpl.codegen.schedule import Group, ScheduledKernel, guess
from refimpl.codegen.triton_functions import TRITON_DTYPES, constant, expression
from refimpl.symbolic.functions import FloorDiv

PERSISTENT = 1024
BLOCK = 1024
MAX_INT32 = 2**31 - 1

_HEADER = """\
import triton
import triton.language as tl
from triton.language.extra import libdevice
"""
_HELPERS = {
    "_multiply": "@triton.jit\ndef _multiply(a, b):\n    return a * b\n",
}
_IDENTITIES: dict[ReductionKind, Any] = {"sum": 0, "prod": 1, "any": 0, "all": 1}


@dataclass(frozen=True)
class PrintedKernel:
    """A kernel with what its launch needs: names of buffers and sizes by parameter, the number of programs."""

    kernel: Kernel
    arguments: tuple[str | sympy.Expr, ...]
    grid: sympy.Expr
    points: sympy.Expr
    """Kept points; `grid` is these in blocks."""
    constants: dict[str, int]
    written: tuple[str, ...]
    """Buffers that it fills."""
    origins: tuple[str, ...]


def print_kernel(name: str, scheduled: ScheduledKernel, buffers: dict[str, Buffer]) -> PrintedKernel:
    """Source text of a kernel, and how it is launched."""
    return _Printer(name, scheduled, buffers).run()


@dataclass
class _Scope:
    """Lines, and the names of what they compute. The mask that loads are under belongs to what they give."""

    lines: list[str] = field(default_factory=list)
    names: dict[Any, str] = field(default_factory=dict)


class _Printer:
    def __init__(self, name: str, scheduled: ScheduledKernel, buffers: dict[str, Buffer]) -> None:
        self.name = name
        self.buffers = buffers
        self.stored = scheduled.stored
        self.group = merged(scheduled.group)
        self.made = self.group.produces()
        self.kept, self.reduced = self.group.kept_axes, self.group.reduced_axes
        self.kept_size = product(axis.size for axis in self.kept)
        self.reduced_size = product(axis.size for axis in self.reduced)
        self.has_reduction = any(nest.reduction is not None for nest in self.group.nests)
        has_scan = any(nest.reduction is not None and nest.reduction.is_scan for nest in self.group.nests)
        is_short = bool(self.reduced_size.is_Integer and 1 <= self.reduced_size <= PERSISTENT)
        self.is_persistent = self.has_reduction and (is_short or has_scan)
        self.index_dtype = "tl.int32" if self._fits_int32() else "tl.int64"
        self.blocks = self._blocks()
        self.indices = IndexTextState(self.group.order)
        self.pointers: dict[str, str] = {}
        self.helpers: set[str] = set()
        self.outer = _Scope()
        self.inner = _Scope() if self.has_reduction and not self.is_persistent else self.outer
        self.pending: dict[str, list[str]] = {}  # reductions of the open phase: lines that finish them
        self.starts: list[str] = []
        self.rows: dict[str, str] = {}  # names of finished reductions, by buffer
        self.structures = StructuresState()
        self.reductions: dict[Any, str] = {}  # the first buffer of each reduction, by structure
        self.counter = 0
        self.is_in_reduced: dict[int, bool] = {}
        self.guard: str | None = None
        self.guard_is_wide = False

    # ---- the whole

    def run(self) -> PrintedKernel:
        header = self._axes()
        for nest in self.group.nests:
            if self._needs(nest) & self.pending.keys():
                self._close_phase()
            if nest.reduction is not None:
                self._reduce(nest)
            elif nest.target.name in self.stored:
                self._store(nest)
        self._close_phase()
        body = [*header, *self.outer.lines]
        parameters = [
            *(Parameter(text, POINTER_TYPES[self.buffers[buffer].dtype]) for buffer, text in self.pointers.items()),
            *(Parameter(text, "i64") for text in self.indices.sizes.values()),
            *(Parameter(block, "constexpr") for block in self.blocks),
        ]
        signature = ", ".join(
            f"{parameter.name}: tl.constexpr" if parameter.is_constant else parameter.name for parameter in parameters
        )
        helpers = "".join("\n\n" + _HELPERS[helper] for helper in sorted(self.helpers))
        text = "\n".join(f"    {line}" if line else "" for line in body)
        source = f"{_HEADER}{helpers}\n\n@triton.jit\ndef {self.name}({signature}):\n{text}\n"
        block = sympy.Integer(self.blocks["XBLOCK"])
        return PrintedKernel(
            kernel=Kernel(self.name, source, tuple(parameters), num_warps=self._warps()),
            arguments=(*self.pointers, *self.indices.sizes),
            grid=FloorDiv(self.kept_size + block - 1, block),
            points=self.kept_size,
            constants=dict(self.blocks),
            written=tuple(sorted(self.stored)),
            origins=tuple(dict.fromkeys(origin for nest in self.group.nests for origin in nest.origins)),
        )

    def _fits_int32(self) -> bool:
        names = {name for nest in self.group.nests for name in nest.reads()} | self.made.keys()
        for name in names:
            buffer = self.buffers[name]
            extent = sum(
                ((size - 1) * stride for size, stride in zip(buffer.shape, buffer.strides, strict=True)), sympy.S.Zero
            )
            if not extent.is_Integer or extent > MAX_INT32:
                return False
        points = self.kept_size * self.reduced_size
        return bool(points.is_Integer and points <= MAX_INT32 - 2 * BLOCK)

    def _blocks(self) -> dict[str, int]:
        kept, reduced = max(guess(self.kept_size), 1), max(guess(self.reduced_size), 1)
        if not self.has_reduction:
            return {"XBLOCK": min(BLOCK, _power_of_two(kept))}
        if self.is_persistent:
            width = _power_of_two(reduced)
            return {"XBLOCK": max(1, min(2048 // width, _power_of_two(kept))), "RBLOCK": width}
        if self.group.order and self.group.order[-1].symbol in self.group.reduced:
            return {"XBLOCK": 1, "RBLOCK": min(2 * BLOCK, _power_of_two(reduced))}
        return {"XBLOCK": min(64, _power_of_two(kept)), "RBLOCK": min(32, _power_of_two(reduced))}

    def _warps(self) -> int:
        values = self.blocks["XBLOCK"] * self.blocks.get("RBLOCK", 1)
        return 8 if values >= 4096 else 4 if values >= 512 else 2 if values >= 128 else 1

    # ---- axes

    def _axes(self) -> list[str]:
        rank = 2 if self.has_reduction else 1
        self.full = "[XBLOCK, RBLOCK]" if rank == 2 else "[XBLOCK]"
        self.row = "[XBLOCK, 1]" if rank == 2 else "[XBLOCK]"
        start = "tl.program_id(0)" + (".to(tl.int64)" if self.index_dtype == "tl.int64" else "")
        column = "[:, None]" if rank == 2 else ""
        lines = [f"x = {start} * XBLOCK + tl.arange(0, XBLOCK){column}"]
        self.row_mask = None
        if not (self.kept_size.is_Integer and self.kept_size % self.blocks["XBLOCK"] == 0):
            lines.append(f"xmask = x < {self.indices.text(self.kept_size)}")
            self.row_mask = "xmask"
        lines += self._digits("x", self.kept)
        self.lane_mask = None
        if rank == 2:
            lane = [f"r = {'rstart + ' if not self.is_persistent else ''}tl.arange(0, RBLOCK)[None, :]"]
            if (
                not (self.reduced_size.is_Integer and self.reduced_size % self.blocks["RBLOCK"] == 0)
                or not self.reduced_size
            ):
                lane.append(f"rmask = r < {self.indices.text(self.reduced_size)}")
                self.lane_mask = "rmask"
            lane += self._digits("r", self.reduced)
            if self.is_persistent:
                lines += lane
            else:
                self.lane_lines = lane
        return lines

    def _digits(self, whole: str, axes: tuple[Axis, ...]) -> list[str]:
        if len(axes) == 1:
            self.indices.symbols[axes[0].symbol] = whole
            return []
        lines = []
        step: sympy.Expr = ONE
        for position in range(len(axes) - 1, -1, -1):
            axis = axes[position]
            text = whole if step == ONE else f"({whole} // {self.indices.factor(step)})"
            if position > 0:
                text = f"{text} % {self.indices.factor(axis.size)}"
            self.indices.symbols[axis.symbol] = f"{whole}{position}"
            lines.append(f"{whole}{position} = {text}")
            step = step * axis.size
        return lines

    # ---- values

    def _depends_on_reduced(self, scalar: Scalar) -> bool:
        """Whether the value differs along the reduced axes."""
        for part in walk(scalar):
            if id(part) not in self.is_in_reduced:
                self.is_in_reduced[id(part)] = self._own_dependence(part)
        return self.is_in_reduced[id(scalar)]

    def _own_dependence(self, part: Scalar) -> bool:
        reduced = self.group.reduced
        match part:
            case FromIndex(index=index):
                return bool(index.free_symbols & reduced)
            case Load(index=index, indirect=indirect):
                return bool(index.free_symbols & reduced) or any(self.is_in_reduced[id(v)] for _, v in indirect)
            case Apply(arguments=arguments):
                return any(self.is_in_reduced[id(argument)] for argument in arguments)
            case Guarded(condition=condition, value=value):
                return self.is_in_reduced[id(condition)] or self.is_in_reduced[id(value)]
            case _:
                return False

    def _is_wide(self, scalar: Scalar) -> bool:
        """Whether it has a value for every reduced point."""
        return (self.guard is not None and self.guard_is_wide) or self._depends_on_reduced(scalar)

    def _new(self, prefix: str = "t") -> str:
        self.counter += 1
        return f"{prefix}{self.counter}"

    def _value(self, scalar: Scalar) -> str:
        """The name of the value, computed where it is not yet."""
        parts = [scalar] if self.guard is not None else list(_unguarded(scalar))
        for part in parts:
            self._emit(part)
        return self._emit(scalar)

    def _emit(self, scalar: Scalar) -> str:
        if isinstance(scalar, Load) and scalar.buffer in self.made and not scalar.indirect:
            made = self.made[scalar.buffer]
            return self.rows[scalar.buffer] if made.reduction is not None else self._value(made.value)
        key = (id(scalar), self.guard)
        is_wide = self._is_wide(scalar)
        scope = self.inner if is_wide else self.outer
        found = scope.names.get(key) or (self.outer.names.get(key) if scope is self.inner else None)
        if found is not None:
            return found
        match scalar:
            case Literal(value=value, dtype=dtype):
                text = constant(value, dtype, "[1, 1]" if self.has_reduction else "[1]")
            case FromIndex(index=index, dtype=dtype):
                text = self._index_value(index, dtype)
            case Load():
                text = self._load(scalar, is_wide=is_wide)
            case Guarded():
                text = self._guarded(scalar, scope, is_wide=is_wide)
            case Apply(function="checked_index", arguments=(place, limit)):
                text = self._checked(self._emit(place), self._emit(limit), scope, is_wide=is_wide)
            case Apply(function=function, arguments=arguments, dtype=dtype):
                names = [self._emit(argument) for argument in arguments]
                text = expression(function, names, [argument.dtype for argument in arguments], dtype)
        same = scope.names.get(text)  # what is written alike is alike, in one scope and under one guard
        if same is None or (self.guard is not None and isinstance(scalar, (Load, Guarded))):
            same = self._new()
            scope.lines.append(f"{same} = {text}")
            scope.names[text] = same
        scope.names[key] = same
        return same

    def _index_value(self, index: sympy.Expr, dtype: torch.dtype) -> str:
        text = self.indices.text(index)
        if index.free_symbols & self.indices.symbols.keys():
            return f"({text}).to({TRITON_DTYPES[dtype]})"
        shape = "[1, 1]" if self.has_reduction else "[1]"
        return f"tl.full({shape}, {text}, {TRITON_DTYPES[dtype]})"

    def _checked(self, place: str, limit: str, scope: _Scope, *, is_wide: bool) -> str:
        inside = f"(({place} >= 0) & ({place} < {limit}))"
        for mask in [*self._masks(is_wide=is_wide), *([self.guard] if self.guard else [])]:
            inside = f"{inside} | ~{mask}"
        scope.lines.append(f'tl.device_assert({inside}, "index out of bounds")')
        return place

    def _masks(self, *, is_wide: bool) -> list[str]:
        return [mask for mask in (self.row_mask, self.lane_mask if is_wide else None) if mask is not None]

    def _pointer(self, buffer: str) -> str:
        if buffer not in self.pointers:
            self.pointers[buffer] = f"p{len(self.pointers)}"
        return self.pointers[buffer]

    def _load(self, load: Load, *, is_wide: bool) -> str:
        for symbol, value in load.indirect:
            self.indices.symbols[symbol] = self._emit(value)
        index = self.indices.text(load.index)
        pointer = self._pointer(load.buffer)
        masks = self._masks_of(load, is_wide=is_wide)
        if not masks:
            return f"tl.load({pointer} + {index})"
        if self.guard is not None or load.indirect:
            index = f"tl.broadcast_to({index}, {self.full if is_wide else self.row})"
        return f"tl.load({pointer} + ({index}), {' & '.join(masks)}, other=0)"

    def _masks_of(self, load: Load, *, is_wide: bool) -> list[str]:
        """The points outside of the kernel's must not be loaded, nor those that a guard leaves out."""
        if self.guard is not None:
            return [*self._masks(is_wide=is_wide), self.guard]
        if load.indirect:
            return self._masks(is_wide=is_wide)
        masks = []
        symbols = load.index.free_symbols
        if self.row_mask is not None and symbols & {axis.symbol for axis in self.kept}:
            masks.append(self.row_mask)
        if self.lane_mask is not None and symbols & self.group.reduced:
            masks.append(self.lane_mask)
        return masks

    def _guarded(self, guarded: Guarded, scope: _Scope, *, is_wide: bool) -> str:
        condition = self._emit(guarded.condition)
        around = self.guard, self.guard_is_wide
        if self.guard is not None:
            both = self._new("guard")
            scope.lines.append(f"{both} = {condition} & {self.guard}")
            condition = both
        self.guard, self.guard_is_wide = condition, is_wide
        value = self._emit(guarded.value)
        self.guard, self.guard_is_wide = around
        otherwise = self._emit(guarded.otherwise)
        return f"tl.where({condition}, {value}, {otherwise})"

    # ---- reductions

    def _needs(self, nest: Nest) -> set[str]:
        """The reductions of this kernel that a nest's values come from."""
        found: set[str] = set()
        stack = [nest]
        while stack:
            for name in stack.pop().reads() & self.made.keys():
                made = self.made[name]
                if made.reduction is not None:
                    found.add(name)
                else:
                    stack.append(made)
        return found

    def _reduce(self, nest: Nest) -> None:
        assert nest.reduction is not None
        kind = nest.reduction.kind
        structure = kind, nest.target.dtype, self.structures.of(nest.value)
        same = self.reductions.setdefault(structure, nest.target.name)
        if same != nest.target.name:  # the same sum under two names
            self.rows[nest.target.name] = self.rows[same]
            if same in self.pending:
                self.pending[nest.target.name] = []
            self._store_reduced(nest, self.rows[same])
            return
        value = self._value(nest.value)
        accumulated = nest.value.dtype
        wide = f"tl.broadcast_to({value}, {self.full})"
        row = self.rows[nest.target.name] = self._new("row")
        if nest.reduction.is_scan:
            self.outer.lines.append(f"{row} = tl.{kind}({wide}, 1).to({TRITON_DTYPES[accumulated]})")
            self.pending[nest.target.name] = []
            self._store_reduced(nest, row)
            return
        if accumulated in (torch.bool, torch.int8, torch.int16, torch.uint8):
            wide, accumulated = f"{wide}.to(tl.int32)", torch.int32
        start = constant(_identity(kind, accumulated), accumulated, self.full)
        finish: list[str] = []
        if self.is_persistent:
            values = self._masked(wide, start)
            places = f"tl.broadcast_to(r, {self.full}).to(tl.int64)"
            finish = self._finish(kind, row, values, places, accumulated, nest)
            self.outer.lines += finish
        else:
            total, places = self._new("total"), self._new("place")
            self.starts.append(f"{total} = {start}")
            self.inner.lines += self._accumulate(kind, total, places, wide, accumulated)
            finish = self._finish(kind, row, total, places, accumulated, nest)
        self.pending[nest.target.name] = [] if self.is_persistent else finish
        self._store_reduced(nest, row)

    def _masked(self, wide: str, start: str) -> str:
        name = self._new()
        chosen = f"tl.where({self.lane_mask}, {wide}, {start})" if self.lane_mask else wide
        self.outer.lines.append(f"{name} = {chosen}")
        return name

    def _accumulate(self, kind: ReductionKind, total: str, places: str, wide: str, dtype: torch.dtype) -> list[str]:
        lines = []
        value = self._new()
        lines.append(f"{value} = {wide}")
        if kind in ("argmax", "argmin"):
            self.starts.append(f"{places} = tl.full({self.full}, {2**62}, tl.int64)")
            order = ">" if kind == "argmax" else "<"
            better = f"({value} {order} {total})"
            if dtype.is_floating_point:
                better = f"({better} & ({total} == {total})) | (({value} != {value}) & ({total} == {total}))"
            better = f"({better}) | ({places} == {2**62})"
            if self.lane_mask:
                better = f"({better}) & {self.lane_mask}"
            chosen = self._new("better")
            lines += [
                f"{chosen} = {better}",
                f"{places} = tl.where({chosen}, r.to(tl.int64), {places})",
                f"{total} = tl.where({chosen}, {value}, {total})",
            ]
            return lines
        combined = _combined(kind, total, value, dtype)
        lines.append(
            f"{total} = tl.where({self.lane_mask}, {combined}, {total})" if self.lane_mask else f"{total} = {combined}"
        )
        return lines

    def _finish(
        self, kind: ReductionKind, row: str, values: str, places: str, dtype: torch.dtype, nest: Nest
    ) -> list[str]:
        """From a block of values to one for each row."""
        is_float = dtype.is_floating_point
        column = "[:, None]"
        to = TRITON_DTYPES[nest.target.dtype]
        if kind == "sum":
            return [f"{row} = tl.sum({values}, 1){column}.to({to})"]
        if kind == "prod":
            self.helpers.add("_multiply")
            return [f"{row} = tl.reduce({values}, 1, _multiply){column}.to({to})"]
        if kind in ("any", "all"):
            return [f"{row} = tl.{'max' if kind == 'any' else 'min'}({values}, 1){column} != 0"]
        reduce = "max" if kind in ("max", "argmax") else "min"
        best = row if kind in ("max", "min") else self._new("best")
        lines: list[str] = []
        source, nan = values, ""
        if is_float:
            nan, clean = self._new("nan"), self._new()
            lowest = constant(float("-inf") if reduce == "max" else float("inf"), dtype, self.full)
            lines += [
                f"{nan} = tl.max(({values} != {values}).to(tl.int32), 1){column} != 0",
                f"{clean} = tl.where({values} != {values}, {lowest}, {values})",
            ]
            source = clean
        lines.append(f"{best} = tl.{reduce}({source}, 1){column}")
        if kind in ("max", "min"):
            if is_float:
                lines.append(f"{best} = tl.where({nan}, {constant(float('nan'), dtype, '[1, 1]')}, {best})")
            lines.append(f"{best} = {best}.to({to})")
            return lines
        same = f"({values} == {best})"
        if is_float:
            same = f"tl.where({nan}, {values} != {values}, {values} == {best})"
        if self.is_persistent and self.lane_mask:
            same = f"{same} & {self.lane_mask}"
        none = constant(2**62, torch.int64, self.full)
        lines.append(f"{row} = tl.min(tl.where({same}, {places}, {none}), 1){column}")
        return lines

    def _close_phase(self) -> None:
        if not self.has_reduction or self.is_persistent:
            self.pending.clear()
            return
        if self.inner.lines:
            stop = self.indices.text(self.reduced_size)
            self.outer.lines += self.starts
            self.outer.lines.append(f"for rstart in range(0, {stop}, RBLOCK):")
            self.outer.lines += [f"    {line}" for line in [*self.lane_lines, *self.inner.lines]]
        for finish in self.pending.values():
            self.outer.lines += finish
        self.pending.clear()
        self.starts = []
        self.inner = _Scope()

    # ---- stores

    def _store(self, nest: Nest) -> None:
        value = self._value(nest.value)
        is_wide = bool({axis.symbol for axis in nest.order} & self.group.reduced)
        scope = self.inner if is_wide else self.outer
        shape = self.full if is_wide else self.row
        scope.lines.append(self._store_text(nest, value, shape, self._masks(is_wide=is_wide)))

    def _store_reduced(self, nest: Nest, row: str) -> None:
        if nest.target.name not in self.stored:
            return
        is_wide = nest.reduction is not None and nest.reduction.is_scan
        line = self._store_text(nest, row, self.full if is_wide else self.row, self._masks(is_wide=is_wide))
        if self.is_persistent or nest.target.name not in self.pending:
            self.outer.lines.append(line)
        else:
            self.pending[nest.target.name].append(line)

    def _store_text(self, nest: Nest, value: str, shape: str, masks: list[str]) -> str:
        pointer = self._pointer(nest.target.name)
        mask = f", {' & '.join(masks)}" if masks else ""
        index = self.indices.text(nest.index)
        return f"tl.store({pointer} + tl.broadcast_to({index}, {shape}), tl.broadcast_to({value}, {shape}){mask})"


def merged(group: Group) -> Group:
    """On as few axes as all nests allow."""
    while True:
        expressions = [e for nest in group.nests for e in (*index_expressions(nest.value), nest.index)]
        lists = (group.kept_axes, group.reduced_axes)
        pair = next(
            ((a, b) for axes in lists for a, b in itertools.pairwise(axes) if can_merge(a, b, expressions)),
            None,
        )
        if pair is None:
            return group
        outer, inner = pair
        joined = new_axis(outer.size * inner.size)
        order = tuple(joined if axis is inner else axis for axis in group.order if axis is not outer)
        sizes = {axis.symbol: axis.size for axis in order}
        replacements = {outer.symbol: sympy.S.Zero, inner.symbol: joined.symbol}
        nests = []
        for nest in group.nests:
            moved = reindexed_nest(nest, replacements, sizes)
            symbols = {axis.symbol for axis in nest.order}
            if outer.symbol in symbols or inner.symbol in symbols:
                own = [joined if axis is inner else axis for axis in nest.order if axis is not outer]
                moved = replace(moved, order=tuple(own))
            nests.append(moved)
        reduced = frozenset(joined.symbol if s == inner.symbol else s for s in group.reduced if s != outer.symbol)
        group = Group(tuple(nests), order, reduced)


def _unguarded(scalar: Scalar) -> list[Scalar]:
    """Parts that are computed for every point, operands first, so that nothing is printed by recursion too deep."""
    inside: set[int] = set()
    for part in walk(scalar):
        if isinstance(part, Guarded):
            inside.update(id(p) for p in walk(part.value))
    return [part for part in walk(scalar) if id(part) not in inside]


def _power_of_two(value: int) -> int:
    return 1 << max(value - 1, 0).bit_length()


def _identity(kind: ReductionKind, dtype: torch.dtype) -> Any:
    if kind in _IDENTITIES:
        return float(_IDENTITIES[kind]) if dtype.is_floating_point else _IDENTITIES[kind]
    is_max = kind in ("max", "argmax")
    if dtype.is_floating_point:
        return float("-inf") if is_max else float("inf")
    info = torch.iinfo(dtype)
    return info.min if is_max else info.max


def _combined(kind: ReductionKind, total: str, value: str, dtype: torch.dtype) -> str:
    if kind in ("sum", "prod"):
        return f"{total} {'+' if kind == 'sum' else '*'} {value}"
    function = "maximum" if kind in ("max", "any") else "minimum"
    return expression(function, [total, value], [dtype, dtype], dtype)
