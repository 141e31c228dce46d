"""Prints a matrix product, and the pointwise nests on its result, as one tiled Triton kernel.

A program computes one tile of one batch, rows `m` by columns `n`, and accumulates along `k` in blocks. Axes that only the left
operand depends on are rows, those of only the right one columns, those of both the batch. Operands are computed where they are
loaded, under masks: a convolution is a product of guarded loads. If the product as a whole is guarded, the axes of `k` that the
condition depends on (the taps of a window) are an outer loop, and a tap's sum is added where the condition is true. The total is
rounded to the dtype of its nest before the pointwise nests read it.

Counterpart: torch/_inductor/kernel/mm.py, bmm.py, conv.py and select_algorithm.py TritonTemplateKernel
Differs: printed from a nest like any other kernel; there is no template text per operator.
"""

from __future__ import annotations

from dataclasses import replace

import sympy

from refimpl.codegen.accesses import in_memory_order
from refimpl.codegen.configurations import Configuration, allowed, contraction_configurations
from refimpl.codegen.indices import product
from refimpl.codegen.kernel import Kernel
from refimpl.codegen.loop_ir import Axis, Buffer
from refimpl.codegen.printing.functions import TRITON_DTYPES, constant
from refimpl.codegen.printing.kernels import PrintedKernel, fits_int32, kernel_source, programs
from refimpl.codegen.printing.values import Dimension, KernelNamesState, ScopeState, Space, ValuePrinter
from refimpl.codegen.scalars import Apply, Guarded, Load, Scalar, index_symbols, walk
from refimpl.codegen.schedule import Group, ScheduledKernel, merged
from refimpl.codegen.sizes import NO_FACTS, SizeFacts

TILES_OF_A_GROUP = 8
"""Rows of tiles that programs traverse column by column, so that operands stay in the L2 cache."""


def print_contraction(
    name: str, scheduled: ScheduledKernel, buffers: dict[str, Buffer], facts: SizeFacts = NO_FACTS
) -> PrintedKernel:
    """Prints a kernel with a matrix product, and describes its launch."""
    return _Printer(name, scheduled, buffers, facts).run()


