"""Expressions of sizes mean what Python's numbers mean: random ones are computed both ways."""

from __future__ import annotations

import contextlib
import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sympy.core.relational import Relational

from refimpl.symbolic import functions as f
from refimpl.symbolic.facts import FactState
from refimpl.symbolic.guards import PRINTED_NAMES, evaluate, python_source
from refimpl.symbolic.operations import negate, relation, substitute
from refimpl.symbolic.polynomials import from_terms, to_terms
from refimpl.symbolic.ranges import INFINITY, EmptyRange, Range, bound
from refimpl.symbolic.shape_env import ShapeEnv

# Repeatable: the same examples in every run.
REPEATABLE = settings(
    derandomize=True, database=None, deadline=None, max_examples=70, suppress_health_check=[HealthCheck.too_slow]
)

BINARY: list[Callable[[Any, Any], Any]] = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.floordiv,
    operator.mod,
    torch.sym_max,
    torch.sym_min,
]
COMPARISONS: list[Callable[[Any, Any], Any]] = [
    operator.eq,
    operator.ne,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
]
UNARY: list[Callable[[Any], Any]] = [operator.neg, abs]

# A program is a tree: the index of a variable, a constant, or an operation on programs.
PROGRAMS = st.recursive(
    st.one_of(
        st.sampled_from([0, 1, 2]).map(lambda i: ("variable", i)), st.integers(-6, 9).map(lambda c: ("constant", c))
    ),
    lambda inner: st.one_of(st.tuples(st.sampled_from(BINARY), inner, inner), st.tuples(st.sampled_from(UNARY), inner)),
    max_leaves=8,
)
CONDITIONS = st.tuples(st.sampled_from(COMPARISONS), PROGRAMS, PROGRAMS)
SIZES = st.tuples(*[st.integers(2, 12)] * 3)
ANY_INTS = st.tuples(*[st.integers(-12, 12)] * 3)


def run(program: Any, variables: Any) -> Any:
    """The program on plain or symbolic numbers, by Python's own operators."""
    kind, *rest = program
    if kind == "variable":
        return variables[rest[0]]
    if kind == "constant":
        return rest[0]
    return kind(*(run(part, variables) for part in rest))


def backed(values: tuple[int, ...], *, positive: bool | None = True) -> tuple[ShapeEnv, list[Any]]:
    """Symbolic numbers with these values in a fresh environment, each with a symbol of its own."""
    env = ShapeEnv(duck_shape=False)
    symbols = [
        env.create_symbol(v, f"x{i}", "DYNAMIC", positive=positive, do_not_specialize_zero_one=positive is None)
        for i, v in enumerate(values)
    ]
    return env, [env.create_symintnode(s, hint=v) for s, v in zip(symbols, values, strict=True)]


def number_of(value: Any, env: ShapeEnv) -> Any:
    """The value of a symbolic number by its expression alone, not by its hint."""
    if not isinstance(value, (torch.SymInt, torch.SymBool, torch.SymFloat)):
        return value
    return evaluate(value.node.expr, {s: int(v) for s, v in env.backed_var_to_val.items()})  # pyright: ignore


@REPEATABLE
@given(PROGRAMS, ANY_INTS)
def test_integer_programs_give_the_same_number_symbolically(program: Any, values: Any) -> None:
    env, symbols = backed(values, positive=None)
    try:
        expected = run(program, values)
    except ZeroDivisionError:
        return
    result = run(program, symbols)
    assert number_of(result, env) == expected
    if isinstance(result, torch.SymInt):
        assert result.node.hint == expected
        assert int(result) == expected


@REPEATABLE
@given(PROGRAMS, SIZES, SIZES)
def test_an_expression_holds_for_other_sizes_too(program: Any, traced: Any, other: Any) -> None:
    _env, symbols = backed(traced)
    try:
        result = run(program, symbols)
        expected = run(program, other)
    except ZeroDivisionError:
        return
    if isinstance(result, torch.SymInt):
        names = [s.node.expr for s in symbols]
        assert evaluate(result.node.expr, dict(zip(names, other, strict=True))) == expected
    else:
        assert result == expected


