"""Compares a campaign with the ledger of known issues.

`known_issue` finds the entry that explains a bucket, so that it is not reported as new. `recheck` runs the programs of the
entries: an issue whose program agrees is fixed, and an expired one must be looked at again.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fuzz.triage.bucket import Bucket
from oracle.known.ledger import KnownIssue
from oracle.program import Program
from oracle.verdict import Status, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Recheck:
    """The result of running one issue's program."""

    issue: KnownIssue
    outcome: str  # "live", "fixed", "changed" (wrong in another way), "unjudged" (its program no longer runs in eager)
    is_expired: bool
    verdict: Verdict

    @property
    def needs_attention(self) -> bool:
        return self.outcome != "live" or self.is_expired

    def text(self) -> str:
        """The line in the summary."""
        expired = f"; expired on {self.issue.expires}" if self.is_expired else ""
        said = f" ({self.verdict.status.value}: {self.verdict.symptom[:80]})" if self.outcome != "fixed" else ""
        link = f" {self.issue.link}" if self.issue.link else ""
        return f"{self.issue.id}: {self.outcome}{expired}{said}: {self.issue.title}{link}"


def known_issue(
    bucket: Bucket, issues: Sequence[KnownIssue], *, today: datetime.date | None = None
) -> KnownIssue | None:
    """The entry that explains a bucket; expired entries are ignored."""
    day = today or datetime.datetime.now(datetime.timezone.utc).date()
    return next((issue for issue in issues if not issue.is_expired(day) and issue.explains(bucket)), None)


def recheck(
    issues: Sequence[KnownIssue],
    judge_on: Callable[[Program, str], Verdict],
    *,
    today: datetime.date | None = None,
) -> list[Recheck]:
    """Run the program of every entry on its rung. `judge_on(program, subject name)` returns the verdict."""
    day = today or datetime.datetime.now(datetime.timezone.utc).date()
    found = []
    for issue in issues:
        verdict = judge_on(issue.program, issue.subject)
        found.append(
            Recheck(issue=issue, outcome=_outcome(issue, verdict), is_expired=issue.is_expired(day), verdict=verdict)
        )
    return found


def _outcome(issue: KnownIssue, verdict: Verdict) -> str:
    if verdict.status is Status.PASS:
        return "fixed"
    if verdict.status.is_finding:
        return "live" if verdict.status.value in issue.statuses else "changed"
    return "unjudged"
