"""The table of decompositions and the decorator that fills it.

A rule is a function with the op's own signature that calls other aten ops. It may return NotImplemented for arguments that it
does not cover; then the op itself is recorded.

Counterpart: torch/_decomp/__init__.py register_decomposition, get_decompositions, decomposition_table
Differs: rules are registered for overloads, never for packets. A second rule for an overload is an error; upstream's later
registration wins in places.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch

from refimpl._torch import OpOverload
from refimpl.errors import RefimplError
from refimpl.symbolic.symbols import assuming_common_sizes
from refimpl.trace.refusals import are_common, operands_fit

Rule = Callable[..., Any]
RuleT = TypeVar("RuleT", bound=Rule)

decomposition_table: dict[OpOverload, Rule] = {}
_registered: dict[OpOverload, Rule] = {}  # as `register` put them in; the table may be changed by anybody


class DecompositionError(RefimplError, ValueError):
    """Two rules are registered for one overload."""


def register(overload: OpOverload, function: Rule) -> None:
    """Add a rule to the table. Raises DecompositionError if the overload has one."""
    if overload in decomposition_table:
        raise DecompositionError(
            f"{overload} has two decompositions: {_described(decomposition_table[overload])} and {_described(function)}\n"
            "  expected: one\n  what to do: remove one of them"
        )
    decomposition_table[overload] = _registered[overload] = _for_fitting(overload, function)


def is_registered(overload: Any, function: Any) -> bool:
    """Whether the function is the rule that `register` has put into the table for this overload."""
    return overload in _registered and _registered[overload] is function


def _for_fitting(overload: OpOverload, function: Rule) -> Rule:
    """Wrap the rule to return NotImplemented if eager refuses the dtypes or numbers, so that the op itself raises eager's error.

    It does the same for dtypes that few kernels implement, because the ops that the rule calls may accept more than its op.
    """

    @functools.wraps(function)
    def of_fitting(*args: Any, **kwargs: Any) -> Any:
        if not are_common(args, kwargs) or not operands_fit(overload, args, kwargs):
            return NotImplemented
        with assuming_common_sizes():
            return function(*args, **kwargs)

    return of_fitting


def _described(function: Rule) -> str:
    """The name of a function, or the repr of a functools.partial."""
    return getattr(function, "__qualname__", repr(function))


def rule(*overloads: OpOverload) -> Callable[[RuleT], RuleT]:
    """Register the decorated function as the decomposition of each overload."""

    def decorate(function: RuleT) -> RuleT:
        for overload in overloads:
            register(overload, function)
        return function

    return decorate


def get_decompositions(ops: Iterable[Any]) -> dict[OpOverload, Rule]:
    """A table for `make_fx` with the rules of these overloads, and of all overloads of these packets.

    Ops without a rule are left out, as upstream does.
    """
    overloads: list[Any] = []
    for op in ops:
        overloads += [op] if isinstance(op, OpOverload) else [getattr(op, name) for name in op.overloads()]
    return {overload: decomposition_table[overload] for overload in overloads if overload in decomposition_table}


aten = torch.ops.aten
