"""Checks after tracing whether the graph is valid for all dynamic sizes that the user specified, and suggests fixes.

Counterpart: DimConstraints, ConstraintViolationError of torch/fx/experimental/symbolic_shapes.py
Differs: uses the ranges and equalities that the shape env found while tracing; upstream solves for them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from refimpl._torch import upstream_shape_error
from refimpl.symbolic.congruences import steps
from refimpl.symbolic.dynamic_shapes import DimSpec
from refimpl.symbolic.guards import ShapeGuard, python_source
from refimpl.symbolic.protocols import Traced
from refimpl.symbolic.ranges import INFINITY, Range
from refimpl.symbolic.sources import Source

MOST_GUARDS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Promise:
    """A specified dimension of an input: its DimSpec, symbol and value; for a derived dimension those of its root."""

    source: Source
    spec: DimSpec
    expr: Any
    value: int

    @property
    def label(self) -> str:
        return self.spec.name or self.source.name


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that the program breaks. `suggestion` is empty if no DimSpec expresses the condition that it needs."""

    promise: Promise
    problem: str
    suggestion: str = ""
    guards: tuple[ShapeGuard, ...] = ()
    text: str = ""  # the whole problem, where it is no condition on the size alone

    def __str__(self) -> str:
        shown = [f"\n      {guard.expr} at {guard.sloc}" for guard in self.guards[:MOST_GUARDS_SHOWN]]
        if self.text:
            return f"{self.text}{''.join(shown)}"
        sizes = f"{self.promise.label} ({self.promise.source.name})"
        return f"Not all values of {sizes} satisfy the generated guard: {self.problem}{''.join(shown)}"


def outside_promise(spec: DimSpec, problem: str) -> RuntimeError:
    """The error, before tracing, for an input whose size does not fit its specification."""
    return upstream_shape_error("ConstraintViolationError")(
        f"{problem}\n"
        f"  expected: a size{_described(spec)}\n"
        "  what to do: give an example that fits, or change the dynamic shapes"
    )


def check_strictly_unbacked(sizes: Sequence[tuple[Any, str]]) -> None:
    """Raises ConstraintViolationError for a size that became a number, against `mark_unbacked(strict=True)`.

    sizes: what each is now, an int or a sympy expression, and its name.
    """
    for known, name in sizes:
        if type(known) is int or known.is_number:
            raise upstream_shape_error("ConstraintViolationError")(
                f"{name} is marked as strictly unbacked, but it is specialized to {known}\n"
                "  what to do: mark it without strict=True, or keep the program from comparing it with a number"
            )


def _described(spec: DimSpec) -> str:
    """The sizes of a specification: ` of the form 2*d + 1, where d is from 2 to 9`."""
    bounds = [f"from {spec.min}"] if spec.min is not None else []
    bounds += [f"to {spec.max}"] if spec.max is not None else []
    limits = " " + " ".join(bounds) if bounds else ""
    if spec.scale == 1 and not spec.offset:
        return limits or (f" equal to {spec.name}" if spec.name is not None else "")
    return f" of the form {spec}" + (f", where {spec.name} is{limits}" if limits else "")


def violations(env: Traced) -> list[Violation]:
    """The violated promises, in order of the inputs; at most one violation per promise."""
    found = [_conflict(env, promise) or _violation(env, promise) for promise in env.promises]
    unique: dict[tuple[str, str], Violation] = {}
    for violation in found:
        if violation is not None:
            promised = (
                str(violation.promise.spec) if violation.text and violation.suggestion else violation.promise.label
            )
            unique.setdefault((promised, violation.suggestion or violation.problem), violation)
    return list(unique.values())


def constraint_error(found: Sequence[Violation], suggested: Sequence[str]) -> RuntimeError:
    """The error that lists violations and suggested fixes."""
    problems = "\n".join(f"  {i}. {violation}" for i, violation in enumerate(found, 1))
    fixes = "\n".join(f"    {fix}" for fix in suggested)
    advice = (
        f"\n  Suggested fixes:\n{fixes}"
        if fixes
        else "\n  what to do: change the program so that it does not add these guards"
    )
    return upstream_shape_error("ConstraintViolationError")(
        f"Constraints violated: the graph is not valid for all sizes that the specifications allow\n{problems}\n"
        f"  expected: a graph that is valid for every size within the specified bounds{advice}"
    )


def _conflict(env: Traced, promise: Promise) -> Violation | None:
    """The violation if the example is outside of the bounds of a hint: the trace then knows the range that the program has."""
    spec = promise.spec
    if (spec.min is None or spec.min <= promise.value) and (spec.max is None or promise.value <= spec.max):
        return None
    found = env.own_ranges().range_of(env.replace(promise.expr))
    problem = f"the example has {promise.value}"
    said = f"Received user-specified min/max range of [{spec.min}, {spec.max}], conflicting with the inferred min/max "
    said += f"range of {str(found).removeprefix('VR')}, for {_place(promise)}"
    return Violation(promise, problem, text=said)


def _place(promise: Promise) -> str:
    """Where the size is, as users write it: `inputs['x'].shape[0]`."""
    return promise.source.name.replace("L[", "inputs[", 1).replace(".size()", ".shape")


