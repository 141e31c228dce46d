"""Prints a scheduled group of nests as one Triton kernel.

A kernel without reductions covers its points in blocks. A kernel with reductions has blocks of kept by reduced points: all of the
reduced axes if they are short (persistent), else a loop over blocks, once per phase. A phase is all reductions that do not need
each other's results. The next phase loads and computes values again, which is cheaper than keeping them.

A kernel that reduces rows and columns splits the rows among programs. Each loops over its rows in blocks of whole rows, and
carries a result for each column through the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import sympy
import torch

from refimpl.codegen.accesses import accesses, in_memory_order, large, tile_split
from refimpl.codegen.configurations import (
    MOST_VALUES,
    PERSISTENT,
    Configuration,
    allowed,
    carrying_configurations,
    looped_configurations,
    persistent_configurations,
    pointwise_configurations,
    tiled_configurations,
)
from refimpl.codegen.emulator import POINTER_TYPES
from refimpl.codegen.indices import product
from refimpl.codegen.kernel import Kernel, Parameter
from refimpl.codegen.loop_ir import Axis, Buffer, Nest, ReductionKind
from refimpl.codegen.printing.functions import TRITON_DTYPES, constant
from refimpl.codegen.printing.random import RANDOM_HELPERS
from refimpl.codegen.printing.reductions import HELPERS, accumulate_lines, finish_lines, identity
from refimpl.codegen.printing.values import Dimension, KernelNamesState, ScopeState, Space, ValuePrinter
from refimpl.codegen.scalars import FromIndex, StructuresState, walk
from refimpl.codegen.schedule import Group, ScheduledKernel, merged
from refimpl.codegen.sizes import MAX_INT32, NO_FACTS, SizeFacts
from refimpl.symbolic.functions import FloorDiv

SHORTEST_TILE = 16

_HEADER = """\
import triton
import triton.language as tl
from triton.language.extra import libdevice
"""


@dataclass(frozen=True)
class PrintedKernel:
    """A kernel with its launch: buffers and sizes by parameter, and the grid.

    `configurations` are those that the source is valid for; the first one is that of `kernel`. `grid` contains block sizes as
    symbols (`block_symbol`).
    """

    kernel: Kernel
    arguments: tuple[str | sympy.Expr, ...]
    grid: tuple[sympy.Expr, ...]
    points: sympy.Expr
    """The number of kept points. Nothing is launched if it is 0."""
    configurations: tuple[Configuration, ...]
    written: tuple[str, ...]
    """Buffers that it fills or changes."""
    origins: tuple[str, ...]

    @property
    def default(self) -> Configuration:
        return self.configurations[0]

    def kernel_for(self, configuration: Configuration) -> Kernel:
        """The kernel with a configuration's launch options. Its constants are `configuration.constants`."""
        return replace(self.kernel, num_warps=configuration.num_warps, num_stages=configuration.num_stages)

    def grid_for(self, configuration: Configuration) -> tuple[sympy.Expr, ...]:
        """The grid for a configuration, which depends on sizes only."""
        blocks = {block_symbol(name): sympy.Integer(length) for name, length in configuration.blocks}
        return tuple(cast(sympy.Expr, size.xreplace(blocks)) for size in self.grid)


def block_symbol(name: str) -> sympy.Symbol:
    """The symbol of a block size in a grid."""
    return sympy.Symbol(name, integer=True, positive=True)


def programs(size: sympy.Expr, block: str) -> sympy.Expr:
    """How many blocks of this name cover that many points."""
    length = block_symbol(block)
    return FloorDiv(size + length - 1, length)


def print_kernel(
    name: str, scheduled: ScheduledKernel, buffers: dict[str, Buffer], facts: SizeFacts = NO_FACTS
) -> PrintedKernel:
    """Prints a kernel, and describes its launch."""
    return _Printer(name, scheduled, buffers, facts).run()


def kernel_source(
    name: str,
    names: KernelNamesState,
    blocks: dict[str, int],
    buffers: dict[str, Buffer],
    body: list[str],
    helpers: set[str],
    is_narrow: Callable[[sympy.Expr], bool] = lambda size: False,
) -> tuple[str, tuple[Parameter, ...]]:
    """The source of a module with one kernel, and its parameters: pointers, sizes, constants. Sizes are int64, or int32 if
    `is_narrow`."""
    parameters = (
        *(Parameter(text, POINTER_TYPES[buffers[buffer].dtype]) for buffer, text in names.pointers.items()),
        *(Parameter(text, "i32" if is_narrow(size) else "i64") for size, text in names.sizes.items()),
        *(Parameter(block, "constexpr") for block in blocks),
    )
    signature = ", ".join(
        f"{parameter.name}: tl.constexpr" if parameter.is_constant else parameter.name for parameter in parameters
    )
    texts = HELPERS | RANDOM_HELPERS
    functions = "".join("\n\n" + texts[helper] for helper in sorted(helpers | names.helpers))
    text = "\n".join(f"    {line}" if line else "" for line in body)
    return f"{_HEADER}{functions}\n\n@triton.jit\ndef {name}({signature}):\n{text}\n", parameters


