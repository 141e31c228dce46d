"""Lowers regions: matrix products with tiles in between, which are not stored.

The lowering of a region is an expression of one batch, row and column, which loads from the products as if they were in memory.
Index arithmetic proves that every tile is loaded at its own index; otherwise the region is rejected.

Gradients are up to three kernels: row sums, products that keep the rows, and products that keep the columns. Each recomputes the
tiles that it needs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import sympy
import torch

from refimpl.codegen.indices import (
    ONE,
    ZERO,
    contiguous_strides,
    find_split,
    is_provably_equal,
    linear,
    product,
    simplified,
)
from refimpl.codegen.loop_ir import Axis, Buffer, Nest, Reduction, Tiled, TiledSoftmax, new_axis
from refimpl.codegen.loop_simplification import index_expressions, reindexed_nest
from refimpl.codegen.lowering.contractions import (
    check_operands,
    check_size,
    dot_of,
    is_one,
    operand,
    operand_indices,
    result_buffer,
)
from refimpl.codegen.lowering.regions import Region, Softmax
from refimpl.codegen.lowering.state import (
    HALF,
    LoweringState,
    NotLowered,
    apply,
    broadcast_indices,
    fake_of,
    literal,
    opmath,
    shape_of,
    whole,
)
from refimpl.codegen.lowering.state import cast as converted
from refimpl.codegen.lowering.views import reshaping
from refimpl.codegen.scalars import RANDOM_FUNCTIONS, Apply, Load, Scalar, reindexed, walk
from refimpl.codegen.tensors import Computed, Indices, Stored, Tensor

aten = torch.ops.aten

WIDEST = 256
"""Widest contracted dimension, and widest result."""
FEWEST = 8
"""Fewest rows and columns of a tile: with fewer, blocks are mostly empty."""
# A tile's functions may cost this much; more expensive operands of tiles are stored in memory.
CHEAP_IN_TILES = 12

RuleOf = Callable[[Any], Callable[..., Any] | None]


def lower_region(
    state: LoweringState, region: Region, values: Mapping[torch.fx.Node, Any], rule_of: RuleOf
) -> dict[torch.fx.Node, Stored]:
    """Lowers a region, and returns its values that have users outside. `values`: lowered values of other nodes; `rule_of`:
    lowerings by operator. Raises NotLowered with a reason if the kernels cannot compute the region, or not efficiently."""
    return _RegionLowering(state, region, values, rule_of).run()


class _RegionLowering:
    def __init__(
        self, state: LoweringState, region: Region, values: Mapping[torch.fx.Node, Any], rule_of: RuleOf
    ) -> None:
        self.state = state
        self.region = region
        self.values = values
        self.rule_of = rule_of
        fake = fake_of(region.products[0])
        self.device = fake.device
        self.shape = _with_batch(shape_of(fake), ONE)
        self.batch, self.rows, self.columns = (new_axis(size) for size in self.shape)
        self.point = tuple(_index(axis) for axis in (self.batch, self.rows, self.columns))
        self.widths: dict[sympy.Expr, Axis] = {}
        self.tiles: dict[torch.fx.Node, Any] = {}
        self.products: dict[str, Nest] = {}
        self.made: dict[torch.fx.Node, Stored] = {}
        self.origins = tuple(node.name for node in region.nodes)

    def run(self) -> dict[torch.fx.Node, Stored]:
        self._check()
        softmax = self.region.softmax
        skipped: tuple[Any, ...] = ()
        if softmax is not None:
            exponentials = cast(torch.fx.Node, softmax.weights.args[0])
            skipped = (softmax.greatest, softmax.total, exponentials, exponentials.args[0])
        results: list[Nest] = []
        skipped = (*skipped, *(node for tail in self.region.tails.values() for node in tail))
        for node in self.region.nodes:
            if node in self.region.products:
                self.tiles[node] = self._product(node)
            elif node in self.region.results:
                results.append(self._result(node))
            elif node in self.region.sums:
                self.tiles[node] = self._sum(node)
            elif softmax is not None and node is softmax.weights:
                self.tiles[node] = _tile("weights", shape_of(fake_of(node)), fake_of(node))
            elif node not in skipped:
                self.tiles[node] = self._of_rule(node)
        if softmax is not None:
            self._step("columns", results, self._softmax(softmax))
            return self.made
        for loops, kept in (("columns", self.rows), ("rows", self.columns)):
            own = [nest for nest in results if kept in nest.axes]
            if own:
                self._step(loops, own)
        return self.made

    # ---- what the kernels do

    def _check(self) -> None:
        sizes = [self.state.facts.guess(size) for size in self.shape[1:]]
        if min(sizes) < FEWEST:
            raise NotLowered("few rows or columns")
        total = ZERO
        for node in (*self.region.products, *self.region.results):
            operands = [source.meta["val"] for source in cast(Any, node.args[-2:])]
            check_operands(node, *operands)
            width = shape_of(operands[0])[-1] if node in self.region.products else self._width_of(node)
            if not width.is_Integer or not 1 <= width <= WIDEST:
                raise NotLowered(f"matrices {width} wide")
            total += product((*self.shape, width))
        for node in self.region.products[1:]:
            shape = _with_batch(shape_of(fake_of(node)), ONE)
            if not all(is_provably_equal(a, b) for a, b in zip(shape, self.shape, strict=True)):
                raise NotLowered("products of several shapes")
        is_half = all(fake_of(node).dtype in HALF for node in (*self.region.products, *self.region.results))
        if not (is_half and self.device.type == "cuda" and self.state.options.contractions == "measured"):
            check_size(self.state, self.state.facts.guess(total), "dot", self.device)

    def _width_of(self, node: torch.fx.Node) -> sympy.Expr:
        """The dimension of a result that is no dimension of a tile."""
        shape = shape_of(fake_of(node))
        return shape[-1] if node.args[0] in self.region.nodes else shape[-2]

    def _width(self, size: sympy.Expr) -> Axis:
        return self.widths.setdefault(size, new_axis(size))

    # ---- tiles

    def _value_of(self, node: torch.fx.Node) -> Any:
        if node in self.tiles:
            return self.tiles[node]
        return self.values[node]

    def _of_rule(self, node: torch.fx.Node) -> Any:
        """Lowers a tile, or a function of one, by the operator's rule."""
        rule = self.rule_of(node.target)
        if rule is None:
            raise NotLowered(f"{node.target} between products")
        arguments, keywords = torch.fx.map_arg((node.args, dict(node.kwargs)), self._operand_of_tiles)
        before = len(self.state.steps)
        made = rule(self.state, node, *cast(Any, arguments), **cast(Any, keywords))
        if len(self.state.steps) != before or not isinstance(made, (Stored, Computed)):
            raise NotLowered(f"{node.target} between products")
        return made

    def _operand_of_tiles(self, node: torch.fx.Node) -> Any:
        """An operand of tiles, stored in memory if it is expensive to compute."""
        value = self._value_of(node)
        if node in self.tiles or not isinstance(value, Computed):
            return value
        parts = [] if ZERO in value.shape else list(walk(value.at(operand_indices(value))))
        is_dear = value.cost > CHEAP_IN_TILES or any(_is_dear(part) for part in parts)
        return self.state.store(value, origins=(node.name,)) if is_dear else value

    def _matrix(self, node: torch.fx.Node, source: Any) -> Callable[[Indices], Scalar]:
        """An operand that is not a tile, by batch and two indices."""
        value = operand(self.state, node, self._tensor(source))
        return lambda indices: value.at(indices[3 - len(value.shape) :])

    def _tensor(self, node: Any) -> Tensor:
        value = self._value_of(node)
        if not isinstance(value, (Stored, Computed)):
            raise NotLowered("an operand that is no tensor in memory")
        return value

    def _product(self, node: torch.fx.Node) -> Tensor:
        """Adds the nest of a product; returns the value that tiles load."""
        fake = fake_of(node)
        a, b = cast(Any, node.args[-2:])
        left, right = self._matrix(node, a), self._matrix(node, b)
        depth = self._width(shape_of(a.meta["val"])[-1])
        batch, row, column = self.point
        operands = left((batch, row, _index(depth))), right((batch, _index(depth), column))
        is_added = len(node.args) == 3
        dtype = opmath(fake.dtype) if is_added else fake.dtype
        made = _tile(str(len(self.products)), shape_of(fake), fake, dtype)
        self.products[made.buffer.name] = Nest(
            axes=(self.batch, self.rows, self.columns),
            reduced=(depth,),
            order=(self.batch, self.rows, self.columns, depth),
            reduction=dot_of(fake.device),
            value=Apply("dot", operands, opmath(operands[0].dtype)),
            target=made.buffer,
            index=linear(self.point, contiguous_strides(self.shape)),
            origins=(node.name,),
        )
        return self._added(node, made) if is_added else made

    def _added(self, node: torch.fx.Node, total: Stored) -> Tensor:
        """beta * x + alpha * total, rounded once."""
        x = self._operand_of_tiles(cast(torch.fx.Node, node.args[0]))
        beta, alpha = (node.kwargs.get(name, 1) for name in ("beta", "alpha"))
        dtype = fake_of(node).dtype
        if not all(isinstance(number, (int, float)) for number in (beta, alpha)):
            raise NotLowered("factors that are not known")

        def scaled(value: Scalar, factor: Any) -> Scalar:
            return value if is_one(factor) else apply("mul", value, literal(factor, total.dtype))

        def value(indices: Indices) -> Scalar:
            own = scaled(total.at(indices), alpha)
            if beta == 0:
                return converted(own, dtype)
            added = converted(x.at(broadcast_indices(indices, x.shape)), total.dtype)
            return converted(apply("add", scaled(added, beta), own), dtype)

        return Computed(total.shape, dtype, total.device, value, x.cost + 2)

    def _at(self, tensor: Tensor, shape: Indices, indices: Indices) -> Scalar:
        """A tile's element by batch, row and column, for matrices of `shape`."""
        return tensor.at(reshaping(tensor.shape, shape)(indices))

    # ---- results

    def _sum(self, node: torch.fx.Node) -> Stored:
        fake, source = fake_of(node), self._tensor(node.args[0])
        if fake.dtype not in (torch.float32, torch.float64) or source.dtype != fake.dtype:
            raise NotLowered(f"sums of {source.dtype}")
        target = self.state.new_buffer(fake.shape, fake.dtype, fake.device)
        batch, row, _ = self.point
        nest = Nest(
            axes=(self.batch, self.rows),
            reduced=(self.columns,),
            order=(self.batch, self.rows, self.columns),
            reduction=Reduction("sum"),
            value=self._at(source, self.shape, self.point),
            target=target,
            index=batch * self.shape[1] + row,
            origins=(node.name,),
        )
        self._step("columns", [nest])
        self.made[node] = whole(target)
        return self.made[node]

    def _result(self, node: torch.fx.Node) -> Nest:
        """A product of a tile. The operand's index tells which of its dimensions are the tile's rows and columns."""
        tail = self.region.tails.get(node, ())
        fake = fake_of(node)
        a, b = cast(Any, node.args)
        is_left = a in self.tiles
        tile, other = self._tensor(a if is_left else b), self._matrix(node, b if is_left else a)
        width = self._width(self._width_of(node))
        batch = self.point[0]
        shape = _with_batch(shape_of((a if is_left else b).meta["val"]), ONE)
        found = [
            (kept, looped, value)
            for kept, looped in ((self.rows, self.columns), (self.columns, self.rows))
            for pair in [(kept, looped) if is_left else (looped, kept)]
            if all(is_provably_equal(axis.size, size) for axis, size in zip(pair, shape[1:], strict=True))
            for value in [self._at(tile, shape, (batch, *(_index(axis) for axis in pair)))]
            if self._reads_its_own(value)
        ]
        if not found:
            raise NotLowered("a tile that is read elsewhere than it is made")
        kept, looped, value = found[0]
        inner, outer = _index(looped), _index(width)
        factor = other((batch, inner, outer) if is_left else (batch, outer, inner))
        last = tail[-1] if tail else node
        target = result_buffer(self.state, fake_of(last))
        self.made[last] = whole(target)
        place = (batch, _index(kept), outer) if is_left else (batch, outer, _index(kept))
        place = place[3 - fake.dim() :]
        for before, moved in itertools.pairwise((node, *tail)):
            place = _moved(moved, shape_of(fake_of(before)), place)
        return Nest(
            axes=(self.batch, kept, width),
            reduced=(looped,),
            order=(self.batch, kept, width, looped),
            reduction=dot_of(fake.device),
            value=Apply("dot", (value, factor), opmath(fake.dtype)),
            target=target,
            index=linear(place, target.strides),
            origins=(node.name,),
        )

    def _softmax(self, softmax: Softmax) -> TiledSoftmax:
        scores = self._tensor(softmax.scores)
        nest_dtype = fake_of(self.region.results[0]).dtype
        if scores.dtype != opmath(nest_dtype):
            raise NotLowered(f"a softmax of {scores.dtype} for a product of {nest_dtype}")
        batch, row, _ = self.point
        rows: dict[str, Any] = {}
        for name in ("greatest", "total"):
            node = getattr(softmax, name)
            if any(user not in self.region.nodes for user in node.users):
                fake = fake_of(node)
                target = self.state.new_buffer(fake.shape, fake.dtype, fake.device)
                self.made[node] = whole(target)
                rows[name] = target, batch * self.shape[1] + row
        weights = self.tiles[softmax.weights].buffer
        return TiledSoftmax(scores=self._at(scores, self.shape, self.point), weights=weights, **rows)

    # ---- kernels

    def _reads_its_own(self, value: Scalar) -> bool:
        """Whether tiles are loaded only at the index that is computed."""
        loads = [part for part in walk(value) if isinstance(part, Load) and _is_tile(part.buffer)]
        expressions = [linear(self.point, contiguous_strides(self.shape)), *(load.index for load in loads)]
        own, *others = _with_split(expressions, self.batch)[0]
        return not any(load.indirect for load in loads) and all(is_provably_equal(own, other) for other in others)

    def _step(self, loops: Any, results: Sequence[Nest], softmax: TiledSoftmax | None = None) -> None:
        """Adds a kernel, with the products that it needs. The batch axis is split if that removes divisions."""
        scores = [] if softmax is None else [softmax.scores]
        values = [*scores, *(value for nest in results for value in nest.scalars())]
        if not all(self._reads_its_own(value) for value in values):
            raise NotLowered("a tile that is read elsewhere than it is made")
        _check_weights(softmax, results)
        needed = {part.buffer for part in walk(*values) if isinstance(part, Load)}
        nests = [*(nest for name, nest in self.products.items() if name in needed), *results]
        sizes = {axis.symbol: axis.size for nest in nests for axis in (*nest.axes, *nest.reduced)}
        sample = replace(nests[0], value=values[0])
        expressions = [expr for nest in (*nests, sample) for expr in index_expressions(nest)]
        rows = [] if softmax is None else [row for row in (softmax.greatest, softmax.total) if row is not None]
        _, batch, moved = _with_split([*expressions, *(index for _, index in rows)], self.batch)
        sizes |= {axis.symbol: axis.size for axis in batch}

        def new(expr: sympy.Expr) -> sympy.Expr:
            of_axes: Any = expr.xreplace(moved)
            return simplified(of_axes.expand(), sizes)

        nests = [reindexed_nest(nest, moved, sizes) for nest in nests]
        if softmax is not None:
            softmax = replace(
                softmax,
                scores=reindexed(softmax.scores, new, {}),
                **{
                    name: (row[0], new(row[1]))
                    for name in ("greatest", "total")
                    if (row := getattr(softmax, name)) is not None
                },
            )
        self.state.steps.append(
            Tiled(
                batch=tuple(axis for axis in batch if axis.size != ONE),
                rows=self.rows,
                columns=self.columns,
                loops=loops,
                products=tuple(nest for nest in nests if _is_tile(nest.target.name)),
                results=tuple(nest for nest in nests if not _is_tile(nest.target.name)),
                origins=self.origins,
                softmax=softmax,
            )
        )


