"""Checks the promised sizes of an exported program, and makes its range constraints and guards.

Counterpart: torch/_export/non_strict_utils.py make_constraints, produce_guards_and_solve_constraints
Differs: promises are checked with the facts that the shape env learnt while tracing. Conditions that no Dim expresses, such as a
size that is a product of two others, are kept and checked at every call, as in torch since 2.9.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from refimpl.capture.public.errors import UserError, UserErrorType
from refimpl.symbolic.congruences import linear
from refimpl.symbolic.constraints import Violation, violations
from refimpl.symbolic.ranges import INFINITY, Range
from refimpl.symbolic.shape_env import ShapeEnv
from refimpl.symbolic.suggested_fixes import suggested_fixes

_EQUALITY = re.compile(r"^\S+ = (?!DimSpec)(.+)$")
_LINEAR = re.compile(r"^(?:\d+ ?\* ?)?[^\s*+()/-]+(?: [+-] \d+)?$")


class HintConflict(UserError, ValueError):
    """A hint that the program contradicts: `Dim.DYNAMIC` for a size with one value (0, 1, or what the program's bounds leave), or
    bounds without the example. torch's is a ValueError too."""


def check_promises(env: ShapeEnv) -> None:
    """Raises UserError with the violated promises on sizes and suggested fixes."""
    found = [violation for violation in violations(env) if not _is_checked_at_calls(violation)]
    found.sort(key=lambda violation: violation.promise.label)
    if not found:
        return
    problems = "\n".join(f"  - {violation}" for violation in found)
    fixes = [f"  {fix}" for fix in suggested_fixes(env, found)]
    advice = "\nSuggested fixes:\n" + "\n".join(fixes) if fixes else ""
    names = ", ".join(dict.fromkeys(violation.promise.label for violation in found))
    is_about_hint = any(violation.text.startswith("Received user-specified") for violation in found)
    raise (HintConflict if is_about_hint else UserError)(
        UserErrorType.CONSTRAINT_VIOLATION,
        f"Constraints violated ({names})! For more information, see the conditions below.\n{problems}{advice}",
    )


def _is_checked_at_calls(violation: Violation) -> bool:
    """Whether no Dim expresses the condition: it is neither a range nor a linear function of one other size."""
    if not violation.guards:
        return False
    tied = _EQUALITY.match(violation.suggestion)
    return not violation.suggestion or (tied is not None and not _LINEAR.match(tied[1]))


def range_constraints(env: ShapeEnv, inputs: Iterable[Any], nodes: Iterable[torch.fx.Node]) -> dict[Any, Range]:
    """The ranges of the inputs' symbols, of sizes derived from them, and of unbacked symbols. The range of a named size includes
    0 and 1, unless its Dim excludes them. A size from 1 to 2 has its upper bound from the Dim: to the trace it is 2 or more."""
    found: dict[Any, Range] = {}
    facts = env.own_ranges()
    named = {
        symbol: promise.spec
        for promise in env.promises
        if promise.spec.strict
        for symbol in (env.replace(promise.expr).free_symbols)
        if symbol == promise.expr
    }
    for value in inputs:
        for expr in _expressions(value):
            for symbol in sorted(expr.free_symbols, key=str):
                bounds = facts.range_of(symbol)
                lower, upper = bounds.lower, bounds.upper
                if symbol in named:
                    lower, most = named[symbol].min or 0, named[symbol].max
                    upper = upper if most is None else min(upper, most)
                default = _default_lower(env, symbol)
                found.setdefault(symbol, Range(max(lower, bounds.lower) if bounds.lower > default else lower, upper))
            if expr.free_symbols and not expr.is_Symbol:
                found.setdefault(expr, _range_of(expr, found, env))
    return {**unbacked_ranges(env, nodes), **found}


def _default_lower(env: ShapeEnv, symbol: Any) -> Any:
    """The lower bound of a symbol of which nothing is known: that of sizes, or none for an integer of the inputs."""
    sources = env.var_to_sources.get(symbol, ())
    is_integer = bool(sources) and all(source.dim is None for source in sources)
    return -INFINITY if is_integer else env._default_value_range().lower


def refined(env: ShapeEnv, symbol: Any, bounds: Range) -> Range:
    """The range of a symbol of an input within `bounds`, after another trace has asked more about it."""
    if not symbol.is_Symbol:
        return bounds
    known, default = env.own_ranges().range_of(symbol), _default_lower(env, symbol)
    lower = max(known.lower, bounds.lower) if known.lower > default else bounds.lower
    return Range(lower, min(known.upper, bounds.upper))


def _range_of(expr: Any, ranges: Mapping[Any, Range], env: ShapeEnv) -> Range:
    """The range of an expression: for a linear function of one symbol from `ranges`, else from the shape env."""
    read = linear(expr)
    if read is None:
        return env.facts.range_of(expr)
    symbol, scale, offset = read
    bounds = ranges[symbol]
    return Range(scale * bounds.lower + offset, scale * bounds.upper + offset)


def unbacked_ranges(env: ShapeEnv, nodes: Iterable[torch.fx.Node]) -> dict[Any, Range]:
    """The ranges of the unbacked symbols that nodes bind."""
    symbols = [symbol for node in nodes for symbol in node.meta.get("unbacked_bindings") or ()]
    return {symbol: env.facts.range_of(symbol) for symbol in symbols}


def _expressions(value: Any) -> list[Any]:
    numbers = [value]
    if isinstance(value, torch.Tensor):
        numbers = list(value.shape)
    return [number.node.expr for number in numbers if isinstance(number, torch.SymInt)]


def call_conditions(env: ShapeEnv) -> list[Any]:
    """The guards on inputs that do not follow from ranges and equal sizes."""
    return env.get_nontrivial_guards()
