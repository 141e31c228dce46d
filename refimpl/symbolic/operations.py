"""The operations on symbolic numbers: for each, its Python function and its sympy expression.

Counterpart: torch/fx/experimental/sym_node.py METHOD_TO_OPERATOR, magic_methods
Differs: one table, with a row per operation: function, expression for ints and for floats, type of the result.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from sympy.core.relational import Relational

from refimpl.symbolic import functions as f


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One operation. `function` runs on Python numbers, and is the target of its graph node."""

    function: Callable[..., Any]
    ints: Callable[..., sympy.Basic] | None
    floats: Callable[..., sympy.Basic] | None
    result: type | None = None  # None: float if an operand is float, else int


def relation(kind: type[Relational], a: sympy.Basic, b: sympy.Basic) -> sympy.Basic:
    """A comparison. Decided here only for constants and equal sides; the shape env decides others by ranges."""
    if f.is_constant(a) and f.is_constant(b):
        return f.to_expr(COMPARISONS[kind](f.to_number(a), f.to_number(b)))
    if a == b and a.is_integer:  # a float may be nan
        return f.to_expr(kind in (sympy.Eq, sympy.Le, sympy.Ge))
    return kind(a, b, evaluate=False)


COMPARISONS: dict[type, Callable[[Any, Any], bool]] = {
    sympy.Eq: operator.eq,
    sympy.Ne: operator.ne,
    sympy.Lt: operator.lt,
    sympy.Le: operator.le,
    sympy.Gt: operator.gt,
    sympy.Ge: operator.ge,
}
NEGATED: dict[type, type[Relational]] = {
    sympy.Eq: sympy.Ne,
    sympy.Ne: sympy.Eq,
    sympy.Lt: sympy.Ge,
    sympy.Ge: sympy.Lt,
    sympy.Gt: sympy.Le,
    sympy.Le: sympy.Gt,
}


def negate(condition: sympy.Basic) -> sympy.Basic:
    """The negation, without sympy's canonical forms. `not a < b` is `a >= b` for ints only, since nan is unordered."""
    if isinstance(condition, Relational):
        if condition.lhs.is_integer and condition.rhs.is_integer:
            return relation(NEGATED[type(condition)], condition.lhs, condition.rhs)
        if isinstance(condition, (sympy.Eq, sympy.Ne)):
            return relation(NEGATED[type(condition)], condition.lhs, condition.rhs)
        return sympy.Not(condition, evaluate=False)
    if isinstance(condition, sympy.Not):
        return condition.args[0]
    return sympy.Not(condition, evaluate=False) if condition.free_symbols else f.to_expr(condition is sympy.false)


def rebuild(expr: sympy.Basic, args: tuple[sympy.Basic, ...]) -> sympy.Basic:
    """The same operation on other arguments."""
    if isinstance(expr, Relational):
        return relation(type(expr), args[0], args[1])
    if isinstance(expr, sympy.Not):
        return negate(args[0])
    return expr.func(*args)


def substitute(expr: sympy.Basic, replacements: dict[Any, Any]) -> sympy.Basic:
    """Replace symbols. Unlike xreplace it does not let sympy evaluate comparisons, which is slow."""
    if expr.is_Symbol:
        return replacements.get(expr, expr)
    if not expr.args:
        return expr
    args = tuple(substitute(a, replacements) for a in expr.args)
    if all(new is old for new, old in zip(args, expr.args, strict=True)):
        return expr
    return rebuild(expr, args)


def _compare(kind: type[Relational]) -> Operation:
    def make(a: sympy.Basic, b: sympy.Basic) -> sympy.Basic:
        return relation(kind, a, b)

    return Operation(COMPARISONS[kind], make, make, bool)


def _is_integer(a: sympy.Basic) -> sympy.Basic:
    return relation(sympy.Eq, f.ToFloat(f.FloorToInt(a)), a)


def _same(value: Any) -> Any:
    return value


def _negative(value: Any) -> Any:
    return -value


# The names are methods of torch's SymNode, which calls them; each operation is the thing itself.
UNARY: dict[str, Operation] = {
    "neg": Operation(operator.neg, _negative, f.FloatNeg),
    "pos": Operation(operator.pos, _same, _same),
    "abs": Operation(operator.abs, f.IntAbs, f.FloatAbs),
    "sym_not": Operation(torch.sym_not, negate, None, bool),
    "sym_float": Operation(torch.sym_float, f.ToFloat, _same, float),
    "sym_int": Operation(torch.sym_int, _same, f.TruncToInt, int),
    "floor": Operation(math.floor, _same, f.FloorToInt, int),
    "ceil": Operation(math.ceil, _same, f.CeilToInt, int),
    "trunc": Operation(math.trunc, _same, f.TruncToInt, int),
    "is_integer": Operation(float.is_integer, lambda a: sympy.true, _is_integer, bool),
    **{
        f"sym_{name}": Operation(getattr(torch, f"_sym_{name}"), function, function, float)
        for name, function in f.MATH_FUNCTIONS.items()
        if hasattr(torch, f"_sym_{name}")
    },
}

BINARY: dict[str, Operation] = {
    "add": Operation(operator.add, sympy.Add, f.FloatAdd),
    "sub": Operation(operator.sub, lambda a, b: sympy.Add(a, -b), f.FloatSub),
    "mul": Operation(operator.mul, sympy.Mul, f.FloatMul),
    "mod": Operation(operator.mod, f.PythonMod, f.FloatMod),
    "int_floordiv": Operation(operator.floordiv, f.FloorDiv, f.FloatFloorDiv),
    "int_truediv": Operation(operator.truediv, f.IntTrueDiv, f.FloatTrueDiv, float),
    "float_truediv": Operation(operator.truediv, f.IntTrueDiv, f.FloatTrueDiv, float),
    "pow_by_natural": Operation(operator.pow, f.PowByNatural, f.FloatPow, int),
    "float_pow": Operation(operator.pow, lambda a, b: f.FloatPow(f.ToFloat(a), f.ToFloat(b)), f.FloatPow, float),
    "lshift": Operation(operator.lshift, f.LShift, None, int),
    "rshift": Operation(operator.rshift, f.RShift, None, int),
    "bitwise_and": Operation(operator.and_, f.BitwiseAnd, None, int),
    "bitwise_or": Operation(operator.or_, f.BitwiseOr, None, int),
    "bitwise_xor": Operation(operator.xor, f.BitwiseXor, None, int),
    "and_": Operation(operator.and_, sympy.And, None, bool),
    "or_": Operation(operator.or_, sympy.Or, None, bool),
    "sym_min": Operation(torch.sym_min, f.Min, f.Min),
    "sym_max": Operation(torch.sym_max, f.Max, f.Max),
    "eq": _compare(sympy.Eq),
    "ne": _compare(sympy.Ne),
    "lt": _compare(sympy.Lt),
    "le": _compare(sympy.Le),
    "gt": _compare(sympy.Gt),
    "ge": _compare(sympy.Ge),
}

ROUND = Operation(builtins.round, _same, f.RoundToInt, int)
