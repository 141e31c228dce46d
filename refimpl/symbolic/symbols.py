"""The symbols of a ShapeEnv: their hints, sources, ranges and replacements; unbacked symbols and where results bind them.

The value of an unbacked symbol is known only when the program runs: `x.item()`, sizes of `x.nonzero()`.

Counterpart: the symbol tables of torch/fx/experimental/symbolic_shapes.py ShapeEnv, and its create_unbacked_*, _constrain_range*;
compute_unbacked_bindings
Differs: replacements contain no replaced symbols, so that one pass applies them; symbols are numbered in order (s0, s1, ..., u0).
"""

from __future__ import annotations

import contextlib
import contextvars
import math
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import sympy
import torch

from refimpl._torch import SYMBOLIC_TYPES, TorchValueRanges, pytree, upstream_shape_error
from refimpl.symbolic.facts import FactState
from refimpl.symbolic.functions import is_condition, is_constant, to_number
from refimpl.symbolic.guards import evaluate
from refimpl.symbolic.operations import relation, substitute
from refimpl.symbolic.polynomials import divide_terms, from_terms
from refimpl.symbolic.protocols import NodeEnvironment
from refimpl.symbolic.ranges import INFINITY, UNKNOWN, Bound, Range
from refimpl.symbolic.sources import Source
from refimpl.symbolic.sym_node import SymNode


class RangesForTorch(Mapping[sympy.Symbol, Any]):
    """The ranges of the symbols as torch's ValueRanges, for torch's fake kernels."""

    def __init__(self, facts: FactState) -> None:
        self._facts = facts

    def __getitem__(self, symbol: sympy.Symbol) -> Any:
        found = self._facts.ranges[symbol]
        lower = -sympy.oo if found.lower == -INFINITY else sympy.sympify(found.lower)
        upper = sympy.oo if found.upper == INFINITY else sympy.sympify(found.upper)
        if symbol.is_integer and lower == -sympy.oo:
            unknown = TorchValueRanges.unknown_int()
            return unknown if upper == sympy.oo else unknown & TorchValueRanges(unknown.lower, upper)
        return TorchValueRanges(lower, upper)

    def __iter__(self) -> Iterator[sympy.Symbol]:
        return iter(self._facts.ranges)

    def __len__(self) -> int:
        return len(self._facts.ranges)


