"""Which remainders of a size a program asks for, all divisibility conditions on it taken together.

Counterpart: the congruences of DimConstraints in torch/fx/experimental/symbolic_shapes.py
Differs: remainders are tried, not solved for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sympy

from refimpl.symbolic.functions import PythonMod
from refimpl.symbolic.guards import evaluate

LARGEST_MODULUS = 4096  # that remainders are tried for


@dataclass(frozen=True, slots=True)
class Step:
    """The sizes `scale * n + offset` for integers n, where -scale < offset <= 0."""

    scale: int
    offset: int


def steps(conditions: Iterable[Any]) -> dict[sympy.Symbol, Step]:
    """By symbol, where conditions `(polynomial of the symbol) % number == 0` leave every so many sizes."""
    asked: dict[Any, list[tuple[Any, int]]] = {}
    for condition in conditions:
        found = divisibility(condition)
        if found is not None:
            symbol, dividend, divisor = found
            asked.setdefault(symbol, []).append((dividend, divisor))
    made = {symbol: _step(symbol, questions) for symbol, questions in asked.items()}
    return {symbol: step for symbol, step in made.items() if step is not None}


def divisibility(condition: Any) -> tuple[sympy.Symbol, Any, int] | None:
    """(symbol, dividend, divisor) of a condition that a polynomial of one symbol is a multiple of a number; else None."""
    if not isinstance(condition, sympy.Eq) or condition.rhs != 0 or not isinstance(condition.lhs, PythonMod):
        return None
    dividend: Any
    dividend, divisor = condition.lhs.args
    symbols: list[Any] = list(dividend.free_symbols)
    if len(symbols) != 1 or not divisor.is_Integer or not dividend.is_polynomial(symbols[0]):
        return None
    return symbols[0], dividend, int(divisor)  # pyright: ignore[reportArgumentType]


def _step(symbol: Any, questions: list[tuple[Any, int]]) -> Step | None:
    modulus = math.lcm(*(abs(divisor) for _, divisor in questions))
    if not 1 < modulus <= LARGEST_MODULUS:
        return None
    fitting = [
        remainder
        for remainder in range(modulus)
        if all(evaluate(dividend, {symbol: remainder}) % divisor == 0 for dividend, divisor in questions)
    ]
    scale = modulus // len(fitting) if fitting else 0
    if scale <= 1 or fitting != list(range(fitting[0], modulus, scale)):
        return None
    return Step(scale, fitting[0] - scale if fitting[0] else 0)
