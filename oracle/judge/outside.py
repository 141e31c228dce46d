"""A call whose sizes are outside of those that a program was exported for: whoever is told the sizes has to refuse it.

Counterpart: torch/_export/utils.py _check_input_constraints_for_graph (the check itself)
Differs: asks whether there is a check. Eager takes every size, so that agreeing with eager is no merit here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from oracle.observe.outcome import Outcome, Raised, Returned
from oracle.verdict import Status, Verdict

REFUSAL = ("Guard failed", "Expected input")  # how the check of an exported program begins what it says
OUTSIDE = "outside of the sizes"


def judge_outside(number: int, seen: Outcome, judged: Callable[[int | None, Outcome], Verdict]) -> Verdict:
    """The verdict on a plan whose call `number`, the last, is outside.

    `judged` gives the verdict on the first calls, so many of them, or on all for None. What was refused by a guard passes
    if the calls before agree with eager; what was accepted is `fail_guard`, right or wrong; another exception than a guard's
    is `fail_exception`. What was wrong before keeps its status, and what became of the call is said beside it.
    """
    before = Returned(calls=seen.calls[:number]) if isinstance(seen, (Raised, Returned)) else seen
    if not isinstance(seen, (Raised, Returned)) or len(seen.calls) < number:
        return judged(number, seen)
    verdict = judged(number, before)
    if isinstance(seen, Raised):
        first_line = (seen.exception.message.splitlines() or [""])[0][:200]
        if first_line.startswith(REFUSAL):
            explained = (*verdict.explained, f"call {number}, {OUTSIDE}, is refused: {first_line}")
            return dataclasses.replace(verdict, explained=explained)
        symptom = f"call {number}, {OUTSIDE}: outcome is {seen.exception.type_name} ({first_line}), but should be a failed guard"
        return _worse(verdict, Status.FAIL_EXCEPTION, symptom, number)
    whole = judged(None, seen)
    how = "with eager's results" if whole.status is Status.PASS else f"and wrong ({whole.symptom})"
    symptom = f"call {number}, {OUTSIDE}: accepted {how}, but should be refused"
    return _worse(verdict if verdict.status is not Status.PASS else whole, Status.FAIL_GUARD, symptom, number)


def _worse(verdict: Verdict, status: Status, symptom: str, number: int) -> Verdict:
    if verdict.status is not Status.PASS and verdict.call != number:
        return dataclasses.replace(verdict, also=(*verdict.also, symptom))
    return dataclasses.replace(verdict, status=status, symptom=symptom, call=number)
