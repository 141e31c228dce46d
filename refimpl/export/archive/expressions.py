"""Symbolic expressions as text, in a closed grammar with its own parser.

    expression := integer | float | symbol | Function "(" expression ("," expression)* ")"

Counterpart: sympy's printed form in torch/_export/serde/schema.py SymExpr, which upstream reads with sympy.sympify
Differs: operations are functions in prefix form; nothing is evaluated as Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import sympy

from refimpl.export.archive.errors import ArchiveError
from refimpl.symbolic import functions as f
from refimpl.symbolic.operations import COMPARISONS, relation

MOST_NESTED = 200
LARGEST_EXPONENT = 64  # the parser folds constants: 10**10**10 must not be computed
LONGEST_NUMBER = 100

_TOKEN = re.compile(
    r"\s*(?:(?P<number>[+-]?(?:0x[0-9a-f.]+p[+-]?\d+|inf|nan|\d+))(?![\w.])|(?P<name>[A-Za-z_]\w*)|(?P<mark>[(),]))"
)

_SHAPE_FUNCTIONS: tuple[Any, ...] = (
    f.FloorDiv, f.PythonMod, f.PowByNatural, f.Max, f.Min, f.Where, f.IntAbs, f.IntTrueDiv, f.BitwiseAnd, f.BitwiseOr,
    f.BitwiseXor,
    f.LShift, f.RShift, f.FloorToInt, f.CeilToInt, f.TruncToInt, f.RoundToInt, f.ToFloat, f.FloatTrueDiv, f.FloatAdd, f.FloatSub,
    f.FloatMul, f.FloatNeg, f.FloatAbs, f.FloatPow, f.FloatMod, f.FloatFloorDiv, f.RoundDecimal, f.IsNonOverlappingAndDense,
    *f.MATH_FUNCTIONS.values(),
)  # fmt: skip
_EXPONENTIAL = ("Pow", "PowByNatural", "LShift")


def _comparison(kind: Any) -> Callable[..., Any]:
    def make(left: Any, right: Any) -> Any:
        return relation(kind, left, right)

    return make


_HEADS: dict[str, Callable[..., Any]] = {
    "Add": sympy.Add,
    "Mul": sympy.Mul,
    "Pow": sympy.Pow,
    "Rational": sympy.Rational,
    "And": sympy.And,
    "Or": sympy.Or,
    "Not": lambda a: sympy.Not(a, evaluate=False),
    **{kind.__name__: _comparison(kind) for kind in COMPARISONS},
    **{function.__name__: function for function in _SHAPE_FUNCTIONS},
}
_NAMES: dict[Any, str] = {
    sympy.Add: "Add", sympy.Mul: "Mul", sympy.Pow: "Pow", sympy.And: "And", sympy.Or: "Or", sympy.Not: "Not",
    **{kind: kind.__name__ for kind in COMPARISONS},
    **{function: function.__name__ for function in _SHAPE_FUNCTIONS},
}  # fmt: skip
_CONSTANTS = {"true": sympy.true, "false": sympy.false}


def to_text(expr: Any) -> str:
    """The text of an expression. Raises ArchiveError if `to_expression` does not return the same expression for it."""
    text = _written(expr)
    symbols = {str(symbol): symbol for symbol in expr.free_symbols}
    if to_expression(text, symbols) != expr:
        raise ArchiveError(
            seen=f"the symbolic expression {expr}, whose text {text} reads as another one",
            expected="the same one",
            do="report it",
        )
    return text


def _written(expr: Any) -> str:
    if expr.is_Symbol:
        return str(expr)
    if expr is sympy.true or expr is sympy.false:
        return "true" if expr is sympy.true else "false"
    if isinstance(expr, sympy.Integer):
        return str(int(expr))
    if isinstance(expr, sympy.Rational):
        return f"Rational({expr.p}, {expr.q})"
    if expr.is_Number and (isinstance(expr, sympy.Float) or expr in (sympy.oo, -sympy.oo, sympy.nan)):
        return float(expr).hex()
    name = _NAMES.get(type(expr))
    if name is None:
        raise ArchiveError(
            seen=f"the function {type(expr).__name__} in the symbolic expression {expr}",
            expected=f"one of {sorted(_HEADS)}",
            do="report it: the grammar of archives does not have it",
        )
    return f"{name}({', '.join(_written(arg) for arg in expr.args)})"


def to_expression(text: str, symbols: Mapping[str, Any]) -> Any:
    """Parse an expression. `symbols`: the declared symbols, by name. Raises ArchiveError for other text."""
    parser = _Parser(text, symbols)
    try:
        return parser.whole()
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        if isinstance(error, ArchiveError):
            raise
        raise parser.error(f"cannot be evaluated: {error}") from error


class _Parser:
    def __init__(self, text: str, symbols: Mapping[str, Any]) -> None:
        self._text = text
        self._symbols = symbols
        self._position = 0

    def error(self, what: str) -> ArchiveError:
        shown = self._text if len(self._text) <= 100 else f"{self._text[:97]}..."
        return ArchiveError(
            seen=f"the symbolic expression {shown!r} {what}", expected="the grammar of docs/export_archive.md"
        )

    def _next(self) -> re.Match[str]:
        found = _TOKEN.match(self._text, self._position)
        if found is None:
            raise self.error(f"cannot be read from position {self._position}")
        self._position = found.end()
        return found

    def whole(self) -> Any:
        found = self._expression(0)
        if self._text[self._position :].strip():
            raise self.error(f"has more after position {self._position}")
        return found

    def _expression(self, depth: int) -> Any:
        if depth > MOST_NESTED:
            raise self.error(f"is nested more than {MOST_NESTED} deep")
        token = self._next()
        if token["number"]:
            return self._number(token["number"])
        name = token["name"]
        if not name:
            raise self.error(f"has {token['mark']!r} where a number or name should be")
        if self._text[self._position : self._position + 1] != "(":
            return self._named(name)
        self._next()
        if name not in _HEADS:
            raise self.error(f"has the function {name!r}, which the grammar lacks")
        return self._applied(name, self._arguments(depth))

    def _arguments(self, depth: int) -> list[Any]:
        arguments = [self._expression(depth + 1)]
        while True:
            mark = self._next()["mark"]
            if mark == ")":
                return arguments
            if mark != ",":
                raise self.error("lacks a comma or closing bracket")
            arguments.append(self._expression(depth + 1))

    def _applied(self, name: str, arguments: list[Any]) -> Any:
        if name in _EXPONENTIAL and len(arguments) == 2:
            exponent = arguments[1]
            if exponent.is_Number and not -LARGEST_EXPONENT <= exponent <= LARGEST_EXPONENT:
                raise self.error(f"has the exponent {exponent}, more than {LARGEST_EXPONENT}")
        return _HEADS[name](*arguments)

    def _number(self, text: str) -> Any:
        if len(text) > LONGEST_NUMBER:
            raise self.error("has a number of more than 100 digits")
        if text.lstrip("+-").isdigit():
            return sympy.Integer(int(text))
        return f.to_expr(float.fromhex(text))

    def _named(self, name: str) -> Any:
        if name in self._symbols:
            return self._symbols[name]
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        raise self.error(f"has the symbol {name!r}, which the archive does not declare")