def fits_int32(group: Group, buffers: dict[str, Buffer], facts: SizeFacts, *counts: sympy.Expr) -> bool:
    """Whether indices of all elements, and positions among that many points, provably fit in 32 bits, including those of the last
    block beyond the end."""
    names = group.reads() | {nest.target.name for nest in group.nests}
    numbers = {part.index for nest in group.nests for part in walk(*nest.scalars()) if isinstance(part, FromIndex)}
    return (
        all(facts.range_of(count).upper <= MAX_INT32 - MOST_VALUES for count in counts)
        and all(facts.extent(buffers[name]).upper <= MAX_INT32 for name in names)
        and all(facts.fits_int32(number, group.order) for number in numbers)
    )


class _Printer:
    def __init__(self, name: str, scheduled: ScheduledKernel, buffers: dict[str, Buffer], facts: SizeFacts) -> None:
        self.name = name
        self.facts = facts
        self.buffers = buffers
        self.stored = scheduled.stored
        self.group = merged(in_memory_order(scheduled.group, scheduled.stored))
        self.made = self.group.produces()
        self.kept_size = product(axis.size for axis in self.group.kept_axes)
        self.reduced_size = product(axis.size for axis in self.group.reduced_axes)
        reductions = [nest.reduction for nest in self.group.nests if nest.reduction is not None]
        self.has_reduction = bool(reductions)
        self.split = None if self.has_reduction else tile_split(self.group, self.stored, SHORTEST_TILE)
        is_short = bool(self.reduced_size.is_Integer and 1 <= self.reduced_size <= PERSISTENT)
        has_scan = any(reduction.is_scan for reduction in reductions)
        self.is_carrying = bool(self.group.carried)
        self.is_persistent = self.has_reduction and (is_short or has_scan or self.is_carrying)
        is_narrow = fits_int32(self.group, buffers, facts, self.kept_size * self.reduced_size)
        self.index_dtype = torch.int32 if is_narrow else torch.int64
        candidates = self._candidates()
        self.blocks = candidates[0].constants
        kept = self.group.carried_axes if self.is_carrying else self.group.kept_axes
        self.part = Dimension("part", self.group.outer_axes, "") if self.is_carrying else None
        self.x = self._dimension("x", kept[self.split or 0 :])
        self.y = None if self.split is None else self._dimension("y", kept[: self.split])
        self.r = self._dimension("r", self.group.reduced_axes, is_reduced=True) if self.has_reduction else None
        self.configurations = allowed(candidates, self._is_allowed)
        if "add" in self.group.changes().values():  # measuring would add several times
            self.configurations = self.configurations[:1]
        outer = ScopeState()
        inner = ScopeState() if self.has_reduction and (not self.is_persistent or self.is_carrying) else outer
        looped = self.x.symbols if self.is_carrying else None
        space = Space(tuple(d for d in (self.y, self.x, self.r) if d is not None))
        self.names = KernelNamesState(given=facts.given)
        self.values = ValuePrinter(space, self.made, self.names, outer, inner, looped)
        self.helpers: set[str] = set()
        self.pending: dict[str, list[str]] = {}  # reductions of the open phase: lines that finish them
        self.starts: list[str] = []
        self.ends: list[str] = []  # after the loop over rows
        self.structures = StructuresState()
        self.reductions: dict[object, str] = {}  # the first buffer of each reduction, by structure

    @property
    def outer(self) -> ScopeState:
        return self.values.outer

    @property
    def inner(self) -> ScopeState:
        return self.values.inner

    @property
    def rows(self) -> ScopeState:
        """The scope of row results that one block computes."""
        return self.inner if self.is_carrying else self.outer

    # ---- the whole

    def run(self) -> PrintedKernel:
        for dimension in (*self.values.space.dimensions, *([] if self.part is None else [self.part])):
            dimension.name_axes(self.values.indices)
        for nest in self.group.nests:
            if self._needs(nest) & self.pending.keys():
                self._close_phase()
            if nest.reduction is not None:
                self._reduce(nest)
            elif nest.target.name in self.stored:
                self._store(nest)
        self._close_phase()
        body = [*self._header(), *self.outer.lines] if self.part is None else self._loop_over_rows(self.part)
        source, parameters = kernel_source(
            self.name, self.names, self.blocks, self.buffers, body, self.helpers, self._is_narrow
        )
        default = self.configurations[0]
        return PrintedKernel(
            kernel=Kernel(self.name, source, parameters, default.num_warps, default.num_stages),
            arguments=(*self.names.pointers, *self.names.sizes),
            grid=(
                product(programs(d.size, d.block) for d in (self.y, self.x) if d is not None)
                if self.part is None
                else self.part.size,
            ),
            points=self.kept_size,
            configurations=self.configurations,
            written=tuple(sorted(self.stored)),
            origins=tuple(dict.fromkeys(origin for nest in self.group.nests for origin in nest.origins)),
        )

    def _is_narrow(self, size: sympy.Expr) -> bool:
        return self.index_dtype == torch.int32 and self.facts.fits_int32(size)

    def _candidates(self) -> list[Configuration]:
        kept, reduced = (max(self.facts.guess(size), 1) for size in (self.kept_size, self.reduced_size))
        if self.split is not None:
            return tiled_configurations()
        if not self.has_reduction:
            return pointwise_configurations(kept)
        units = [access.unit_axis() for access in large(accesses(self.group, self.stored))]
        is_kept_innermost = any(unit is not None and unit.symbol not in self.group.reduced for unit in units)
        if self.is_carrying:
            rows = product(axis.size for axis in self.group.carried_axes)
            return carrying_configurations(max(self.facts.guess(rows), 1), reduced)
        if self.is_persistent:
            return persistent_configurations(kept, reduced, is_kept_innermost=is_kept_innermost)
        return looped_configurations(kept, reduced, is_kept_innermost=is_kept_innermost)

    def _is_allowed(self, blocks: dict[str, int]) -> bool:
        """Whether the omitted masks are unnecessary with these block sizes too."""
        dimensions = [d for d in (self.y, self.x, self.r) if d is not None]
        return all(d.mask is not None or d.is_filled(blocks[d.block]) for d in dimensions)

    # ---- axes

    def _dimension(self, name: str, axes: tuple[Axis, ...], *, is_reduced: bool = False) -> Dimension:
        dimension = Dimension(name, axes, f"{name.upper()}BLOCK", is_reduced)
        is_filled = dimension.is_filled(self.blocks[dimension.block])
        return dimension if is_filled else replace(dimension, mask=f"{name}mask")

    def _header(self) -> list[str]:
        """Lines that compute the indices of a program's points."""
        wide = ".to(tl.int64)" if self.index_dtype == torch.int64 else ""
        if self.y is not None:
            columns = f"tl.cdiv({self.values.indices.text(self.x.size)}, XBLOCK)"
            return [
                *self._places(self.y, f"tl.program_id(0){wide} // {columns} * YBLOCK + "),
                *self._places(self.x, f"tl.program_id(0){wide} % {columns} * XBLOCK + "),
            ]
        lines = self._places(self.x, f"tl.program_id(0){wide} * XBLOCK + ")
        return lines + self._places(self.r, "", wide) if self.r is not None and self.is_persistent else lines

    def _loop_over_rows(self, part: Dimension) -> list[str]:
        """The body of a kernel that carries results of columns through the rows of its part."""
        assert self.r is not None
        wide = ".to(tl.int64)" if self.index_dtype == torch.int64 else ""
        rows = self._places(self.x, "xstart + ", wide)
        return [
            f"part = tl.program_id(0){wide}",
            *part.axis_lines(self.values.indices),
            *self._places(self.r, "", wide),
            *self.outer.lines,
            *self.starts,
            f"for xstart in range(0, {self.values.indices.text(self.x.size)}, XBLOCK):",
            *(f"    {line}" for line in [*rows, *self.inner.lines]),
            *self.ends,
        ]

    def _places(self, dimension: Dimension, start: str, cast: str = "") -> list[str]:
        """Lines that compute positions along a dimension, a mask of those beyond the end, and positions on its axes."""
        name, indices = dimension.name, self.values.indices
        arange = f"tl.arange(0, {dimension.block}){self.values.space.places(dimension)}{cast}"
        lines = [f"{name} = {start}{arange}"]
        if dimension.mask is not None:
            lines.append(f"{dimension.mask} = {name} < {indices.text(dimension.size)}")
        return [*lines, *dimension.axis_lines(indices)]

    # ---- reductions

    def _needs(self, nest: Nest) -> set[str]:
        """The reductions of this kernel that a nest depends on."""
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
        assert self.r is not None
        kind = nest.reduction.kind
        if self.group.is_carried(nest):
            self._carry(nest, kind)
            return
        structure = kind, nest.target.dtype, self.structures.of(nest.value)
        same = self.reductions.setdefault(structure, nest.target.name)
        rows = self.values.rows
        if same != nest.target.name:  # the same reduction into two buffers
            rows[nest.target.name] = rows[same]
            if same in self.pending:
                self.pending[nest.target.name] = []
            self._store_reduced(nest, rows[same])
            return
        accumulated = nest.value.dtype
        space = self.values.space
        wide = self.values.full(self.values.value(nest.value))
        row = rows[nest.target.name] = self.names.new("row")
        self.values.spread[row] = space.names(is_wide=nest.reduction.is_scan)
        if nest.reduction.is_scan:
            self.rows.lines.append(f"{row} = tl.{kind}({wide}, 1).to({TRITON_DTYPES[accumulated]})")
            self.pending[nest.target.name] = []
            self._store_reduced(nest, row)
            return
        if accumulated in (torch.bool, torch.int8, torch.int16, torch.uint8):
            wide, accumulated = f"{wide}.to(tl.int32)", torch.int32
        if self.is_persistent:
            values, places = wide, "r"
            if self.r.mask is not None or not values.isidentifier():
                values = self.names.new()
                start = constant(identity(kind, accumulated), accumulated, "[1, 1]")
                self.rows.lines.append(
                    f"{values} = {wide}"
                    if self.r.mask is None
                    else f"{values} = tl.where({self.r.mask}, {wide}, {start})"
                )
        else:
            values, places = self.names.new("total"), self.names.new("place")
            starts, lines = accumulate_lines(
                kind, values, places, wide, accumulated,
                mask=self.r.mask, names=self.names, place_dtype=self.index_dtype,
            )  # fmt: skip
            self.starts += starts
            self.inner.lines += lines
        finish, helpers = finish_lines(
            kind, row, values, places, accumulated, nest.target.dtype,
            mask=self.r.mask if self.is_persistent else None, names=self.names, place_dtype=self.index_dtype,
        )  # fmt: skip
        self.helpers |= helpers
        if self.is_persistent:
            self.rows.lines += finish
        self.pending[nest.target.name] = [] if self.is_persistent else finish
        self._store_reduced(nest, row)

    def _carry(self, nest: Nest, kind: ReductionKind) -> None:
        """Prints a reduction of columns, whose results are complete after the loop."""
        assert self.r is not None
        accumulated = nest.value.dtype
        wide = self.values.full(self.values.value(nest.value))
        if accumulated in (torch.bool, torch.int8, torch.int16, torch.uint8):
            wide, accumulated = f"{wide}.to(tl.int32)", torch.int32
        values, column = self.names.new("total"), self.names.new("column")
        starts, lines = accumulate_lines(
            kind, values, "", wide, accumulated, mask=self.x.mask, names=self.names, place_dtype=self.index_dtype
        )
        self.starts += starts
        self.inner.lines += lines
        finish, helpers = finish_lines(
            kind, column, values, "", accumulated, nest.target.dtype,
            mask=None, names=self.names, place_dtype=self.index_dtype, axis=0,
        )  # fmt: skip
        self.helpers |= helpers
        if nest.target.name in self.stored:
            self.ends += [*finish, self.values.store_along(self.r, nest, column)]

    def _close_phase(self) -> None:
        if not self.has_reduction or self.is_persistent:
            self.pending.clear()
            return
        if self.inner.lines:
            assert self.r is not None
            stop = self.values.indices.text(self.reduced_size)
            start, cast = "rstart + ", ".to(tl.int64)" if self.index_dtype == torch.int64 else ""
            if not cast and any(text in stop for size, text in self.names.sizes.items() if not self._is_narrow(size)):
                start, cast = "(rstart + ", ").to(tl.int32)"  # rstart is as wide as the loop's end
            lane_lines = self._places(self.r, start, cast)
            self.outer.lines += self.starts
            self.outer.lines.append(f"for rstart in range(0, {stop}, RBLOCK):")
            self.outer.lines += [f"    {line}" for line in [*lane_lines, *self.inner.lines]]
            self.values.indices.used -= {f"r{at}" for at in range(len(self.r.axes))}
        for finish in self.pending.values():
            self.outer.lines += finish
        self.pending.clear()
        self.starts = []
        self.values.inner = ScopeState()

    # ---- stores

    def _store(self, nest: Nest) -> None:
        value = self.values.value(nest.value)
        is_wide = bool({axis.symbol for axis in nest.order} & self.group.reduced)
        scope = self.inner if is_wide or self.is_carrying else self.outer
        scope.lines.append(self.values.store(nest, value, is_wide=is_wide))

    def _store_reduced(self, nest: Nest, row: str) -> None:
        if nest.target.name not in self.stored:
            return
        is_wide = nest.reduction is not None and nest.reduction.is_scan
        line = self.values.store(nest, row, is_wide=is_wide)
        if self.is_persistent or nest.target.name not in self.pending:
            self.rows.lines.append(line)
        else:
            self.pending[nest.target.name].append(line)