class SymbolState:
    """The part of ShapeEnv that holds symbols, hints and replacements."""

    def __init__(self) -> None:
        self._facts: FactState | None = None
        self.first_ranges: dict[sympy.Symbol, Range] = {}  # the range of each symbol before the program runs
        self.backed_var_to_val: dict[sympy.Symbol, sympy.Basic] = {}
        self.real_tensor_prop_unbacked_vals: dict[sympy.Symbol, sympy.Basic] = {}
        self.var_to_sources: dict[sympy.Symbol, list[Source]] = {}
        self.source_to_var: dict[str, sympy.Symbol] = {}
        self.replacements: dict[sympy.Symbol, sympy.Basic] = {}
        self.replacements_version = 0
        self.unbacked: dict[sympy.Symbol, int] = {}  # symbol -> order of creation
        self._order: dict[sympy.Symbol, int] = {}
        self._values: dict[sympy.Symbol, Any] = {}  # backed_var_to_val as Python numbers
        self._replaced: dict[sympy.Basic, sympy.Basic] = {}
        self._hints: dict[sympy.Basic, Any] = {}
        # Caches of SymNodes without origin: by operation, type and operand expressions; constants by value.
        self.made: dict[Any, Any] = {}
        self.int_nodes: dict[int, Any] = {}

    @property
    def facts(self) -> FactState:
        """The facts about the symbols. A static trace, which has none, makes no table."""
        if self._facts is None:
            self._facts = FactState()
        return self._facts

    # --------------------------------------------------------------------------------------------- expressions

    def replace(self, expr: Any) -> Any:
        """The expression with the known replacements applied."""
        if not self.replacements:
            return expr
        found = self._replaced.get(expr)
        if found is None:
            found = self._replaced[expr] = substitute(expr, self.replacements)
        return found

    def simplify(self, expr: Any, size_oblivious: bool = False) -> Any:
        """`replace`; a condition that the facts decide becomes true or false."""
        replaced = self.replace(expr)
        if not is_condition(replaced):
            return replaced
        value = self.facts.decide(replaced)
        return replaced if value is None else sympy.true if value else sympy.false

    def has_unbacked(self, expr: sympy.Basic) -> bool:
        return bool(self.unbacked) and any(s in self.unbacked for s in expr.free_symbols)

    def is_unbacked_symint(self, symbol: sympy.Symbol) -> bool:
        return symbol in self.unbacked

    def hint_of(self, expr: sympy.Basic, pytype: type) -> Any:
        """The value in the run being traced; None if it depends on unbacked symbols or divides by 0."""
        if is_constant(expr):
            return pytype(to_number(expr))
        if expr in self._hints:
            return self._hints[expr]
        value = None
        if all(s in self._values for s in expr.free_symbols):
            with contextlib.suppress(ZeroDivisionError):
                value = pytype(evaluate(expr, self._values))
        self._hints[expr] = value
        return value

    # ------------------------------------------------------------------------------------------------- symbols

    def _register(self, symbol: sympy.Symbol, found: Range) -> None:
        self._order[symbol] = len(self._order)
        self.facts.ranges[symbol] = self.first_ranges[symbol] = found

    def add_backed_var_to_val(self, expr: sympy.Symbol, val: int) -> None:
        """Set the hint of a symbol that the caller made."""
        assert expr not in self.backed_var_to_val, f"{expr} already has a value"
        if expr not in self._order:
            self._register(expr, Range(-INFINITY, INFINITY))
        self.backed_var_to_val[expr] = sympy.sympify(val)
        self._values[expr] = val
        self._hints.clear()

    add_var_to_val = add_backed_var_to_val

    @property
    def var_to_val(self) -> dict[sympy.Symbol, sympy.Basic]:
        return self.backed_var_to_val

    @property
    def size_like(self) -> set[sympy.Symbol]:
        return self.facts.size_like

    @property
    def var_to_range(self) -> Mapping[sympy.Symbol, Any]:
        return RangesForTorch(self.facts)

    # -------------------------------------------------------------------------------------------- replacements

    def learn(self, condition: sympy.Basic) -> None:
        """Take a condition as true, and replace the symbols it determines."""
        narrowed = self.facts.learn(condition)
        parts = condition.args if isinstance(condition, sympy.And) else (condition,)
        for part in parts:
            if isinstance(part, sympy.Eq):
                self._solve(part)
        for symbol in sorted(narrowed, key=self._order.__getitem__):
            found = self.facts.ranges[symbol]
            if found.is_singleton() and symbol not in self.replacements:
                self.set_replacement(symbol, sympy.Integer(found.lower))

    def _solve(self, equation: sympy.Eq) -> None:
        """Solve an equation for one symbol and replace it. Unbacked symbols are replaced first, the newest of them, so that the
        solution has older symbols. Only a symbol with coefficient 1 or -1 is replaced: the solution is then an integer."""
        equation = self.replace(equation)
        if not isinstance(equation, sympy.Eq):
            return
        left, right = equation.args
        if not (left.is_integer and right.is_integer):
            return
        terms = self.facts.difference(equation)
        terms = divide_terms(terms, (), math.gcd(*(c for _, c in terms)) or 1) or terms
        candidates: list[tuple[Any, int]] = [
            (monomial[0][0], coefficient)
            for monomial, coefficient in terms
            if len(monomial) == 1 and monomial[0][1] == 1 and coefficient in (1, -1) and monomial[0][0] in self._order
        ]
        candidates.sort(key=lambda c: (c[0] in self.unbacked, self._order[c[0]]), reverse=True)
        for symbol, coefficient in candidates:
            rest = from_terms(tuple(t for t in terms if t[0] != ((symbol, 1),)))
            solution = -rest if coefficient == 1 else rest
            if symbol not in solution.free_symbols:
                self.set_replacement(symbol, solution)
                return

    def set_replacement(self, symbol: sympy.Symbol, expr: Any) -> None:
        """Replace the symbol by the expression from now on."""
        expr = self.replace(expr)
        if expr == symbol or symbol in expr.free_symbols:
            return
        if symbol in self.replacements:
            self.learn(relation(sympy.Eq, self.replacements[symbol], expr))
            return
        for other, old in self.replacements.items():
            if symbol in old.free_symbols:
                self.replacements[other] = substitute(old, {symbol: expr})
        self.replacements[symbol] = expr
        self.replacements_version += 1
        self._replaced.clear()
        self._carry_over_facts(symbol, expr)

    def _carry_over_facts(self, symbol: sympy.Symbol, expr: sympy.Basic) -> None:
        """Learn the facts about the symbol for the expression that replaces it."""
        found = self.facts.ranges.get(symbol)
        self.facts.changed()
        if found is not None and not is_constant(expr):
            if found.lower != -INFINITY:
                self.learn(relation(sympy.Ge, expr, sympy.Integer(found.lower)))
            if found.upper != INFINITY:
                self.learn(relation(sympy.Le, expr, sympy.Integer(found.upper)))
        if found is not None:
            new = self.facts.range_of(expr)
            if new.is_subset_of(found):
                self.facts.ranges[symbol] = new
        if symbol in self.facts.size_like and expr.is_Symbol:
            self.facts.size_like.add(expr)  # pyright: ignore[reportArgumentType]
        for condition, holds in list(self.facts.known.items()):
            if holds and symbol in condition.free_symbols:
                self.learn(self.replace(condition))