@REPEATABLE
@given(PROGRAMS, SIZES)
def test_printed_expressions_are_python(program: Any, values: Any) -> None:
    _env, symbols = backed(values)
    try:
        result = run(program, symbols)
    except ZeroDivisionError:
        return
    if isinstance(result, torch.SymInt):
        source = python_source(result.node.expr)
        names = {str(s.node.expr): v for s, v in zip(symbols, values, strict=True)}
        assert eval(source, dict(PRINTED_NAMES), names) == result.node.hint, source


@REPEATABLE
@given(PROGRAMS, ANY_INTS)
def test_ranges_contain_all_values(program: Any, values: Any) -> None:
    _env, symbols = backed(values, positive=None)
    facts = FactState()
    for symbol, value in zip(symbols, values, strict=True):
        facts.ranges[symbol.node.expr] = Range(value - 2, value + 3)
    try:
        result = run(program, symbols)
    except ZeroDivisionError:
        return
    if isinstance(result, torch.SymInt):
        assert result.node.hint in facts.range_of(result.node.expr)


@REPEATABLE
@given(CONDITIONS, SIZES)
def test_what_is_decided_holds_for_all_sizes(condition: Any, values: Any) -> None:
    env, symbols = backed(values)
    try:
        asked = run(condition, symbols)
    except ZeroDivisionError:
        return
    if not isinstance(asked, torch.SymBool):
        decided: bool | None = bool(asked)
    else:
        decided = env.decided(asked.node.expr)
    if decided is None:
        return
    for other in ((2, 2, 2), (2, 3, 7), (11, 2, 5), (4, 4, 4), (64, 3, 9), values):
        with contextlib.suppress(ZeroDivisionError):
            assert run(condition, other) == decided, (asked, other)


@REPEATABLE
@given(CONDITIONS, ANY_INTS)
def test_what_is_decided_holds_for_negative_numbers_too(condition: Any, values: Any) -> None:
    env, symbols = backed(values, positive=None)
    try:
        asked = run(condition, symbols)
    except ZeroDivisionError:
        return
    decided = env.decided(asked.node.expr) if isinstance(asked, torch.SymBool) else bool(asked)
    if decided is None:
        return
    for other in ((-2, 2, 1), (0, -3, 7), (-11, -2, -5), (4, 4, -4), (1, 1, 1), (-1, 0, 9), values):
        with contextlib.suppress(ZeroDivisionError):
            assert run(condition, other) == decided, (asked, other)


@REPEATABLE
@given(st.lists(CONDITIONS, min_size=1, max_size=4), CONDITIONS, SIZES, SIZES)
def test_what_is_decided_from_guards_holds_wherever_the_guards_hold(
    guards: Any, condition: Any, values: Any, other: Any
) -> None:
    env, symbols = backed(values)
    try:
        for guard in guards:
            bool(run(guard, symbols))
        asked = run(condition, symbols)
        expected = run(condition, other)
        names = [s.node._expr for s in symbols]
        binding = dict(zip(names, other, strict=True))
        # Guards are recorded over the symbols as they were, so they can be evaluated for any sizes.
        if not all(evaluate(guard.expr, binding) for guard in env.guards):
            return
    except ZeroDivisionError:
        return
    decided = env.decided(asked.node.expr) if isinstance(asked, torch.SymBool) else bool(asked)
    assert decided in (None, expected), (env.format_guards(), env.replacements, asked, binding)


@REPEATABLE
@given(st.lists(CONDITIONS, min_size=1, max_size=4), SIZES, SIZES)
def test_guards_hold_exactly_where_the_course_is_the_same(conditions: Any, traced: Any, other: Any) -> None:
    env, symbols = backed(traced)
    names = [s.node._expr for s in symbols]
    try:
        course = [bool(run(c, symbols)) for c in conditions]
        again = [bool(run(c, other)) for c in conditions]
        holds = all(evaluate(guard.expr, dict(zip(names, other, strict=True))) for guard in env.guards)
    except ZeroDivisionError:
        return
    if holds:
        assert course == again, env.format_guards()
    if course == again:
        assert holds, env.format_guards()


