"""Combines the divisibility guards on a size: `s0 % 2 == 0` and `s0 % 3 == 0` leave the multiples of 6.

Counterpart: the congruences of DimConstraints in torch/fx/experimental/symbolic_shapes.py
Differs: all remainders are tried; upstream solves for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sympy

from refimpl.symbolic.functions import PythonMod
from refimpl.symbolic.guards import evaluate

LARGEST_MODULUS = 4096  # beyond it not all remainders are tried


@dataclass(frozen=True, slots=True)
class Step:
    """The sizes `scale * n + offset` for integers n, where -scale < offset <= 0."""

    scale: int
    offset: int


def steps(conditions: Iterable[Any]) -> dict[sympy.Symbol, Step]:
    """The sizes that conditions `(polynomial of the symbol) % number == 0` leave, by symbol, where these form a Step."""
    divisions: dict[Any, list[tuple[Any, int]]] = {}
    for condition in conditions:
        found = divisibility(condition)
        if found is not None:
            symbol, dividend, divisor = found
            divisions.setdefault(symbol, []).append((dividend, divisor))
    made = {symbol: _step(symbol, found) for symbol, found in divisions.items()}
    return {symbol: step for symbol, step in made.items() if step is not None}


def divisibility(condition: Any) -> tuple[sympy.Symbol, Any, int] | None:
    """(symbol, dividend, divisor) if the condition is `dividend % divisor == 0` with a polynomial of one symbol; else None."""
    if not isinstance(condition, sympy.Eq) or condition.rhs != 0 or not isinstance(condition.lhs, PythonMod):
        return None
    dividend: Any
    dividend, divisor = condition.lhs.args
    symbols: list[Any] = list(dividend.free_symbols)
    if len(symbols) != 1 or not divisor.is_Integer or not dividend.is_polynomial(symbols[0]):
        return None
    return symbols[0], dividend, int(divisor)  # pyright: ignore[reportArgumentType]


def _step(symbol: Any, divisions: list[tuple[Any, int]]) -> Step | None:
    modulus = math.lcm(*(abs(divisor) for _, divisor in divisions))
    if not 1 < modulus <= LARGEST_MODULUS:
        return None
    fitting = [
        remainder
        for remainder in range(modulus)
        if all(evaluate(dividend, {symbol: remainder}) % divisor == 0 for dividend, divisor in divisions)
    ]
    scale = modulus // len(fitting) if fitting else 0
    if scale <= 1 or fitting != list(range(fitting[0], modulus, scale)):
        return None
    return Step(scale, fitting[0] - scale if fitting[0] else 0)


def linear(expr: Any) -> tuple[sympy.Symbol, int, int] | None:
    """(symbol, scale, offset) if the expression is `scale * symbol + offset` with a positive scale; else None."""
    if expr.is_Symbol:
        return expr, 1, 0
    symbols = list(expr.free_symbols)
    if len(symbols) != 1 or not isinstance(expr, (sympy.Add, sympy.Mul)):
        return None
    try:
        polynomial = sympy.Poly(expr, symbols[0])
    except sympy.PolynomialError:
        return None
    if polynomial.degree() != 1:
        return None
    scale, offset = polynomial.all_coeffs()
    return (symbols[0], int(scale), int(offset)) if scale.is_Integer and offset.is_Integer and scale > 0 else None
