"""Sympy functions with Python's exact semantics: floor division, modulo, conversions, float arithmetic with rounding.

Counterpart: torch/utils/_sympy/functions.py
Differs: every function holds its Python function and folds constants by calling it, so that a folded value is the value eager
computes, for integers of any size and for floats to the last bit. Float arithmetic is never sympy's, which reorders additions.
There is one modulo and one floor division, both with Python's signs.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, ClassVar

import sympy
import torch
from sympy.core.relational import Relational
from sympy.logic.boolalg import BooleanAtom, BooleanFunction

Number = int | float | bool


def to_expr(value: Number) -> sympy.Basic:
    """A Python number as a sympy constant; floats keep all 53 bits, and infinities and nan are sympy's."""
    if isinstance(value, bool):
        return sympy.true if value else sympy.false
    return sympy.Integer(value) if isinstance(value, int) else sympy.Float(value)


def is_constant(expr: sympy.Basic) -> bool:
    """Whether the expression is a number, true or false, as `to_number` takes it."""
    return expr.is_Number or expr is sympy.true or expr is sympy.false


def to_number(expr: sympy.Basic) -> Number:
    """A sympy constant as a Python number."""
    if isinstance(expr, sympy.Integer):
        return int(expr)
    if expr is sympy.true:
        return True
    if expr is sympy.false:
        return False
    return float(expr)  # type: ignore[arg-type]


def is_condition(expr: sympy.Basic) -> bool:
    """Whether an expression is a truth value. Sympy's own flags do not say: `is_Boolean` is False for comparisons."""
    return isinstance(expr, (Relational, BooleanFunction, BooleanAtom))


class ShapeFunction(sympy.Expr):
    """A function of sizes. In subclasses `compute` is the Python function, and `rewrite` simplifies."""

    is_commutative = True
    compute: ClassVar[Callable[..., Any]]
    # Python source with positions of arguments: "({0} // {1})". Arguments are put in brackets where needed.
    template: ClassVar[str]
    # The operator between its arguments when it is printed for people; if empty, it is printed as a call.
    infix: ClassVar[str] = ""

    def __new__(cls, *args: Any) -> Any:
        operands = tuple(a if isinstance(a, sympy.Basic) else sympy.sympify(a) for a in args)
        if all(is_constant(a) for a in operands):
            try:
                return to_expr(cls.compute(*map(to_number, operands)))
            except (ArithmeticError, ValueError):  # not folded: evaluating it raises Python's own error
                return sympy.Expr.__new__(cls, *operands)
        rewritten = cls.rewrite(*operands)
        return sympy.Expr.__new__(cls, *operands) if rewritten is None else rewritten

    @classmethod
    def rewrite(cls, *args: Any) -> sympy.Basic | None:
        """An equal, simpler expression, or None. Must be equal for negative integers as well."""
        return None

    def _sympystr(self, printer: Any) -> str:
        parts = [printer.doprint(a) for a in self.args]
        if type(self).infix:
            left, right = (f"({p})" if getattr(a, "infix", "") else p for p, a in zip(parts, self.args, strict=True))
            return f"{left}{type(self).infix}{right}"
        return f"{type(self).__name__}({', '.join(parts)})"


class IntegerFunction(ShapeFunction):
    """A function whose value is an int."""

    is_integer = True
    is_finite = True
    is_real = True


class FloatFunction(ShapeFunction):
    """A function whose value is a float. Not declared real: it may be nan."""


def terms_of(expr: sympy.Basic) -> tuple[Any, ...]:
    return expr.args if isinstance(expr, sympy.Add) else (expr,)


def _coefficient(term: sympy.Basic) -> int | None:
    """The integer factor of a term; None if the term is no integer."""
    if isinstance(term, sympy.Integer):
        return int(term)
    if isinstance(term, sympy.Mul):
        first = term.args[0]
        if isinstance(first, sympy.Integer):
            return int(first)
        return None if first.is_Number else 1
    return None if term.is_Number else 1


