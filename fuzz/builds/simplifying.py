"""Calls sympy's `simplify` less often. On loop indices it takes a tenth of Inductor's time for small programs.

Inductor simplifies the same few indices in kernel after kernel, so results are cached. Most indices are already simple (sums of
multiples of symbols, and of such sums divided by numbers), which `simplify` takes 10 to 50 ms to find out; these are recognised.
"""

from __future__ import annotations

import functools
from typing import Any

import sympy
from torch.utils._sympy.functions import FloorDiv

_REMEMBERED = 20_000


@functools.cache
def remember_simplified() -> None:
    """Replace `sympy.simplify` in this process, once, by a faster function with the same results."""
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
    """Whether the expression has a form that `simplify` is known to return unchanged.

    The form is a sum of an integer and of integer multiples of symbols and floor divisions; a floor division divides such a sum
    of symbols by an integer.
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
