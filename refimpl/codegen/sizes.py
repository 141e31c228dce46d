"""What is known of symbolic sizes where a graph is compiled: ranges, which are proofs, and hints, which are guesses.

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

_UNHINTED = 128  # where there is no hint, for choices of speed only


@dataclass(frozen=True)
class GivenNumbers:
    """Numbers that are known although some symbol in them is not, with their names or values; and what such symbols are by these
    names, by symbols that are known, and by symbols that drop out of whatever follows from these numbers."""

    names: Mapping[sympy.Expr, sympy.Expr] = field(default_factory=dict)
    solved: Mapping[sympy.Symbol, sympy.Expr] = field(default_factory=dict)

    def __contains__(self, number: sympy.Expr) -> bool:
        return number in self.names

    def by_names(self, expr: Any) -> Any:
        """The same number, in which these symbols are solved for."""
        if not expr.free_symbols & self.solved.keys():
            return expr
        named = expr.xreplace(dict(self.names))
        return named.xreplace(dict(self.solved)).expand() if named.free_symbols & self.solved.keys() else named


def solved_for(names: Mapping[sympy.Expr, sympy.Expr], known: Set[sympy.Basic]) -> GivenNumbers:
    """Of numbers with one name each: a symbol of each number that is one times such a symbol, plus others."""
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
    """`ranges` and `hints` by symbol. Without a range a size is any number that is not negative."""

    ranges: Mapping[sympy.Symbol, Range] = field(default_factory=dict)
    hints: Mapping[sympy.Symbol, int] = field(default_factory=dict)
    given: GivenNumbers = GivenNumbers()

    def guess(self, size: sympy.Expr) -> int:
        """What a size may be, for choices of speed only."""
        hints = {
            s: sympy.Integer(self.hints.get(s, _UNHINTED)) for s in size.free_symbols if isinstance(s, sympy.Symbol)
        }
        guessed: Any = size.xreplace(hints)
        return int(guessed)

    def range_of(self, expr: sympy.Expr, axes: Iterable[Axis] = ()) -> Range:
        """Of an expression of sizes and of places on axes."""
        places = {axis.symbol: Range(0, max(self.range_of(axis.size).upper - 1, 0)) for axis in axes}
        return bound(expr, {**self.ranges, **places})

    def fits_int32(self, expr: sympy.Expr, axes: Iterable[Axis] = ()) -> bool:
        """Whether it is proved to be an int32."""
        return self.range_of(expr, axes).is_subset_of(Range(-MAX_INT32 - 1, MAX_INT32))

    def extent(self, buffer: Buffer) -> Range:
        """Of the last place of a buffer, counted from its first."""
        steps = ((size - 1) * stride for size, stride in zip(buffer.shape, buffer.strides, strict=True))
        return self.range_of(sum(steps, ZERO))


NO_FACTS = SizeFacts()


def facts_of(values: Iterable[Any]) -> SizeFacts:
    """Of the symbols in fake tensors and symbolic numbers."""
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
    """A bound, which may be a number of Python's or of sympy's."""
    if isinstance(value, int):
        return value
    return int(value) if getattr(value, "is_Integer", False) else otherwise
