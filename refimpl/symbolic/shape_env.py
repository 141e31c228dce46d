"""ShapeEnv: owns symbols, evaluates conditions on them, and records the guards.

Counterpart: torch/fx/experimental/symbolic_shapes.py ShapeEnv
Differs: several base classes (symbols, unbacked symbols, printing of guards) in place of one class; no event log, no translation
validation. FakeTensorMode, torch's meta kernels and C++ call its methods by name, so these are upstream's names.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from refimpl._torch import FakeCacheBypass, equal_sizes_share_symbols, is_nested_int
from refimpl.errors import UnsupportedByRefimpl
from refimpl.symbolic.constraints import Promise, outside_promise
from refimpl.symbolic.dynamic_shapes import DimSpec
from refimpl.symbolic.errors import NewGuard, data_dependent_error
from refimpl.symbolic.functions import is_condition, is_constant, to_expr, to_number
from refimpl.symbolic.guard_output import GuardOutput
from refimpl.symbolic.guards import RuntimeAssert, ShapeGuard, evaluate
from refimpl.symbolic.operations import negate, relation
from refimpl.symbolic.protocols import SymbolSource
from refimpl.symbolic.ranges import INFINITY, UNKNOWN, Range
from refimpl.symbolic.sources import Source, as_source, size_source, storage_offset_source, stride_source
from refimpl.symbolic.stacks import Stack, asserts_condition
from refimpl.symbolic.sym_node import SymNode
from refimpl.symbolic.symbols import as_bound, common_answer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeEnvSettings:
    """The settings of a ShapeEnv, with upstream's names."""

    allow_scalar_outputs: bool = True
    allow_dynamic_output_shape_ops: bool = True
    assume_static_by_default: bool = False
    specialize_zero_one: bool = True
    duck_shape: bool = True
    prefer_deferred_runtime_asserts_over_guards: bool = False
    trace_asserts: bool = False
    # Sizes of 0 and 1 are symbols, and `guard_or_false` asks nothing of a size.
    backed_size_oblivious: bool = False
    # `s77` for the first size of `x`, as upstream names it. Otherwise s0, s1, ... in order.
    names_symbols_by_source: bool = False


class BypassedFakeCache(dict[Any, Any]):
    """A fake tensor cache that is always bypassed: for results with symbols FakeTensorMode would make torch's own SymNodes."""

    def get(self, key: Any, default: Any = None) -> Any:
        """The entry that makes FakeTensorMode compute the result."""
        return FakeCacheBypass("symbols of refimpl")


