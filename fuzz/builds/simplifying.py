"""sympy's `simplify` for indices of loops, asked less often: a tenth of Inductor's time for small programs.

Inductor simplifies the same few indices in kernel after kernel: what was answered once is remembered. And most of them are what
nothing is to be done with, after 10 to 50 ms each: sums of multiples of symbols, and of such sums divided by numbers.
"""

from __future__ import annotations

import functools
from typing import Any

import sympy
from torch.utils._sympy.functions import FloorDiv

_REMEMBERED = 20_000


@functools.cache
def remember_simplified() -> None:
    """Replace `sympy.simplify` in this process, once. What it gives stays the same."""
    simplify: Any = sympy.simplify

    @functools.lru_cache(maxsize=_REMEMBERED, typed=True)
    def remembered(expression: Any) -> Any:
        return expression if is_settled(expression) else simplify(expression)

    @functools.wraps(simplify)
    def simplified(expression: Any, *arguments: Any, **options: Any) -> Any:
        if arguments or options or not isinstance(expression, sympy.Basic):  # a list or a matrix has no hash
            return simplify(expression, *arguments, **options)
        return remembered(expression)

    sympy.simplify = simplified


def is_settled(expression: sympy.Basic) -> bool:
    """Whether `simplify` gives it back unchanged, for it has a form of which that is known.

    Integer multiples of symbols and of floor divisions, and an integer; what is divided is such a sum of symbols, by an integer.
    """
    return isinstance(expression, sympy.Expr) and all(_is_multiple(term) for term in sympy.Add.make_args(expression))


def _is_multiple(term: sympy.Basic, *, of_divisions: bool = True) -> bool:
    if not isinstance(term, sympy.Expr):
        return False
    factor, rest = term.as_coeff_Mul()
    if not isinstance(factor, sympy.Integer):
        return False
    if isinstance(rest, FloorDiv) and of_divisions:
        base, divisor = rest.args
        if not isinstance(base, sympy.Expr) or not isinstance(divisor, sympy.Integer):
            return False
        return all(_is_multiple(inner, of_divisions=False) for inner in sympy.Add.make_args(base))
    return isinstance(rest, (sympy.Symbol, sympy.Integer))