def _violation(env: Traced, promise: Promise) -> Violation | None:
    if promise.spec.policy != "DYNAMIC":
        return None
    expr = env.replace(promise.expr)
    guards = _guards_about(env, promise.expr)
    if expr.is_number:
        size = promise.spec.scale * expr + promise.spec.offset
        place = _place(promise)
        hinted = f"Received user-specified dim hint Dim.{promise.spec.policy}, but"
        if promise.value in (0, 1) and not guards and not promise.spec.is_derived:
            problem = f"0 and 1 are specialised; the example has {expr}"
            if promise.spec.name:
                return Violation(promise, problem)
            said = f"{hinted} export 0/1 specialized due to hint of {expr} for dimension {place}"
            return Violation(promise, problem, f"{promise.label} = DimSpec.static()", text=said)
        if not promise.spec.name and not any(isinstance(guard.expr, sympy.Eq) for guard in guards):
            said = f"{hinted} tracing inferred a static shape of {expr} for dimension {place}"
            suggestion = f"{promise.label} = DimSpec.static()  # {expr}"
            return Violation(promise, f"is always {expr}", suggestion, guards, said)
        which, place = (str(promise.spec), f" at {promise.source.name}") if promise.spec.name else (promise.label, "")
        said = f"You marked {which} as dynamic but your code specialized it to be a constant ({size}){place}. "
        said += "If you're using Dim.DYNAMIC, replace it with either Dim.STATIC or Dim.AUTO."
        suggestion = f"{promise.label} = DimSpec.static()  # {expr}"
        return Violation(promise, f"is always {expr}", suggestion, guards, said)
    if not promise.spec.strict:
        return None
    return _equality(env, promise, expr, guards) or _bounds(env, promise, expr, guards) or _other(env, promise, expr)


def _equality(env: Traced, promise: Promise, expr: Any, guards: tuple[ShapeGuard, ...]) -> Violation | None:
    """The violation if the size must equal an expression of dimensions with other names."""
    if expr == promise.expr:
        return None
    promises = env.promises[::-1]  # the first promise of a symbol stands for it
    by_symbol = {env.replace(p.expr): p for p in promises if env.replace(p.expr).is_Symbol}
    by_symbol |= {p.expr: p for p in promises if p.expr.is_Symbol and env.replace(p.expr) == p.expr}  # its own
    names = {symbol: p.label for symbol, p in by_symbol.items()}
    if promise.spec.name is not None and all(names.get(s) == promise.spec.name for s in expr.free_symbols):
        return None
    text = python_source(expr, lambda symbol: names.get(symbol) or env.source_name(symbol))
    label, source = promise.label, promise.source.name
    related = [by_symbol[s] for s in expr.free_symbols if s in names]
    others = ", ".join(f"{p.spec if p.spec.name else p.label} = {p.source.name}" for p in related)
    said = f"The values of {label} = {source} must always be related to the values of {others} by {label} = {text}"
    if expr.is_Symbol and not any(p.spec.is_derived for p in (promise, *related)):
        said = f"The values of {label} = {source} and {others} must always be equal"
    return Violation(promise, f"is always {text}", f"{label} = {text}", guards, said)


def _bounds(env: Traced, promise: Promise, expr: Any, guards: tuple[ShapeGuard, ...]) -> Violation | None:
    found, spec = env.own_ranges().range_of(expr), promise.spec
    default = env._default_value_range()
    lower = default.lower if spec.min is None else max(spec.min, default.lower)
    upper = INFINITY if spec.max is None else spec.max
    if found.lower <= lower and found.upper >= upper:
        return None
    holds = f"holds only for {_interval(found)}"
    arguments = [repr(spec.name)] if spec.name else []
    arguments += [f"min={found.lower}"] if found.lower > default.lower else []
    arguments += [f"max={found.upper}"] if found.upper != INFINITY else []
    return Violation(promise, holds, f"{promise.label} = DimSpec.dynamic({', '.join(arguments)})", guards)


def _interval(found: Range) -> str:
    if found.upper == INFINITY:
        return f"sizes from {found.lower} on"
    return f"sizes from {found.lower} to {found.upper}"


def _other(env: Traced, promise: Promise, expr: Any) -> Violation | None:
    """The violation if a guard is neither a range nor an equality, such as divisibility."""
    facts = env.own_ranges()
    for guard in _guards_about(env, promise.expr):
        condition = env.replace(guard.expr)
        if facts.decide(condition) is not None:
            continue
        suggestion = ""
        step = steps([condition]).get(expr)
        if step is not None:
            suggestion = f"{promise.label} = DimSpec.dynamic('_{promise.spec.name or 'dim'}').times({step.scale})"
            suggestion += f".plus({step.offset})" if step.offset else ""
        text = python_source(condition, env.source_name)
        return Violation(promise, f"needs {text}", suggestion, (guard,))
    return None


def _guards_about(env: Traced, expr: Any) -> tuple[ShapeGuard, ...]:
    return tuple(guard for guard in env.guards if guard.expr.free_symbols & expr.free_symbols)
