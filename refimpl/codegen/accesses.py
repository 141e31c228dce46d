"""Memory accesses of a group of loop nests: how many bytes each one moves, and along which axis it is contiguous."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import sympy
import torch

from refimpl.codegen.indices import ONE, affine_terms, product
from refimpl.codegen.loop_ir import Axis
from refimpl.codegen.scalars import Load, Scalar, walk
from refimpl.codegen.schedule import Group, guess

# Accesses of fewer bytes than an eighth of the largest one do not influence the order of axes.
_SMALL = 8


@dataclass(frozen=True)
class Access:
    """Loads from or stores to a buffer at one index. `axes` are the axes that the index depends on."""

    buffer: str
    index: sympy.Expr
    axes: tuple[Axis, ...]
    dtype: torch.dtype
    is_store: bool

    @property
    def bytes(self) -> sympy.Expr:
        """Bytes of all elements that are reached, each counted once."""
        return product(axis.size for axis in self.axes) * self.dtype.itemsize

    def strides(self) -> dict[sympy.Symbol, sympy.Expr] | None:
        """The stride along every axis. None if the index is not affine in them."""
        terms = affine_terms(self.index, frozenset(axis.symbol for axis in self.axes))
        return None if terms is None else terms[0]

    def unit_axis(self) -> Axis | None:
        """The axis along which the access is contiguous."""
        strides = self.strides() or {}
        return next((axis for axis in self.axes if strides.get(axis.symbol) in (ONE, -ONE)), None)


def accesses(group: Group, stored: Iterable[str]) -> list[Access]:
    """Loads from memory, once for each index, and stores of the buffers in `stored`. Values that the group computes itself are
    not loads from memory."""
    made = group.produces()
    stores = [
        Access(nest.target.name, nest.index, _axes_in(nest.index.free_symbols, group.order), nest.target.dtype, True)
        for nest in group.nests
        if nest.target.name in set(stored)
    ]
    loads: dict[tuple[str, sympy.Expr, tuple[Axis, ...]], Access] = {}
    for nest in group.nests:
        for part in walk(*nest.scalars()):
            if isinstance(part, Load) and part.buffer not in made:
                axes = _axes_in(_symbols(part), group.order)
                loads.setdefault(
                    (part.buffer, part.index, axes), Access(part.buffer, part.index, axes, part.dtype, False)
                )
    return [*stores, *loads.values()]


def _symbols(load: Load) -> set[sympy.Basic]:
    """All symbols that the address depends on, those of indirect indices included."""
    found = set(load.index.free_symbols)
    for _, value in load.indirect:
        found |= _symbols_of(value)
    return found


def _symbols_of(value: Scalar) -> set[sympy.Basic]:
    found: set[sympy.Basic] = set()
    for part in walk(value):
        index = getattr(part, "index", None)
        if index is not None:
            found |= index.free_symbols
    return found


def _axes_in(symbols: Iterable[sympy.Basic], order: Sequence[Axis]) -> tuple[Axis, ...]:
    found = set(symbols)
    return tuple(axis for axis in order if axis.symbol in found)


def large(found: Sequence[Access]) -> list[Access]:
    """Accesses that matter for speed, the largest first. Among equally large ones stores come first."""
    ordered = sorted(found, key=lambda access: -guess(access.bytes))
    return [access for access in ordered if guess(access.bytes) * _SMALL >= guess(ordered[0].bytes)]


def in_memory_order(group: Group, stored: Iterable[str]) -> Group:
    """Returns the group with its kept axes, and its reduced axes, in the order that the largest access has in memory. The reduced
    axes stay in place for argmax, argmin and scans, whose results depend on their order."""
    if group.carried:  # their order is fixed already
        return group
    important = large(accesses(group, stored))
    strides = next((s for s in (access.strides() for access in important) if s), None)
    if strides is None:
        return group
    has_places = any(nest.reduction is not None and nest.reduction.kind in ("argmax", "argmin") for nest in group.nests)
    has_scan = any(nest.reduction is not None and nest.reduction.is_scan for nest in group.nests)
    kept = _by_stride(group.kept_axes, strides)
    reduced = group.reduced_axes if has_places or has_scan else _by_stride(group.reduced_axes, strides)
    lists = {True: iter(reduced), False: iter(kept)}
    return replace(group, order=tuple(next(lists[axis.symbol in group.reduced]) for axis in group.order))


def _by_stride(axes: tuple[Axis, ...], strides: dict[sympy.Symbol, sympy.Expr]) -> tuple[Axis, ...]:
    """Sorts axes by stride, the outermost first. Axes that the access does not depend on keep their positions."""
    moving = [axis for axis in axes if axis.symbol in strides]
    ordered = iter(sorted(moving, key=lambda axis: -abs(guess(strides[axis.symbol]))))
    return tuple(next(ordered) if axis.symbol in strides else axis for axis in axes)


def tile_split(group: Group, stored: Iterable[str], shortest: int) -> int | None:
    """How many axes of a pointwise group go into the first of two block dimensions, so that each of the dimensions is contiguous
    in some large access (as in a transposition). None if one dimension suffices."""
    order = group.order
    if not order:
        return None
    position = {axis.symbol: at for at, axis in enumerate(order)}
    found: dict[int, int] = {}
    for access in large(accesses(group, stored)):
        unit = access.unit_axis()
        if unit is not None and order[-1] in access.axes and guess(unit.size) >= shortest:
            found[position[unit.symbol]] = found.get(position[unit.symbol], 0) + guess(access.bytes)
    inner = len(order) - 1
    others = [at for at in found if at != inner]
    if not others or guess(order[inner].size) < shortest or inner not in found:
        return None
    return max(others, key=lambda at: (found[at], at)) + 1
