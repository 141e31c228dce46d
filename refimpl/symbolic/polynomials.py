"""Integer expressions as polynomials with integer coefficients, in a normal form for comparisons.

Counterpart: safe_expand and canonicalize_bool_expr of torch/fx/experimental/symbolic_shapes.py
Differs: sorted tuples in place of sympy's expand, which is slow. A relation of integers is a polynomial without constant term,
divided by the greatest common divisor of its coefficients, with the range it must be in: `2*s0 > 6` and `s0 >= 4` are the same.
"""

from __future__ import annotations

import math
from functools import lru_cache

import sympy

from refimpl.symbolic.ranges import INFINITY, Bound, Range, add, multiply, power

# A product of powers of atoms: ((atom, exponent), ...) sorted by the atoms' text. The empty product is 1.
Monomial = tuple[tuple[sympy.Basic, int], ...]
# Sorted, hashable pairs of monomial and coefficient.
Terms = tuple[tuple[Monomial, int], ...]

_sort_keys: dict[sympy.Basic, tuple[int, str]] = {}


def _atom_key(atom: sympy.Basic) -> tuple[int, str]:
    key = _sort_keys.get(atom)
    if key is None:
        text = str(atom)
        key = _sort_keys[atom] = (len(text), text)  # s2 before s10
    return key


def _monomial_key(monomial: Monomial) -> tuple[int, list[tuple[tuple[int, str], int]]]:
    return (sum(exponent for _, exponent in monomial), [(_atom_key(atom), exponent) for atom, exponent in monomial])


def _multiply_monomials(a: Monomial, b: Monomial) -> Monomial:
    if not a:
        return b
    if not b:
        return a
    powers = dict(a)
    for atom, exponent in b:
        powers[atom] = powers.get(atom, 0) + exponent
    return tuple(sorted(powers.items(), key=lambda item: _atom_key(item[0])))


def _add_into(total: dict[Monomial, int], terms: Terms, factor: int) -> None:
    for monomial, coefficient in terms:
        new = total.get(monomial, 0) + factor * coefficient
        if new:
            total[monomial] = new
        else:
            total.pop(monomial, None)


def _freeze(total: dict[Monomial, int]) -> Terms:
    return tuple(sorted(total.items(), key=lambda item: _monomial_key(item[0])))


def add_terms(a: Terms, b: Terms, factor: int = 1) -> Terms:
    """a + factor * b"""
    total = dict(a)
    _add_into(total, b, factor)
    return _freeze(total)


def multiply_terms(a: Terms, b: Terms) -> Terms:
    total: dict[Monomial, int] = {}
    for x, c in a:
        for y, d in b:
            _add_into(total, ((_multiply_monomials(x, y), c * d),), 1)
    return _freeze(total)


ONE: Terms = (((), 1),)
# A power of a sum with a larger exponent is an atom, and not multiplied out.
LARGEST_EXPANDED_POWER = 4


@lru_cache(maxsize=50_000)
def to_terms(expr: sympy.Basic) -> Terms:
    """The polynomial of an integer expression. A part that is not +, * or a constant power is an atom."""
    if isinstance(expr, sympy.Integer):
        return (((), int(expr)),) if expr else ()
    if isinstance(expr, sympy.Add):
        total: dict[Monomial, int] = {}
        for term in expr.args:
            _add_into(total, to_terms(term), 1)
        return _freeze(total)
    if isinstance(expr, sympy.Mul):
        product = ONE
        for factor in expr.args:
            product = multiply_terms(product, to_terms(factor))
        return product
    if isinstance(expr, sympy.Pow) and isinstance(expr.exp, sympy.Integer):
        exponent = int(expr.exp)
        if expr.base.is_Symbol and exponent > 0:
            return ((((expr.base, exponent),), 1),)
        if 0 < exponent <= LARGEST_EXPANDED_POWER:
            result = ONE
            for _ in range(exponent):
                result = multiply_terms(result, to_terms(expr.base))
            return result
    return ((((expr, 1),), 1),)


def from_terms(terms: Terms) -> sympy.Expr:
    """The sympy expression of a polynomial, multiplied out."""
    return sympy.Add(*(coefficient * sympy.Mul(*(atom**n for atom, n in monomial)) for monomial, coefficient in terms))  # pyright: ignore[reportOperatorIssue]


