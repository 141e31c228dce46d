"""Suggested fixes: definitions that should replace Dims which the program violates.

Counterpart: DimConstraints.prettify_results of torch/fx/experimental/symbolic_shapes.py
Differs: made from the facts that the shape env learnt. For a size that must be even, the fix is a new root Dim
(`dx = 2*_dx`), also for the sizes derived from it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import sympy

from refimpl.symbolic.congruences import Step, linear, steps
from refimpl.symbolic.constraints import Violation
from refimpl.symbolic.guards import python_source
from refimpl.symbolic.protocols import Traced
from refimpl.symbolic.ranges import INFINITY

_STATIC = re.compile(r"^(\S+) = DimSpec\.static\(\)(?:  # (\S+))?$")


def suggested_fixes(env: Traced, found: Sequence[Violation]) -> list[str]:
    """One line for each Dim that must change, roots before derived ones."""
    solved = _solved_dims(env)
    by_step = steps(env.replace(guard.expr) for guard in env.guards)
    labels = {violation.promise.label for violation in found if violation.suggestion}
    stepped = {s for label in labels & solved.keys() for s in solved[label].free_symbols if s in by_step}
    names = {expr: label for label, expr in reversed(solved.items()) if expr.is_Symbol}
    names |= {expr: label for label, expr in solved.items() if expr.is_Symbol and expr in _own_symbols(env, label)}
    lines = [_root_line(env, names, symbol, by_step[symbol]) for symbol in solved_order(solved, stepped)]
    for label, expr in solved.items():
        if label in labels or expr.free_symbols & stepped:
            lines.append(_line(env, label, expr, names, {s: by_step[s] for s in stepped}))
    unnamed = [v.suggestion for v in found if v.promise.label not in solved and v.suggestion]
    return list(dict.fromkeys([*lines, *map(_as_dims, unnamed)]))


def solved_order(solved: dict[str, Any], symbols: set[Any]) -> list[Any]:
    """The symbols in the order in which Dims contain them."""
    ordered = (s for expr in solved.values() for s in sorted(expr.free_symbols, key=str))
    return [s for s in dict.fromkeys(ordered) if s in symbols]


def _solved_dims(env: Traced) -> dict[str, Any]:
    """Every Dim by name, with the expression its size is known to equal."""
    return {p.spec.name: env.replace(p.expr) for p in env.promises if p.spec.name is not None}


def _own_symbols(env: Traced, label: str) -> set[Any]:
    return {p.expr for p in env.promises if p.spec.name == label}


def _root_line(env: Traced, names: dict[Any, str], symbol: Any, step: Step) -> str:
    bounds = env.facts.range_of(symbol)
    lower = -((step.offset - bounds.lower) // step.scale)  # rounded up
    upper = INFINITY if bounds.upper == INFINITY else (bounds.upper - step.offset) // step.scale
    return _dim(_root_name(env, names, symbol), lower, upper, env._default_value_range().lower)


def _root_name(env: Traced, names: dict[Any, str], symbol: Any) -> str:
    return f"_{names.get(symbol) or env.source_name(symbol)}"


def _dim(name: str, lower: Any, upper: Any, default: Any) -> str:
    bounds = [f", min={lower}"] if lower > default else []
    bounds += [f", max={upper}"] if upper != INFINITY else []
    return f"{name} = Dim({name!r}{''.join(bounds)})"


def _line(env: Traced, label: str, expr: Any, names: dict[Any, str], stepped: dict[Any, Step]) -> str:
    if expr.is_number:
        return f"{label} = {expr}"
    if expr in names and names[expr] == label and expr not in stepped:
        bounds = env.facts.range_of(expr)
        return _dim(label, bounds.lower, bounds.upper, env._default_value_range().lower)
    roots = {s: sympy.Symbol(_root_name(env, names, s), integer=True) for s in expr.free_symbols & stepped.keys()}
    expr = expr.xreplace({s: stepped[s].scale * root + stepped[s].offset for s, root in roots.items()})
    names = names | {root: root.name for root in roots.values()}
    read = linear(expr)
    if read is None:
        return f"{label} = {python_source(expr, lambda symbol: names.get(symbol) or env.source_name(symbol))}"
    symbol, scale, offset = read
    name = names.get(symbol) or env.source_name(symbol)
    text = name if scale == 1 else f"{scale}*{name}"
    if offset:
        text += f" + {offset}" if offset > 0 else f" - {-offset}"
    return f"{label} = {text}"


def _as_dims(suggestion: str) -> str:
    """The suggestion for a size without a name, in terms of Dim."""
    static = _STATIC.match(suggestion)
    if static:
        name, value = static.groups()
        return f"{name} = {value}" if value else f"{name} = None  # static"
    return suggestion.replace("DimSpec.dynamic(", "Dim(")
