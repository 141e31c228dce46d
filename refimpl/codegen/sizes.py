"""Facts about symbolic sizes at compile time: ranges, which prove, and hints, which guess.

Counterpart: torch/_inductor/sizevars.py SizeVarAllocator
Differs: ranges only prove, hints only choose; neither adds a guard.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, cast

import sympy
import torch

from refimpl._torch import pytree
from refimpl.codegen.indices import ZERO
from refimpl.codegen.loop_ir import Axis, Buffer
from refimpl.symbolic.ranges import INFINITY, Range, bound

MAX_INT32 = 2**31 - 1

_UNHINTED = 128  # the hint of symbols without one, for heuristics


@dataclass(frozen=True)
class GivenNumbers:
    """Expressions whose value is read at run time although one of their symbols is unknown, with the names of these values.
    `solved` expresses such symbols by names and known symbols. Symbols left in it cancel out."""

    names: Mapping[sympy.Expr, sympy.Expr] = field(default_factory=dict)
    solved: Mapping[sympy.Symbol, sympy.Expr] = field(default_factory=dict)

    def __contains__(self, number: sympy.Expr) -> bool:
        return number in self.names

    def by_names(self, expr: Any) -> Any:
        """The expression in terms of the names."""
        if not expr.free_symbols & self.solved.keys():
            return expr
        named = expr.xreplace(dict(self.names))
        return named.xreplace(dict(self.solved)).expand() if named.free_symbols & self.solved.keys() else named


def solved_for(names: Mapping[sympy.Expr, sympy.Expr], known: Set[sympy.Basic]) -> GivenNumbers:
    """Solves named expressions for a symbol each, if its factor is 1 or -1."""
    solved: dict[sympy.Symbol, sympy.Expr] = {}
    for number, name in names.items():
        left: Any = number
        left = left.xreplace(solved).expand()
        for symbol in sorted(left.free_symbols - known, key=str):
            factor = left.coeff(symbol)
            rest = (left - factor * symbol).expand()
            if factor in (1, -1) and symbol not in rest.free_symbols:
                value = (factor * (name - rest)).expand()
                solved = {
                    **{one: cast(Any, of).xreplace({symbol: value}).expand() for one, of in solved.items()},
                    symbol: value,
                }
                break
    return GivenNumbers(names, solved)


@dataclass(frozen=True)
class SizeFacts:
    """Ranges and hints by symbol. A size without a range is any nonnegative number."""

    ranges: Mapping[sympy.Symbol, Range] = field(default_factory=dict)
    hints: Mapping[sympy.Symbol, int] = field(default_factory=dict)
    given: GivenNumbers = GivenNumbers()

    def guess(self, size: sympy.Expr) -> int:
        """A likely value of a size, for heuristics."""
        hints = {
            s: sympy.Integer(self.hints.get(s, _UNHINTED)) for s in size.free_symbols if isinstance(s, sympy.Symbol)
        }
        guessed: Any = size.xreplace(hints)
        return int(guessed)

    def range_of(self, expr: sympy.Expr, axes: Iterable[Axis] = ()) -> Range:
        """The range of an expression of sizes and axes."""
        places = {axis.symbol: Range(0, max(self.range_of(axis.size).upper - 1, 0)) for axis in axes}
        return bound(expr, {**self.ranges, **places})

    def fits_int32(self, expr: sympy.Expr, axes: Iterable[Axis] = ()) -> bool:
        """Whether the expression provably fits an int32."""
        return self.range_of(expr, axes).is_subset_of(Range(-MAX_INT32 - 1, MAX_INT32))

    def extent(self, buffer: Buffer) -> Range:
        """The range of the offset of a buffer's last element from its first."""
        steps = ((size - 1) * stride for size, stride in zip(buffer.shape, buffer.strides, strict=True))
        return self.range_of(sum(steps, ZERO))


NO_FACTS = SizeFacts()


def facts_of(values: Iterable[Any]) -> SizeFacts:
    """Collects the facts about symbols in fake tensors and symbolic numbers."""
    ranges: dict[sympy.Symbol, Range] = {}
    hints: dict[sympy.Symbol, int] = {}
    for value in pytree.tree_leaves(list(values)):
        numbers = (*value.shape, *_strides_of(value)) if isinstance(value, torch.Tensor) else (value,)
        for number in numbers:
            if not isinstance(number, torch.SymInt):
                continue
            node = number.node
            for symbol in node.expr.free_symbols - ranges.keys():
                found = node.shape_env.bound_sympy(symbol)
                ranges[symbol] = Range(_finite(found.lower, -INFINITY), _finite(found.upper, INFINITY))
            if isinstance(node.expr, sympy.Symbol) and node.has_hint():
                hints[node.expr] = int(node.hint)
    return SizeFacts(ranges, hints)


def _strides_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.stride()) if tensor.layout is torch.strided else ()


def _finite(value: Any, otherwise: float) -> int | float:
    """A bound as a Python number; bounds may be ints or sympy numbers."""
    if isinstance(value, int):
        return value
    return int(value) if getattr(value, "is_Integer", False) else otherwise
