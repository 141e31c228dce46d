"""Prints matrix products with elementwise tiles in between as one kernel, which stores no whole row of the intermediate matrices.

A program keeps a block of rows (or of columns) of one batch and loops over the columns (or rows) in blocks. It computes tiles of
the products and the elementwise functions of them, and accumulates the results. Products are rounded to their dtypes, and tiles
are computed like any other value, so that they equal what memory would hold. Contracted dimensions, and widths of results, are
whole in a block, padded to powers of two.

With a softmax, a program exponentiates scores minus the running maximum of their row. It rescales sums and results when the
maximum grows, and divides at the end. A row of nothing but -inf is NaN, and so is a row with a NaN. If weights are rounded to a
half dtype, exponentials are computed as in `printing.attention`, with the error bound stated there; otherwise by libdevice.

Counterpart: torch/_inductor/kernel/flex/flex_attention.py
Differs: printed from nests; there is no template text per mask or score function.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import sympy
import torch

from refimpl.codegen.configurations import MOST_VALUES, Configuration, attention_configurations, power_of_two
from refimpl.codegen.indices import product
from refimpl.codegen.kernel import Kernel
from refimpl.codegen.loop_ir import Axis, Buffer, Nest, Tiled, TiledSoftmax
from refimpl.codegen.printing.functions import TRITON_DTYPES, constant
from refimpl.codegen.printing.kernels import PrintedKernel, kernel_source, programs
from refimpl.codegen.printing.values import Dimension, KernelNamesState, ScopeState, Space, ValuePrinter
from refimpl.codegen.scalars import Apply, FromIndex, Load, Scalar, index_symbols, walk
from refimpl.codegen.sizes import MAX_INT32, SizeFacts

LOG2_E = math.log2(math.e)
LONGEST_BLOCK = 128  # rows or columns
NARROWEST = 16  # smallest block of tensor cores


def print_tiled(name: str, tiled: Tiled, buffers: dict[str, Buffer], facts: SizeFacts) -> PrintedKernel:
    """Prints a kernel, and describes its launch."""
    return _Printer(name, tiled, buffers, facts).run()


class _Printer:
    def __init__(self, name: str, tiled: Tiled, buffers: dict[str, Buffer], facts: SizeFacts) -> None:
        self.name = name
        self.tiled = tiled
        self.facts = facts
        self.buffers = buffers
        self.names = KernelNamesState(given=facts.given)
        self.over_rows = tiled.loops == "rows"
        self.m = self._dimension("m", tiled.rows, is_reduced=self.over_rows)
        self.n = self._dimension("n", tiled.columns, is_reduced=not self.over_rows)
        self.columns = replace(self.n, name="nk", mask=self.n.mask and "nkmask")  # along the first dimension of a block
        self.widths: dict[Axis, Dimension] = {}
        self.wide = "" if self._fits_int32() else ".to(tl.int64)"
        self.tiles = self._values(self.m, self.n)
        self.operands: dict[tuple[str, str], ValuePrinter] = {}
        self.zeroed: dict[tuple[int, str], str] = {}
        self.before: list[str] = []
        self.inside: list[str] = []
        self.after: list[str] = []

    def _dimension(self, name: str, axis: Axis, *, is_reduced: bool) -> Dimension:
        dimension = Dimension(name, (axis,), f"{name.upper()}BLOCK", is_reduced)
        return dimension if dimension.is_filled(LONGEST_BLOCK) else replace(dimension, mask=f"{name}mask")

    def _width(self, axis: Axis) -> Dimension:
        if axis not in self.widths:
            length = max(NARROWEST, power_of_two(int(axis.size)))
            name = f"d{len(self.widths)}"
            self.widths[axis] = Dimension(
                name, (axis,), str(length), mask=None if axis.size == length else f"{name}mask"
            )
        return self.widths[axis]

    def _fits_int32(self) -> bool:
        tiled = self.tiled
        axes = [*tiled.batch, tiled.rows, tiled.columns]
        axes += [axis for nest in (*tiled.products, *tiled.results) for axis in (*nest.axes, *nest.reduced)]
        names = (*tiled.reads, *(buffer.name for buffer in tiled.made))
        numbers = {part.index for part in walk(*tiled.scalars()) if isinstance(part, FromIndex)}
        counts = (product(axis.size for axis in tiled.batch), tiled.rows.size, tiled.columns.size)
        return (
            self.facts.range_of(product(counts)).upper <= MAX_INT32 - MOST_VALUES
            and all(self.facts.extent(self.buffers[name]).upper <= MAX_INT32 for name in names)
            and all(self.facts.fits_int32(number, axes) for number in numbers)
        )

    def _values(self, *dimensions: Dimension) -> ValuePrinter:
        outer = ScopeState()
        inner = ScopeState() if any(d.is_reduced for d in dimensions) else outer
        values = ValuePrinter(Space(dimensions), {}, self.names, outer, inner)
        values.indices.axes = [*values.indices.axes, *self.tiled.batch]
        for dimension in (*dimensions, Dimension("batch", self.tiled.batch, "")):
            dimension.name_axes(values.indices)
        return values

    def _collect(self, values: ValuePrinter) -> None:
        """Moves lines to where they run: before the loop, or into it."""
        for scope, lines in ((values.outer, self.before), (values.inner, self.inside)):
            lines += scope.lines
            scope.lines.clear()

    # ---- the whole

    def run(self) -> PrintedKernel:
        tiled = self.tiled
        for nest in tiled.products:
            self._make_tile(nest)
        if tiled.softmax is None:
            for nest in tiled.results:
                self._add_up(nest)
        else:
            self._softmax(tiled.softmax, tiled.results[0])
        kept, looped = (self.n, self.m) if self.over_rows else (self.m, self.n)
        body = [
            *self._places(kept),
            *self.before,
            f"for start in range(0, {self._text(looped.size)}, {looped.block}):",
            *(f"    {line}" for line in (*self._places_along(looped, "start + "), *self.inside)),
            *self.after,
        ]
        configurations = self._configurations()
        default = configurations[0]
        source, parameters = kernel_source(self.name, self.names, default.constants, self.buffers, body, set())
        batch = product(axis.size for axis in tiled.batch)
        return PrintedKernel(
            kernel=Kernel(self.name, source, parameters, default.num_warps, default.num_stages),
            arguments=(*self.names.pointers, *self.names.sizes),
            grid=(programs(kept.size, kept.block) * batch,),
            points=batch * kept.size,
            configurations=configurations,
            written=tuple(sorted(buffer.name for buffer in tiled.made)),
            origins=tiled.origins,
        )

    def _configurations(self) -> tuple[Configuration, ...]:
        """The configurations of attention, whose head widths are fixed."""
        rows, columns = (max(self.facts.guess(d.size), 1) for d in (self.m, self.n))
        widths = [int(dimension.block) for dimension in self.widths.values()]
        nests = (*self.tiled.products, *self.tiled.results)
        itemsize = max(_sides(nest)[0].dtype.itemsize for nest in nests if nest.reduction and nest.reduction.is_dot)
        is_forward = self.tiled.softmax is not None
        found = attention_configurations(rows, columns, max(widths), max(widths), itemsize, is_forward=is_forward)
        return tuple(
            replace(one, blocks=tuple((name, one.constants[name]) for name in ("MBLOCK", "NBLOCK"))) for one in found
        )

    # ---- places

    def _text(self, expr: sympy.Expr) -> str:
        return self.tiles.indices.text(expr)

    def _places(self, kept: Dimension) -> list[str]:
        """Lines that compute the program's block and batch, and indices that stay the same in the loop."""
        lines = [
            f"program = tl.program_id(0){self.wide}",
            f"count = tl.cdiv({self._text(kept.size)}, {kept.block})",
        ]
        if self.tiled.batch:
            lines.append("batch = program // count")
            step: sympy.Expr = sympy.S.One
            for at in range(len(self.tiled.batch) - 1, -1, -1):
                axis = self.tiled.batch[at]
                if len(self.tiled.batch) > 1:
                    text = "batch" if step == 1 else f"batch // {self.tiles.indices.factor(step)}"
                    lines.append(f"batch{at} = {text}" + (f" % {self.tiles.indices.factor(axis.size)}" if at else ""))
                step = step * axis.size
        lines += self._places_along(kept, f"program % count * {kept.block} + ")
        for dimension in self.widths.values():
            lines += self._place(dimension, f"tl.arange(0, {dimension.block})[None, :]{self.wide}")
        return lines

    def _places_along(self, dimension: Dimension, start: str) -> list[str]:
        """Rows of a tile are its first dimension. Columns are its second, and the first dimension of an operand."""
        run = f"({start}tl.arange(0, {dimension.block}))"
        if dimension is self.m:
            return self._place(dimension, f"{run}[:, None]{self.wide}")
        return [
            *self._place(dimension, f"{run}[None, :]{self.wide}"),
            *self._place(self.columns, f"{run}[:, None]{self.wide}"),
        ]

    def _place(self, dimension: Dimension, text: str) -> list[str]:
        lines = [f"{dimension.name} = {text}"]
        if dimension.mask is not None:
            lines.append(f"{dimension.mask} = {dimension.name} < {self._text(dimension.size)}")
        return lines

    # ---- products

    def _operand(self, down: Dimension, width: Dimension, scalar: Scalar) -> str:
        """A block of rows or columns by a width, zero beyond the ends."""
        values = self.operands.setdefault((down.name, width.name), self._values(down, width))
        text = values.full(values.value(scalar))
        masked = [d for d in (down, width) if d.mask is not None]
        found = index_symbols(scalar)
        if isinstance(scalar, Load) and not scalar.indirect and all(d.symbols <= found for d in masked):
            masked = []
        if masked:
            text = self._zeroed(values, text, [d.mask for d in masked if d.mask], scalar.dtype)
        self._collect(values)
        return text

    def _zeroed(self, values: ValuePrinter, text: str, masks: Sequence[str], dtype: torch.dtype) -> str:
        key = (id(values), text)
        if key not in self.zeroed:
            made = self.zeroed[key] = self.names.new("block")
            values.inner.lines.append(
                f"{made} = tl.where({' & '.join(masks)}, {text}, {constant(0.0, dtype, '[1, 1]')})"
            )
        return self.zeroed[key]

    def _dot(self, nest: Nest, a: str, b: str, accumulator: str = "") -> str:
        assert nest.reduction is not None
        dtype = TRITON_DTYPES[nest.value.dtype]
        more = f", {accumulator}" if accumulator else ""
        return f'tl.dot({a}, {b}{more}, input_precision="{nest.reduction.precision}", out_dtype={dtype})'

    def _make_tile(self, nest: Nest) -> None:
        """Computes a tile of rows by columns, rounded to its dtype."""
        left, right = _sides(nest)
        depth = self._width(nest.reduced[0])
        operands = self._operand(self.m, depth, left), self._operand(self.columns, depth, right)
        made = self.tiles.rows[nest.target.name] = self.names.new("tile")
        self.tiles.spread[made] = self.tiles.space.names()
        product_ = self._dot(nest, operands[0], f"tl.trans({operands[1]})")
        rounding = "" if nest.value.dtype == nest.target.dtype else f".to({TRITON_DTYPES[nest.target.dtype]})"
        self.inside.append(f"{made} = {product_}{rounding}")

    def _tile_value(self, scalar: Scalar) -> str:
        """A tile computed from earlier tiles."""
        text = self.tiles.full(self.tiles.value(scalar))
        self._collect(self.tiles)
        return text

    # ---- results

    def _add_up(self, nest: Nest) -> None:
        """Accumulates a row sum, or a product with a tile, over the loop."""
        looped = self.m if self.over_rows else self.n
        total = self.names.new("total")
        is_dot = nest.reduction is not None and nest.reduction.is_dot
        value, factor = _sides(nest) if is_dot else (nest.value, None)
        text = self._tile_value(value)
        if looped.mask is not None:
            text = self._zeroed(self.tiles, text, [looped.mask], value.dtype)
            self._collect(self.tiles)
        dtype = TRITON_DTYPES[nest.value.dtype]
        if factor is None:
            self.before.append(f"{total} = tl.zeros([MBLOCK], {dtype})")
            self.inside.append(f"{total} += tl.sum({text}, 1)")
            self._store_rows(nest.target, nest.index, total)
            return
        width = self._width(nest.axes[-1])
        down, kept = (self.m, self.columns) if self.over_rows else (self.columns, self.m)
        operand = self._operand(down, width, factor)
        text = f"tl.trans({text})" if self.over_rows else text
        self.before.append(f"{total} = tl.zeros([{kept.block}, {width.block}], {dtype})")
        self.inside.append(f"{total} = {self._dot(nest, text, operand, total)}")
        self._store(nest, kept, width, total)

    def _store(self, nest: Nest, down: Dimension, width: Dimension, value: str) -> None:
        values = self._values(down, width)
        rounded = f"{value}.to({TRITON_DTYPES[nest.target.dtype]})"
        self.after.append(values.store(nest, rounded, is_wide=True))

    def _store_rows(self, target: Buffer, index: sympy.Expr, value: str) -> None:
        """Stores one number per row."""
        nest = Nest(
            axes=(*self.tiled.batch, self.tiled.rows), reduced=(), order=(), reduction=None,
            value=Load(target.name, index, target.dtype), target=target, index=index,
        )  # fmt: skip
        self.after.append(self.tiles.store(nest, f"{value}[:, None]", is_wide=False))

    # ---- softmax

    def _softmax(self, softmax: TiledSoftmax, nest: Nest) -> None:
        weights, factor = _sides(nest)
        dtype = softmax.weights.dtype
        text = TRITON_DTYPES[dtype]
        is_half = weights.dtype not in (torch.float32, torch.float64)
        scores = self._tile_value(softmax.scores)
        if self.n.mask is not None:
            self.inside.append(f'scores = tl.where({self.n.mask}, {scores}, float("-inf"))')
            scores = "scores"
        width = self._width(nest.axes[-1])
        self.before += [
            f'greatest = tl.full([MBLOCK], float("-inf"), {text})',
            f"total = tl.zeros([MBLOCK], {text})",
            f"result = tl.zeros([MBLOCK, {width.block}], {text})",
        ]
        self.inside += [
            f"new = tl.maximum(greatest, tl.max({scores}, 1))",
            'base = tl.where(new == float("-inf"), 0.0, new)',
            f"weights = {_exp(f'{scores} - base[:, None]', is_half=is_half)}",
            f"factor = {_exp('greatest - base', is_half=is_half)}",
            "total = total * factor + tl.sum(weights, 1)",
        ]
        self.tiles.rows[softmax.weights.name] = "weights"
        self.tiles.spread["weights"] = self.tiles.space.names()
        value = self._tile_value(weights)
        if self.n.mask is not None and _is_scaled(weights):
            value = self._zeroed(self.tiles, value, [self.n.mask], weights.dtype)
            self._collect(self.tiles)
        operand = self._operand(self.columns, width, factor)
        self.inside.append(f"result = {self._dot(nest, value, operand, 'result * factor[:, None]')}")
        if softmax.greatest is not None:
            self.before.append("nans = tl.zeros([MBLOCK], tl.int32)")
            self.inside.append(f"nans = tl.maximum(nans, tl.max(({scores} != {scores}).to(tl.int32), 1))")
        self.inside.append("greatest = new")
        self.after.append('total = tl.where(greatest == float("-inf"), float("nan"), total)')
        if softmax.greatest is not None:
            self.after.append('greatest = tl.where(nans > 0, float("nan"), greatest)')
            self._store_rows(*softmax.greatest, "greatest")
        if softmax.total is not None:
            self._store_rows(*softmax.total, "total")
        divided = "result / total[:, None]"
        if dtype == torch.float32:
            divided = f"tl.div_rn(result, tl.broadcast_to(total[:, None], [MBLOCK, {width.block}]))"
        self.after.append(f"result = {divided}")
        self._store(nest, self.m, width, "result")


def _exp(difference: str, *, is_half: bool) -> str:
    return f"libdevice.exp2(({difference}) * {LOG2_E!r})" if is_half else f"libdevice.exp({difference})"


def _is_scaled(weights: Scalar) -> bool:
    return any(isinstance(part, Apply) and part.function != "cast" for part in walk(weights))


def _sides(nest: Nest) -> tuple[Scalar, Scalar]:
    assert isinstance(nest.value, Apply)
    left, right = nest.value.arguments
    return left, right