def as_bound(value: Any) -> Bound:
    """Convert an int or an infinity to a bound. Infinities of sympy and torch print as oo and int_oo."""
    if isinstance(value, (int, float)):
        return value
    text = str(value)
    if text.endswith("oo"):
        return -INFINITY if text.startswith("-") else INFINITY
    return int(text)


_ASSUMES_COMMON_SIZES: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "refimpl_assumes_common_sizes", default=False
)


@contextmanager
def assuming_common_sizes() -> Generator[None]:
    """A block in which `u0 == 0` of an unbacked number is False unless it is known: for decompositions, whose special cases (an
    empty tensor, a dimension of 1) only save work. The fake kernel of the operator has decided what its result is."""
    token = _ASSUMES_COMMON_SIZES.set(True)
    try:
        yield
    finally:
        _ASSUMES_COMMON_SIZES.reset(token)


def assumes_common_sizes() -> bool:
    """Whether this is within a block of `assuming_common_sizes`."""
    return _ASSUMES_COMMON_SIZES.get()


def common_answer(condition: sympy.Basic) -> bool | None:
    """The answer for common sizes in a block of `assuming_common_sizes`; None outside, and if there is none."""
    if not isinstance(condition, (sympy.Eq, sympy.Ne)) or not _ASSUMES_COMMON_SIZES.get():
        return None
    return isinstance(condition, sympy.Ne)


