"""Decides which nests are fused into one kernel.

A nest joins an earlier group if both loop over the same points, so that it need not load what the group has computed. A pointwise
nest joins a reduction on all of its axes, or on the kept ones. Axes are split until both sides agree, so that every index stays
affine.

Counterpart: torch/_inductor/scheduler.py
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch

from refimpl.codegen.configurations import WIDEST_ROWS
from refimpl.codegen.indices import ONE, affine_terms, divides, product
from refimpl.codegen.loop_ir import (
    FOLDED_KINDS,
    Attention,
    Axis,
    Extern,
    Nest,
    Step,
    Tiled,
    Write,
    buffers_made,
    new_axis,
)
from refimpl.codegen.loop_simplification import can_merge, index_expressions, reindexed_nest
from refimpl.codegen.scalars import Load, draws, walk

MAX_NESTS = 40
MAX_BUFFERS = 24
# A random draw is ten rounds of products, which compilers reorder freely: several draws use up all registers.
MAX_DRAWS = 2
# No pointwise nests join a reduction over more than LONG_REDUCTION values to fewer than FEW_RESULTS results: a handful of
# programs would do all of the work.
LONG_REDUCTION = 8192
FEW_RESULTS = 64

# Rows and columns are reduced in one kernel without splitting only up to this many points.
FEW_POINTS = 32768

# Kernels over at most this many points share a launch even if they share no buffer.
SMALL_KERNEL = 1 << 21

# The value of symbolic sizes in heuristics. Results do not depend on it.
GUESSED_SIZE = 128


@dataclass(frozen=True)
class Group:
    """Nests of one kernel, on common axes. `order` has all axes, `reduced` the ones that reductions loop over.

    A kernel may reduce rows and columns of the same points. Then `reduced` are the axes along rows, and `carried` the axes before
    them, over which the columns are reduced: a program loops over its rows and carries a result for each column.
    """

    nests: tuple[Nest, ...]
    order: tuple[Axis, ...]
    reduced: frozenset[sympy.Symbol]
    carried: frozenset[sympy.Symbol] = frozenset()

    @property
    def device(self) -> torch.device:
        return self.nests[0].target.device

    @property
    def kept_axes(self) -> tuple[Axis, ...]:
        return tuple(axis for axis in self.order if axis.symbol not in self.reduced)

    @property
    def reduced_axes(self) -> tuple[Axis, ...]:
        return tuple(axis for axis in self.order if axis.symbol in self.reduced)

    @property
    def carried_axes(self) -> tuple[Axis, ...]:
        return tuple(axis for axis in self.order if axis.symbol in self.carried)

    @property
    def outer_axes(self) -> tuple[Axis, ...]:
        """Kept axes without the carried ones."""
        return tuple(axis for axis in self.kept_axes if axis.symbol not in self.carried)

    def is_carried(self, nest: Nest) -> bool:
        """Whether a nest of this group reduces columns, in a group that reduces rows."""
        return any(axis.symbol in self.carried for axis in nest.reduced)

    @property
    def contraction(self) -> Nest | None:
        """The nest that is a matrix product; there is at most one."""
        return next((nest for nest in self.nests if nest.reduction is not None and nest.reduction.is_dot), None)

    def produces(self) -> dict[str, Nest]:
        """The nest that fills each buffer."""
        return self._produced

    @functools.cached_property
    def _produced(self) -> dict[str, Nest]:
        return {nest.target.name: nest for nest in self.nests if nest.write == "whole"}

    def changes(self) -> dict[str, Write]:
        """Buffers that the group writes in part, and how."""
        return {nest.target.name: nest.write for nest in self.nests if nest.write != "whole"}

    def reads(self) -> frozenset[str]:
        """Names of the buffers that are loaded, those of this group included."""
        return self._read

    @functools.cached_property
    def draws(self) -> frozenset[int]:
        """The numbers of its random draws."""
        return frozenset[int]().union(*(draws(*nest.scalars()) for nest in self.nests))

    @functools.cached_property
    def _read(self) -> frozenset[str]:
        return frozenset[str]().union(*(nest.reads() for nest in self.nests))


@dataclass(frozen=True)
class ScheduledKernel:
    """A group, with the buffers that must be stored in memory."""

    group: Group
    stored: frozenset[str]


Scheduled = ScheduledKernel | Extern | Attention | Tiled


def schedule(steps: Sequence[Step], needed: Iterable[str]) -> list[Scheduled]:
    """Groups nests, in an order that respects dependences on each other and on calls. `needed` are buffers that outlive the
    graph."""
    entries: list[Group | Extern | Attention | Tiled] = []
    for step in steps:
        if not isinstance(step, Nest):
            entries.append(step)
            continue
        group = group_of(step)
        at, joined = _place(entries, group)
        if joined is None:
            entries.append(group)
        else:
            entries[at] = joined
    needed = set(needed)
    readers: dict[str, set[int]] = {}
    for position, entry in enumerate(entries):
        for name in entry.reads() | entry.changes().keys() if isinstance(entry, Group) else entry.reads:
            readers.setdefault(name, set()).add(position)
    scheduled: list[Scheduled] = []
    for position, entry in enumerate(entries):
        if not isinstance(entry, Group):
            scheduled.append(entry)
            continue
        targets = entry.produces().keys() | entry.changes().keys()
        stored = frozenset(name for name in targets if name in needed or readers.get(name, set()) - {position})
        if stored:
            scheduled.append(ScheduledKernel(entry, stored))
    return scheduled


def group_of(nest: Nest) -> Group:
    """The group of a single nest."""
    return Group((nest,), nest.order, frozenset(axis.symbol for axis in nest.reduced))


def _place(entries: list[Group | Extern | Attention | Tiled], new: Group) -> tuple[int, Group | None]:
    """Finds the last entry that the new group can join without passing one that it depends on. A buffer that is written in part
    is complete after the last kernel that writes to it, and such a kernel starts after the one that fills the buffer."""
    reads, changes = new.reads(), new.changes()
    uses = reads | changes.keys()
    for position in range(len(entries) - 1, -1, -1):
        entry = entries[position]
        if not isinstance(entry, Group):
            made = {buffer.name for buffer in buffers_made(entry)}
            if uses & made or (isinstance(entry, Extern) and entry.writes):
                return -1, None
            continue
        made_here, changed_here = entry.produces().keys(), entry.changes()
        is_before = changes.keys() & made_here or any(
            name in reads or changes[name] != changed_here[name] for name in uses & changed_here.keys()
        )
        shares = reads & (entry.reads() | made_here)
        joined = _joined(entry, new) if not is_before and (shares or _are_alike(entry, new)) else None
        if joined is not None:
            return position, joined
        if uses & (made_here | changed_here.keys()):
            return -1, None
    return -1, None


def _are_alike(group: Group, new: Group) -> bool:
    """Whether two kernels that share no buffer are so small, over the same points, that one launch is faster."""
    mine, others = ([(axis.size, axis.symbol in one.reduced) for axis in one.order] for one in (group, new))
    return mine == others and guess(product(size for size, _ in mine)) <= SMALL_KERNEL


def _joined(group: Group, new: Group) -> Group | None:
    if group.device != new.device or len(group.nests) + len(new.nests) > MAX_NESTS:
        return None
    if len(group.reads() | new.reads() | group.produces().keys()) > MAX_BUFFERS:
        return None
    if group.draws and new.draws and len(group.draws | new.draws) > MAX_DRAWS:
        return None
    for mine, others in _pairings(group, new):
        refined = refine(mine, others)
        if refined is None:
            continue
        joined = _on_axes(group, new, refined, mine, others)
        if joined is not None:
            return joined
    return None


def _pairings(group: Group, new: Group) -> list[tuple[tuple[Axis, ...], tuple[Axis, ...]]]:
    """Lists which axes of one group may be which axes of the other."""
    if new.contraction is not None:
        return []
    if group.contraction is not None:
        return [] if new.reduced or new.changes() else _in_memory_order(group, new)
    if bool(group.reduced) == bool(new.reduced):
        return [(group.order, new.order)]
    if group.reduced:
        return [*([(group.order, new.order)] if _is_shareable(group) else []), (group.kept_axes, new.order)]
    return [*([(group.order, new.order)] if _is_shareable(new) else []), (group.order, new.kept_axes)]


def _in_memory_order(group: Group, new: Group) -> list[tuple[tuple[Axis, ...], tuple[Axis, ...]]]:
    """Kept axes of a contraction, and axes of the nest that loads its result, both sorted by stride in the result."""
    made = group.produces()
    load = next(
        (part for nest in new.nests for part in walk(nest.value) if isinstance(part, Load) and part.buffer in made),
        None,
    )
    if load is None:
        return []
    kept, others = _by_steps(group.kept_axes, made[load.buffer].index), _by_steps(new.order, load.index)
    return [] if kept is None or others is None else [(kept, others)]


def _by_steps(axes: Sequence[Axis], index: sympy.Expr) -> tuple[Axis, ...] | None:
    terms = affine_terms(index, frozenset(axis.symbol for axis in axes))
    if terms is None:
        return None
    steps, _ = terms
    return tuple(sorted(axes, key=lambda axis: -guess(steps.get(axis.symbol, sympy.S.Zero))))


def _is_shareable(group: Group) -> bool:
    reduced = guess(product(axis.size for axis in group.reduced_axes))
    kept = guess(product(axis.size for axis in group.kept_axes))
    return reduced <= LONG_REDUCTION or kept >= FEW_RESULTS


def guess(size: sympy.Expr) -> int:
    """A size with a guess for its symbols. If equal guesses divide by zero, the result is a guess too."""
    guessed: Any = size.xreplace({symbol: sympy.Integer(GUESSED_SIZE) for symbol in size.free_symbols})
    return int(guessed) if guessed.is_Integer else GUESSED_SIZE


@dataclass(frozen=True)
class Refined:
    """Axes common to two groups after splitting, and each old axis as an expression of them."""

    axes: tuple[Axis, ...]
    first: dict[sympy.Symbol, Any]
    second: dict[sympy.Symbol, Any]
    parts_of_first: dict[sympy.Symbol, tuple[Axis, ...]]
    parts_of_second: dict[sympy.Symbol, tuple[Axis, ...]]


def refine(first: Sequence[Axis], second: Sequence[Axis]) -> Refined | None:
    """Splits two lists of axes with equally many points into common axes, each list read as one contiguous run. None if there are
    none."""
    pieces: list[Axis] = []
    parts: tuple[dict[Axis, list[Axis]], dict[Axis, list[Axis]]] = (
        {axis: [] for axis in first},
        {axis: [] for axis in second},
    )
    stacks = (list(first), list(second))
    rests: list[sympy.Expr] = [ONE, ONE]
    current: list[Axis | None] = [None, None]
    while True:
        for side in (0, 1):
            while rests[side] == ONE and stacks[side]:
                next_axis = stacks[side].pop()
                current[side], rests[side] = next_axis, next_axis.size
        if rests[0] == ONE and rests[1] == ONE:
            break
        piece = _piece(rests[0], rests[1])
        if piece is None:
            return None
        whole_axis = next((axis for axis in current if axis is not None and axis.size == piece), None)
        made = whole_axis if whole_axis is not None else new_axis(piece)
        pieces.append(made)
        for side in (0, 1):
            axis = current[side]
            assert axis is not None
            parts[side][axis].append(made)
            rests[side] = sympy.Integer(1) if rests[side] == piece else rests[side] / piece
    pieces.reverse()
    first_parts, second_parts = ({axis.symbol: tuple(made) for axis, made in of.items()} for of in parts)
    return Refined(tuple(pieces), _places(first_parts), _places(second_parts), first_parts, second_parts)


def _places(parts: dict[sympy.Symbol, tuple[Axis, ...]]) -> dict[sympy.Symbol, Any]:
    return {symbol: _place_of(made) for symbol, made in parts.items()}


def _piece(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr | None:
    if a == b:
        return a
    if a == ONE or b == ONE:
        return None
    if divides(a, b):
        return a
    return b if divides(b, a) else None


def _place_of(parts: Sequence[Axis]) -> sympy.Expr:
    """Parts are ordered innermost first."""
    place: sympy.Expr = sympy.S.Zero
    step: sympy.Expr = ONE
    for axis in parts:
        place = place + axis.symbol * step
        step = step * axis.size
    return place


def _on_axes(group: Group, new: Group, refined: Refined, mine: Sequence[Axis], others: Sequence[Axis]) -> Group | None:
    """Both groups on the common axes. None unless kept and reduced axes agree, and every load of a value of the first has the
    index it was written at."""
    order = _spread(group.order, refined.parts_of_first) if len(mine) == len(group.order) else None
    if order is None:  # the new group runs on the kept axes of this one
        order = _spread(group.order, {**{axis.symbol: (axis,) for axis in group.order}, **refined.parts_of_first})
    elif len(others) < len(new.order):
        order = _spread(new.order, {**{axis.symbol: (axis,) for axis in new.order}, **refined.parts_of_second})
    mine_reduced, new_reduced = (
        _reduced(group.reduced, refined.parts_of_first),
        _reduced(new.reduced, refined.parts_of_second),
    )
    carried = _reduced(group.carried, refined.parts_of_first)
    reduced = mine_reduced | new_reduced
    if mine_reduced and new_reduced and mine_reduced != new_reduced:
        positions = {axis.symbol: at for at, axis in enumerate(order)}
        if new_reduced != carried:
            if carried:
                return None
            reduced, carried = sorted(
                (mine_reduced, new_reduced), key=lambda axes: -max(positions[axis] for axis in axes)
            )
        else:
            reduced = mine_reduced
    sizes = {axis.symbol: axis.size for axis in order}
    nests = [_moved(nest, refined.first, refined.parts_of_first, sizes) for nest in group.nests]
    made = {nest.target.name: nest for nest in nests if nest.write == "whole"}
    for nest in new.nests:
        moved = _moved(nest, refined.second, refined.parts_of_second, sizes)
        for part in walk(*moved.scalars()):
            if not isinstance(part, Load) or part.buffer not in made:
                continue
            if part.indirect or part.index != made[part.buffer].index:
                return None
        nests.append(moved)
        if moved.write == "whole":
            made[moved.target.name] = moved
    joined = Group(tuple(nests), order, reduced, carried)
    return joined if not carried or can_carry(joined) else None


def can_carry(group: Group) -> bool:
    """Whether one kernel can reduce rows and columns: rows fit in a block and are innermost, the kernel does not load results of
    columns, and the columns are split among programs or have few points."""
    all_axes, kept = frozenset(axis.symbol for axis in group.order), frozenset(axis.symbol for axis in group.kept_axes)
    in_order = (*group.outer_axes, *group.carried_axes, *group.reduced_axes)
    width = product(axis.size for axis in group.reduced_axes)
    points = guess(product(axis.size for axis in group.order))
    if group.order != in_order or not width.is_Integer or width > WIDEST_ROWS:
        return False
    if group.changes() or (not group.outer_axes and points > FEW_POINTS):
        return False
    columns = {nest.target.name for nest in group.nests if group.is_carried(nest)}
    for nest in group.nests:
        if frozenset(axis.symbol for axis in nest.order) not in (all_axes, kept) or nest.reads() & columns:
            return False
        if nest.target.name in columns and nest.reduction is not None and nest.reduction.kind not in FOLDED_KINDS:
            return False
    return True


def _spread(order: Sequence[Axis], parts: dict[sympy.Symbol, tuple[Axis, ...]]) -> tuple[Axis, ...]:
    return tuple(part for axis in order for part in reversed(parts[axis.symbol]))


def _reduced(reduced: frozenset[sympy.Symbol], parts: dict[sympy.Symbol, tuple[Axis, ...]]) -> frozenset[sympy.Symbol]:
    return frozenset(
        part.symbol if part is not None else symbol for symbol in reduced for part in parts.get(symbol, (None,))
    )


def _moved(
    nest: Nest,
    replacements: dict[sympy.Symbol, Any],
    parts: dict[sympy.Symbol, tuple[Axis, ...]],
    sizes: dict[sympy.Symbol, sympy.Expr],
) -> Nest:
    def spread(axes: Sequence[Axis]) -> tuple[Axis, ...]:
        return tuple(part for axis in axes for part in reversed(parts.get(axis.symbol, (axis,))))

    moved = replace(nest, axes=spread(nest.axes), reduced=spread(nest.reduced), order=spread(nest.order))
    changed = {symbol: place for symbol, place in replacements.items() if symbol != place}
    return reindexed_nest(moved, changed, sizes) if changed else moved


def merged(group: Group) -> Group:
    """The group on as few axes as all of its nests allow."""
    while True:
        expressions = [e for nest in group.nests for e in index_expressions(nest)]
        lists = (group.outer_axes, group.carried_axes, group.reduced_axes)
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
        reduced, carried = (
            frozenset(joined.symbol if s == inner.symbol else s for s in symbols if s != outer.symbol)
            for symbols in (group.reduced, group.carried)
        )
        group = Group(tuple(nests), order, reduced, carried)
