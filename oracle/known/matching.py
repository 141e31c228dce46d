"""Decide whether a finding of a sweep is a known issue. Does not import torch.

A finding is `known` if an entry names its case, and the status and kind of the difference were measured for that case on that
subject:

- A measured subject may differ only as it did when it was measured.
- Another setting of a measured subject ("inductor[mode=max-autotune]"), or a rung between two measured ones, may also differ as
  the rungs below it do, since an error of one rung often appears unchanged on the rungs above it.
- A user's backend runs on Dynamo alone: only the differences measured on `dynamo` are known there.
- Errors of eager are known on every subject.

An error inside the compiler that has a single cause is also known by its message, in any program, on the rungs of torch.compile
from the entry's rung on. This applies to failures to run only, never to wrong results.

So a wrong number where an entry has wrong strides, a crash where it has a failure to run, and any wrong result in a case that no
entry names stay findings. A second wrong number in a case with a known wrong number cannot be told apart.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from oracle.known.ledger import KnownIssue, Ledger
from oracle.known.seen import Ending, Endings
from oracle.records import PlannedCase
from oracle.subjects.spec import SubjectSpec
from oracle.verdict import Status, Verdict

LADDER = ("dynamo", "aot_eager", "aot_eager_decomp_partition", "inductor")


def with_known_issue(
    verdict: Verdict,
    case: PlannedCase,
    spec: SubjectSpec,
    ledger: Ledger,
    *,
    torch_version: str,
    today: datetime.date | None = None,
) -> Verdict:
    """The verdict, with the status `known` or `xpass` and the entry's id if the ledger says so.

    `torch_version` is that of the workers ("2.13.0+cpu"). A known verdict keeps its symptom, and its status moves to `observed`.
    """
    day = today or datetime.datetime.now(datetime.timezone.utc).date()
    program = f"{case.suite}/{case.name}"
    issues = [issue for issue in ledger.of_case(program) if not issue.is_expired(day)]
    if verdict.status is Status.PASS:
        return _unexpected_pass(verdict, issues, case, spec, ledger, torch_version)
    if not verdict.status.is_finding:
        return verdict
    seen, endings = Ending.of(verdict), ledger.seen.endings(program, torch_version)
    if endings:
        admitted = [issue for issue in issues if any(seen.is_like(e) for e in _admitted(endings, spec, issue))]
    else:  # nothing was measured for the user's own ledger: the statuses of its entries count
        admitted = [issue for issue in issues if _is_said(issue, verdict.status, spec)]
    if not admitted:
        admitted = [
            issue
            for issue in ledger.with_message(seen.status, seen.kind)
            if not issue.is_expired(day) and reaches(issue, spec)
        ]
    if not admitted:
        return verdict
    issue = _issue_of(admitted, verdict.status, spec)
    return replace(verdict, status=Status.KNOWN, issue=issue.id, observed=verdict.status.value)


def _unexpected_pass(
    verdict: Verdict,
    issues: Sequence[KnownIssue],
    case: PlannedCase,
    spec: SubjectSpec,
    ledger: Ledger,
    torch_version: str,
) -> Verdict:
    """`xpass` for a case that agrees, although it differed in all measurements with this torch on a CPU.

    Of the user's own ledger nothing was measured: there the case must differ on the rung that its entry names.
    """
    program = f"{case.suite}/{case.name}"
    own = ledger.seen.measured(program, torch_version).get(spec.name, ()) if case.device == "cpu" else ()
    if own and all(ending.status.is_finding for ending in own):
        expected, status = list(issues), own[0].status
    else:
        expected = [issue for issue in issues if not ledger.seen.has(program) and fnmatchcase(spec.name, issue.rung)]
        status = verdict.status
    if not expected:
        return verdict
    issue = _issue_of(expected, status, spec)
    symptom = f"agrees with eager, but is known to differ: {issue.title}"
    return replace(verdict, status=Status.XPASS, issue=issue.id, symptom=symptom)


def _admitted(endings: Endings, spec: SubjectSpec, issue: KnownIssue) -> Iterator[Ending]:
    """The results of the case on this subject that count as this issue."""
    if issue.of_eager:
        for found in endings.values():
            yield from found
    elif spec.name in endings:
        yield from endings[spec.name]
    elif spec.kind == "backend":
        yield from endings.get("dynamo", ())
    else:
        base = _base(spec)
        yield from endings.get(base, ())
        if base in LADDER:
            for below in LADDER[: LADDER.index(base)]:
                yield from endings.get(below, ())


def _base(spec: SubjectSpec) -> str:
    """The built-in subject without its options: "inductor" for "inductor[mode=max-autotune]"."""
    if spec.kind == "torch_compile" and spec.rung:
        return LADDER[spec.rung - 1]
    return spec.name.partition("[")[0]


def reaches(issue: KnownIssue, spec: SubjectSpec) -> bool:
    """Whether a subject includes the issue's rung: it is one of torch.compile's from that rung on."""
    if issue.subject not in LADDER:
        return fnmatchcase(spec.name, issue.rung)
    return spec.kind == "torch_compile" and LADDER.index(issue.subject) < (spec.rung or 0)


def _is_said(issue: KnownIssue, status: Status, spec: SubjectSpec) -> bool:
    return status.value in issue.statuses and (issue.of_eager or fnmatchcase(spec.name, issue.rung))


def _issue_of(issues: Sequence[KnownIssue], status: Status, spec: SubjectSpec) -> KnownIssue:
    """The best of several entries for one case: one that names the status, then the highest rung up to the subject."""
    base = _base(spec)
    reach = LADDER.index(base) if base in LADDER else len(LADDER)

    def fitness(issue: KnownIssue) -> tuple[bool, int]:
        rung = LADDER.index(issue.subject) if issue.subject in LADDER else -1
        return status.value in issue.statuses, rung if rung <= reach else -1

    return max(issues, key=fitness)
