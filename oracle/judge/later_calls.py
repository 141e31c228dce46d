"""Adapt the plan of later calls: drop what eager cannot run, what a subject may refuse, and what a question does not need.

A later call has other values, and may differentiate its gradients once more. `cholesky` then raises if the matrix is no longer
positive definite, `acosh` returns NaN below 1, and some backwards have no derivative. Running eager shows which of these a
program accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from oracle.observe import DOUBLE_BACKWARD, SECOND, without_backward
from oracle.observe.outcome import CallObservation, Outcome, Raised, Returned
from oracle.program import VALUES, Call
from oracle.verdict import Status, Verdict

Plan = tuple[Call, ...]


def plan_taken(calls: Sequence[Call], outcome: Outcome) -> tuple[Plan, str] | None:
    """A plan with less in it, and why; None if eager ran all of this one.

    It drops the first thing on which eager raised, or returned a NaN that the first call did not return.
    """
    if isinstance(outcome, Raised):
        at, phase = outcome.exception.call, outcome.exception.phase
        if phase == DOUBLE_BACKWARD:
            return _differentiated_once(calls, at, f"eager raises {outcome.exception.type_name} in it")
        return _weaker(calls, at) if calls[at].values != VALUES[0] else None
    if not isinstance(outcome, Returned):
        return None
    for number, (plan, seen) in enumerate(zip(calls, outcome.calls, strict=True)):
        if plan.values != VALUES[0] and _has_nan(seen, _is_first) and not _has_nan(outcome.calls[0], _is_first):
            return _weaker(calls, number)
        if plan.double_backward and _has_nan(seen, _is_second):
            return _differentiated_once(calls, number, "it gives NaN in eager")
    return None


def _weaker(calls: Sequence[Call], refused: int) -> tuple[Plan, str]:
    """The plan with the next weaker change of values in each call that has the same change as the refused call."""
    values = calls[refused].values
    instead = VALUES[VALUES.index(values) - 1]
    changed = tuple(replace(call, values=instead) if call.values == values else call for call in calls)
    return changed, f"later calls are made on {instead} values: eager does not take {values} ones in call {refused}"


def _differentiated_once(calls: Sequence[Call], at: int, why: str) -> tuple[Plan, str]:
    return tuple(replace(call, double_backward=False) for call in calls), f"call {at} has no double backward: {why}"


def _is_second(path: str) -> bool:
    return path.startswith(SECOND)


def _is_first(path: str) -> bool:
    return not path.startswith(SECOND)


def _has_nan(call: CallObservation, counts: Callable[[str], bool]) -> bool:
    leaves = (*call.outputs, *call.inputs_after, *call.gradients)
    return any(_is_nan(leaf.value) for leaf in leaves if isinstance(leaf.value, torch.Tensor) and counts(leaf.path))


def _is_nan(tensor: torch.Tensor) -> bool:
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        return False
    if not tensor.is_floating_point() and not tensor.is_complex():
        return False
    return bool((tensor != tensor).any()) if tensor.dtype.itemsize > 1 else bool(tensor.float().isnan().any())


# --------------------------------------------------------------------------------------------------- refusals

# AOTAutograd documents that it has no double backward and raises an error that says so. With donated buffers the error names
# the argument `create_graph`.
_NAMES_WHAT_IT_REFUSES = ("double backward", "create_graph")


def refusal_of_double_backward(seen: Outcome, *, is_promised: bool) -> tuple[int, str] | None:
    """The call whose double backward the subject refuses in so many words, and the first line of its error. None if promised.

    Any other exception in a double backward, and gradients that silently have no `grad_fn`, are findings.
    """
    if not isinstance(seen, Raised) or seen.exception.phase != DOUBLE_BACKWARD or is_promised:
        return None
    message = seen.exception.message
    if not any(name in message for name in _NAMES_WHAT_IT_REFUSES):
        return None
    return seen.exception.call, (message.splitlines() or [""])[0][:200]


def up_to_gradients(outcome: Outcome, number: int) -> Outcome:
    """The outcome up to the refused double backward of call `number`."""
    if isinstance(outcome, Raised) and outcome.undifferentiated is not None:
        return Returned(calls=(*outcome.calls, outcome.undifferentiated))
    if not isinstance(outcome, Returned):
        return outcome
    return Returned(calls=(*outcome.calls[:number], without_backward(outcome.calls[number])))


# ------------------------------------------------------------------------------------------------- beginnings of a plan


def up_to(outcome: Outcome, calls: Plan) -> Outcome:
    """The outcome as it was after these first calls of the plan, the last of which may lack its backward or double backward."""
    if not isinstance(outcome, Returned):
        return outcome
    *before, last = outcome.calls[: len(calls)]
    if not calls[-1].backward:
        last = without_backward(last)
    elif not calls[-1].double_backward:
        last = replace(last, gradients=tuple(leaf for leaf in last.gradients if _is_first(leaf.path)))
    return Returned(calls=(*before, last))


def plainer_plans(calls: Plan, verdict: Verdict) -> list[Plan]:
    """Shorter plans that may show the same difference, the shortest first: nothing after the wrong call, perhaps no backward.

    Each is a beginning of `calls`. Later runs of the program cost less by as much, as does a compile without a backward. A run
    that raises or dies is short already.
    """
    if verdict.call is None or not verdict.status.is_silent or verdict.call >= len(calls):
        return []
    until = calls[: verdict.call + 1]
    last = until[-1] if SECOND in verdict.symptom else replace(until[-1], double_backward=False)
    is_of_backward = verdict.status is Status.FAIL_GRAD or "grad" in verdict.symptom
    once = [last] if is_of_backward else [replace(last, backward=False), last]
    plans: list[Plan] = []
    for plan in [*((*until[:-1], call) for call in once), until]:
        if plan != calls and plan not in plans:
            plans.append(plan)
    return plans