def _exact_quotient_of_term(term: Any, divisor: Any) -> Any:
    """term / divisor if exact and the divisor consists of integers and positive symbols; else None."""
    if isinstance(divisor, sympy.Integer):
        coefficient = _coefficient(term)
        if coefficient is None or int(divisor) == 0 or coefficient % int(divisor) != 0:
            return None
        return sympy.Integer(coefficient // int(divisor)) * (sympy.S.One if term.is_Number else term / coefficient)
    factors = divisor.args if isinstance(divisor, sympy.Mul) else (divisor,)
    for factor in factors:
        base, exponent = factor.as_base_exp()
        if isinstance(factor, sympy.Integer):
            divided = _exact_quotient_of_term(term, factor)
            if divided is None:
                return None
            term = divided
            continue
        if not (base.is_Symbol and base.is_positive and isinstance(exponent, sympy.Integer)):
            return None
        quotient = term / factor
        if any(
            isinstance(part, sympy.Pow) and part.exp.is_negative
            for part in (quotient.args if isinstance(quotient, sympy.Mul) else (quotient,))
        ):
            return None
        term = quotient
    return term


class FloorDiv(IntegerFunction):
    """`a // b`, rounding down as Python does."""

    compute = operator.floordiv
    template = "({0} // {1})"
    _torch_handler_name = "floordiv"  # the name in torch's sympy interpreter

    @classmethod
    def rewrite(cls, *args: Any) -> sympy.Basic | None:
        a, b = args
        if a.is_zero or b == 1:
            return a
        if b == -1:
            return -a
        if b.is_zero:
            return None
        if (
            isinstance(a, FloorDiv) and isinstance(b, sympy.Integer) and b > 0
        ):  # floor(floor(x / y) / n) = floor(x / (y n))
            return FloorDiv(a.args[0], a.args[1] * b)
        whole, rest = [], []
        for term in terms_of(a):
            divided = _exact_quotient_of_term(term, b)
            (rest if divided is None else whole).append(term if divided is None else divided)
        if whole:
            return sympy.Add(*whole, FloorDiv(sympy.Add(*rest), b))
        if isinstance(b, sympy.Integer) and b > 0:
            coefficients = [_coefficient(term) for term in terms_of(a)]
            if None not in coefficients:
                common = math.gcd(int(b), *coefficients)  # type: ignore[arg-type]
                if common > 1:
                    reduced = sympy.Add(*(_exact_quotient_of_term(term, sympy.Integer(common)) for term in terms_of(a)))
                    return FloorDiv(reduced, b / common)
        return None

    def _eval_is_nonnegative(self) -> bool | None:
        a, b = self.args
        return True if a.is_nonnegative and b.is_positive else None

    def _sympystr(self, printer: Any) -> str:
        return "({}//{})".format(*(printer.parenthesize(a, 60) for a in self.args))


class PythonMod(IntegerFunction):
    """`a % b` with the sign of b. Printed as `Mod`, as upstream does."""

    compute = operator.mod
    template = "({0} % {1})"
    _torch_handler_name = "python_mod"

    @classmethod
    def rewrite(cls, *args: Any) -> sympy.Basic | None:
        a, b = args
        if a.is_zero or b == 1 or b == -1 or (a == b and b.is_nonzero):
            return sympy.S.Zero
        if b.is_zero:
            return None
        kept = []
        for term in terms_of(a):
            if _exact_quotient_of_term(term, b) is not None:
                continue
            coefficient = _coefficient(term)
            if isinstance(b, sympy.Integer) and coefficient is not None:
                term = term + (coefficient % int(b) - coefficient) * (1 if term.is_Number else term / coefficient)
            kept.append(term)
        if tuple(kept) == terms_of(a):
            return None
        return PythonMod(sympy.Add(*kept), b)

    def _eval_is_nonnegative(self) -> bool | None:
        return True if self.args[1].is_positive else None

    def _sympystr(self, printer: Any) -> str:
        return f"Mod({', '.join(printer.doprint(a) for a in self.args)})"


class PowByNatural(IntegerFunction):
    """`a ** b` of integers with b >= 0. A constant exponent is rewritten as sympy's power, which is exact for integers."""

    compute = operator.pow
    template = "({0} ** {1})"
    _torch_handler_name = "pow_by_natural"

    @classmethod
    def rewrite(cls, *args: Any) -> sympy.Basic | None:
        a, b = args
        return a**b if isinstance(b, sympy.Integer) and b >= 0 else None


class _Extremum(ShapeFunction):
    """Max and Min: flattened, sorted, at most one constant."""

    is_absorbing: ClassVar[Callable[[Any, Any], bool]]

    @classmethod
    def rewrite(cls, *args: Any) -> sympy.Basic | None:
        flat: list[sympy.Basic] = []
        for a in args:
            flat.extend(a.args if isinstance(a, cls) else (a,))
        constants = [a for a in flat if is_constant(a)]
        others = sorted({a for a in flat if not is_constant(a)}, key=str)
        if len(constants) > 1:
            constants = [to_expr(cls.compute(*map(to_number, constants)))]
        new = (*constants, *others)
        if len(new) == 1:
            return new[0]
        return None if new == args else sympy.Expr.__new__(cls, *new)

    def _eval_is_integer(self) -> bool | None:
        return True if all(a.is_integer for a in self.args) else None


class Max(_Extremum):
    """The largest of its arguments, as `max` finds it."""

    compute = max
    template = "max({0})"
    _torch_handler_name = "maximum"

    def _eval_is_positive(self) -> bool | None:
        return True if any(a.is_positive for a in self.args) else None

    def _eval_is_nonnegative(self) -> bool | None:
        return True if any(a.is_nonnegative for a in self.args) else None


class Min(_Extremum):
    """The smallest of its arguments, as `min` finds it."""

    compute = min
    template = "min({0})"
    _torch_handler_name = "minimum"

    def _eval_is_positive(self) -> bool | None:
        return True if all(a.is_positive for a in self.args) else None

    def _eval_is_nonnegative(self) -> bool | None:
        return True if all(a.is_nonnegative for a in self.args) else None


class Where(ShapeFunction):
    """`a if condition else b`."""

    compute = staticmethod(lambda condition, a, b: a if condition else b)
    template = "({1} if {0} else {2})"
    _torch_handler_name = "where"

    @classmethod
    def rewrite(cls, *args: Any) -> sympy.Basic | None:
        condition, a, b = args
        if condition is sympy.true or a == b:
            return a
        return b if condition is sympy.false else None

    def _eval_is_integer(self) -> bool | None:
        return all(value.is_integer for value in self.args[1:]) or None


class IntAbs(IntegerFunction):
    """`abs` of an integer."""

    compute = abs
    template = "abs({0})"
    _torch_handler_name = "abs"

    @classmethod
    def rewrite(cls, *args: Any) -> sympy.Basic | None:
        return args[0] if args[0].is_nonnegative else None


class IntTrueDiv(FloatFunction):
    """`a / b` of integers: correctly rounded for integers beyond 2**53, which float(a) / float(b) is not."""

    compute = operator.truediv
    template = "({0} / {1})"
    _torch_handler_name = "int_truediv"


def _function(
    base: type, name: str, compute: Callable[..., Any], template: str, handler: str = "", infix: str = ""
) -> Any:
    """Make a function class without rewrites; `handler` is its name in torch's sympy interpreter."""
    body: dict[str, Any] = {"compute": compute, "template": template, "infix": infix, "__doc__": f"`{template}`"}
    return type(name, (base,), {**body, "_torch_handler_name": handler} if handler else body)


BitwiseAnd = _function(IntegerFunction, "BitwiseAnd", operator.and_, "({0} & {1})", "bitwise_and")
BitwiseOr = _function(IntegerFunction, "BitwiseOr", operator.or_, "({0} | {1})", "bitwise_or")
BitwiseXor = _function(IntegerFunction, "BitwiseXor", operator.xor, "({0} ^ {1})", "bitwise_xor")
LShift = _function(IntegerFunction, "LShift", operator.lshift, "({0} << {1})")
RShift = _function(IntegerFunction, "RShift", operator.rshift, "({0} >> {1})")
FloorToInt = _function(IntegerFunction, "FloorToInt", math.floor, "math.floor({0})")
CeilToInt = _function(IntegerFunction, "CeilToInt", math.ceil, "math.ceil({0})")
TruncToInt = _function(IntegerFunction, "TruncToInt", math.trunc, "math.trunc({0})")
RoundToInt = _function(IntegerFunction, "RoundToInt", round, "round({0})")
ToFloat = _function(FloatFunction, "ToFloat", float, "float({0})")
FloatTrueDiv = _function(FloatFunction, "FloatTrueDiv", operator.truediv, "({0} / {1})", "truediv", "/")
FloatAdd = _function(FloatFunction, "FloatAdd", operator.add, "({0} + {1})", "add", " + ")
FloatSub = _function(FloatFunction, "FloatSub", operator.sub, "({0} - {1})", "sub", " - ")
FloatMul = _function(FloatFunction, "FloatMul", operator.mul, "({0} * {1})", "mul", "*")
FloatNeg = _function(FloatFunction, "FloatNeg", operator.neg, "(-{0})")
FloatAbs = _function(FloatFunction, "FloatAbs", abs, "abs({0})", "abs")
FloatPow = _function(FloatFunction, "FloatPow", operator.pow, "({0} ** {1})", "pow")
FloatMod = _function(FloatFunction, "FloatMod", operator.mod, "({0} % {1})")
FloatFloorDiv = _function(FloatFunction, "FloatFloorDiv", operator.floordiv, "({0} // {1})")
RoundDecimal = _function(FloatFunction, "RoundDecimal", round, "round({0}, {1})", "round_decimal")

# The functions of `math` that torch has for symbolic numbers.
MATH_NAMES = tuple(name.removeprefix("_sym_") for name in dir(torch) if name.startswith("_sym_"))
MATH_FUNCTIONS = {
    name: _function(FloatFunction, f"Math_{name}", getattr(math, name), f"math.{name}({{0}})") for name in MATH_NAMES
}


def is_non_overlapping_and_dense(*sizes_then_strides: int) -> int:
    """1 if some order of the dimensions is contiguous, else 0."""
    dim = len(sizes_then_strides) // 2
    sizes, strides = sizes_then_strides[:dim], sizes_then_strides[dim:]
    if 0 in sizes:
        return 1
    expected = 1
    for stride, size in sorted((stride, size) for size, stride in zip(sizes, strides, strict=True) if size != 1):
        if stride != expected:
            return 0
        expected *= size
    return 1


class IsNonOverlappingAndDense(IntegerFunction):
    """1 if a tensor with these sizes and strides (sizes first) is non-overlapping and dense, else 0."""

    compute = is_non_overlapping_and_dense
    template = "is_non_overlapping_and_dense({0})"
    _torch_handler_name = "is_non_overlapping_and_dense_indicator"


VARIADIC = (Max, Min, IsNonOverlappingAndDense)