def normal_form(whole: Terms) -> tuple[Terms, int, int]:
    """A polynomial as (terms, factor, constant): it equals factor * terms + constant.

    The coefficients of the terms have no common divisor, and the first is positive, so that `a < b` and `b > a` have the same
    terms. Without terms the factor is 1.
    """
    constant = 0
    if whole and not whole[0][0]:
        constant, whole = whole[0][1], whole[1:]
    if not whole:
        return (), 1, constant
    factor = math.gcd(*(coefficient for _, coefficient in whole))
    if whole[0][1] < 0:
        factor = -factor
    return tuple((monomial, coefficient // factor) for monomial, coefficient in whole), factor, constant


def without_common_divisor(condition: sympy.Basic) -> sympy.Basic:
    """The relation with both sides divided by what divides all their coefficients: `u0 == 6` for `4*u0 == 24`. For messages."""
    if not isinstance(condition, sympy.core.relational.Relational):
        return condition
    sides = [to_terms(side) for side in condition.args]
    divisor = math.gcd(*(coefficient for side in sides for _, coefficient in side))
    if divisor <= 1:
        return condition
    left, right = (from_terms(tuple((monomial, n // divisor) for monomial, n in side)) for side in sides)
    return condition.func(left, right, evaluate=False)


def common_factor(terms: Terms) -> Monomial:
    """The largest product of atoms that divides every term."""
    if not terms:
        return ()
    shared = dict(terms[0][0])
    for monomial, _ in terms[1:]:
        powers = dict(monomial)
        shared = {atom: min(exponent, powers[atom]) for atom, exponent in shared.items() if atom in powers}
        if not shared:
            break
    return tuple(sorted(shared.items(), key=lambda item: _atom_key(item[0])))


def divide_terms(terms: Terms, monomial: Monomial, coefficient: int = 1) -> Terms | None:
    """The polynomial divided by coefficient * monomial; None if that is not exact."""
    result: dict[Monomial, int] = {}
    for numerator, c in terms:
        powers = dict(numerator)
        for atom, exponent in monomial:
            left = powers.pop(atom, 0) - exponent
            if left < 0:
                return None
            if left:
                powers[atom] = left
        if c % coefficient:
            return None
        result[tuple(sorted(powers.items(), key=lambda item: _atom_key(item[0])))] = c // coefficient
    return _freeze(result)


def exact_quotient(a: sympy.Basic, b: sympy.Basic) -> sympy.Expr | None:
    """a / b if b is one term and divides every term of a, else None. The caller must know that b is not 0."""
    divisor = to_terms(b)
    if len(divisor) != 1:
        return sympy.S.One if to_terms(a) == divisor and divisor else None
    quotient = divide_terms(to_terms(a), *divisor[0])
    return None if quotient is None else from_terms(quotient)


@lru_cache(maxsize=50_000)
def difference(a: sympy.Basic, b: sympy.Basic) -> Terms:
    """a - b, including the constant term."""
    return add_terms(to_terms(a), to_terms(b), -1)


def range_of_terms(terms: Terms, range_of_atom: dict[sympy.Basic, Range]) -> Range:
    """The range of a polynomial from the ranges of its atoms: term by term, and from the lower bounds of the atoms."""
    direct = Range(0, 0)
    for monomial, coefficient in terms:
        product = Range(coefficient, coefficient)
        for atom, exponent in monomial:
            product = multiply(product, power(range_of_atom[atom], exponent))
        direct = add(direct, product)
    if len(terms) > 1 and (direct.lower == -INFINITY or direct.upper == INFINITY):
        shifted = _range_from_lower_corner(terms, range_of_atom)
        if shifted is not None:
            direct = direct & shifted
    return direct


def _range_from_lower_corner(terms: Terms, range_of_atom: dict[sympy.Basic, Range]) -> Range | None:
    """Substitute lower bound + t, t >= 0, for every atom: if all coefficients then have one sign, the constant is a bound.

    Proves s0*s1 - s0 >= 2 for s0, s1 >= 2, which bounds term by term do not."""
    if any(range_of_atom[atom].lower == -INFINITY for monomial, _ in terms for atom, _ in monomial):
        return None
    if sum(exponent for monomial, _ in terms for _, exponent in monomial) > 24:
        return None  # too expensive to multiply out
    total: dict[Monomial, int] = {}
    for monomial, coefficient in terms:
        product: Terms = (((), coefficient),)
        for atom, exponent in monomial:
            lower = int(range_of_atom[atom].lower)
            shifted: Terms = ((((atom, 1),), 1),) if lower == 0 else (((), lower), (((atom, 1),), 1))
            for _ in range(exponent):
                product = multiply_terms(product, shifted)
        _add_into(total, product, 1)
    constant = total.pop((), 0)
    lower: Bound = constant if all(c >= 0 for c in total.values()) else -INFINITY
    upper: Bound = constant if all(c <= 0 for c in total.values()) else INFINITY
    return Range(lower, upper)