class _Printer:
    def __init__(self, name: str, scheduled: ScheduledKernel, buffers: dict[str, Buffer], facts: SizeFacts) -> None:
        self.name = name
        self.facts = facts
        self.buffers = buffers
        self.stored = scheduled.stored
        self.group = merged(in_memory_order(scheduled.group, scheduled.stored))
        nest = self.group.contraction
        assert nest is not None
        self.nest = nest
        self.condition, products = _guard_and_products(nest.value)
        self.left, self.right = products.arguments
        self.accumulate = products.dtype
        of_condition = set[sympy.Basic]() if self.condition is None else index_symbols(self.condition)
        self.taps = tuple(axis for axis in self.group.reduced_axes if axis.symbol in of_condition)
        inner = tuple(axis for axis in self.group.reduced_axes if axis not in self.taps)
        counts = (product(axis.size for axis in axes) for axes in (self.group.kept_axes, self.group.reduced_axes))
        self.wide = "" if fits_int32(self.group, buffers, facts, *counts) else ".to(tl.int64)"  # dtype of indices
        self.batch, rows, columns = _sides(self.group, self.left, self.right)
        self.m = Dimension("m", rows, "MBLOCK")
        self.n = Dimension("n", columns, "NBLOCK")
        self.k = Dimension("k", inner, "KBLOCK", is_reduced=True)
        candidates = self._candidates()
        blocks = candidates[0].constants
        self.m, self.n, self.k = (
            d if d.is_filled(blocks[d.block]) else replace(d, mask=f"{d.name}mask") for d in (self.m, self.n, self.k)
        )
        self.configurations = allowed(candidates, self._is_allowed)
        self.names = KernelNamesState(given=facts.given)
        self.ka, self.kb = (
            replace(self.k, name=f"k{side}", mask=f"k{side}mask" if self.k.mask else None) for side in ("a", "b")
        )
        self.used: set[str] = set()
        self.a = self._values(self.m, self.ka)
        self.b = self._values(self.kb, self.n)
        self.epilogue = self._values(self.m, self.n)

    def _candidates(self) -> list[Configuration]:
        sizes = (self.m.size, self.n.size, self.k.size, self._batch_size())
        rows, columns, depth, batch = (max(self.facts.guess(size), 1) for size in sizes)
        is_guarded = any(isinstance(part, Guarded) for part in walk(self.left, self.right))
        itemsize, is_symbolic = self.left.dtype.itemsize, self._has_symbolic_places()
        return contraction_configurations(
            rows, columns, depth, batch, itemsize, is_guarded=is_guarded, is_symbolic=is_symbolic
        )

    def _has_symbolic_places(self) -> bool:
        """Whether operands are loaded along several axes with symbolic strides."""
        axes = {axis.symbol for axis in self.group.order}
        loads = [part for part in walk(self.left, self.right) if isinstance(part, Load)]
        is_symbolic = any(load.index.free_symbols - axes for load in loads)
        return is_symbolic and len(self.m.axes) + len(self.n.axes) + len(self.k.axes) > 3

    def _is_allowed(self, blocks: dict[str, int]) -> bool:
        """Whether the omitted masks are unnecessary with these block sizes too."""
        return all(d.mask is not None or d.is_filled(blocks[d.block]) for d in (self.m, self.n, self.k))

    def _batch_size(self) -> sympy.Expr:
        return product(axis.size for axis in self.batch)

    def _values(self, *dimensions: Dimension) -> ValuePrinter:
        outer = ScopeState()
        inner = ScopeState() if any(d.is_reduced for d in dimensions) else outer
        values = ValuePrinter(Space(dimensions), self.group.produces(), self.names, outer, inner)
        values.indices.axes = [*values.indices.axes, *self.batch, *self.taps]
        values.indices.used = self.used
        for dimension in (*dimensions, Dimension("batch", self.batch, ""), Dimension("tap", self.taps, "")):
            dimension.name_axes(values.indices)
        return values

    # ---- the whole

    def run(self) -> PrintedKernel:
        loop = self._loop()
        made = self.epilogue.rows[self.nest.target.name] = self.names.new("row")
        self.epilogue.spread[made] = self.epilogue.space.names()
        after = self.epilogue.outer.lines
        after.append(f"{made} = total.to({TRITON_DTYPES[self.nest.target.dtype]})")
        for nest in self.group.nests:
            if nest.target.name in self.stored:
                value = made if nest is self.nest else self.epilogue.value(nest.value)
                after.append(self.epilogue.store(nest, self.epilogue.full(value), is_wide=True))
        lines = [*self._places(), *loop, *after]
        default = self.configurations[0]
        source, parameters = kernel_source(self.name, self.names, default.constants, self.buffers, lines, set())
        return PrintedKernel(
            kernel=Kernel(self.name, source, parameters, default.num_warps, default.num_stages),
            arguments=(*self.names.pointers, *self.names.sizes),
            grid=(programs(self.m.size, "MBLOCK") * programs(self.n.size, "NBLOCK") * self._batch_size(),),
            points=self._batch_size() * self.m.size * self.n.size,
            configurations=self.configurations,
            written=tuple(sorted(self.stored)),
            origins=tuple(dict.fromkeys(origin for nest in self.group.nests for origin in nest.origins)),
        )

    # ---- places

    def _places(self) -> list[str]:
        """Lines that compute the program's tile and batch, and the indices of its points."""
        indices = self.epilogue.indices
        lines = [
            f"rows = tl.cdiv({indices.text(self.m.size)}, MBLOCK)",
            f"columns = tl.cdiv({indices.text(self.n.size)}, NBLOCK)",
            f"tile = tl.program_id(0){self.wide} % (rows * columns)",
            f"row, column = tl.swizzle2d(tile // columns, tile % columns, rows, columns, {TILES_OF_A_GROUP})",
        ]
        if self.batch:
            lines.append(f"batch = tl.program_id(0){self.wide} // (rows * columns)")
            lines += Dimension("batch", self.batch, "").axis_lines(indices)
        for dimension, tile in ((self.m, "row"), (self.n, "column")):
            start = f"{tile} * {dimension.block} + "
            lines += self._places_along(self.epilogue, dimension, start)
        return lines

    def _places_along(self, values: ValuePrinter, dimension: Dimension, start: str) -> list[str]:
        name, indices = dimension.name, values.indices
        lines = [f"{name} = {start}tl.arange(0, {dimension.block}){values.space.places(dimension)}{self.wide}"]
        if dimension.mask is not None:
            lines.append(f"{dimension.mask} = {name} < {indices.text(dimension.size)}")
        return [*lines, *dimension.axis_lines(indices)]

    # ---- the sum of products

    def _loop(self) -> list[str]:
        """Lines that accumulate the product in `total`."""
        assert self.nest.reduction is not None
        operands = [self._operand(self.a, self.ka, self.left), self._operand(self.b, self.kb, self.right)]
        dtype = TRITON_DTYPES[self.accumulate]
        precision = f'input_precision="{self.nest.reduction.precision}"'
        zeros = f"tl.zeros([MBLOCK, NBLOCK], {dtype})"
        total = "total" if self.condition is None else "part"
        inside = [
            *self._places_along(self.a, self.ka, "kstart + "),
            *self._places_along(self.b, self.kb, "kstart + "),
            *self.a.inner.lines,
            *self.b.inner.lines,
            f"{total} = tl.dot({', '.join(operands)}, {total}, {precision}, out_dtype={dtype})",
        ]
        loop = [
            *self.a.outer.lines,
            *self.b.outer.lines,
            f"{total} = {zeros}",
            f"for kstart in range(0, {self.a.indices.text(self.k.size)}, KBLOCK):",
            *_indented(inside),
        ]
        if self.condition is None:
            return loop
        guarded = self.a if isinstance(self.left, Guarded) else self.b
        return [f"total = {zeros}", *self._over_taps([*loop, self._taken(guarded, self.condition)])]

    def _taken(self, guarded: ValuePrinter, condition: Scalar) -> str:
        """Adds the `part` of a tap where the condition is true. `guarded` has printed the operand under that condition; the
        condition does not vary along the other operand's axis."""
        return f"total += tl.where({guarded.value(condition)}, part, 0.0)"

    def _over_taps(self, taken: list[str]) -> list[str]:
        """Loops over the taps around lines that add the `part` of one tap to `total`."""
        if not self.taps:
            return taken
        dimension, indices = Dimension("tap", self.taps, ""), self.a.indices
        start = ["tap = tapstart + tl.full([1, 1], 0, tl.int64)"] if self.wide else []
        name = "tapstart" if self.wide else "tap"
        return [
            f"for {name} in range(0, {indices.text(dimension.size)}):",
            *_indented([*start, *dimension.axis_lines(indices), *taken]),
        ]

    def _operand(self, values: ValuePrinter, k: Dimension, scalar: Scalar) -> str:
        """A block of an operand. Elements beyond the end of k are zero in both operands, so that no NaN enters the sum."""
        text = values.full(values.value(scalar))
        if k.mask is None or (values.is_wide(scalar) and _is_zero_outside(scalar)):
            return text
        made = self.names.new("block")
        zero = constant(0.0, scalar.dtype, "[1, 1]")
        values.inner.lines.append(f"{made} = tl.where({k.mask}, {text}, {zero})")
        return made


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _guard_and_products(value: Scalar) -> tuple[Scalar | None, Apply]:
    condition, products = (value.condition, value.value) if isinstance(value, Guarded) else (None, value)
    assert isinstance(products, Apply)
    return condition, products


def _is_zero_outside(scalar: Scalar) -> bool:
    """Whether a masked load gives zero, with no function applied to it."""
    if isinstance(scalar, Guarded):
        return isinstance(scalar.value, Load) and scalar.otherwise.value == 0
    return isinstance(scalar, Load)


def _sides(group: Group, left: Scalar, right: Scalar) -> tuple[tuple[Axis, ...], tuple[Axis, ...], tuple[Axis, ...]]:
    """Splits the kept axes into batch, rows and columns."""
    of_left, of_right = index_symbols(left), index_symbols(right)
    batch, rows, columns = [], [], []
    for axis in group.kept_axes:
        is_left, is_right = axis.symbol in of_left, axis.symbol in of_right
        (columns if is_right and not is_left else batch if is_right else rows).append(axis)
    return tuple(batch), tuple(rows), tuple(columns)
