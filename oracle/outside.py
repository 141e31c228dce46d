"""A call whose sizes are outside of those that a program was exported for: whoever is told the sizes has to refuse it.

Counterpart: torch/_export/utils.py _check_input_constraints_for_graph (the check itself)
Differs: asks whether there is a check. Eager takes every size, so that agreeing with eager is no merit here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from oracle.outcome import Outcome, Raised, Returned
from oracle.verdict import Status, Verdict

REFUSAL = ("Guard failed", "Expected input")  # how the check of an exported program begins what it says
OUTSIDE = "outside of the sizes"


def judge_outside(number: int, seen: Outcome, judged: Callable[[int | None, Outcome], Verdict]) -> Verdict:
    """The verdict on a plan whose call `number`, the last, is outside.

    `judged` gives the verdict on the first calls, so many of them, or on all for None. What was refused by a guard passes
    if the calls before agree with eager; what was accepted is `fail_guard`, right or wrong; another exception than a guard's
    is `fail_exception`.
    """
    before = Returned(calls=seen.calls[:number]) if isinstance(seen, (Raised, Returned)) else seen
    if not isinstance(seen, (Raised, Returned)) or len(seen.calls) < number:
        return judged(number, seen)
    verdict = judged(number, before)
    if verdict.status is not Status.PASS:
        return verdict
    if isinstance(seen, Raised):
        first_line = (seen.exception.message.splitlines() or [""])[0][:200]
        if first_line.startswith(REFUSAL):
            explained = (*verdict.explained, f"call {number}, {OUTSIDE}, is refused: {first_line}")
            return dataclasses.replace(verdict, explained=explained)
        symptom = f"call {number}, {OUTSIDE}: outcome is {seen.exception.type_name} ({first_line}), but should be a failed guard"
        return dataclasses.replace(verdict, status=Status.FAIL_EXCEPTION, symptom=symptom, call=number)
    whole = judged(None, seen)
    how = "with eager's results" if whole.status is Status.PASS else f"and wrong ({whole.symptom})"
    symptom = f"call {number}, {OUTSIDE}: accepted {how}, but should be refused"
    return dataclasses.replace(whole, status=Status.FAIL_GUARD, symptom=symptom, call=number)
