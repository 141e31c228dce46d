"""Known issues and a campaign: which entry of the ledger explains a bucket, and what has become of each entry.

`known_issue` says which of them explains a bucket, so that a campaign does not report it as new. `recheck` runs the programs:
an issue whose program agrees is fixed, one that has expired must be looked at by somebody. Both are for the summary.
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
    """What became of one issue."""

    issue: KnownIssue
    outcome: str  # "live", "fixed", "changed" (wrong in another way), "unjudged" (its program no longer runs in eager)
    is_expired: bool
    verdict: Verdict

    @property
    def needs_attention(self) -> bool:
        return self.outcome != "live" or self.is_expired

    def text(self) -> str:
        """A line for the summary."""
        expired = f"; expired on {self.issue.expires}" if self.is_expired else ""
        said = f" ({self.verdict.status.value}: {self.verdict.symptom[:80]})" if self.outcome != "fixed" else ""
        link = f" {self.issue.link}" if self.issue.link else ""
        return f"{self.issue.id}: {self.outcome}{expired}{said}: {self.issue.title}{link}"


def known_issue(
    bucket: Bucket, issues: Sequence[KnownIssue], *, today: datetime.date | None = None
) -> KnownIssue | None:
    """The entry that explains a bucket; an expired one explains nothing."""
    day = today or datetime.datetime.now(datetime.timezone.utc).date()
    return next((issue for issue in issues if not issue.is_expired(day) and issue.explains(bucket)), None)


def recheck(
    issues: Sequence[KnownIssue],
    judge_on: Callable[[Program, str], Verdict],
    *,
    today: datetime.date | None = None,
) -> list[Recheck]:
    """Run the program of every entry on its rung. `judge_on(program, subject name)` gives the verdict."""
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
