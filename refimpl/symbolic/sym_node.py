"""SymNode, the object behind torch.SymInt, SymFloat and SymBool: an expression, its type and its hint.

Counterpart: torch/fx/experimental/sym_node.py SymNode
Differs: a SymNode records the operation that made it (`origin`), so that a tracer writes graph nodes only when they are needed;
torch's SymNodes call the tracer at every operation. Results of operations are cached in the ShapeEnv.
C++ (torch/csrc/utils/python_symnode.h) and torch's Python code call these methods by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sympy
import torch

from refimpl._torch import is_inside_formula
from refimpl.symbolic import layout
from refimpl.symbolic.functions import (
    Number,
    RoundDecimal,
    Where,
    is_constant,
    is_non_overlapping_and_dense,
    to_expr,
    to_number,
)
from refimpl.symbolic.operations import BINARY, ROUND, UNARY, Operation
from refimpl.symbolic.polynomials import exact_quotient
from refimpl.symbolic.protocols import NodeEnvironment


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """The Python operation that made a SymNode: a graph node `function(*operands)` computes its value.

    An operand is a SymNode, a Python number, or for torch.sym_sum a tuple of these.
    """

    function: Callable[..., Any]
    operands: tuple[Any, ...]


class SymNode:
    """A symbolic int, float or bool. Immutable except for caches."""

    __slots__ = (
        "__weakref__",
        "_current",
        "_current_version",
        "_expr",
        "_hint",
        "constant",
        "fx_node",
        "origin",
        "pytype",
        "shape_env",
    )

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """The operations, which are set below from tables."""

    def __init__(
        self,
        expr: sympy.Basic,
        shape_env: NodeEnvironment,
        pytype: type,
        hint: Any = None,
        constant: Number | None = None,
        fx_node: Any = None,
        *,
        origin: Origin | None = None,
    ) -> None:
        self._expr = expr
        self.shape_env = shape_env
        self.pytype = pytype
        self._hint = hint
        self.constant = constant
        self.origin = origin
        self.fx_node = fx_node
        self._current = expr
        self._current_version = 0

    # ------------------------------------------------------------------------------------------- properties

    @property
    def expr(self) -> Any:
        """The expression with the known replacements applied."""
        env = self.shape_env
        if self._current_version != env.replacements_version:
            self._current = env.replace(self._expr)
            self._current_version = env.replacements_version
        return self._current

    @property
    def hint(self) -> Any:
        """The value in the run being traced; None if it depends on an unbacked symbol."""
        if self._hint is None and self.constant is None:
            self._hint = self.shape_env.hint_of(self.expr, self.pytype)
        return self._hint

    def has_hint(self) -> bool:
        return self.hint is not None

    def require_hint(self, fallback: Any = None) -> Any:
        """The hint, else the fallback. Raises GuardOnDataDependentSymNode without both."""
        if self.hint is not None:
            return self.hint
        return self.shape_env.size_hint(self.expr) if fallback is None else fallback

    def maybe_as_int(self) -> int | None:
        expr = self.expr
        return int(expr) if isinstance(expr, sympy.Integer) else None

    def maybe_as_float(self) -> float | None:
        expr = self.expr
        return float(expr) if self.pytype is float and expr.is_Number else None

    def maybe_as_bool(self) -> bool | None:
        expr = self.expr
        return bool(expr) if expr in (sympy.true, sympy.false) else None

    def is_int(self) -> bool:
        return self.pytype is int

    def is_float(self) -> bool:
        return self.pytype is float

    def is_bool(self) -> bool:
        return self.pytype is bool

    def is_symbolic(self) -> bool:
        return True

    def is_constant(self) -> bool:
        """Whether it is a constant int or bool. Not a float: torch's operators handle constant SymInts and SymBools only."""
        return self.constant is not None and self.pytype is not float

    def is_nested_int(self) -> bool:
        return False

    def nested_int(self) -> None:
        return None

    def nested_int_coeff(self) -> None:
        return None

    def clone(self) -> SymNode:
        return self

    def with_shape_env(self, shape_env: NodeEnvironment) -> SymNode:
        return SymNode(self._expr, shape_env, self.pytype, self._hint, self.constant, origin=self.origin)

    def str(self) -> str:
        return str(self.expr)

    def __str__(self) -> str:
        return str(self.expr)

    def __repr__(self) -> str:
        return f"SymNode({self._expr}, {self.pytype.__name__}, hint={self._hint})"

    def _graph_repr(self) -> str:
        return str(self.expr)

    def _value_eq(self, other: SymNode) -> bool:
        return self._expr == other._expr and self.pytype is other.pytype and self._hint == other._hint

    def _value_hash(self) -> int:
        return hash((self._expr, self.pytype, self._hint))

    def wrap_int(self, num: int) -> SymNode:
        known = self.shape_env.int_nodes.get(num)
        if known is None:
            known = self.shape_env.int_nodes[num] = SymNode(sympy.Integer(num), self.shape_env, int, num, num)
        return known

    def wrap_float(self, num: float) -> SymNode:
        return SymNode(to_expr(num), self.shape_env, float, num, num)

    def wrap_bool(self, num: bool) -> SymNode:
        return SymNode(to_expr(num), self.shape_env, bool, num, num)

    # ------------------------------------------------------------------------------------- making new nodes

    def _made(self, expr: sympy.Basic, pytype: type, hint: Any, function: Any, operands: tuple[Any, ...]) -> SymNode:
        """The result of an operation: a constant, or a SymNode with an origin."""
        return self._of_program(self._result(expr, pytype, hint), function, operands)

    def _result(self, expr: sympy.Basic, pytype: type, hint: Any) -> SymNode:
        if is_constant(expr):
            value = pytype(to_number(expr))
            return SymNode(to_expr(value), self.shape_env, pytype, value, value)
        if hint is not None and type(hint) is not pytype:
            hint = pytype(hint)
        return SymNode(expr, self.shape_env, pytype, hint)

    def _of_program(self, result: SymNode, function: Any, operands: tuple[Any, ...]) -> SymNode:
        """The result with an origin if the traced program computes it, without one if a kernel does."""
        if result.constant is not None or not self.shape_env.records_origins:
            return result
        origin = Origin(function, tuple(_plain(o) for o in operands))
        return SymNode(result._expr, self.shape_env, result.pytype, result._hint, origin=origin)

    def _unary(self, operation: Operation) -> SymNode:
        kind, expr = self.pytype, self.expr
        key = (operation, kind, expr)
        result = self.shape_env.made.get(key)
        if result is None:
            make = operation.floats if kind is float else operation.ints
            assert make is not None, f"{operation.function} of a symbolic {kind.__name__}"
            hint = None if self.hint is None else operation.function(self.hint)
            result = self.shape_env.made[key] = self._result(make(expr), operation.result or kind, hint)
        return self._of_program(result, operation.function, (self,))

    def _binary(self, operation: Operation, other: SymNode) -> SymNode:
        kind = self.pytype
        if (kind is float) != (other.pytype is float):  # from C++; Python has converted operands to one type
            left = self if kind is float else self.sym_float()
            return left._binary(operation, other if other.pytype is float else other.sym_float())
        a, b = self.expr, other.expr
        key = (operation, kind, a, b)
        # The cached result has no origin.
        result = self.shape_env.made.get(key)
        if result is None:
            make = operation.floats if kind is float else operation.ints
            assert make is not None, f"{operation.function} of symbolic {kind.__name__}s"
            x, y = self.hint, other.hint
            hint = None if x is None or y is None else operation.function(x, y)
            result = self.shape_env.made[key] = self._result(make(a, b), operation.result or kind, hint)
        return self._of_program(result, operation.function, (self, other))

    def _simpler(self, made: SymNode, known: SymNode, operation: Operation, other: SymNode) -> SymNode:
        """The result of an operation, with the expression of the node `known` that it equals."""
        if known.constant is not None:
            return known
        return self._made(known.expr, made.pytype, known.hint, operation.function, (self, other))

    def mul(self, other: SymNode) -> SymNode:
        if self.pytype is int:
            if other.constant == 1 and other.pytype is int:
                return self
            if self.constant == 1:
                return other
        return self._binary(_MUL, other)

    def mod(self, other: SymNode) -> SymNode:
        return self._reduced(_MOD, other, self)

    def int_floordiv(self, other: SymNode) -> SymNode:
        return self._reduced(_FLOORDIV, other, self.wrap_int(0))

    def float_truediv(self, other: SymNode) -> SymNode:
        """Division. In autograd's C++ formulas x / 0 is inf or nan and no error; a guard then says whether the divisor is 0."""
        if is_inside_formula() and (other.constant == 0 or not other.ne(other.wrap_float(0.0)).guard_or_true("", 0)):
            return self.wrap_float(_divided_by_zero(self.sym_float().guard_float("", 0)))
        return self._binary(_TRUEDIV, other)

    def _reduced(self, operation: Operation, other: SymNode, if_less: SymNode) -> SymNode:
        """a % b or a // b, simplified: to a or 0 if 0 <= a < b is known, to 0 or a / b if b is not 0 and divides a."""
        made = self._binary(operation, other)
        if made.constant is not None or self.pytype is not int or other.pytype is not int:
            return made
        env = self.shape_env
        is_less = env.facts.decide(self.lt(other).expr) and env.facts.decide(self.ge(self.wrap_int(0)).expr)
        if is_less:
            return self._simpler(made, if_less, operation, other)
        quotient = exact_quotient(self.expr, other.expr)
        if quotient is None or not env.facts.decide(other.ne(self.wrap_int(0)).expr):
            return made
        if operation is _MOD or is_constant(quotient):
            return self.wrap_int(0 if operation is _MOD else int(quotient))
        return self._made(quotient, int, made.hint, operation.function, (self, other))

    def sym_min(self, other: SymNode) -> SymNode:
        return self._extremum(_MIN, other, self.le)

    def sym_max(self, other: SymNode) -> SymNode:
        return self._extremum(_MAX, other, self.ge)

    def _extremum(self, operation: Operation, other: SymNode, wins: Callable[[SymNode], SymNode]) -> SymNode:
        """min or max. If it is known which operand it is, the result has its expression; the origin is the operation."""
        made = self._binary(operation, other)
        if made.constant is not None or self.pytype is not int or other.pytype is not int:
            return made
        first = self.shape_env.facts.decide(wins(other).expr)
        return made if first is None else self._simpler(made, self if first else other, operation, other)

    def round(self, ndigits: int | None = None) -> SymNode:
        if ndigits is None:
            return self._unary(ROUND)
        if self.pytype is int:
            return self
        digits = to_expr(ndigits)
        expr = RoundDecimal(self.expr, digits)
        hint = None if self.hint is None else round(self.hint, ndigits)
        return self._made(expr, float, hint, round, (self, ndigits))

    def sym_ite(self, then: SymNode, otherwise: SymNode) -> SymNode:
        expr = Where(self.expr, then.expr, otherwise.expr)
        hint = None if self.hint is None else (then.hint if self.hint else otherwise.hint)
        return self._made(expr, then.pytype, hint, torch.sym_ite, (self, then, otherwise))

    def sym_sum(self, args: Sequence[SymNode]) -> SymNode:
        expr = sympy.Add(*(a.expr for a in args))
        hints = [a.hint for a in args]
        hint = None if None in hints else sum(hints)
        return self._made(expr, int, hint, torch.sym_sum, (tuple(args),))

    # -------------------------------------------------------------------------------------------- layouts

    def is_contiguous(self, sizes: Sequence[SymNode], strides: Sequence[SymNode]) -> SymNode:
        return self._layout(layout.contiguous, sizes, strides)

    def is_channels_last_contiguous_2d(self, sizes: Sequence[SymNode], strides: Sequence[SymNode]) -> SymNode:
        return self._layout(layout.channels_last_contiguous_2d, sizes, strides)

    def is_channels_last_contiguous_3d(self, sizes: Sequence[SymNode], strides: Sequence[SymNode]) -> SymNode:
        return self._layout(layout.channels_last_contiguous_3d, sizes, strides)

    def is_channels_last_strides_2d(self, sizes: Sequence[SymNode], strides: Sequence[SymNode]) -> SymNode:
        return self._layout(layout.channels_last_strides_2d, sizes, strides)

    def is_channels_last_strides_3d(self, sizes: Sequence[SymNode], strides: Sequence[SymNode]) -> SymNode:
        return self._layout(layout.channels_last_strides_3d, sizes, strides)

    def _layout(self, rule: layout.LayoutRule, sizes: Sequence[SymNode], strides: Sequence[SymNode]) -> SymNode:
        expr = rule([s.expr for s in sizes], [s.expr for s in strides], self.shape_env.decided)
        hint = self.shape_env.hint_of(expr, bool)
        return SymNode(expr, self.shape_env, bool, hint, None if hint is None or not is_constant(expr) else hint)

    def is_non_overlapping_and_dense_indicator(self, sizes: Sequence[SymNode], strides: Sequence[SymNode]) -> SymNode:
        """1 or 0, or an expression if the facts do not decide it."""
        expr = layout.non_overlapping_and_dense(
            [s.expr for s in sizes], [s.expr for s in strides], self.shape_env.decided
        )
        hints = [n.hint for n in (*sizes, *strides)]
        hint = None if None in hints else is_non_overlapping_and_dense(*hints)
        return SymNode(expr, self.shape_env, int, hint, hint if is_constant(expr) else None)

    def is_non_overlapping_and_dense(self, sizes: Sequence[SymNode], strides: Sequence[SymNode]) -> SymNode:
        return self.is_non_overlapping_and_dense_indicator(sizes, strides).eq(self.wrap_int(1))

    # ------------------------------------------------------------------------------- reading a value: guards

    def evaluate(self, size_oblivious: bool = False) -> Number:
        return self.shape_env.value_of(self, size_oblivious=size_oblivious)

    def guard_int(self, file: str, line: int) -> int:
        return int(self.shape_env.value_of(self, place=(file, line)))

    def guard_float(self, file: str, line: int) -> float:
        return float(self.shape_env.value_of(self, place=(file, line)))

    def guard_bool(self, file: str, line: int) -> bool:
        return bool(self.shape_env.value_of(self, place=(file, line)))

    def int_(self) -> int:
        return self.guard_int("", 0)

    def bool_(self) -> bool:
        return self.guard_bool("", 0)

    def guard_size_oblivious(self, file: str, line: int) -> bool:
        return bool(self.shape_env.value_of(self, size_oblivious=True, place=(file, line)))

    def guard_or_false(self, file: str, line: int) -> bool:
        return bool(self.shape_env.value_of(self, fallback=False, place=(file, line)))

    def guard_or_true(self, file: str, line: int) -> bool:
        return bool(self.shape_env.value_of(self, fallback=True, place=(file, line)))

    def statically_known_true(self, file: str, line: int) -> bool:
        return self.shape_env.decided(self.expr) is True

    def expect_true(self, file: str, line: int) -> bool:
        return self.shape_env.expect(self, place=(file, line))


