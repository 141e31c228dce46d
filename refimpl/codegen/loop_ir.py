"""Loop nests over buffers: what a graph is lowered to, and what kernels are made of. All of it is frozen.

A nest computes one value for every point of its axes, or reduces over some of them, and writes it into one buffer. Several nests
may write into one buffer, each a part, or at places that are read from memory. Nests are in the order in which they may run; an
`Extern` between them is a call of an operator's own kernel.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import sympy
import torch

from refimpl.codegen.scalars import Load, Scalar, walk

_AXES = itertools.count()

Write = Literal["whole", "part", "add", "max", "min"]

ReductionKind = Literal["sum", "prod", "max", "min", "any", "all", "argmax", "argmin", "cumsum", "cumprod", "dot"]


# Reductions that a value can be folded into alone, without its place: programs may carry what they have so far.
FOLDED_KINDS: tuple[ReductionKind, ...] = ("sum", "prod", "max", "min", "any", "all")

IDENTITIES: Mapping[ReductionKind, int] = {"sum": 0, "prod": 1, "any": 0, "all": 1}
"""What these reductions give of no values at all; the others have nothing to give."""


def identity(kind: ReductionKind, dtype: torch.dtype) -> Any:
    """What changes no result."""
    if kind in IDENTITIES:
        return float(IDENTITIES[kind]) if dtype.is_floating_point else IDENTITIES[kind]
    is_max = kind in ("max", "argmax")
    if dtype.is_floating_point:
        return float("-inf") if is_max else float("inf")
    info = torch.iinfo(dtype)
    return info.min if is_max else info.max


@dataclass(frozen=True, slots=True)
class Axis:
    """A loop from 0 to `size`."""

    symbol: sympy.Symbol
    size: sympy.Expr


def new_axis(size: Any) -> Axis:
    """An axis of its own. Its symbol is a non-negative integer."""
    return Axis(sympy.Symbol(f"i{next(_AXES)}", integer=True, nonnegative=True), sympy.sympify(size))


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor in memory. Sizes and strides are in elements."""

    name: str
    shape: tuple[sympy.Expr, ...]
    strides: tuple[sympy.Expr, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True)
class Reduction:
    """How the values along the reduced axes become one. `argmax` and `argmin` give the place among them, the first of equal ones;
    a NaN is the greatest and the least value. `cumsum` and `cumprod` are scans: they give a value for every point.

    `dot` is the sum of products: the nest's value is `Apply("dot", (left, right))` in the dtype that is accumulated in; the
    operands have one of their own. Under a `Guarded` the products where the condition does not hold are none, whatever the
    operands are there.
    """

    kind: ReductionKind
    precision: Literal["ieee", "tf32"] = "ieee"
    """Of products of float32."""

    @property
    def is_scan(self) -> bool:
        """Whether there are as many results as values."""
        return self.kind in ("cumsum", "cumprod")

    @property
    def is_dot(self) -> bool:
        """Whether it adds up products of two operands."""
        return self.kind == "dot"


@dataclass(frozen=True, slots=True)
class Nest:
    """`target[index]` = `value`, at every point of `axes`; with a reduction, over all values along `reduced`.

    `order` is the order of all axes in the tensor that is read, which says where pointwise nests over that tensor can join.
    """

    axes: tuple[Axis, ...]
    reduced: tuple[Axis, ...]
    order: tuple[Axis, ...]
    reduction: Reduction | None
    value: Scalar
    target: Buffer
    index: sympy.Expr
    origins: tuple[str, ...] = ()
    """Names of the graph's nodes that this comes from."""
    write: Write = "whole"
    """`whole`: it fills the target, and alone. `part`: it stores at some places; points that share a place have one value there.
    `add`, `max`, `min`: it combines with what is there, atomically. What a part is of may be filled by nests before."""
    indirect: tuple[tuple[sympy.Symbol, Scalar], ...] = ()
    """Symbols of `index` whose values are computed at the same point."""
    condition: Scalar | None = None
    """Where it does not hold nothing is written."""

    def scalars(self) -> tuple[Scalar, ...]:
        """All that is computed at a point."""
        values = (self.value, *(place for _, place in self.indirect))
        return values if self.condition is None else (*values, self.condition)

    def reads(self) -> set[str]:
        """Names of the buffers it loads from."""
        return {part.buffer for part in walk(*self.scalars()) if isinstance(part, Load)}


@dataclass(frozen=True, slots=True)
class Extern:
    """A call of an operator's own kernel. `arguments` and `keywords` hold `Operand`s, `SizeExpression`s and constants."""

    target: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    outputs: tuple[Output, ...]
    """What becomes of the results, in order; of a result that is no list, one."""
    is_list: bool
    reads: frozenset[str]
    writes: frozenset[str]
    """Of its arguments."""
    origin: str
    reason: str
    """Why there is no nest in its place."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A buffer, or a view of it, as a tensor. `offset` is in elements from where the buffer's tensor begins."""

    buffer: str
    shape: tuple[sympy.Expr, ...]
    strides: tuple[sympy.Expr, ...]
    offset: sympy.Expr
    is_whole: bool
    """Whether it is the buffer's own tensor."""