@REPEATABLE
@given(PROGRAMS, SIZES)
def test_a_second_computation_is_remembered_and_equal(program: Any, values: Any) -> None:
    env, symbols = backed(values)
    try:
        first = run(program, symbols)
    except ZeroDivisionError:
        return
    known = len(env.made)
    second = run(program, symbols)
    assert len(env.made) == known
    _, fresh_symbols = backed(values)
    fresh = run(program, fresh_symbols)
    if isinstance(first, torch.SymInt):
        assert first.node.expr == second.node.expr == fresh.node.expr


@REPEATABLE
@given(PROGRAMS, SIZES)
def test_polynomials_say_what_the_expression_says(program: Any, values: Any) -> None:
    env, symbols = backed(values)
    try:
        result = run(program, symbols)
    except ZeroDivisionError:
        return
    if isinstance(result, torch.SymInt):
        assert number_of(env.create_symintnode(from_terms(to_terms(result.node.expr))), env) == result.node.hint


@pytest.mark.parametrize("a", [-7, -1, 0, 5, 2**53 + 1, 10**30, -(10**30) - 1])
@pytest.mark.parametrize("b", [-3, -1, 1, 4, 2**53 - 1, 10**18])
def test_division_is_pythons_for_any_integers(a: int, b: int) -> None:
    assert f.to_number(f.FloorDiv(a, b)) == a // b
    assert f.to_number(f.PythonMod(a, b)) == a % b
    assert f.to_number(f.IntTrueDiv(a, b)) == a / b
    x, y = sympy.Symbol("x", integer=True), sympy.Symbol("y", integer=True)
    for function, expected in ((f.FloorDiv, a // b), (f.PythonMod, a % b), (f.IntTrueDiv, a / b)):
        assert evaluate(function(x, y), {x: a, y: b}) == expected
        assert evaluate(substitute(function(x, y), {y: sympy.Integer(b)}), {x: a}) == expected


def test_division_simplifies_where_it_is_exact() -> None:
    s0, s1 = sympy.symbols("s0 s1", integer=True, positive=True)
    assert f.FloorDiv(6 * s0, 3) == 2 * s0
    assert f.FloorDiv(s0 * s1, s0) == s1
    assert f.FloorDiv(4 * s0 + 2, 6) == f.FloorDiv(2 * s0 + 1, 3)
    assert f.FloorDiv(2 * s0 + 1, 2) == s0
    assert f.PythonMod(6 * s0 + 1, 3) == 1
    assert f.PythonMod(3 * s0, 2) == f.PythonMod(s0, 2)


def test_every_simplification_of_divisions_holds_for_negative_numbers_too() -> None:
    x, y = sympy.symbols("x y", integer=True)
    positive = sympy.Symbol("p", integer=True, positive=True)
    wrong = []
    for scale, offset, divisor in itertools.product((-4, -2, 1, 2, 3, 6), (-3, 0, 1, 2, 4), (-4, -3, -2, 2, 3, 4, 6)):
        for value in (-7, -2, -1, 0, 1, 3, 8):
            dividend = scale * value + offset
            expected = [dividend // divisor, dividend % divisor, (value // 3) // abs(divisor), dividend * 5 // 5]
            exprs = [
                f.FloorDiv(scale * x + offset, divisor),
                f.PythonMod(scale * x + offset, divisor),
                f.FloorDiv(f.FloorDiv(x, y), abs(divisor)),
                f.FloorDiv((scale * x + offset) * positive, positive),
            ]
            found = [evaluate(e, {x: value, y: 3, positive: 5}) for e in exprs]
            if found != expected:
                wrong.append((scale, offset, divisor, value, found, expected))
    assert wrong == []


RANGES = [
    Range(-INFINITY, INFINITY),
    Range(-INFINITY, -1),
    Range(-INFINITY, 2),
    Range(-3, INFINITY),
    Range(0, INFINITY),
    Range(1, INFINITY),
    Range(-4, -2),
    Range(-2, 3),
    Range(0, 4),
    Range(2, 5),
    Range(3, 3),
]
BINARY_FUNCTIONS = [
    f.FloorDiv,
    f.PythonMod,
    f.Max,
    f.Min,
    f.BitwiseAnd,
    f.BitwiseOr,
    f.BitwiseXor,
    f.LShift,
    f.RShift,
    f.PowByNatural,
    f.IntTrueDiv,
    sympy.Add,
    sympy.Mul,
]


@pytest.mark.parametrize("function", BINARY_FUNCTIONS, ids=lambda c: c.__name__)
def test_the_range_of_a_function_holds_all_it_gives_for_bounded_and_unbounded_arguments(function: Any) -> None:
    x, y = sympy.symbols("x y", integer=True)
    expr = function(x, y)
    wrong = []
    for a, b in itertools.product(RANGES, RANGES):
        found = bound(expr, {x: a, y: b})
        for i, j in itertools.product(range(-9, 10), range(-9, 10)):
            if i not in a or j not in b:
                continue
            try:
                value = evaluate(expr, {x: i, y: j})
            except (ZeroDivisionError, ValueError):  # no value: a shift by a negative number
                continue
            if value not in found:
                wrong.append((a, b, found, i, j, value))
    assert wrong == []


def test_a_division_by_zero_is_pythons_error_when_it_is_evaluated() -> None:
    undefined = f.FloorDiv(5, 0)
    with pytest.raises(ZeroDivisionError):
        evaluate(undefined, {})


FLOATS = st.floats(allow_nan=True, allow_infinity=False, width=64)


@REPEATABLE
@given(FLOATS, FLOATS, st.sampled_from([operator.add, operator.sub, operator.mul, operator.truediv]))
def test_float_arithmetic_rounds_as_python_does(a: float, b: float, operation: Any) -> None:
    env = ShapeEnv()
    x = env.create_symfloatnode(env.create_symbol(a, "x"), hint=a)
    try:
        expected = operation(a, b)
    except ZeroDivisionError:
        return
    result = operation(x, b)
    value = evaluate(result.node.expr, dict(env._values))
    assert value == expected or (math.isnan(value) and math.isnan(expected))


def test_sums_of_floats_are_not_reordered() -> None:
    env = ShapeEnv()
    x = env.create_symfloatnode(env.create_symbol(1e16, "x"), hint=1e16)
    result = (x + 1.0) + 1.0
    assert evaluate(result.node.expr, dict(env._values)) == (1e16 + 1.0) + 1.0 != 1e16 + 2.0


@pytest.mark.parametrize("kind", [sympy.Eq, sympy.Ne, sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge])
def test_the_opposite_of_a_condition_holds_where_it_does_not_nan_included(kind: Any) -> None:
    x = sympy.Symbol("zf0")
    condition = relation(kind, x, sympy.Float(1.0))
    for value in (0.5, 1.0, 2.0, math.nan):
        assert evaluate(negate(condition), {x: value}) == (not evaluate(condition, {x: value}))


@pytest.mark.parametrize("kind", [sympy.Eq, sympy.Ne, sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge])
def test_the_opposite_of_a_comparison_of_integers_is_one_too(kind: Any) -> None:
    x = sympy.Symbol("x", integer=True)
    condition = relation(kind, x, sympy.Integer(2))
    assert isinstance(negate(condition), Relational)
    for value in (1, 2, 3):
        assert evaluate(negate(condition), {x: value}) == (not evaluate(condition, {x: value}))


def test_an_empty_range_is_an_error() -> None:
    with pytest.raises(EmptyRange, match="at least 3 and at most 2"):
        operator.and_(Range(3, INFINITY), Range(-INFINITY, 2))
