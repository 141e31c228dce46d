"""Other values that eager does not take: a later call is then made on values that are closer to those given.

`cholesky` raises on a matrix that is not positive definite any more, `acosh` gives NaN below 1. What makes values valid is the
program's own matter; that eager took the given ones, and does not take these, is seen by running it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from oracle.outcome import CallObservation, Outcome, Raised, Returned
from oracle.program import VALUES, Call


def first_refused(calls: Sequence[Call], outcome: Outcome) -> int | None:
    """The first call on other values in which eager raises, or meets a NaN that the first call did not meet."""
    if isinstance(outcome, Raised):
        at = outcome.exception.call
        return at if calls[at].values != VALUES[0] else None
    if not isinstance(outcome, Returned) or all(call.values == VALUES[0] for call in calls):
        return None
    for number, (plan, seen) in enumerate(zip(calls, outcome.calls, strict=True)):
        if plan.values != VALUES[0] and _has_nan(seen) and not _has_nan(outcome.calls[0]):
            return number
    return None


def weaker(calls: Sequence[Call], refused: int) -> tuple[tuple[Call, ...], str]:
    """The plan with the next weaker change of values in every call that has the change of the one refused, and why."""
    values = calls[refused].values
    instead = VALUES[VALUES.index(values) - 1]
    changed = tuple(replace(call, values=instead) if call.values == values else call for call in calls)
    return (
        changed,
        f"later calls: eager does not take {values} values in call {refused}, they are made on {instead} ones",
    )


def _has_nan(call: CallObservation) -> bool:
    leaves = (*call.outputs, *call.inputs_after, *call.gradients)
    return any(_is_nan(leaf.value) for leaf in leaves if isinstance(leaf.value, torch.Tensor))


def _is_nan(tensor: torch.Tensor) -> bool:
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        return False
    if not tensor.is_floating_point() and not tensor.is_complex():
        return False
    return bool((tensor != tensor).any()) if tensor.dtype.itemsize > 1 else bool(tensor.float().isnan().any())
