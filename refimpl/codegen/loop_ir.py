"""The loop IR: loop nests over buffers, between a graph and its kernels. All of it is frozen.

A nest computes one value at every point of its axes, or reduces over some of them, and writes it to one buffer. Several nests may
write to one buffer: each a part of it, or at indices loaded from memory. Nests are in an order in which they may run; an `Extern`
between them calls an operator's own kernel.
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


# Reductions that accumulate one value, without its index: a program may carry a partial result.
FOLDED_KINDS: tuple[ReductionKind, ...] = ("sum", "prod", "max", "min", "any", "all")

IDENTITIES: Mapping[ReductionKind, int] = {"sum": 0, "prod": 1, "any": 0, "all": 1}
"""Results of these reductions over no values. The others have none."""


def identity(kind: ReductionKind, dtype: torch.dtype) -> Any:
    """The value that leaves a reduction's result unchanged."""
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
    """A new axis. Its symbol is a nonnegative integer."""
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
    """How the values along the reduced axes become one. `argmax` and `argmin` give the index of the first of equal values; NaN
    counts as the greatest and the least value. `cumsum` and `cumprod` are scans: they give a value at every point.

    `dot` is a sum of products: the nest's value is `Apply("dot", (left, right))` in the dtype of the accumulator; the operands
    have a dtype of their own. Under a `Guarded`, products whose condition is false are skipped, whatever the operands are.
    """

    kind: ReductionKind
    precision: Literal["ieee", "tf32"] = "ieee"
    """Precision of float32 products."""

    @property
    def is_scan(self) -> bool:
        """Whether there are as many results as values."""
        return self.kind in ("cumsum", "cumprod")

    @property
    def is_dot(self) -> bool:
        """Whether it sums products of two operands."""
        return self.kind == "dot"


@dataclass(frozen=True, slots=True)
class Nest:
    """`target[index]` = `value`, at every point of `axes`; with a reduction, over all values along `reduced`.

    `order` is the order of all axes in the tensor that is loaded. Pointwise nests over that tensor join along these axes.
    """

    axes: tuple[Axis, ...]
    reduced: tuple[Axis, ...]
    order: tuple[Axis, ...]
    reduction: Reduction | None
    value: Scalar
    target: Buffer
    index: sympy.Expr
    origins: tuple[str, ...] = ()
    """Names of the graph's nodes that the nest computes."""
    write: Write = "whole"
    """`whole`: the nest alone fills the target. `part`: it stores to some elements; points that store to the same element store
    the same value. `add`, `max`, `min`: it combines with the element in memory, atomically. Earlier nests may have filled the
    target of any but `whole`."""
    indirect: tuple[tuple[sympy.Symbol, Scalar], ...] = ()
    """Symbols of `index` whose values are computed at the same point."""
    condition: Scalar | None = None
    """Nothing is written where this is false."""

    def scalars(self) -> tuple[Scalar, ...]:
        """All expressions that are computed at a point."""
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
    """The results in order; one entry if the operator does not return a list."""
    is_list: bool
    reads: frozenset[str]
    writes: frozenset[str]
    """Arguments that it mutates."""
    origin: str
    reason: str
    """Why the operator is not lowered to a nest."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A buffer, or a view of it, as a tensor. `offset` is in elements from where the buffer's tensor begins."""

    buffer: str
    shape: tuple[sympy.Expr, ...]
    strides: tuple[sympy.Expr, ...]
    offset: sympy.Expr
    is_whole: bool
    """Whether it is the buffer's whole tensor."""


@dataclass(frozen=True, slots=True)
class SizeExpression:
    """A number computed from sizes."""

    value: sympy.Expr


@dataclass(frozen=True, slots=True)
class Opaque:
    """A value that only extern calls read: a tensor that is not strided, or a float or bool known at run time.

    A tensor's shape and strides are kept if it has any, because sizes may be known from nowhere else.
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
    """Attention, or its gradients, as one kernel that is printed as a whole and not from nests.

    inputs: "query", "key", "value" (batch, heads, length, dimension), "mask" (broadcast to the scores); for gradients also
    "grad_output", "logsumexp" and "delta" (batch, heads, queries), the row sums of output * grad_output.
    outputs: "output" and "logsumexp"; or "grad_query"; or "grad_key" and "grad_value". The number of key heads divides that of
    query heads.
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
    """Softmax over the columns of scores. Loads of `weights` are exponentials of the scores, divided by their sum.

    `greatest` and `total`, the row maximum and the row sum of exponentials, are stored if they have a buffer and an index.
    """

    scores: Scalar
    weights: Buffer
    greatest: tuple[Buffer, sympy.Expr] | None = None
    total: tuple[Buffer, sympy.Expr] | None = None


@dataclass(frozen=True, slots=True)
class Tiled:
    """Matrix products, and products of what is computed from them, as one kernel, like attention. A block of rows (or of columns)
    stays in a program, which loops over the columns (or rows). No intermediate result is in memory.

    products: nests over batch, rows and columns. The others load their results, which have the dtypes of their buffers but are
    not in memory. results: sums over the looped axis, of a value (by batch and the axis that stays) or of products with an
    operand (by batch, the axis that stays, and a width).
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
        """Names of the buffers that are not in memory."""
        weights = () if self.softmax is None else (self.softmax.weights.name,)
        return frozenset([*(nest.target.name for nest in self.products), *weights])

    @property
    def made(self) -> tuple[Buffer, ...]:
        """The buffers that it fills."""
        rows = () if self.softmax is None else (self.softmax.greatest, self.softmax.total)
        return (*(nest.target for nest in self.results), *(row[0] for row in rows if row is not None))

    def scalars(self) -> tuple[Scalar, ...]:
        """All expressions that are computed at a point."""
        scores = () if self.softmax is None else (self.softmax.scores,)
        return (*scores, *(value for nest in (*self.products, *self.results) for value in nest.scalars()))

    @property
    def reads(self) -> frozenset[str]:
        """Names of the buffers that are read."""
        loads = {part.buffer for part in walk(*self.scalars()) if isinstance(part, Load)}
        return frozenset(loads - self.tiles)


Step = Nest | Extern | Attention | Tiled


def buffers_made(step: Step) -> tuple[Buffer, ...]:
    """The buffers that a step fills or returns."""
    match step:
        case Nest(target=target):
            return (target,)
        case Extern(outputs=outputs):
            return tuple(output.buffer for output in outputs if output.buffer is not None)
        case Attention() | Tiled():
            return step.made