class UnbackedSymbols(SymbolState):
    """The part of ShapeEnv that makes and constrains unbacked symbols."""

    def __init__(self) -> None:
        super().__init__()
        self.pending_fresh_unbacked_symbols: list[sympy.Symbol] = []
        self.ignorable_fresh_unbacked_symbols: list[sympy.Symbol] = []
        self.unbacked_renamings: dict[sympy.Symbol, sympy.Symbol] = {}
        self.unbacked_symint_counter = 0
        self.unbacked_symfloat_counter = 0
        self._ignores_fresh = 0

    def _node(self, expr: sympy.Basic, pytype: type) -> SymNode:
        return SymNode(expr, cast(NodeEnvironment, self), pytype)

    def _fresh(self, symbol: sympy.Symbol, found: Range, source: Any = None) -> sympy.Symbol:
        self._register(symbol, found)
        self.unbacked[symbol] = len(self.unbacked)
        if not self._ignores_fresh and source is None:
            self.pending_fresh_unbacked_symbols.append(symbol)
        return symbol

    def _fresh_int(self, found: Range, source: Any = None) -> sympy.Symbol:
        symbol = sympy.Symbol(f"u{self.unbacked_symint_counter}", integer=True)
        self.unbacked_symint_counter += 1
        return self._fresh(symbol, found, source)

    def create_unbacked_symint(self, source: Any = None) -> torch.SymInt:
        """A new unbacked SymInt. With a source it belongs to an input, and no op has to bind it."""
        return torch.SymInt(self._node(self._fresh_int(UNKNOWN, source), int))

    def create_unbacked_symfloat(self) -> torch.SymFloat:
        """A new unbacked SymFloat."""
        symbol = sympy.Symbol(f"zuf{self.unbacked_symfloat_counter}")
        self.unbacked_symfloat_counter += 1
        return torch.SymFloat(self._node(self._fresh(symbol, UNKNOWN), float))

    def create_unbacked_symbool(self) -> torch.SymBool:
        """A new unbacked SymBool: `u0 == 1` for an unbacked u0 that is 0 or 1, as upstream makes it."""
        symbol = self._fresh_int(Range(0, 1))
        return torch.SymBool(self._node(sympy.Eq(symbol, 1, evaluate=False), bool))

    @contextmanager
    def ignore_fresh_unbacked_symbols(self) -> Generator[None, None, None]:
        """Unbacked symbols made inside need no binding."""
        self._ignores_fresh += 1
        try:
            yield
        finally:
            self._ignores_fresh -= 1

    def _ignore_fresh_unbacked_symbols_tls(self) -> bool:
        return self._ignores_fresh > 0

    # ---------------------------------------------------------------------------------------------- constraints

    def constrain_symbol_range(self, s: Any, compiler_min: Any, compiler_max: Any) -> None:
        """Take the bounds of the symbol as true, without a guard or a runtime assert."""
        lower, upper = as_bound(compiler_min), as_bound(compiler_max)
        s = self.replace(s)
        if s in self.first_ranges:
            self.first_ranges[s] &= Range(lower, upper)
        if lower != -INFINITY:
            self.learn(sympy.Ge(s, sympy.Integer(lower), evaluate=False) if not s.is_number else sympy.true)
        if upper != INFINITY:
            self.learn(sympy.Le(s, sympy.Integer(upper), evaluate=False) if not s.is_number else sympy.true)

    def _constrain_range_for_size(self, a: Any, min: Any = None, max: Any = None) -> None:
        lower = 0 if min is None else min
        upper = INFINITY if max is None else max
        _check_order(lower, upper)
        self.constrain_symbol_range(a, lower, upper)
        a = self.replace(a)
        if a.is_Symbol:
            self.facts.size_like.add(a)
            self.facts.changed()

    def _constrain_range(self, a: Any, min: Any, max: Any) -> None:
        _check_order(min, max)
        if isinstance(a, sympy.Integer):
            if not as_bound(min) <= int(a) <= as_bound(max):
                raise ValueError(f"Invalid value {int(a)} for range [{min}:{max}]")
        else:
            self.constrain_symbol_range(a, min, max)

    def _constrain_is_bounded(self, a: sympy.Symbol, upper_bound: Any) -> None:
        if isinstance(upper_bound, int):
            self.constrain_symbol_range(a, -INFINITY, upper_bound)

    def _constrain_unify(self, a: Any, b: Any) -> None:
        """Take two sizes as equal, without a guard."""
        exprs = [sympy.Integer(x) if isinstance(x, int) else x.node.expr for x in (a, b)]
        condition = sympy.Eq(exprs[0], exprs[1], evaluate=False)
        if all(e.is_number for e in exprs):
            assert exprs[0] == exprs[1], f"{a} != {b}, but the program takes them as equal"
        else:
            self.learn(condition)

    def _rename_unbacked_to(self, orig_s: sympy.Symbol, new_s: sympy.Symbol) -> None:
        self.unbacked_renamings[orig_s] = new_s
        self.set_replacement(orig_s, new_s)

    def _eliminate_unbacked(self, orig_s: sympy.Symbol, new_s: sympy.Basic) -> None:
        self.set_replacement(orig_s, new_s)

    def set_real_tensor_prop_unbacked_vals(self, k: sympy.Symbol, v: Any) -> None:
        """Set the value of an unbacked symbol in the run being traced, if real tensors are propagated beside the fake ones."""
        self.real_tensor_prop_unbacked_vals[k] = sympy.sympify(v)


def _check_order(lower: Any, upper: Any) -> None:
    if as_bound(upper) < as_bound(lower):
        raise ValueError(f"the range of a size is [{lower}, {upper}]\n  expected: a max that is not less than the min")


# ---------------------------------------------------------------------------------------------------------------- bindings


