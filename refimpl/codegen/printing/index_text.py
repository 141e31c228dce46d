"""Prints index arithmetic as Triton expressions.

Integer division rounds towards zero in Triton and down in Python. A dividend that may be negative is shifted before it is
divided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy

from refimpl.codegen.indices import ONE, affine_terms, is_provably_equal, product
from refimpl.codegen.loop_ir import Axis
from refimpl.codegen.sizes import GivenNumbers
from refimpl.symbolic.functions import FloorDiv, PythonMod
from refimpl.symbolic.ranges import INFINITY, Range, bound


@dataclass
class IndexTextState:
    """Prints indices of one kernel. `symbols` maps axes and indirect indices to their names in the kernel. `sizes` maps numbers
    that are the same for all points to parameters, which are added as they occur; a number of `given` is one parameter. `runs`
    maps names to axes that are contiguous as one run, outermost first. `used` are the names of printed symbols."""

    axes: Sequence[Axis]
    symbols: dict[sympy.Symbol, str] = field(default_factory=dict)
    sizes: dict[sympy.Expr, str] = field(default_factory=dict)
    given: GivenNumbers = GivenNumbers()
    runs: dict[str, tuple[Axis, ...]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def place(self, expr: Any) -> str:
        """An index as text. An index along a whole run uses the run's name, which avoids divisions."""
        for name, axes in self.runs.items():
            expr = self._joined(expr, name, axes)
        return self.text(expr)

    def _joined(self, expr: Any, name: str, axes: tuple[Axis, ...]) -> Any:
        if len(axes) < 2:
            return expr
        terms = affine_terms(expr, frozenset(axis.symbol for axis in axes))
        if terms is None or axes[-1].symbol not in terms[0]:
            return expr
        factors, rest = terms
        innermost = factors[axes[-1].symbol]
        for at, axis in enumerate(axes):
            step = innermost * product(inner.size for inner in axes[at + 1 :])
            if not is_provably_equal(factors.get(axis.symbol, sympy.S.Zero), step):
                return expr
        run = sympy.Symbol(name, integer=True, nonnegative=True)
        self.symbols[run] = name
        return rest + innermost * run

    def factor(self, expr: Any) -> str:
        """Text of an expression as a factor, in parentheses unless it is an atom."""
        text = self.text(expr)
        return text if expr.is_Atom else f"({text})"

    def text(self, expr: Any) -> str:
        """Text of an integer expression."""
        if expr.is_Integer:
            return str(int(expr))
        if expr in self.given:
            return self._size(expr)
        expr = self.given.by_names(expr)
        if expr.is_Symbol:
            known = self.symbols.get(expr)
            if known is None:
                return self._size(expr)
            self.used.add(known)
            return known
        if isinstance(expr, sympy.Add):
            # Sorted by text, because names of axes differ between runs.
            terms = sorted((bool(term.is_number), self._term(term)) for term in expr.args)
            return " + ".join(text for _, text in terms).replace("+ -", "- ")
        if isinstance(expr, sympy.Mul):
            return self._term(expr)
        if isinstance(expr, (FloorDiv, PythonMod)):
            return self._division(expr)
        if isinstance(expr, sympy.Pow) and expr.exp.is_Integer and expr.exp > 0:
            return " * ".join([self.factor(expr.base)] * int(expr.exp))
        return self._size(expr)

    def _division(self, expr: Any) -> str:
        """Triton rounds towards zero, so a dividend that may be negative is shifted by a multiple of the divisor."""
        dividend, divisor = expr.args
        lower = bound(dividend, self._ranges()).lower
        times = 0
        if lower < 0:
            if not divisor.is_Integer or lower == -INFINITY:
                return self._rounded_down(expr)
            times = -(int(lower) // int(divisor))
        text = self.factor((dividend + times * divisor).expand())
        by = self.factor(divisor)
        if isinstance(expr, PythonMod):
            return f"({text} % {by})"
        return f"({text} // {by} - {times})" if times else f"({text} // {by})"

    def _rounded_down(self, expr: Any) -> str:
        dividend, divisor = (self.factor(argument) for argument in expr.args)
        rest = f"(({dividend} % {divisor} + {divisor}) % {divisor})"
        return rest if isinstance(expr, PythonMod) else f"(({dividend} - {rest}) // {divisor})"

    def _ranges(self) -> dict[sympy.Symbol, Range]:
        return {axis.symbol: Range(0, int(axis.size) - 1 if axis.size.is_Integer else INFINITY) for axis in self.axes}

    def _term(self, term: Any) -> str:
        if not isinstance(term, sympy.Mul):
            return self.text(term) if term.is_Atom or not isinstance(term, sympy.Add) else f"({self.text(term)})"
        number, rest = term.as_coeff_Mul()
        factors = list(rest.args) if isinstance(rest, sympy.Mul) else [rest]
        texts = sorted(self.factor(factor) for factor in factors)
        if number == -1:
            return "-" + " * ".join(texts)
        return " * ".join(texts if number == ONE else [*texts, str(int(number))])

    def _size(self, expr: Any) -> str:
        """A number that is the same for all points is a parameter."""
        assert not expr.free_symbols & self.symbols.keys(), expr
        return self.sizes.setdefault(expr, f"size_{expr.name}" if expr.is_Symbol else f"size_{len(self.sizes)}")