def _plain(operand: Any) -> Any:
    if isinstance(operand, SymNode):
        return operand if operand.constant is None else operand.constant
    if isinstance(operand, tuple):
        return tuple(_plain(o) for o in operand)
    return operand


def _divided_by_zero(value: float) -> float:
    return math.nan if value == 0 or math.isnan(value) else math.copysign(math.inf, value)


_MUL = BINARY["mul"]
_TRUEDIV = BINARY["float_truediv"]
_MOD = BINARY["mod"]
_FLOORDIV = BINARY["int_floordiv"]
_MIN = BINARY["sym_min"]
_MAX = BINARY["sym_max"]


def _unary_method(operation: Operation) -> Callable[[SymNode], SymNode]:
    return lambda self: self._unary(operation)


def _binary_method(operation: Operation) -> Callable[[SymNode, SymNode], SymNode]:
    return lambda self, other: self._binary(operation, other)


def _identity(self: SymNode) -> SymNode:
    return self


# Second names of operations, by which C++ and torch's Python code call them.
_ALIASES = {
    "truediv": "float_truediv",
    "floordiv": "int_floordiv",
    "pow": "float_pow",
    "sym_and": "and_",
    "sym_or": "or_",
}
for _name, _operation in UNARY.items():
    setattr(SymNode, _name, _unary_method(_operation))
for _name, _operation in BINARY.items():
    if _name not in SymNode.__dict__:
        setattr(SymNode, _name, _binary_method(_operation))
for _name, _other in _ALIASES.items():
    setattr(SymNode, _name, getattr(SymNode, _other))
setattr(SymNode, "pos", _identity)
