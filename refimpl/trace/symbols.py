"""Creates the nodes of symbolic numbers (SymInt, SymFloat, SymBool) when an op first uses the number.

Counterpart: torch/fx/experimental/proxy_tensor.py track_tensor, thunkify, fetch_sym_proxy, _sympy_handlers, dedupe_symints;
  torch/fx/passes/runtime_assert.py insert_deferred_runtime_asserts
Differs: nothing is recorded while the program computes with sizes. A number remembers the operation that made it
(`SymNode.origin`). Once a number is an argument of an op, the operations it came from become nodes, one per expression.

A number's node is, in this order: an existing node of its expression; for a plain symbol, `sym_size` of the first tensor that has
it; the operation that made it; `sym_size` of a tensor; operations on the parts of its expression.
"""

from __future__ import annotations

import builtins
import contextlib
import math
import operator
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import sympy
import torch

from refimpl._torch import PLAIN_TYPES, is_nested_int
from refimpl.errors import NotTracked, UnsupportedByRefimpl
from refimpl.symbolic.guards import RuntimeAssert
from refimpl.symbolic.polynomials import without_common_divisor
from refimpl.symbolic.shape_env import ShapeEnv
from refimpl.trace.graph_builder import GraphBuilder

SymbolicNumber = torch.SymInt | torch.SymFloat | torch.SymBool

_SIZE = torch.ops.aten.sym_size.int
_STRIDE = torch.ops.aten.sym_stride.int
_OFFSET = torch.ops.aten.sym_storage_offset.default
_ASSERT = torch.ops.aten._assert_scalar.default

_WRAPPERS: dict[type, Callable[[Any], SymbolicNumber]] = {plain: wrapper for wrapper, plain in PLAIN_TYPES.items()}


# Python operations of sympy classes. They are keyed by class name: torch's ShapeEnv, which a fake input may come with, has sympy
# functions of its own with these names.
_FOLDS: dict[str, Callable[..., Any]] = {
    "Add": operator.add,
    "Mul": operator.mul,
    "Max": torch.sym_max,
    "Min": torch.sym_min,
    "And": operator.and_,
    "Or": operator.or_,
}
_OPERATORS: dict[str, Callable[..., Any]] = {
    "Pow": operator.pow,
    "PowByNatural": operator.pow,
    "FloatPow": operator.pow,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "IntTrueDiv": operator.truediv,
    "FloatTrueDiv": operator.truediv,
    "TrueDiv": operator.truediv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "ToFloat": torch.sym_float,
    "FloatAdd": operator.add,
    "FloatSub": operator.sub,
    "FloatMul": operator.mul,
    "FloatNeg": operator.neg,
    "FloatAbs": operator.abs,
    "FloatMod": operator.mod,
    "FloatFloorDiv": operator.floordiv,
    "RoundDecimal": builtins.round,
    "IntAbs": operator.abs,
    "BitwiseAnd": operator.and_,
    "BitwiseOr": operator.or_,
    "BitwiseXor": operator.xor,
    "LShift": operator.lshift,
    "RShift": operator.rshift,
    "CeilToInt": math.ceil,
    "FloorToInt": math.floor,
    "TruncToInt": math.trunc,
    "RoundToInt": builtins.round,
    "Where": torch.sym_ite,
    "Not": torch.sym_not,
    "Abs": operator.abs,
    "Equality": operator.eq,
    "Unequality": operator.ne,
    "LessThan": operator.le,
    "GreaterThan": operator.ge,
    "StrictLessThan": operator.lt,
    "StrictGreaterThan": operator.gt,
}