def _check_weights(softmax: TiledSoftmax | None, results: Sequence[Nest]) -> None:
    """Checks that only conversions between floats, and one factor, come between weights and their product, because the kernel
    divides after the product.

    Exponentials are at most 1, and `find_forward` bounds the factor by the largest finite value of the converted dtype, so
    intermediate values overflow only if they would with divided weights.
    """
    if softmax is None:
        return
    for nest in results:
        assert isinstance(nest.value, Apply)
        value, factors = nest.value.arguments[0], 0
        while not isinstance(value, Load):
            if not isinstance(value, Apply) or not value.dtype.is_floating_point:
                raise NotLowered("weights that are computed with")
            others = [part for part in value.arguments if not _is_of(softmax.weights, part)]
            is_scaled = value.function == "mul" and len(others) == 1
            factors += is_scaled
            if factors > 1 or (not is_scaled and value.function != "cast"):
                raise NotLowered("weights that are computed with")
            (value,) = (part for part in value.arguments if part not in others)


def _is_of(buffer: Buffer, value: Scalar) -> bool:
    return any(isinstance(part, Load) and part.buffer == buffer.name for part in walk(value))


def _moved(node: torch.fx.Node, shape: Indices, place: Indices) -> Indices:
    """The position that an element of the input has in a view or copy of it. `shape` is the input's shape."""
    own = shape_of(fake_of(node))
    match node.target:
        case aten.clone.default:
            return place
        case aten.transpose.int:
            a, b = cast(Any, node.args[1:])
            swapped = list(place)
            swapped[a], swapped[b] = place[b], place[a]
            return tuple(swapped)
        case aten.permute.default:
            return tuple(place[dim] for dim in cast(Any, node.args[1]))
        case aten.t.default:
            return place[::-1]
        case _:
            return reshaping(own, shape)(place)


