"""Judge a call whose sizes are outside the ranges a program was exported for: the exported program must refuse it.

Counterpart: torch/_export/utils.py _check_input_constraints_for_graph (the check itself)
Differs: tests that the check exists. Eager takes every size, so a subject that agrees with eager here is wrong.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from oracle.observe.outcome import Outcome, Raised, Returned
from oracle.verdict import Status, Verdict

REFUSAL = ("Guard failed", "Expected input")  # first words of the error that an exported program's check raises
OUTSIDE = "outside of the sizes"


def judge_outside(number: int, seen: Outcome, judged: Callable[[int | None, Outcome], Verdict]) -> Verdict:
    """The verdict on a plan whose last call, `number`, has sizes outside the ranges.

    `judged(n, outcome)` gives the verdict on the first n calls, or on all for None. If a guard refuses the call, the verdict is
    that on the calls before. If the call is accepted, the status is `fail_guard`, whatever it returns; if it raises another
    exception, `fail_exception`. An earlier wrong call keeps its status, and this call's symptom goes to `also`.
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
