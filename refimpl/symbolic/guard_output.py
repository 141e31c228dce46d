"""The guards of a shape env: printed as Python, evaluated for new inputs, formatted for people.

Counterpart: ShapeEnv.produce_guards, evaluate_guards_for_args, bind_symbols, format_guards of
torch/fx/experimental/symbolic_shapes.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from refimpl._torch import SYMBOLIC_TYPES
from refimpl.symbolic.congruences import linear
from refimpl.symbolic.constraints import Promise, constraint_error, violations
from refimpl.symbolic.facts import FactState
from refimpl.symbolic.guards import PRINTED_NAMES, RuntimeAssert, ShapeGuard, python_source
from refimpl.symbolic.ranges import INFINITY, Range
from refimpl.symbolic.sources import Source, as_source, size_source, storage_offset_source, stride_source
from refimpl.symbolic.suggested_fixes import suggested_fixes
from refimpl.symbolic.symbols import UnbackedSymbols


class GuardOutput(UnbackedSymbols):
    """The part of ShapeEnv that prints and evaluates guards and promises."""

    guards: list[ShapeGuard]
    promises: list[Promise]
    deferred_runtime_asserts: dict[Any, list[RuntimeAssert]]
    num_deferred_runtime_asserts: int

    def facts_of_ranges(self) -> FactState:
        """Facts with the ranges of single symbols only: those that are printed as ranges."""
        facts = FactState()
        facts.ranges = dict(self.facts.ranges)
        return facts

    def own_ranges(self) -> FactState:
        """Facts with the ranges of single symbols that do not follow from other symbols: their bounds before the program runs,
        and the conditions on one symbol. `s0 > s1` bounds neither."""
        facts = FactState()
        facts.ranges = dict(self.first_ranges)
        conditions = [guard.expr for guard in self.guards]
        conditions += [found.expr for deferred in self.deferred_runtime_asserts.values() for found in deferred]
        for symbol in self.replacements:
            first = self.first_ranges[symbol]
            conditions += [sympy.Ge(symbol, first.lower, evaluate=False)] if first.lower != -INFINITY else []
            conditions += [sympy.Le(symbol, first.upper, evaluate=False)] if first.upper != INFINITY else []
        for condition in conditions:
            replaced = self.replace(condition)
            for part in replaced.args if isinstance(replaced, sympy.And) else (replaced,):
                if len(part.free_symbols) == 1:
                    facts.learn(part)
        ranges = FactState()
        ranges.ranges = facts.ranges
        return ranges

    def source_name(self, symbol: sympy.Symbol) -> str:
        """Python source that reads the symbol from the inputs; the symbol's name if no input has it."""
        known = self.var_to_sources.get(symbol)
        return known[0].name if known else str(symbol)

    def check_promises(self) -> None:
        """Raises ConstraintViolationError if the program is not valid for all sizes that the user promised."""
        found = violations(self)
        if found:
            raise constraint_error(found, suggested_fixes(self, found))

    def get_nontrivial_guards(self) -> list[Any]:
        """Guards that do not follow from the ranges and equalities of symbols."""
        facts = self.own_ranges()
        exprs = [self.replace(guard.expr) for guard in self.guards]
        return [expr for expr in dict.fromkeys(exprs) if facts.decide(expr) is None]

    def defer_guards(self) -> None:
        """Turn guards into assertions that the graph checks when it runs. Guards that follow from ranges and equalities stay."""
        nontrivial = set(self.get_nontrivial_guards())
        deferred = [guard for guard in self.guards if self.replace(guard.expr) in nontrivial]
        found: dict[Any, RuntimeAssert] = {}
        for guard in deferred:
            expr = self.replace(guard.expr)
            found.setdefault(expr, RuntimeAssert(expr, guard.source, guard.stack))
        self.guards[:] = [guard for guard in self.guards if self.replace(guard.expr) not in nontrivial]
        self.deferred_runtime_asserts.setdefault(None, []).extend(found.values())
        self.num_deferred_runtime_asserts += len(found)

    def format_guards(self, verbose: bool = False) -> str:
        """One guard per line, as list items. verbose: with the user's source line."""
        parts = [(str(guard.expr), guard.sloc) if verbose else (str(guard.expr),) for guard in self.guards]
        return "\n".join(" ".join([" -", *words]) for words in parts)

    def get_pruned_guards(self, symints: Sequence[Any]) -> list[ShapeGuard]:
        """Guards that mention only the symbols of these SymInts."""
        symbols = {s.node.expr for s in symints if s.node.expr.is_Symbol}
        return [guard for guard in self.guards if guard.expr.free_symbols <= symbols]

    # -------------------------------------------------------------------------------------------------- printing

    def produce_guards(
        self,
        placeholders: Sequence[Any],
        sources: Sequence[Any],
        source_ref: Callable[[Any], str] | None = None,
        *,
        guards: Sequence[ShapeGuard] | None = None,
        input_contexts: Sequence[Any] | None = None,
        constraint_inputs: Sequence[Any] | None = None,
        equalities_inputs: Any = None,
        _simplified: bool = False,
        ignore_static: bool = True,
        **_: Any,
    ) -> list[str]:
        """The guards on new inputs as Python expressions of the sources of the placeholders.

        With `_simplified` without the shapes of the inputs and the default ranges.
        Raises ConstraintViolationError if the program breaks a promise of the user.
        """
        self.check_promises()
        inputs = [found for p, s in zip(placeholders, sources, strict=True) for found in inputs_of(p, as_source(s))]
        names: dict[sympy.Symbol, str] = {}
        for source, expr in inputs:
            if expr.is_Symbol:
                names.setdefault(expr, source.name)
            elif (-expr).is_Symbol:
                names.setdefault(-expr, f"(-{source.name})")
        for source, expr in inputs:  # symbols that are not themselves a size, such as s0 of a size 2*s0
            derived = linear(expr)
            if derived is not None:
                symbol, scale, offset = derived
                names.setdefault(symbol, f"(({source.name} - {offset}) // {scale})")

        def name_of(symbol: sympy.Symbol) -> str:
            return names.get(symbol) or self.source_name(symbol)

        lines: list[str] = []
        if not _simplified:
            lines += self._input_lines(inputs, names, name_of, ignore_static)
        facts = self.facts_of_ranges()
        for guard in self.guards if guards is None else guards:
            expr = self.replace(guard.expr)
            if facts.decide(expr) is None:
                lines.append(python_source(expr, name_of))
        for symbol in names:
            line = self._range_line(symbol, name_of(symbol), _simplified)
            if line:
                lines.append(line)
        return list(dict.fromkeys(lines))

    def _input_lines(
        self,
        inputs: Sequence[tuple[Source, Any]],
        names: dict[sympy.Symbol, str],
        name_of: Callable[[sympy.Symbol], str],
        ignore_static: bool,
    ) -> list[str]:
        lines = []
        for source, expr in inputs:
            if names.get(expr) == source.name or names.get(-expr) == f"(-{source.name})":
                continue  # the symbol is read from this source
            if expr.is_number and ignore_static and source.base != source.name:
                continue  # static sizes are checked by tensor guards
            lines.append(f"{source.name} == {python_source(expr, name_of)}")
        return lines

    def _range_line(self, symbol: sympy.Symbol, name: str, simplified: bool) -> str:
        found = self.facts.ranges.get(symbol)
        if found is None:
            return ""
        bounds = []
        if found.lower != -INFINITY and not (simplified and found.lower == self._default_value_range().lower):
            bounds.append(f"{found.lower} <= {name}")
        if found.upper != INFINITY:
            bounds.append(f"{name} <= {found.upper}")
        return " and ".join(bounds)

    def _default_value_range(self, do_not_specialize_zero_one: bool = False) -> Range:
        return Range(2, INFINITY)

    def produce_guards_expression(
        self, placeholders: Sequence[Any], *, guards: Sequence[ShapeGuard] | None = None, ignore_static: bool = True
    ) -> str | None:
        """The guards on new inputs as one Python expression of L['t0'], L['t1'], ...; None without guards."""
        names = [f"t{i}" for i in range(len(placeholders))]
        lines = self.produce_guards(placeholders, names, guards=guards, ignore_static=ignore_static)
        return " and ".join(f"({line})" if " or " in line else line for line in lines) if lines else None

    def evaluate_guards_expression(self, code: str, args: Sequence[Any]) -> bool:
        """Evaluate the result of `produce_guards_expression`. A guard that divides by a size of 0 does not hold."""
        values = {f"t{i}": value for i, value in enumerate(args)}
        try:
            return bool(eval(code, {**PRINTED_NAMES, "__builtins__": {}}, {"L": values}))
        except ZeroDivisionError:
            return False

    def evaluate_guards_for_args(
        self, placeholders: Sequence[Any], args: Sequence[Any], *, ignore_static: bool = True
    ) -> bool:
        """Whether these inputs satisfy the guards of the placeholders."""
        code = self.produce_guards_expression(placeholders, ignore_static=ignore_static)
        return True if code is None else self.evaluate_guards_expression(code, args)

    def evaluate_symexpr(self, code: str) -> Any:
        """Evaluate a printed expression of symbols with their hints."""
        return eval(code, {**PRINTED_NAMES, "__builtins__": {}}, {str(s): v for s, v in self._values.items()})

    def bind_symbols(self, placeholders: Sequence[Any], args: Sequence[Any]) -> dict[sympy.Symbol, int]:
        """The values that these inputs give the placeholders' symbols. Raises AssertionError if a symbol gets two values."""
        bindings: dict[sympy.Symbol, int] = {}
        for placeholder, arg in zip(placeholders, args, strict=False):
            if placeholder is None:
                continue
            for (_, expr), value in zip(inputs_of(placeholder, Source("")), _numbers_of(arg), strict=True):
                symbol, number = (expr, value) if expr.is_Symbol else (-expr, -value)
                if symbol.is_Symbol:
                    assert bindings.setdefault(symbol, number) == number, f"{bindings[symbol]} != {number}"
        return bindings


def inputs_of(placeholder: Any, source: Source) -> list[tuple[Source, Any]]:
    """The numbers of a placeholder (sizes, strides, offset, or the SymInt) as pairs (source, expression)."""
    if isinstance(placeholder, SYMBOLIC_TYPES):
        return [(source, placeholder.node.expr)]
    if not isinstance(placeholder, torch.Tensor):
        return []
    found: list[tuple[Source, Any]] = [(size_source(source, d), s) for d, s in enumerate(placeholder.size())]
    if placeholder.layout is torch.strided:
        found += [(stride_source(source, d), s) for d, s in enumerate(placeholder.stride())]
        found.append((storage_offset_source(source), placeholder.storage_offset()))
    return [(s, n.node.expr if isinstance(n, torch.SymInt) else sympy.Integer(n)) for s, n in found]


def _numbers_of(arg: Any) -> list[Any]:
    if not isinstance(arg, torch.Tensor):
        return [arg]
    if arg.layout is not torch.strided:
        return list(arg.size())
    return [*arg.size(), *arg.stride(), arg.storage_offset()]