def _with_split(
    expressions: Sequence[sympy.Expr], batch: Axis
) -> tuple[list[sympy.Expr], tuple[Axis, ...], dict[sympy.Symbol, Any]]:
    """Splits the batch axis, outermost first, so that divisions of it disappear. Returns the expressions, the axes, and the batch
    in terms of them."""
    axes, whole_place = [batch], _index(batch)
    made = list(expressions)
    for _ in range(16):  # each split removes a division
        sizes = {axis.symbol: axis.size for axis in axes}
        split = find_split(made, sizes)
        if split is None:
            break
        symbol, size = split
        at = next(at for at, axis in enumerate(axes) if axis.symbol == symbol)
        outer, inner = new_axis(axes[at].size / size), new_axis(size)
        axes[at : at + 1] = [outer, inner]
        sizes = {axis.symbol: axis.size for axis in axes}
        moved = {symbol: outer.symbol * size + inner.symbol}
        whole_place = cast(Any, whole_place).xreplace(moved).expand()
        made = [simplified(cast(Any, expr).xreplace(moved).expand(), sizes) for expr in made]
    return made, tuple(axes), {batch.symbol: whole_place} if len(axes) > 1 else {}


def _tile(name: str, shape: Indices, fake: torch.Tensor, dtype: torch.dtype | None = None) -> Stored:
    """A tile as if it were in memory. No buffer of a graph has such a name."""
    buffer = Buffer(
        f"tile {name}", shape, contiguous_strides(shape), fake.dtype if dtype is None else dtype, fake.device
    )
    return whole(buffer)


def _is_tile(buffer: str) -> bool:
    return buffer.startswith("tile ")


def _is_dear(part: Scalar) -> bool:
    if isinstance(part, Load):
        return bool(part.indirect)
    return isinstance(part, Apply) and (part.function in RANDOM_FUNCTIONS or part.function.startswith("checked"))


def _with_batch(shape: Indices, batch: sympy.Expr) -> Indices:
    return (batch,) * (3 - len(shape)) + shape


def _index(axis: Axis) -> sympy.Expr:
    return ZERO if axis.size == ONE else axis.symbol
