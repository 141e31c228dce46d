"""The known facts about symbols (ranges, equalities, divisibility), and decisions of conditions from them.

Counterpart: ShapeEnv.var_to_range, axioms, divisible, _maybe_evaluate_static, _refine_ranges of
torch/fx/experimental/symbolic_shapes.py
Differs: one mechanism for ranges, implications and divisibility. Every comparison of integers is normalised to "a polynomial
without constant term is in a range" (refimpl.symbolic.polynomials). Learning a condition narrows the polynomial's range, deciding
one reads the range. A decided condition remains decided, since facts are never removed (a region that may not run has a copy).
"""

from __future__ import annotations

from typing import Literal

import sympy
from sympy.core.relational import Relational

from refimpl.symbolic import functions as f
from refimpl.symbolic.functions import FloorDiv, PythonMod
from refimpl.symbolic.operations import negate
from refimpl.symbolic.polynomials import (
    Terms,
    add_terms,
    common_factor,
    difference,
    divide_terms,
    multiply_terms,
    normal_form,
    range_of_terms,
    to_terms,
)
from refimpl.symbolic.ranges import (
    INFINITY,
    UNKNOWN,
    Range,
    add,
    bound,
    default_range,
    floor_divide,
    multiply,
    power,
    scale,
)

# How many floor divisions of one comparison are eliminated, one after the other.
MOST_DIVISIONS = 4

# "terms == k", "terms != k", "terms >= k", "terms <= k"
Comparison = tuple[Literal["==", "!=", ">=", "<="], Terms, int]


