"""The versions of torch that show a known issue: only versions whose programs were compared count."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.measurements.issues_by_version import rows
from oracle.known.ledger import load_ledger
from oracle.known.seen import Ending, Seen
from oracle.verdict import Status

_P, _G, _E = Status.PASS, Status.FAIL_GRAD, Status.EAGER_FAIL_TO_RUN


@pytest.mark.parametrize(
    ("statuses", "change"),
    [
        ((_G, _G, _G), "in all"),
        ((_P, _G, _G), "new in 2.9"),
        ((_G, _G, _P), "fixed in 2.13"),
        ((_P, _G, _P), "new in 2.9, fixed in 2.13"),
        ((_E, _G, _G), "not compared with 2.8"),
        ((_E, None, _G), "not compared with 2.8 and 2.9"),
    ],
)
def test_a_change_is_told_only_between_versions_that_compared_the_program(
    statuses: tuple[Status | None, ...], change: str
) -> None:
    issue = load_ledger().issues[0]
    by_torch = {
        minor: {} if status is None else {issue.shown_by[0]: {issue.subject: (Ending(status=status, kind=""),)}}
        for minor, status in zip(("2.8", "2.9", "2.13"), statuses, strict=True)
    }
    (row,) = rows(replace(load_ledger(), issues=(issue,), seen=Seen(by_torch=by_torch)))
    assert row["change"] == change
    assert [row[minor] for minor in by_torch] == ["not measured" if each is None else each.value for each in statuses]
