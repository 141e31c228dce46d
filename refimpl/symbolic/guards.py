"""Guards: conditions under which a trace is valid. Records, a printer to Python, and an evaluator.

Counterpart: ShapeGuard, RuntimeAssert, ShapeGuardPythonPrinter of torch/fx/experimental/symbolic_shapes.py
Differs: there is an evaluator besides the printer; tests compare the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import sympy
from sympy.core.relational import Relational
from sympy.printing.str import StrPrinter

from refimpl.symbolic import functions as f
from refimpl.symbolic.operations import COMPARISONS
from refimpl.symbolic.stacks import Stack


class ShapeGuard(NamedTuple):
    """A condition on sizes that held during tracing, and the stack where it was added. A tuple, as upstream's."""

    expr: sympy.Basic
    stack: Stack
    source: str = ""  # file:line of the C++ code that added the guard, if any
    size_oblivious: bool = False

    @property
    def sloc(self) -> str:
        return self.stack.user_line()


@dataclass(frozen=True, slots=True)
class RuntimeAssert:
    """A condition on unbacked symbols, to be checked when the program runs."""

    expr: sympy.Basic
    msg: str
    stack: Stack


class PythonSource(StrPrinter):
    """Prints conditions as Python expressions, with the same value as `evaluate`."""

    printmethod = "_python_source"  # not sympy's `_sympystr`, which prints for people

    def __init__(self, name_of: Callable[[sympy.Symbol], str]) -> None:
        super().__init__({"order": None})
        self._name_of = name_of

    def _print_Symbol(self, expr: sympy.Symbol) -> str:  # noqa: N802
        return self._name_of(expr)

    def _print_Relational(self, expr: Relational) -> str:  # noqa: N802
        return f"{self._side(expr.lhs)} {_RELATION_SIGNS[type(expr)]} {self._side(expr.rhs)}"

    def _side(self, expr: sympy.Basic) -> str:
        text = self._print(expr)
        return f"({text})" if f.is_condition(expr) or isinstance(expr, f.Where) else str(text)

    def _print_And(self, expr: sympy.And) -> str:  # noqa: N802
        return " and ".join(self._operand(a) for a in expr.args)

    def _print_Or(self, expr: sympy.Or) -> str:  # noqa: N802
        return " or ".join(self._operand(a) for a in expr.args)

    def _print_Not(self, expr: sympy.Not) -> str:  # noqa: N802
        return f"not ({self._print(expr.args[0])})"

    def _operand(self, expr: sympy.Basic) -> str:
        text = str(self._print(expr))
        return f"({text})" if isinstance(expr, (sympy.And, sympy.Or, sympy.Not)) else text

    def _print_BooleanTrue(self, expr: sympy.Basic) -> Any:  # noqa: N802
        return "True"

    def _print_BooleanFalse(self, expr: sympy.Basic) -> Any:  # noqa: N802
        return "False"

    def _print_Float(self, expr: sympy.Float) -> str:  # noqa: N802
        return repr(float(expr))

    def _print_Infinity(self, expr: sympy.Basic) -> Any:  # noqa: N802
        return "math.inf"

    def _print_NegativeInfinity(self, expr: sympy.Basic) -> Any:  # noqa: N802
        return "(-math.inf)"

    def _print_NaN(self, expr: sympy.Basic) -> Any:  # noqa: N802
        return "math.nan"

    def _print_ShapeFunction(self, expr: f.ShapeFunction) -> str:  # noqa: N802
        if isinstance(expr, f.VARIADIC):
            return expr.template.format(", ".join(str(self._print(a)) for a in expr.args))
        return expr.template.format(*(self._argument(a) for a in expr.args))

    def _argument(self, expr: sympy.Basic) -> str:
        text = str(self._print(expr))
        bare = expr.is_Symbol or (expr.is_Number and not text.startswith("-")) or text.startswith("(")
        return text if bare and (not text.startswith("(") or isinstance(expr, f.ShapeFunction)) else f"({text})"


_RELATION_SIGNS = {sympy.Eq: "==", sympy.Ne: "!=", sympy.Lt: "<", sympy.Le: "<=", sympy.Gt: ">", sympy.Ge: ">="}

# The globals of printed conditions, besides their sources.
PRINTED_NAMES: dict[str, Any] = {
    "math": math,
    "max": max,
    "min": min,
    "abs": abs,
    "round": round,
    "float": float,
    "is_non_overlapping_and_dense": f.is_non_overlapping_and_dense,
}


def python_source(expr: sympy.Basic, name_of: Callable[[sympy.Symbol], str] = str) -> str:
    """A condition or number as Python source; `name_of` returns the source of a symbol."""
    return str(PythonSource(name_of).doprint(expr))


def evaluate(expr: sympy.Basic, values: Mapping[Any, Any]) -> Any:
    """The value of an expression for values of its symbols, by Python's arithmetic: exact for ints of any size.

    Raises KeyError for a symbol without value, and the errors of the Python operations.
    """
    if expr.is_Symbol:
        return values[expr]
    if f.is_constant(expr):
        return f.to_number(expr)
    if isinstance(expr, f.Where):
        condition, a, b = expr.args
        return evaluate(a if evaluate(condition, values) else b, values)
    if isinstance(expr, sympy.And):
        return all(evaluate(a, values) for a in expr.args)
    if isinstance(expr, sympy.Or):
        return any(evaluate(a, values) for a in expr.args)
    if isinstance(expr, sympy.Not):
        return not evaluate(expr.args[0], values)
    if isinstance(expr, sympy.Piecewise):
        return next(evaluate(value, values) for value, condition in expr.args if evaluate(condition, values))  # pyright: ignore[reportGeneralTypeIssues]
    args = [evaluate(a, values) for a in expr.args]
    if isinstance(expr, sympy.Add):
        return sum(args)
    if isinstance(expr, sympy.Mul):
        return math.prod(args)
    if isinstance(expr, sympy.Pow):
        return args[0] ** args[1]
    if isinstance(expr, f.ShapeFunction):
        return type(expr).compute(*args)
    return COMPARISONS[type(expr)](*args)