class SymbolState:
    """The nodes of a trace's symbolic numbers. The first node wins: the size of an input is never read from a later tensor."""

    def __init__(self, builder: GraphBuilder) -> None:
        self.builder = builder
        self._nodes: dict[Hashable, torch.fx.Node] = {}
        self._later: dict[Hashable, Callable[[], torch.fx.Node]] = {}
        # Makes a placeholder for a number of the outer trace.
        self.lift: Callable[[Any], torch.fx.Node | None] | None = None
        self._sources: dict[Hashable, tuple[Any, torch.fx.Node, tuple[int, ...]]] = {}
        # Keyed by the expressions that numbers had when they were made; later equalities may have replaced symbols in them.
        self._first_nodes: dict[tuple[type, sympy.Basic], torch.fx.Node] = {}
        self._first_sources: dict[Hashable, tuple[Any, torch.fx.Node, tuple[int, ...]]] = {}

    def track_value(self, number: SymbolicNumber, node: torch.fx.Node) -> None:
        """Track a number by its node: an input, or the result of an op such as `item`."""
        self._nodes.setdefault(_key(number.node), node)
        self._first_nodes.setdefault(_first_key(number.node), node)

    def track_lazily(self, number: SymbolicNumber, make: Callable[[], torch.fx.Node]) -> None:
        """Track a number by the node that `make` returns; it is called once the number is used."""
        key = _key(number.node)
        if key not in self._nodes:
            self._later.setdefault(key, make)

    def track_sizes(self, tensor: torch.Tensor, node: torch.fx.Node) -> None:
        """Note that the tensor's symbolic sizes, strides and offset can be read from its node."""
        sources = self._sources
        sizes: tuple[Any, ...] = tensor.shape
        strides: tuple[Any, ...] = tensor.stride() if tensor.layout is torch.strided else ()
        for index, size in enumerate(sizes):
            if not (isinstance(size, int) or is_nested_int(size)):
                sources.setdefault(_key(size.node), (_SIZE, node, (index,)))
                self._first_sources.setdefault(_first_key(size.node), (_SIZE, node, (index,)))
        for index, stride in enumerate(strides):
            if type(stride) is not int:
                sources.setdefault(_key(stride.node), (_STRIDE, node, (index,)))
        offset: Any = tensor.storage_offset() if strides else 0
        if type(offset) is not int:
            sources.setdefault(_key(offset.node), (_OFFSET, node, ()))

    def can_find(self, number: SymbolicNumber) -> bool:
        """Whether the number has a node, or one can be made."""
        symnode: Any = number.node
        if getattr(symnode, "constant", None) is not None or self._has(_key(symnode)):
            return True
        return all(self._has((_pytype(symbol), symbol)) for symbol in symnode.expr.free_symbols)

    def can_find_condition(self, condition: sympy.Basic) -> bool:
        """Whether the condition, or each symbol in it before later replacements, has a node."""
        known = self._first_nodes.keys() | self._first_sources.keys()
        return (bool, condition) in known or all((_pytype(s), s) in known for s in condition.free_symbols)

    def _has(self, key: Hashable) -> bool:
        return key in self._nodes or key in self._sources or key in self._later

    def node_of(self, number: SymbolicNumber) -> torch.fx.Node | int | float | bool:
        """The number's node, or its value if it is constant. Raises NotTracked if no tracked number leads to it."""
        return self._of(number.node)

    def node_of_condition(self, number: SymbolicNumber, condition: sympy.Basic) -> torch.fx.Node:
        """The node of a condition by its original expression, although the shape env may have replaced its symbols since.
        `number` is the condition after these replacements. Raises NotTracked."""
        return self._of_original(condition, number.node)

    def _of_original(self, expr: sympy.Basic, whole: Any) -> Any:
        if expr.is_number or expr in (sympy.true, sympy.false):
            return self._of_part(expr, whole)
        key = (_pytype(expr), expr)
        known = self._first_nodes.get(key)
        if known is not None:
            return known
        name, source = type(expr).__name__, self._first_sources.get(key)
        opposite = (bool, sympy.Eq(*expr.args, evaluate=False)) if name == "Unequality" else None
        if source is not None:
            target, tensor, arguments = source
            node = self.builder.call(target, (tensor, *arguments), {}, name=target.__name__)
        elif opposite in self._first_nodes:
            node = self.builder.call(torch.sym_not, (self._first_nodes[opposite],), {})
        elif name in _OPERATORS or name in _FOLDS:
            parts = [self._of_original(part, whole) for part in expr.args]
            is_fold = name in _FOLDS
            node = (
                self._folded(expr, parts, whole) if is_fold else self.builder.call(_OPERATORS[name], tuple(parts), {})
            )
        else:
            raise NotTracked(_WRAPPERS[whole.pytype](whole))
        self._first_nodes[key] = node
        self.builder.describe(node, _WRAPPERS[key[0]](type(whole)(expr, whole.shape_env, key[0], None)))
        return node

    def _of(self, symnode: Any) -> Any:
        if isinstance(symnode, (bool, int, float)):
            return symnode
        constant = getattr(symnode, "constant", None)
        if constant is not None:
            return constant
        if symnode.is_nested_int():
            raise NotTracked(torch.SymInt(symnode))
        expr = symnode.expr
        if expr.is_number or expr in (sympy.true, sympy.false):
            return symnode.pytype(expr)
        key = (symnode.pytype, expr)
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = self._make(symnode, key)
        return node

    def _make(self, symnode: Any, key: Hashable) -> torch.fx.Node:
        make = self._later.pop(key, None)
        if make is not None:
            return make()
        origin = getattr(symnode, "origin", None)
        source = self._sources.get(key)
        if source is not None and (origin is None or symnode.expr.is_Symbol):
            target, tensor, arguments = source
            node = self.builder.call(target, (tensor, *arguments), {}, name=target.__name__)
        elif origin is not None:
            node = self.builder.call(origin.function, self._operands(origin.operands), {})
        else:
            node = self._of_expression(symnode)
        self.builder.describe(node, _WRAPPERS[symnode.pytype](symnode))
        return node

    def _operands(self, operands: Any) -> tuple[Any, ...]:
        return tuple(self._operands(o) if isinstance(o, tuple) else self._of(o) for o in operands)

    def _of_expression(self, symnode: Any) -> torch.fx.Node:
        """Make the node from the parts of the expression: a number of an input, or one whose expression has changed since."""
        expr = symnode.expr
        name = type(expr).__name__
        if not expr.args or (name not in _FOLDS and name not in _OPERATORS):
            lifted = None if self.lift is None else self.lift(_WRAPPERS[symnode.pytype](symnode))
            lifted = lifted or self._of_equal_symbol(symnode)
            if lifted is not None:
                return lifted
            raise NotTracked(_WRAPPERS[symnode.pytype](symnode))
        parts = [self._of_part(part, symnode) for part in expr.args]
        if name in _OPERATORS:
            return self.builder.call(_OPERATORS[name], tuple(parts), {})
        return self._folded(expr, parts, symnode)

    def _of_equal_symbol(self, symnode: Any) -> torch.fx.Node | None:
        """The node of a number whose own symbol was replaced by this one since: it was found equal after it was read."""
        for (pytype, first), node in self._first_nodes.items():
            if pytype is symnode.pytype and first.is_Symbol and symnode.shape_env.replace(first) == symnode.expr:
                return node
        return None

    def _folded(self, expr: sympy.Basic, parts: Sequence[Any], whole: Any) -> Any:
        """Binary calls for an n-ary sum, product, maximum ... The caller describes the last one's node."""
        node = parts[0]
        for count, part in enumerate(parts[1:], 2):
            node = self.builder.call(_FOLDS[type(expr).__name__], (node, part), {})
            if count < len(parts):
                done = expr.func(*expr.args[:count])
                pytype = _pytype(done)
                self.builder.describe(node, _WRAPPERS[pytype](type(whole)(done, whole.shape_env, pytype, None)))
        return node

    def _of_part(self, expr: sympy.Basic, whole: Any) -> Any:
        if expr in (sympy.true, sympy.false):
            return bool(expr)
        if isinstance(expr, sympy.Integer):
            return int(expr)
        if isinstance(expr, sympy.Number):
            return float(expr)
        pytype = _pytype(expr)
        node = self._nodes.get((pytype, expr))
        if node is not None:
            return node
        part = type(whole)(expr, whole.shape_env, pytype, None)
        return self._of(part)


