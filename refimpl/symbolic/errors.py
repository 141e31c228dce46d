"""Errors about guards: a guard that depends on data, and a guard that is added too late.

Where torch's meta kernels and users catch an error by type, the type is upstream's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from refimpl._torch import upstream_shape_error
from refimpl.symbolic.functions import is_condition
from refimpl.symbolic.guards import python_source
from refimpl.symbolic.operations import negate
from refimpl.symbolic.stacks import Stack

if TYPE_CHECKING:
    from refimpl.symbolic.symbols import SymbolState


class NewGuard(RuntimeError):
    """A guard is added after the guards were read, so nothing would check it."""


def data_dependent_error(env: SymbolState, expr: Any, stack: Stack) -> RuntimeError:
    """The error for a Python value, such as a branch, that depends on an unbacked symbol."""
    unbacked = sorted(str(s) for s in expr.free_symbols if s in env.unbacked)
    what = "data-dependent expression" if is_condition(expr) else "data-dependent value of"
    condition = python_source(expr)
    advice = (
        f"torch._check({condition}) or torch._check({python_source(negate(expr))}) before it, if one of them always holds"
        if is_condition(expr)
        else "keep the value in tensors, or bound it by torch._check"
    )
    return upstream_shape_error("GuardOnDataDependentSymNode")(
        expr,
        f"Could not guard on {what} {condition}: {', '.join(unbacked) or 'it'} is known only when the program runs\n"
        f"  at {stack.user_line()}\n"
        "  expected: control flow and shapes that depend on sizes of inputs, not on values in tensors\n"
        f"  what to do: {advice}",
    )