@dataclass(frozen=True, slots=True)
class SizeExpression:
    """A number that follows from sizes."""

    value: sympy.Expr


@dataclass(frozen=True, slots=True)
class Opaque:
    """A value that only calls look into: a tensor that is not strided, a float or a truth value known at run time.

    The shape and the strides are a tensor's, as far as it has them: sizes may be known from nothing else.
    """

    name: str
    shape: tuple[sympy.Expr, ...] = ()
    strides: tuple[sympy.Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class Output:
    """A result of an extern call: a buffer, the number that a symbol stands for, an opaque value, or nothing (all None)."""

    buffer: Buffer | None = None
    symbol: sympy.Symbol | None = None
    opaque: Opaque | None = None


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention, or gradients of it, as a kernel that is written as a whole and not made of nests.

    inputs: "query", "key", "value" (batch, heads, length, dimension), "mask" (the same with scores' lengths; sizes may be 1);
    of gradients "grad_output", and "logsumexp" and "delta" (batch, heads, queries), the sums of rows of output * grad_output.
    outputs: "output" and "logsumexp"; "grad_query"; or "grad_key" and "grad_value". Heads of keys divide those of queries.
    """

    kind: Literal["forward", "grad_query", "grad_key_value"]
    inputs: dict[str, Operand]
    outputs: dict[str, Operand]
    made: tuple[Buffer, ...]
    """The buffers of the outputs."""
    scale: float
    is_causal: bool
    precision: Literal["ieee", "tf32"]
    origin: str

    @property
    def query(self) -> Operand:
        return self.inputs["query"]

    @property
    def key(self) -> Operand:
        return self.inputs["key"]

    @property
    def value(self) -> Operand:
        return self.inputs["value"]

    @property
    def reads(self) -> frozenset[str]:
        """Names of the buffers that are read."""
        return frozenset(operand.buffer for operand in self.inputs.values())


@dataclass(frozen=True, slots=True)
class TiledSoftmax:
    """Weights of scores, along columns. Loads of `weights` are what the scores' exponentials give, divided by their sum.

    `greatest` and `total` are stored if they have a buffer: numbers for each batch and row, at these places.
    """

    scores: Scalar
    weights: Buffer
    greatest: tuple[Buffer, sympy.Expr] | None = None
    total: tuple[Buffer, sympy.Expr] | None = None


@dataclass(frozen=True, slots=True)
class Tiled:
    """Products of matrices, and products of what is computed from them, as one kernel: a block of rows (or of columns) stays,
    and the kernel goes over the columns (or rows). No memory holds what is in between.

    products: nests over batch, rows and columns, whose results are loaded by the others where they are made; they have the
    dtypes of their buffers, which are not in memory. results: sums over the looped axis, of a value (by batch and what stays) or
    of products with an operand (by batch, what stays, and a width).
    """

    batch: tuple[Axis, ...]
    rows: Axis
    columns: Axis
    loops: Literal["rows", "columns"]
    products: tuple[Nest, ...]
    results: tuple[Nest, ...]
    origins: tuple[str, ...]
    softmax: TiledSoftmax | None = None

    @property
    def tiles(self) -> frozenset[str]:
        """Names of the buffers that no memory holds."""
        weights = () if self.softmax is None else (self.softmax.weights.name,)
        return frozenset([*(nest.target.name for nest in self.products), *weights])

    @property
    def made(self) -> tuple[Buffer, ...]:
        """The buffers that it fills."""
        rows = () if self.softmax is None else (self.softmax.greatest, self.softmax.total)
        return (*(nest.target for nest in self.results), *(row[0] for row in rows if row is not None))

    def scalars(self) -> tuple[Scalar, ...]:
        """All that is computed at a point."""
        scores = () if self.softmax is None else (self.softmax.scores,)
        return (*scores, *(value for nest in (*self.products, *self.results) for value in nest.scalars()))

    @property
    def reads(self) -> frozenset[str]:
        """Names of the buffers that are read."""
        loads = {part.buffer for part in walk(*self.scalars()) if isinstance(part, Load)}
        return frozenset(loads - self.tiles)


Step = Nest | Extern | Attention | Tiled


def buffers_made(step: Step) -> tuple[Buffer, ...]:
    """What a step fills, or returns."""
    match step:
        case Nest(target=target):
            return (target,)
        case Extern(outputs=outputs):
            return tuple(output.buffer for output in outputs if output.buffer is not None)
        case Attention() | Tiled():
            return step.made