class Assertions:
    """The runtime asserts of one trace: `aten._assert_scalar` nodes for conditions that its ShapeEnv defers to run time.

    What a program asserts of numbers that it reads from data, as `torch._check(n > 3)` does, is recorded at the place of the
    check, so that it keeps its order among other effects.
    """

    def __init__(self, symbols: SymbolState, shape_env: ShapeEnv, is_recording: Callable[[], bool]) -> None:
        self._symbols = symbols
        self._env = shape_env
        self._is_recording = is_recording
        # Asserts of numbers without a node: the operator that makes them is running.
        self._waiting: list[RuntimeAssert] = []

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """A block whose runtime asserts become nodes of this trace. Blocks of inner traces may lie within it."""
        outer, self._env.on_runtime_assert = self._env.on_runtime_assert, self._add
        try:
            yield
            self._record_waiting()
        finally:
            self._env.on_runtime_assert = outer
        if self._waiting:
            lost = self._waiting[0]
            raise UnsupportedByRefimpl(
                seen=f"{lost.expr}, asserted at {lost.stack.user_line() or lost.msg}: the graph does not compute its numbers",
                supported="assertions of numbers that the traced function reads or computes",
                do="assert it in the function that reads the number",
            )

    def _add(self, assertion: RuntimeAssert) -> None:
        if not self._is_recording():
            return  # the tracer asked, not the program
        self._waiting.append(assertion)
        self._record_waiting()

    def _record_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for assertion in waiting:
            node = self._node_of(assertion.expr)
            if node is None:
                self._waiting.append(assertion)
                continue
            place = assertion.stack.user_line() or assertion.msg
            expression = without_common_divisor(assertion.expr)
            message = f"Runtime assertion failed for expression {expression} at {place}"
            self._symbols.builder.call(_ASSERT, (node, message), {}).meta["val"] = None

    def _node_of(self, condition: sympy.Basic) -> Any:
        """The node of a condition as the program stated it, or None if one of its numbers has no node yet."""
        holds = self._env.create_symboolnode(condition)
        try:
            if isinstance(holds, torch.SymBool) and holds.node.expr == condition:
                return self._symbols.node_of(holds)
            return self._symbols.node_of_condition(holds, condition)
        except NotTracked:
            return None


def _key(symnode: Any) -> Hashable:
    return symnode.pytype, symnode.expr


def _first_key(symnode: Any) -> tuple[type, sympy.Basic]:
    """The key by the expression that the number had when it was made."""
    return symnode.pytype, getattr(symnode, "_expr", symnode.expr)


def _pytype(expr: sympy.Basic) -> type:
    if isinstance(expr, sympy.logic.boolalg.Boolean) and not isinstance(expr, sympy.Symbol):
        return bool
    return int if getattr(expr, "is_integer", None) else float
