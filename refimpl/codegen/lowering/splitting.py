"""Splits long reductions with few results into two steps: many partial results in parallel, then their reduction.

Otherwise a handful of programs would read all of the input. The parts, and the order in which they are added, depend on sizes
only, so results are the same from run to run.

Counterpart: torch/_inductor/ir.py Reduction.create_multilayer, num_splits
Differs: variance stays two passes over memory, as in eager. One pass with Welford's update divides for every value, and rounds
differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy
import torch

from refimpl.codegen.configurations import WIDEST_ROWS
from refimpl.codegen.indices import product
from refimpl.codegen.loop_ir import FOLDED_KINDS
from refimpl.codegen.scalars import Apply, FromIndex, Guarded, Literal, Scalar
from refimpl.codegen.sizes import SizeFacts
from refimpl.codegen.tensors import Computed, Indices, Tensor
from refimpl.symbolic.functions import FloorDiv

SPLITTABLE = frozenset([*FOLDED_KINDS, "argmax", "argmin"])

ENOUGH_PROGRAMS = 128
"""Reductions with this many programs are not split."""

MANY_PROGRAMS = 512
SHORTEST = 32768
"""Reductions whose programs load fewer values are not split."""

_ROWS, _FEWEST_ROWS = 32, 8  # rows per program of a kernel that reduces rows as well
_SHORTEST_PART = 2048  # the fewest values that a program loads
_COLUMNS = 64  # columns per program, if the reduced values are not contiguous


@dataclass(frozen=True)
class Split:
    """A dimension as `parts` times `length`, which may exceed its size. `whole`: the number of reduced dimensions before it, each
    element of which is a part of its own."""

    dim: int
    parts: sympy.Expr
    length: sympy.Expr
    is_exact: bool
    whole: tuple[int, ...] = ()


def split_of(shape: Indices, dims: Sequence[int], facts: SizeFacts) -> Split | None:
    """How to split a reduction over `dims`. None if it should not be."""
    reduced = facts.guess(product(shape[dim] for dim in dims))
    kept = facts.guess(product(size for dim, size in enumerate(shape) if dim not in dims))
    columns = 1 if len(shape) - 1 in dims else min(kept, _COLUMNS)
    programs, values = -(-kept // max(columns, 1)), columns * reduced
    if values < SHORTEST or programs >= ENOUGH_PROGRAMS:
        return None
    wanted = min(MANY_PROGRAMS // programs, values // _SHORTEST_PART)
    if (
        columns > 1 and kept <= WIDEST_ROWS
    ):  # a kernel over rows may reduce the columns as well, with a program per part
        wanted = max(wanted, min(MANY_PROGRAMS, max(reduced // _ROWS, min(reduced // _FEWEST_ROWS, ENOUGH_PROGRAMS))))
    sizes = {dim: facts.guess(shape[dim]) for dim in dims}
    if columns > 1 and sorted(dims) == list(range(len(dims))):
        return _split_of_leading(shape, [sizes[dim] for dim in range(len(dims))], wanted)
    dim = next((dim for dim in sorted(dims) if sizes[dim] >= wanted), max(sizes, key=lambda dim: sizes[dim]))
    if min(wanted, sizes[dim]) < 2:
        return None
    return _split(dim, shape[dim], min(wanted, sizes[dim]))


def _split_of_leading(shape: Indices, sizes: Sequence[int], wanted: int) -> Split | None:
    """Parts that are runs over the leading dimensions."""
    whole, before = 0, 1
    while whole < len(sizes) - 1 and before * sizes[whole] < wanted:
        before *= sizes[whole]
        whole += 1
    most = min(-(-wanted // before), sizes[whole])
    if most < 2:
        return None
    split = _split(whole, shape[whole], most)
    return replace(split, whole=tuple(range(whole)))


def _split(dim: int, size: sympy.Expr, wanted: int) -> Split:
    if not size.is_Integer:
        return Split(dim, sympy.Integer(wanted), FloorDiv(size + wanted - 1, wanted), is_exact=False)
    number = int(size)
    exact = next((parts for parts in range(wanted, wanted // 2, -1) if number % parts == 0), None)
    length = -(-number // wanted) if exact is None else number // exact
    return Split(dim, sympy.Integer(-(-number // length)), sympy.Integer(length), is_exact=exact is not None)


def in_parts(tensor: Tensor, split: Split, otherwise: Literal) -> Computed:
    """The tensor with the split dimension as two. Elements beyond the end are `otherwise`."""
    at, size = split.dim, tensor.shape[split.dim]

    def value(indices: Indices) -> Scalar:
        place = indices[at] * split.length + indices[at + 1]
        inner = tensor.at((*indices[:at], place, *indices[at + 2 :]))
        if split.is_exact:
            return inner
        is_inside = Apply("lt", (FromIndex(place), FromIndex(size)), torch.bool)
        return Guarded(is_inside, inner, otherwise)

    shape = (*tensor.shape[:at], split.parts, split.length, *tensor.shape[at + 1 :])
    return Computed(shape, tensor.dtype, tensor.device, value, tensor.cost + 1)


def place_in_whole(split: Split, part: Scalar, place: Scalar) -> Scalar:
    """An index within a part as an index in the dimension."""
    begin = Apply("mul", (part, FromIndex(split.length)), torch.int64)
    return Apply("add", (begin, place), torch.int64)