def normalise(kind: type, terms: Terms) -> Comparison | bool:
    """Turn `terms <kind> 0` into a comparison of a polynomial without constant term with a number, or decide it."""
    terms, factor, constant = normal_form(terms)
    if kind in (sympy.Eq, sympy.Ne):
        if not terms:
            return (constant == 0) == (kind is sympy.Eq)
        if constant % factor:
            return kind is sympy.Ne
        return ("==" if kind is sympy.Eq else "!=", terms, -constant // factor)
    if kind in (sympy.Lt, sympy.Le):
        factor, constant = -factor, -constant
    if kind in (sympy.Lt, sympy.Gt):
        constant -= 1
    # factor * terms + constant >= 0
    if not terms:
        return constant >= 0
    if factor > 0:
        return (">=", terms, -(constant // factor))  # -(c // f) is the ceiling of -c / f
    return ("<=", terms, -constant // factor)


def is_of_integers(relation: Relational) -> bool:
    return bool(relation.lhs.is_integer and relation.rhs.is_integer)


def may_be_nan(expr: sympy.Basic) -> bool:
    """Whether a number can be nan. Floats can, except conversions and quotients of ints, and abs, neg and sqrt of these."""
    if expr.is_Number:
        return expr is sympy.nan
    if expr.is_integer or isinstance(expr, (f.ToFloat, f.IntTrueDiv)):
        return False
    if isinstance(expr, (f.FloatAbs, f.FloatNeg, f.MATH_FUNCTIONS["sqrt"])):
        return may_be_nan(expr.args[0])
    return True


class FactState:
    """Ranges of symbols and of polynomials of symbols, and conditions known to hold. `version` counts the added facts."""

    def __init__(self) -> None:
        self.ranges: dict[sympy.Symbol, Range] = {}
        self.term_ranges: dict[Terms, Range] = {}
        self.excluded: dict[Terms, set[int]] = {}
        self.known: dict[sympy.Basic, bool] = {}
        self.size_like: set[sympy.Symbol] = set()
        self.version = 0
        self._ranges_memo: dict[Terms, Range] = {}
        self._decided: dict[sympy.Basic, bool] = {}
        self._undecided: set[sympy.Basic] = set()

    def copy(self) -> FactState:
        """The same facts, to which others may be added."""
        made = FactState()
        made.ranges, made.term_ranges, made.known = dict(self.ranges), dict(self.term_ranges), dict(self.known)
        made.excluded = {terms: set(holes) for terms, holes in self.excluded.items()}
        made.size_like = set(self.size_like)
        made.version, made._decided = self.version, dict(self._decided)
        return made

    # ------------------------------------------------------------------------------------------------------ ranges

    def changed(self) -> None:
        self.version += 1
        self._ranges_memo.clear()
        self._undecided.clear()

    def range_of(self, expr: sympy.Basic) -> Range:
        """The range of a number expression."""
        if isinstance(expr, sympy.Symbol):
            return self.ranges.get(expr) or default_range(expr)
        if expr.is_integer and not expr.is_Number:
            terms, factor, constant = normal_form(to_terms(expr))
            found = add(scale(self._range_of_terms(terms), factor), Range(constant, constant))
            return found & self._range_by_structure(expr) if isinstance(expr, (sympy.Mul, sympy.Pow)) else found
        return bound(expr, self.ranges, self._known_range)

    def _range_by_structure(self, expr: sympy.Basic) -> Range:
        """The range of a product or power from its factors: that (a + b)**2 >= 0 is lost when it is multiplied out."""
        if isinstance(expr, sympy.Mul):
            product = Range(1, 1)
            for factor in expr.args:
                product = multiply(product, self.range_of(factor))
            return product
        if isinstance(expr, sympy.Pow) and isinstance(expr.exp, sympy.Integer) and expr.exp > 0:
            return power(self.range_of(expr.base), int(expr.exp))
        return UNKNOWN

    def _known_range(self, atom: sympy.Basic) -> Range | None:
        return self.term_ranges.get(((((atom, 1),), 1),))

    def _range_of_atom(self, atom: sympy.Basic) -> Range:
        if isinstance(atom, sympy.Symbol):
            return self.ranges.get(atom) or default_range(atom)
        if f.is_condition(atom):
            return UNKNOWN
        found = bound(atom, self.ranges, self._known_range)
        fact = self._known_range(atom)
        return found if fact is None else found & fact

    def _range_of_terms(self, terms: Terms) -> Range:
        found = self._ranges_memo.get(terms)
        if found is None:
            atoms = {atom: self._range_of_atom(atom) for monomial, _ in terms for atom, _ in monomial}
            found = range_of_terms(terms, atoms)
            fact = self.term_ranges.get(terms)
            if fact is not None:
                found = found & fact
            self._ranges_memo[terms] = found
        return found

    # ---------------------------------------------------------------------------------------------------- deciding

    def difference(self, condition: Relational) -> Terms:
        """The left side minus the right side, to be compared with 0, divided by positive factors that all terms share."""
        terms = difference(condition.lhs, condition.rhs)
        shared = common_factor(terms)
        if shared:
            positive = tuple((atom, n) for atom, n in shared if self._range_of_atom(atom).lower >= 1)
            terms = (divide_terms(terms, positive) or terms) if positive else terms
        return terms

    def decide(self, condition: sympy.Basic) -> bool | None:
        """Whether a condition holds for all values that the facts admit (True), for none (False), or neither is known (None)."""
        if condition is sympy.true:
            return True
        if condition is sympy.false:
            return False
        value = self._decided.get(condition)
        if value is not None:
            return value
        if condition in self._undecided:
            return None
        value = self._decide(condition)
        if value is None:
            self._undecided.add(condition)
        else:
            self._decided[condition] = value
        return value

    def _decide(self, condition: sympy.Basic) -> bool | None:
        known = self.known.get(condition)
        if known is not None:
            return known
        if isinstance(condition, sympy.Not):
            value = self.decide(condition.args[0])
            return None if value is None else not value
        if isinstance(condition, (sympy.And, sympy.Or)):
            absorbing = isinstance(condition, sympy.Or)
            values = [self.decide(a) for a in condition.args]
            if absorbing in values:
                return absorbing
            return None if None in values else not absorbing
        if isinstance(condition, Relational):
            return self._decide_relation(condition)
        return None

    def _decide_relation(self, condition: Relational) -> bool | None:
        if not is_of_integers(condition):
            return self._decide_by_ranges(condition)
        terms = self.difference(condition)
        value = self._decide_comparison(normalise(type(condition), terms))
        if value is None and any(isinstance(side, (sympy.Mul, sympy.Pow)) for side in condition.args):
            value = self._decide_by_ranges(condition)
        for _ in range(MOST_DIVISIONS):
            cleared = self._without_division(terms) if value is None else None
            if cleared is None:
                break
            terms = cleared
            value = self._decide_comparison(normalise(type(condition), terms))
        return value

    def _decide_comparison(self, comparison: Comparison | bool) -> bool | None:
        if isinstance(comparison, bool):
            return comparison
        kind, terms, k = comparison
        found = self._range_of_terms(terms)
        if kind == ">=":
            return True if found.lower >= k else False if found.upper < k else None
        if kind == "<=":
            return True if found.upper <= k else False if found.lower > k else None
        if k not in found or k in self.excluded.get(terms, ()):
            return kind == "!="
        return kind == "==" if found.is_singleton() else None

    def _decide_by_ranges(self, condition: Relational) -> bool | None:
        """Decide by the ranges of both sides; not if one may be nan, which compares false with everything."""
        if may_be_nan(condition.lhs) or may_be_nan(condition.rhs):
            return None
        left, right = self.range_of(condition.lhs), self.range_of(condition.rhs)
        kind = type(condition)
        if kind in (sympy.Lt, sympy.Le):
            left, right, kind = right, left, sympy.Gt if kind is sympy.Lt else sympy.Ge
        if kind is sympy.Gt:
            return True if left.lower > right.upper else False if left.upper <= right.lower else None
        if kind is sympy.Ge:
            return True if left.lower >= right.upper else False if left.upper < right.lower else None
        if left.lower > right.upper or left.upper < right.lower:
            return kind is sympy.Ne
        return kind is sympy.Eq if left.is_singleton() and left == right else None

    def _without_division(self, terms: Terms) -> Terms | None:
        """The polynomial times n, for one a // n in it with n >= 1: n * (a // n) becomes a - a % n. None without one."""
        atoms = {
            atom for monomial, _ in terms for atom, exponent in monomial if isinstance(atom, FloorDiv) and exponent == 1
        }
        atoms = {atom for atom in atoms if self.range_of(atom.args[1]).lower >= 1}
        if not atoms:
            return None
        atom = min(atoms, key=str)
        divisor = to_terms(atom.args[1])
        product = add_terms(to_terms(atom.args[0]), to_terms(PythonMod(*atom.args)), -1)
        total: Terms = ()
        for monomial, coefficient in terms:
            powers = dict(monomial)
            if powers.get(atom) == 1:
                del powers[atom]
                part = multiply_terms(((tuple(powers.items()), coefficient),), product)
            else:
                part = multiply_terms(((monomial, coefficient),), divisor)
            total = add_terms(total, part)
        return total

    # ---------------------------------------------------------------------------------------------------- learning

    def narrow(self, symbol: sympy.Symbol, found: Range) -> bool:
        """Intersect a symbol's range; True if it changed."""
        old = self.ranges.get(symbol) or default_range(symbol)
        new = old & found
        self.ranges[symbol] = new
        if new != old:
            self.changed()
        return new != old

    def learn(self, condition: sympy.Basic) -> set[sympy.Symbol]:
        """Take a condition as true. Returns the symbols whose range became narrower."""
        if condition in (sympy.true, sympy.false) or self.known.get(condition):
            return set()
        narrowed: set[sympy.Symbol] = set()
        self.known[condition] = True
        self.known[negate(condition)] = False
        self.changed()
        if isinstance(condition, sympy.And):
            for part in condition.args:
                narrowed |= self.learn(part)
        elif isinstance(condition, sympy.Or):
            open_parts = [part for part in condition.args if self.decide(part) is not False]
            if len(open_parts) == 1:
                narrowed |= self.learn(open_parts[0])
        elif isinstance(condition, sympy.Not):
            inner = condition.args[0]
            if isinstance(inner, sympy.Or):
                for part in inner.args:
                    narrowed |= self.learn(negate(part))
        elif isinstance(condition, Relational) and is_of_integers(condition):
            comparison = normalise(type(condition), self.difference(condition))
            if not isinstance(comparison, bool):
                narrowed |= self._learn_comparison(comparison)
        return narrowed

    def _learn_comparison(self, comparison: Comparison) -> set[sympy.Symbol]:
        kind, terms, k = comparison
        old = self._range_of_terms(terms)
        match kind:
            case "==":
                new = old & Range(k, k)
            case ">=":
                new = old & Range(k, INFINITY)
            case "<=":
                new = old & Range(-INFINITY, k)
            case "!=":
                self.excluded.setdefault(terms, set()).add(k)
                new = old
        holes = self.excluded.get(terms, ())
        while new.lower in holes:
            new = Range(new.lower + 1, new.upper)
        while new.upper in holes:
            new = Range(new.lower, new.upper - 1)
        if new == old:
            return set()
        self.term_ranges[terms] = new
        self.changed()
        return {symbol for symbol, found in self._ranges_of_symbols(terms, new) if self.narrow(symbol, found)}

    def _ranges_of_symbols(self, terms: Terms, found: Range) -> list[tuple[sympy.Symbol, Range]]:
        """The ranges that follow from the range of a sum for the symbols among its terms: c * s = sum - the other terms."""
        result = []
        for i, (monomial, coefficient) in enumerate(terms):
            if len(monomial) != 1 or monomial[0][1] != 1 or not isinstance(monomial[0][0], sympy.Symbol):
                continue
            others = tuple(term for j, term in enumerate(terms) if j != i)
            atoms = {atom: self._range_of_atom(atom) for m, _ in others for atom, _ in m}
            if monomial[0][0] in atoms:
                continue
            scaled = add(found, scale(range_of_terms(others, atoms), -1)) if others else found
            lower = scale(scaled, -1) if coefficient < 0 else scaled
            divisor = Range(abs(coefficient), abs(coefficient))
            # Rounded inwards: up for the lower bound, down for the upper.
            floor = floor_divide(lower, divisor)
            ceiling = scale(floor_divide(scale(lower, -1), divisor), -1)
            if ceiling.lower <= floor.upper:
                result.append((monomial[0][0], Range(ceiling.lower, floor.upper)))
        return result

    def assuming_sizes_of_two(self, symbols: set[sympy.Symbol]) -> FactState:
        """A copy in which these size-like symbols are at least 2, for size-oblivious guards."""
        copy = FactState()
        copy.ranges = {**self.ranges, **{s: Range(2, INFINITY) for s in symbols}}
        return copy
