"""The symbols of a ShapeEnv: their hints, sources, ranges and replacements.

Counterpart: the symbol tables of torch/fx/experimental/symbolic_shapes.py ShapeEnv
Differs: replacements contain no replaced symbols, so that one pass applies them; symbols are numbered in order (s0, s1, ..., u0).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import sympy

from refimpl._torch import TorchValueRanges
from refimpl.symbolic.facts import FactState
from refimpl.symbolic.functions import is_condition, is_constant, to_number
from refimpl.symbolic.guards import evaluate
from refimpl.symbolic.operations import relation, substitute
from refimpl.symbolic.polynomials import divide_terms, from_terms
from refimpl.symbolic.ranges import INFINITY, Range
from refimpl.symbolic.sources import Source


class RangesForTorch(Mapping[sympy.Symbol, Any]):
    """The ranges of the symbols as torch's ValueRanges, for torch's fake kernels."""

    def __init__(self, facts: FactState) -> None:
        self._facts = facts

    def __getitem__(self, symbol: sympy.Symbol) -> Any:
        found = self._facts.ranges[symbol]
        lower = -sympy.oo if found.lower == -INFINITY else sympy.sympify(found.lower)
        upper = sympy.oo if found.upper == INFINITY else sympy.sympify(found.upper)
        if symbol.is_integer and lower == -sympy.oo:
            unknown = TorchValueRanges.unknown_int()
            return unknown if upper == sympy.oo else unknown & TorchValueRanges(unknown.lower, upper)
        return TorchValueRanges(lower, upper)

    def __iter__(self) -> Iterator[sympy.Symbol]:
        return iter(self._facts.ranges)

    def __len__(self) -> int:
        return len(self._facts.ranges)


class SymbolState:
    """The part of ShapeEnv that holds symbols, hints and replacements."""

    def __init__(self) -> None:
        self.facts = FactState()
        self.backed_var_to_val: dict[sympy.Symbol, sympy.Basic] = {}
        self.real_tensor_prop_unbacked_vals: dict[sympy.Symbol, sympy.Basic] = {}
        self.var_to_sources: dict[sympy.Symbol, list[Source]] = {}
        self.source_to_var: dict[str, sympy.Symbol] = {}
        self.replacements: dict[sympy.Symbol, sympy.Basic] = {}
        self.replacements_version = 0
        self.unbacked: dict[sympy.Symbol, int] = {}  # symbol -> order of creation
        self._order: dict[sympy.Symbol, int] = {}
        self._values: dict[sympy.Symbol, Any] = {}  # backed_var_to_val as Python numbers
        self._replaced: dict[sympy.Basic, sympy.Basic] = {}
        self._hints: dict[sympy.Basic, Any] = {}
        # Caches of SymNodes without origin: by operation, type and operand expressions; constants by value.
        self.made: dict[Any, Any] = {}
        self.int_nodes: dict[int, Any] = {}

    # --------------------------------------------------------------------------------------------- expressions

    def replace(self, expr: Any) -> Any:
        """The expression with the known replacements applied."""
        if not self.replacements:
            return expr
        found = self._replaced.get(expr)
        if found is None:
            found = self._replaced[expr] = substitute(expr, self.replacements)
        return found

    def simplify(self, expr: Any, size_oblivious: bool = False) -> Any:
        """`replace`; a condition that the facts decide becomes true or false."""
        replaced = self.replace(expr)
        if not is_condition(replaced):
            return replaced
        value = self.facts.decide(replaced)
        return replaced if value is None else sympy.true if value else sympy.false

    def has_unbacked(self, expr: sympy.Basic) -> bool:
        return bool(self.unbacked) and any(s in self.unbacked for s in expr.free_symbols)

    def is_unbacked_symint(self, symbol: sympy.Symbol) -> bool:
        return symbol in self.unbacked

    def hint_of(self, expr: sympy.Basic, pytype: type) -> Any:
        """The value in the run being traced; None if it depends on unbacked symbols or divides by 0."""
        if is_constant(expr):
            return pytype(to_number(expr))
        if expr in self._hints:
            return self._hints[expr]
        value = None
        if all(s in self._values for s in expr.free_symbols):
            with contextlib.suppress(ZeroDivisionError):
                value = pytype(evaluate(expr, self._values))
        self._hints[expr] = value
        return value

    # ------------------------------------------------------------------------------------------------- symbols

    def _register(self, symbol: sympy.Symbol, found: Range) -> None:
        self._order[symbol] = len(self._order)
        self.facts.ranges[symbol] = found

    def add_backed_var_to_val(self, expr: sympy.Symbol, val: int) -> None:
        """Set the hint of a symbol that the caller made."""
        assert expr not in self.backed_var_to_val, f"{expr} already has a value"
        if expr not in self._order:
            self._register(expr, Range(-INFINITY, INFINITY))
        self.backed_var_to_val[expr] = sympy.sympify(val)
        self._values[expr] = val
        self._hints.clear()

    add_var_to_val = add_backed_var_to_val

    @property
    def var_to_val(self) -> dict[sympy.Symbol, sympy.Basic]:
        return self.backed_var_to_val

    @property
    def size_like(self) -> set[sympy.Symbol]:
        return self.facts.size_like

    @property
    def var_to_range(self) -> Mapping[sympy.Symbol, Any]:
        return RangesForTorch(self.facts)

    # -------------------------------------------------------------------------------------------- replacements

    def learn(self, condition: sympy.Basic) -> None:
        """Take a condition as true, and replace the symbols it determines."""
        narrowed = self.facts.learn(condition)
        parts = condition.args if isinstance(condition, sympy.And) else (condition,)
        for part in parts:
            if isinstance(part, sympy.Eq):
                self._solve(part)
        for symbol in sorted(narrowed, key=self._order.__getitem__):
            found = self.facts.ranges[symbol]
            if found.is_singleton() and symbol not in self.replacements:
                self.set_replacement(symbol, sympy.Integer(found.lower))

    def _solve(self, equation: sympy.Eq) -> None:
        """Solve an equation for one symbol and replace it. Unbacked symbols are replaced first, the newest of them, so that the
        solution has older symbols. Only a symbol with coefficient 1 or -1 is replaced: the solution is then an integer."""
        equation = self.replace(equation)
        if not isinstance(equation, sympy.Eq):
            return
        left, right = equation.args
        if not (left.is_integer and right.is_integer):
            return
        terms = self.facts.difference(equation)
        terms = divide_terms(terms, (), math.gcd(*(c for _, c in terms)) or 1) or terms
        candidates: list[tuple[Any, int]] = [
            (monomial[0][0], coefficient)
            for monomial, coefficient in terms
            if len(monomial) == 1 and monomial[0][1] == 1 and coefficient in (1, -1) and monomial[0][0] in self._order
        ]
        candidates.sort(key=lambda c: (c[0] in self.unbacked, self._order[c[0]]), reverse=True)
        for symbol, coefficient in candidates:
            rest = from_terms(tuple(t for t in terms if t[0] != ((symbol, 1),)))
            solution = -rest if coefficient == 1 else rest
            if symbol not in solution.free_symbols:
                self.set_replacement(symbol, solution)
                return

    def set_replacement(self, symbol: sympy.Symbol, expr: Any) -> None:
        """Replace the symbol by the expression from now on."""
        expr = self.replace(expr)
        if expr == symbol or symbol in expr.free_symbols:
            return
        if symbol in self.replacements:
            self.learn(relation(sympy.Eq, self.replacements[symbol], expr))
            return
        for other, old in self.replacements.items():
            if symbol in old.free_symbols:
                self.replacements[other] = substitute(old, {symbol: expr})
        self.replacements[symbol] = expr
        self.replacements_version += 1
        self._replaced.clear()
        self._carry_over_facts(symbol, expr)

    def _carry_over_facts(self, symbol: sympy.Symbol, expr: sympy.Basic) -> None:
        """Learn the facts about the symbol for the expression that replaces it."""
        found = self.facts.ranges.get(symbol)
        self.facts.changed()
        if found is not None and not is_constant(expr):
            if found.lower != -INFINITY:
                self.learn(relation(sympy.Ge, expr, sympy.Integer(found.lower)))
            if found.upper != INFINITY:
                self.learn(relation(sympy.Le, expr, sympy.Integer(found.upper)))
        if found is not None:
            new = self.facts.range_of(expr)
            if new.is_subset_of(found):
                self.facts.ranges[symbol] = new
        if symbol in self.facts.size_like and expr.is_Symbol:
            self.facts.size_like.add(expr)  # pyright: ignore[reportArgumentType]
        for condition, holds in list(self.facts.known.items()):
            if holds and symbol in condition.free_symbols:
                self.learn(self.replace(condition))