def fresh_bindings(env: Any, value: Any) -> dict[sympy.Symbol, tuple[Any, ...]]:
    """The unbacked bindings of an op's result: pending symbol -> key path in the result (pytree keys, method calls).

    Empties the list of pending symbols. Raises PendingUnbackedSymbolNotFound for a symbol that is not in the result, since the
    graph could not compute its value.
    """
    pending = list(env.pending_fresh_unbacked_symbols)
    ignorable = set(env.ignorable_fresh_unbacked_symbols)
    env.pending_fresh_unbacked_symbols.clear()
    env.ignorable_fresh_unbacked_symbols.clear()
    if not pending:
        return {}
    missing = set(pending)
    found: dict[sympy.Symbol, tuple[Any, ...]] = {}
    for path, leaf in _symbolic_leaves(value, ()):
        bound = _bound_symbol(leaf.node._expr, missing)
        if bound is not None:
            symbol, step = bound
            found[symbol] = (*path, *step)
            missing.discard(symbol)
    missing -= ignorable
    if missing:
        raise upstream_shape_error("PendingUnbackedSymbolNotFound")(
            f"the op created the unbacked symbols {sorted(map(str, missing))}, which are not in its result {value}\n"
            "  expected: each unbacked symbol is a size, stride, offset or element of the result\n"
            "  what to do: in a fake kernel, create symbols (new_dynamic_size, item) only for what it returns"
        )
    return found


class MethodKey:
    """A step of a key path: a method call, such as `.size()`."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def get(self, obj: Any) -> Any:
        return getattr(obj, self.name)()

    def __str__(self) -> str:
        return f".{self.name}()"

    __repr__ = __str__


class AttributeKey(MethodKey):
    """A step of a key path: an attribute with an inner tensor of a wrapper subclass."""

    def get(self, obj: Any) -> Any:
        return getattr(obj, self.name)

    def __str__(self) -> str:
        return f".{self.name}"

    __repr__ = __str__


class FromBool:
    """A step of a key path: a bool converted to 0 or 1."""

    def get(self, obj: Any) -> int:
        return int(obj)

    def __str__(self) -> str:
        return ".int()"

    __repr__ = __str__


class DivideByKey:
    """A step of a key path: division by a number."""

    def __init__(self, divisor: Any) -> None:
        self.divisor = divisor

    def get(self, obj: Any) -> Any:
        return obj // self.divisor

    def __str__(self) -> str:
        return f".__floordiv__({self.divisor})"

    __repr__ = __str__


def _bound_symbol(expr: Any, missing: set[sympy.Symbol]) -> tuple[sympy.Symbol, tuple[Any, ...]] | None:
    """The missing symbol that can be computed from the expression, and the key path steps that do so; else None."""
    if expr in missing:
        return expr, ()
    if isinstance(expr, sympy.Eq) and expr.args[0] in missing and expr.args[1] == 1:
        return expr.args[0], (FromBool(),)  # pyright: ignore[reportReturnType]
    if isinstance(expr, sympy.Mul) and len(expr.args) == 2:
        factor, symbol = expr.args
        if isinstance(factor, sympy.Integer) and symbol in missing:
            return symbol, (DivideByKey(int(factor)),)  # pyright: ignore[reportReturnType]
    return None


def _symbolic_leaves(value: Any, path: tuple[Any, ...]) -> Generator[tuple[tuple[Any, ...], Any], None, None]:
    if isinstance(value, SYMBOLIC_TYPES):
        yield path, value
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _symbolic_leaves(item, (*path, pytree.SequenceKey(i)))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _symbolic_leaves(item, (*path, pytree.MappingKey(key)))
    elif hasattr(type(value), "__tensor_flatten__"):
        for name in value.__tensor_flatten__()[0]:
            yield from _symbolic_leaves(getattr(value, name), (*path, AttributeKey(name)))
    elif isinstance(value, torch.Tensor):
        yield from _symbolic_leaves(tuple(value.size()), (*path, MethodKey("size")))
        if value.layout is torch.strided:
            yield from _symbolic_leaves(tuple(value.stride()), (*path, MethodKey("stride")))
            yield from _symbolic_leaves(value.storage_offset(), (*path, MethodKey("storage_offset")))
