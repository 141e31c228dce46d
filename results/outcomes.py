"""The outcome that a status stands for: passed, known, new, not compared or not run."""

from __future__ import annotations

from typing import Final

from oracle.verdict import Status

# Statuses without a result of the subject to judge.
NOT_COMPARABLE: Final = frozenset(
    {
        Status.PASS_DUE_TO_SKIP,
        Status.EAGER_FAIL_TO_RUN,
        Status.EAGER_TWO_RUNS_DIFFER,
        Status.MODEL_FAIL_TO_LOAD,
        Status.NOT_RUN,
    }
)

AGREES: Final = frozenset({Status.PASS, Status.XPASS})
OUTCOMES: Final = ("passed", "known", "new", "not_compared", "not_run")


def outcome_of(status: Status) -> str:
    """The outcome, one of OUTCOMES, of a case with this status."""
    if status in AGREES:
        return "passed"
    if status.is_finding:
        return "new"
    if status in (Status.KNOWN, Status.NOT_RUN):
        return status.value
    return "not_compared"