class ShapeEnv(GuardOutput):
    """The symbols, facts and guards of one trace."""

    def __init__(
        self,
        *,
        duck_shape: bool | None = None,
        should_record_events: bool | None = None,
        tracked_fakes: list[Any] | None = None,
        co_fields: dict[str, str] | None = None,
        **settings: bool,
    ) -> None:
        super().__init__()
        if should_record_events:
            raise UnsupportedByRefimpl(
                seen="should_record_events=True", supported="no event log", do="leave should_record_events out"
            )
        self.settings = ShapeEnvSettings(
            duck_shape=equal_sizes_share_symbols() if duck_shape is None else duck_shape, **settings
        )
        self.guards: list[ShapeGuard] = []
        self.deferred_runtime_asserts: dict[sympy.Symbol | None, list[RuntimeAssert]] = {}
        self.num_deferred_runtime_asserts = 0
        # Called with each new runtime assert, before the environment takes its condition as true.
        self.on_runtime_assert: Callable[[RuntimeAssert], None] | None = None
        self.promises: list[Promise] = []  # the user's specifications of input dimensions that may vary
        self.tracked_fakes = tracked_fakes
        self.co_fields = co_fields or {}
        self.records_origins = True  # whether results of operations on SymNodes have an origin
        self.frozen = False
        self.runtime_asserts_frozen = False
        self.fake_tensor_cache: dict[Any, Any] = BypassedFakeCache()
        self.val_to_var: dict[Any, sympy.Symbol] = {}  # duck sizing: equal sizes share a symbol
        self._named: dict[str, Any] = {}  # name of a DimSpec -> its symbol
        self.symbol_numbers: set[int] = set()
        self._float_counter = 0
        self._suppressed = 0
        self._errors_on_guards = 0
        self.fakers: dict[int, Any] = {}  # refimpl.symbolic.fake_inputs.InputFaker by id of the fake mode

    def __getattr__(self, name: str) -> Any:
        if name in ShapeEnvSettings.__dataclass_fields__:
            return getattr(self.settings, name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __deepcopy__(self, memo: dict[int, Any]) -> ShapeEnv:
        """Itself: the SymNodes of a copied graph belong to this ShapeEnv."""
        return self

    @property
    def _version_counter(self) -> int:
        return self.facts.version

    @contextmanager
    def origins_off(self) -> Generator[None, None, None]:
        """Results of operations inside have no origin: kernels compute them, not the program."""
        before, self.records_origins = self.records_origins, False
        try:
            yield
        finally:
            self.records_origins = before

    # ------------------------------------------------------------------------------------------------- symbols

    def create_symbol(
        self,
        val: Any,
        source: Any,
        dynamic_dim: Any = None,
        constraint_dim: Any = None,
        positive: bool | None = True,
        do_not_specialize_zero_one: bool = False,
        symbolic_context: Any = None,
    ) -> Any:
        """A symbol for a size (or other number) of an input, or the number if it is specialised.

        `dynamic_dim` is "DUCK" (the default), "DYNAMIC" or "STATIC", or an enum member of that name; a `constraint_dim` with a
        range makes it DYNAMIC in this range. Raises ConstraintViolationError for a value outside the range.
        """
        if is_nested_int(val):  # the length of a ragged dimension, which no expression of sizes has
            return val
        policy = "DYNAMIC" if constraint_dim is not None else getattr(dynamic_dim, "name", dynamic_dim) or "DUCK"
        source = as_source(source)
        if policy == "UNBACKED":
            symbol = self.create_unbacked_symint(source).node.expr
            self._constrain_range_for_size(symbol)
            return self._note_source(symbol, source)
        if policy == "STATIC":
            return to_expr(val)
        if isinstance(val, float):
            return self._note_source(self._new_float(val), source)
        is_oblivious = self.settings.backed_size_oblivious and positive is True
        if val in (0, 1) and self.settings.specialize_zero_one and not (do_not_specialize_zero_one or is_oblivious):
            return sympy.Integer(val)
        duck = policy == "DUCK" and self.settings.duck_shape
        if duck and val in self.val_to_var:
            return self._note_source(self.val_to_var[val], source)
        found = self._default_value_range(do_not_specialize_zero_one) if positive else UNKNOWN
        found = Range(0, INFINITY) if is_oblivious else found
        symbol = sympy.Symbol(f"s{self._number_of(source)}", integer=True, **_assumption(found))
        self._register(symbol, found)
        self.backed_var_to_val[symbol] = sympy.Integer(val)
        self._values[symbol] = val
        if duck:
            self.val_to_var[val] = symbol
        self._apply_constraint(symbol, constraint_dim, source)
        return self._note_source(symbol, source)

    def create_dim(self, size: int, source: Source, spec: DimSpec) -> Any:
        """The expression of an input dimension by its specification: `scale * root + offset`. Bounds are those of the root.
        If the source has no dimension, it is an integer of the inputs, which may be negative.

        Raises ConstraintViolationError for a size that does not fit the specification.
        """
        value, remainder = divmod(size - spec.offset, spec.scale)
        if remainder:
            raise outside_promise(
                spec,
                f"Expected shape[{source.dim}] = {size} of input Tensor to be of the form {spec}, "
                f"where {spec.name} is an integer",
            )
        low = -INFINITY if spec.min is None else spec.min
        high = INFINITY if spec.max is None else spec.max
        fits = low <= value <= high
        if not fits and (spec.strict or spec.name is not None):  # bounds of a hint are compared after the trace
            raise outside_promise(spec, f"{source.name}: {value} not in range {Range(low, high)}")
        root = self._named.get(spec.name) if spec.name is not None else None
        if root is None:
            text = source.name if not spec.offset else f"({source.name} - {spec.offset})"
            read = Source(text if spec.scale == 1 else f"({text} // {spec.scale})", source.base, source.dim)
            create = self.create_unspecified_symbol if source.dim is None else self.create_symbol
            root = create(value, read, spec.policy)
            if spec.name is not None:
                self._named[spec.name] = root
        elif self.hint_of(root, int) != value:
            raise outside_promise(
                spec,
                f"Expected input size {source.name} to be equal to {spec}, where {spec.name} = {self.hint_of(root, int)}, "
                f"but got {size}",
            )
        # The default range of a size starts at 2, so a promise that ends there would make a constant of it: the bound is kept
        # for the calls only (`range_constraints`).
        ends_where_sizes_start = source.dim is not None and high == self._default_value_range().lower and low < high
        if fits and not root.is_number and not ends_where_sizes_start:
            self.constrain_symbol_range(root, low, high)
        self.promises.append(Promise(source, spec, root, value))
        return spec.scale * root + spec.offset

    def _number_of(self, source: Source) -> int:
        """The number in the name of a new symbol."""
        digest = hashlib.sha256(source.name.encode()).hexdigest() if self.settings.names_symbols_by_source else "0"
        number = int(digest, 16) % 100
        while number in self.symbol_numbers:
            number += 1
        self.symbol_numbers.add(number)
        return number

    def _new_float(self, value: float) -> sympy.Symbol:
        symbol = sympy.Symbol(f"zf{self._float_counter}")
        self._float_counter += 1
        self._register(symbol, UNKNOWN)
        self.backed_var_to_val[symbol] = sympy.Float(value)
        self._values[symbol] = value
        return symbol

    def _note_source(self, symbol: sympy.Symbol, source: Source) -> sympy.Symbol:
        self.source_to_var[source.name] = symbol
        self.var_to_sources.setdefault(symbol, []).append(source)
        return symbol

    def _apply_constraint(self, symbol: sympy.Symbol, constraint: Any, source: Source) -> None:
        found = getattr(constraint, "vr", None)
        if found is not None:
            self.constrain_symbol_range(symbol, found.lower, found.upper)

    def _default_value_range(self, do_not_specialize_zero_one: bool = False) -> Range:
        return Range(0 if do_not_specialize_zero_one or not self.settings.specialize_zero_one else 2, INFINITY)

    def create_unspecified_symbol(self, val: Any, source: Any, dynamic_dim: Any = None, constraint_dim: Any = None,
                                  symbolic_context: Any = None) -> Any:  # fmt: skip
        """A symbol for a number that may be negative, and is not specialised if it is 0 or 1."""
        return self.create_symbol(
            val, source, dynamic_dim, constraint_dim, positive=None, do_not_specialize_zero_one=True
        )

    def create_unspecified_symint_and_symbol(self, value: int, source: Any, dynamic_dim: Any, **_: Any) -> Any:
        return self.create_symintnode(self.create_unspecified_symbol(value, source, dynamic_dim), hint=value)

    def create_symintnode(self, sym: Any, *, hint: Any = None, source: Any = None) -> Any:
        """A SymInt of an expression, or an int if the expression is one."""
        if isinstance(sym, sympy.Integer):
            return int(sym)
        if is_nested_int(sym):
            return sym
        hint = None if self.has_unbacked(sym) else hint
        return torch.SymInt(SymNode(sym, self, int, hint))

    def create_symfloatnode(self, sym: Any, *, hint: Any = None, source: Any = None) -> Any:
        """A SymFloat of an expression, or a float if the expression is one."""
        if sym.is_Number:
            return float(sym)
        return torch.SymFloat(SymNode(sym, self, float, hint))

    def create_symboolnode(self, sym: Any) -> Any:
        return torch.SymBool(SymNode(sym, self, bool))

    # ---------------------------------------------------------------------------------------------- evaluation

    def decided(self, condition: Any) -> bool | None:
        """True if a condition is known to hold, False if it is known not to, else None. Adds no guard."""
        return self.facts.decide(self.replace(condition))

    def value_of(
        self,
        node: SymNode,
        *,
        size_oblivious: bool = False,
        fallback: bool | None = None,
        place: tuple[str, int] = ("", 0),
    ) -> Any:
        """The value of a SymNode as a Python number. Adds a guard if it depends on the inputs.

        Raises GuardOnDataDependentSymNode if it depends on unbacked symbols and there is no fallback.
        """
        expr = node.expr
        if is_constant(expr):
            return to_number(expr)
        known = self._known_value(expr, node.pytype, size_oblivious)
        if known is not None:
            return known
        if self.settings.backed_size_oblivious and node.pytype is bool:
            if size_oblivious:
                known = self.facts.assuming_sizes_of_two(expr.free_symbols).decide(expr)
                fallback = fallback if known is None else known
            if fallback is not None:
                return fallback
        hint = node.hint
        if hint is None:
            if fallback is None:
                fallback = common_answer(expr)
            if fallback is not None:
                return fallback
            if self.settings.trace_asserts and node.pytype is bool and asserts_condition():
                return self.guard_or_defer_runtime_assert(expr, "assert")
            self._refuse_if_guards_are_errors(expr)
            return self._from_real_tensors(expr, node.pytype)
        if node.pytype is float and not expr.is_Symbol and (hint == 0 or hint != hint):
            self._hold_symbols(expr, place)  # an equality does not hold the sign of zero, and nan equals nothing
            return hint
        self._guard(self._condition(expr, hint), place, size_oblivious)
        return hint

    def _hold_symbols(self, expr: Any, place: tuple[str, int]) -> None:
        """Adds guards that each symbol of an expression has the value that it has now."""
        for symbol in sorted(expr.free_symbols, key=str):
            self._guard(relation(sympy.Eq, symbol, to_expr(self._values[symbol])), place, False)

    def _known_value(self, expr: Any, pytype: type, size_oblivious: bool) -> Any:
        if pytype is bool:
            known = self.facts.decide(expr)
            if known is None and size_oblivious:
                sizes = {s for s in expr.free_symbols if s in self.facts.size_like}
                known = self.facts.assuming_sizes_of_two(sizes).decide(expr) if sizes else None
            return known
        if pytype is int:
            found = self.facts.range_of(expr)
            return found.lower if found.is_singleton() else None
        return None

    def _condition(self, expr: Any, value: Any) -> Any:
        if value is True:
            return expr
        return negate(expr) if value is False else relation(sympy.Eq, expr, to_expr(value))

    def _from_real_tensors(self, expr: Any, pytype: type) -> Any:
        """The value computed from real tensors, with a runtime assert. Raises GuardOnDataDependentSymNode without them."""
        if not self.has_unbacked(expr):  # no hint, since evaluating it raises: raise that error
            return pytype(evaluate(expr, dict(self._values)))
        real = {**self.backed_var_to_val, **self.real_tensor_prop_unbacked_vals}
        if self.real_tensor_prop_unbacked_vals and all(s in real for s in expr.free_symbols):
            value = pytype(evaluate(expr, {s: to_number(v) for s, v in real.items()}))
            self.guard_or_defer_runtime_assert(self._condition(expr, value), "holds for the tensors of this run")
            return value
        raise data_dependent_error(self, expr, Stack.capture())

    def evaluate_sym_node(self, sym_node: SymNode, size_oblivious: bool = False, fallback_value: Any = None) -> Any:
        """`value_of` by upstream's name, for its meta kernels."""
        return self.value_of(sym_node, size_oblivious=size_oblivious, fallback=fallback_value)

    def evaluate_expr(self, orig_expr: Any, hint: Any = None, fx_node: Any = None, size_oblivious: bool = False,
                      fallback_value: Any = None, *, forcing_spec: bool = False) -> Any:  # fmt: skip
        """The value of an expression as a sympy constant. Adds a guard if it depends on the inputs."""
        pytype = bool if is_condition(orig_expr) else int if orig_expr.is_integer else float
        node = SymNode(orig_expr, self, pytype, hint)
        return to_expr(self.value_of(node, size_oblivious=size_oblivious, fallback=fallback_value))

    def _maybe_evaluate_static(self, expr: Any, *, unbacked_only: bool = False, compute_hint: bool = False,
                               size_oblivious: bool = False, axioms: Any = None, var_to_range: Any = None) -> Any:  # fmt: skip
        """The expression as a sympy constant if it is known, else None (with unbacked_only: the simplified expression)."""
        expr = self.replace(expr)
        if is_constant(expr):
            return expr
        pytype = bool if is_condition(expr) else int if expr.is_integer else float
        known = self._known_value(expr, pytype, size_oblivious)
        if known is None and compute_hint:
            known = self.hint_of(expr, pytype)
        if known is None:
            return expr if unbacked_only else None
        return to_expr(known)

    def bound_sympy(self, expr: Any, size_oblivious: bool = False) -> Range:
        """The range of an expression."""
        return self.facts.range_of(self.replace(expr))

    def size_hint(self, expr: Any, *, allow_none: bool = False) -> Any:
        """The hint of an expression."""
        expr = self.replace(sympy.sympify(expr))
        hint = self.hint_of(expr, bool if is_condition(expr) else int)
        if hint is None and not allow_none:
            raise data_dependent_error(self, expr, Stack.capture())
        return hint

    def guarding_hint_or_throw(self, expr: Any) -> Any:
        return self.size_hint(expr)

    def has_guarding_hint(self, expr: Any) -> bool:
        return self.size_hint(expr, allow_none=True) is not None

    def optimization_hint(self, expr: Any, fallback: int | None = None) -> Any:
        """The hint, else the fallback, else a guess within the range. For decisions that only affect speed."""
        hint = self.size_hint(expr, allow_none=True)
        if hint is not None:
            return hint
        if fallback is not None:
            return fallback
        found = self.bound_sympy(expr)
        return int(min(max(found.lower, 8192), found.upper))

    # -------------------------------------------------------------------------------------------------- guards

    def _guard(self, condition: Any, place: tuple[str, int] = ("", 0), size_oblivious: bool = False) -> None:
        """Add a guard: a condition that holds for the hints."""
        if self._suppressed:
            return
        self._refuse_if_guards_are_errors(condition)
        if self.frozen:
            log.warning("the ShapeEnv is frozen, so this guard is not recorded: %s", condition)
            return
        where = f"{place[0]}:{place[1]}" if place[0] else ""
        self.guards.append(ShapeGuard(condition, Stack.capture(), where, size_oblivious))
        self.learn(condition)

    def _refuse_if_guards_are_errors(self, condition: Any) -> None:
        if self._errors_on_guards:
            raise NewGuard(
                f"a guard is added after the guards were read: {condition}\n  at {Stack.capture().user_line()}"
            )

    def expect(self, node: SymNode, place: tuple[str, int] = ("", 0)) -> bool:
        """Add a condition that the program asserts: as a guard if all its symbols are backed, else as a runtime assert.

        False means that the condition does not hold, and the caller must raise.
        """
        known = self.decided(node.expr)
        if known is not None:
            return known
        hint = node.hint
        if hint is False:
            return bool(self.value_of(node, place=place))
        if hint is not None and not self.settings.prefer_deferred_runtime_asserts_over_guards:
            return bool(self.value_of(node, place=place))
        return self.guard_or_defer_runtime_assert(node.expr, f"{place[0]}:{place[1]}")

    def guard_or_defer_runtime_assert(self, orig_expr: Any, msg: str, fx_node: Any = None) -> bool:
        """Take a condition as true: as a guard if all its symbols are backed, else as a runtime assert."""
        expr = self.replace(orig_expr)
        known = self.facts.decide(expr)
        if known is not None:
            return known
        if self._suppressed:
            return True
        unbacked = [s for s in expr.free_symbols if s in self.unbacked]
        if not unbacked and not self.settings.prefer_deferred_runtime_asserts_over_guards:
            return bool(self.value_of(SymNode(expr, self, bool)))
        self._refuse_if_guards_are_errors(expr)
        if self.frozen:
            log.warning("the ShapeEnv is frozen, so this runtime assert is not recorded: %s", expr)
            return True
        # Stored under its newest symbol: when that symbol is bound, all are.
        newest = max(unbacked, key=self.unbacked.__getitem__, default=None)
        assertion = RuntimeAssert(expr, msg, Stack.capture())
        self.deferred_runtime_asserts.setdefault(newest, []).append(assertion)
        self.num_deferred_runtime_asserts += 1
        if self.on_runtime_assert is not None:
            self.on_runtime_assert(assertion)
        self.learn(expr)
        return True

    @contextmanager
    def facts_of_region(self) -> Generator[None, None, None]:
        """A block that traces code which may not run, as a branch of `torch.cond`: what it asserts of numbers from data is known
        to hold inside only. Guards, and facts about symbols that are made inside, stay known."""
        before, replacements = self.facts.copy(), dict(self.replacements)
        symbols, guards = set(self._order), len(self.guards)
        try:
            yield
        finally:
            inside, self._facts = self.facts, before
            made = [symbol for symbol in inside.ranges if symbol not in symbols]
            before.ranges.update((symbol, inside.ranges[symbol]) for symbol in made)
            before.size_like.update(symbol for symbol in made if symbol in inside.size_like)
            replacements.update((s, self.replacements[s]) for s in made if s in self.replacements)
            self.replacements = replacements
            self._replaced.clear()
            self.replacements_version += 1
            before.version = inside.version
            before.changed()
            for guard in self.guards[guards:]:
                self.learn(guard.expr)

    @contextmanager
    def suppress_guards(self) -> Generator[None, None, None]:
        """Conditions inside are evaluated with the hints, without guards."""
        self._suppressed += 1
        try:
            yield
        finally:
            self._suppressed -= 1

    def _suppress_guards_enter(self) -> None:
        self._suppressed += 1

    def _suppress_guards_exit(self) -> None:
        self._suppressed -= 1

    def _suppress_guards_tls(self) -> bool:
        return self._suppressed > 0

    @contextmanager
    def error_on_new_guards(self) -> Generator[None, None, None]:
        """A guard, a runtime assert or a data-dependent value inside raises NewGuard."""
        self._errors_on_guards += 1
        try:
            yield
        finally:
            self._errors_on_guards -= 1

    def freeze(self) -> None:
        """Stop recording guards; from now on each logs a warning."""
        self.frozen = True

    def _maybe_specialize_sym_int_with_hint(self, maybe_sym: Any) -> Any:
        """A size that is a symbol of another ShapeEnv, as an int. Torch 2.11 calls it."""
        if not isinstance(maybe_sym, torch.SymInt):
            return maybe_sym
        assert maybe_sym.node.shape_env is not self, f"{maybe_sym} belongs to this ShapeEnv, expected another one's"
        return maybe_sym.node.require_hint()

    def transfer_symbols_from_foreign_shape_env(self, *_: Any, **__: Any) -> Any:
        """Refuse an input whose sizes are symbols of another ShapeEnv."""
        raise UnsupportedByRefimpl(
            seen="an input whose sizes are symbols of another ShapeEnv",
            supported="inputs whose fake tensors have one ShapeEnv",
            do="create all fake tensors in one FakeTensorMode",
        )

    def freeze_runtime_asserts(self) -> None:
        self.runtime_asserts_frozen = True

    # ------------------------------------------------------------------------- inputs, for FakeTensorMode.from_tensor

    def _create_symbolic_sizes_strides_storage_offset(
        self, ex_size: Sequence[int], ex_stride: Sequence[int], ex_storage_offset: int, is_dim_dynamic: Sequence[bool],
        source: Any, *, symbolic_context: Any = None, hint_overrides: Any = None,
    ) -> tuple[tuple[Any, ...], tuple[Any, ...], Any]:  # fmt: skip
        """Sizes, strides and offset of a fake input; the policy of each dimension is from `symbolic_context`, if given."""
        default = "STATIC" if self.settings.assume_static_by_default else "DUCK"
        policies = getattr(symbolic_context, "dynamic_sizes", None)
        constraints = getattr(symbolic_context, "constraint_sizes", None) or [None] * len(ex_size)
        if policies is None:
            policies = ["DYNAMIC" if dynamic else default for dynamic in is_dim_dynamic]
        specs = [spec_of(policy, constraint) for policy, constraint in zip(policies, constraints, strict=True)]
        return symbolic_geometry(self, ex_size, ex_stride, ex_storage_offset, as_source(source), specs)

    def create_symbolic_sizes_strides_storage_offset(
        self, ex: torch.Tensor, source: Any, *, symbolic_context: Any = None
    ) -> Any:
        """`_create_symbolic_sizes_strides_storage_offset` for a tensor."""
        dynamic = [d in getattr(ex, "_dynamo_dynamic_indices", ()) for d in range(ex.dim())]
        return self._create_symbolic_sizes_strides_storage_offset(
            ex.size(), ex.stride(), int(ex.storage_offset()), dynamic, source, symbolic_context=symbolic_context
        )


def spec_of(policy: Any, constraint: Any = None) -> DimSpec:
    """Convert upstream's DimDynamic and its constraint (with a range `vr` and `warn_only`) to a DimSpec."""
    name = getattr(policy, "name", policy)
    if constraint is None:
        return DimSpec(name)
    bounds = getattr(constraint, "vr", None)
    if bounds is None:  # a constraint that only forbids specialisation
        return DimSpec("DYNAMIC")
    low, high = as_bound(bounds.lower), as_bound(bounds.upper)
    return DimSpec(
        "DYNAMIC",
        None if low == -INFINITY else int(low),
        None if high == INFINITY else int(high),
        strict=not constraint.warn_only,
    )


def _assumption(found: Range) -> dict[str, bool]:
    return {"positive": True} if found.lower > 0 else {"nonnegative": True} if found.lower == 0 else {}


def symbolic_geometry(
    env: SymbolSource,
    sizes: Sequence[int],
    strides: Sequence[int],
    offset: int,
    source: Source,
    specs: Sequence[DimSpec],
) -> tuple[tuple[Any, ...], tuple[Any, ...], Any]:
    """Sizes, strides and offset of an input as ints and SymInts.

    A stride that is the product of a smaller stride and its size (contiguous, channels last, transposed) becomes that product.
    Strides 0 and 1 remain ints. Other strides, and offsets other than 0, get symbols. If all sizes are static, so is the rest.
    """
    exprs = [env.create_dim(size, size_source(source, d), specs[d]) for d, size in enumerate(sizes)]
    all_static = all(spec.policy == "STATIC" for spec in specs)
    stride_exprs = _stride_exprs(env, exprs, sizes, strides, source, all_static)
    offset_policy = "STATIC" if all_static else "DUCK"
    offset_expr = env.create_symbol(offset, storage_offset_source(source), offset_policy)
    return (
        tuple(env.create_symintnode(e, hint=size) for e, size in zip(exprs, sizes, strict=True)),
        tuple(env.create_symintnode(e, hint=stride) for e, stride in zip(stride_exprs, strides, strict=True)),
        env.create_symintnode(offset_expr, hint=offset),
    )


def _stride_exprs(
    env: SymbolSource,
    exprs: Sequence[Any],
    sizes: Sequence[int],
    strides: Sequence[int],
    source: Source,
    all_static: bool,
) -> list[Any]:
    result: list[Any] = [None] * len(sizes)
    products: dict[int, Any] = {}  # possible next stride -> its expression
    # Innermost first: by stride, and of equal strides the last dimension first.
    for stride, negative_dim in sorted((stride, -d) for d, stride in enumerate(strides)):
        d = -negative_dim
        follows = d + 1 < len(sizes) and stride == sizes[d + 1] * strides[d + 1] and result[d + 1] is not None
        if follows:
            expr = exprs[d + 1] * result[d + 1]
        elif stride in (0, 1):
            expr = sympy.Integer(stride)
        elif stride in products:
            expr = products[stride]
        else:
            expr = env.create_symbol(stride, stride_source(source, d), "STATIC" if all_static else "DUCK")
        result[d] = expr
        products[sizes[d] * stride] = exprs[d] * expr
    return result
