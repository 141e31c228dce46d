"""Known issues in a campaign: which buckets they explain, and whether they still exist. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fuzz.campaign.settings import CampaignSettings
from fuzz.campaign.state import FoundBucket
from fuzz.program.structure import FuzzProgram
from fuzz.triage.bucket import Bucket, operators_of
from fuzz.triage.ledger import Recheck, known_issue, recheck
from oracle.errors import UsageError
from oracle.isolate import Completed, Task, TaskPool
from oracle.known.ledger import KnownIssue, ledger_named
from oracle.program import Program
from oracle.subjects.registry import check_requirements, resolve
from oracle.subjects.spec import SubjectSpec
from oracle.sweep import verdict_of_end
from oracle.symptom import symptom_of, without_relation
from oracle.verdict import Verdict


def issues_of(known: str) -> tuple[KnownIssue, ...]:
    """The issues of `--known`, as `oracle.known.ledger.ledger_named` reads it; those that are fixed explain nothing.

    Raises UsageError for an invalid file.
    """
    ledger = ledger_named(known)
    return () if ledger is None else tuple(issue for issue in ledger.issues if not issue.fixed)


def id_of_known(found: FoundBucket, issues: Sequence[KnownIssue]) -> str:
    """Id of the issue that explains a bucket, or ""."""
    bucket = Bucket(
        key=found.key,
        subject=found.subject,
        rung=found.rung,
        status=found.status,
        kind=without_relation(found.kind),  # an issue has the same symptom with or without a relation
        operators=found.operators,
        culprit=found.culprit,
        program=found.program,
        source=found.source,
    )
    issue = known_issue(bucket, issues)
    return "" if issue is None else issue.id


def id_of_replayed(
    program: FuzzProgram, verdict: Verdict, subject: str, issues: Sequence[KnownIssue], *, stored: Mapping[str, Any]
) -> str:
    """Id of the issue that explains what a program shows when it is judged again, or "".

    `stored` is the finding's file, {} for none: the first wrong rung and the culprit in it hold for the symptom in it alone.
    """
    if not verdict.status.is_finding:
        return ""
    symptom = symptom_of(verdict)
    is_as_stored = (stored.get("status"), stored.get("kind")) == (symptom.status, symptom.kind)
    rung, culprit = (str(stored.get(key, "")) if is_as_stored else "" for key in ("rung", "culprit"))
    bucket = Bucket(
        key="",
        subject=subject,
        rung=rung,
        status=symptom.status,
        kind=without_relation(symptom.kind),
        operators=operators_of(program),
        culprit=culprit,
        program=program.to_json(),
        source=str(stored.get("source", "")) if is_as_stored else "",
    )
    issue = known_issue(bucket, issues)
    return "" if issue is None else issue.id


def looked_at_again(issues: Sequence[KnownIssue], settings: CampaignSettings, pool: TaskPool) -> list[Recheck]:
    """Run the programs of the issues on torch.compile's rungs up to the subject's: which are fixed or expired."""
    subjects: dict[str, SubjectSpec] = {}
    chosen = []
    for issue in issues:
        name = issue.subject
        try:
            spec = resolve(name)
            check_requirements(spec)
        except UsageError:  # a user's subject, or one that this machine cannot run
            continue
        own = settings.subject
        is_below = (
            own.kind == "torch_compile" and None not in (spec.rung, own.rung) and (spec.rung or 0) <= (own.rung or 0)
        )
        if is_below or spec.name == own.name:
            subjects[name] = spec
            chosen.append(issue)
    tasks = [
        Task(
            key=issue.id,
            function="fuzz.campaign.worker:judge_source",
            payload={"program": issue.program.to_json(), "subject": subjects[issue.subject].to_json()},
            group=issue.id,
            timeout_s=settings.case_timeout_s,
            memory_bytes=settings.memory_bytes,
            environment=tuple(sorted(settings.subject.env.items())),
        )
        for issue in chosen
    ]
    verdicts: dict[str, Verdict] = {}
    for result in pool.run(tasks) if tasks else ():
        match result.end:
            case Completed(value=value):
                verdicts[result.task.key] = Verdict.from_json(value["verdict"])  # type: ignore[arg-type]
            case _ as end:
                verdicts[result.task.key] = verdict_of_end(end)

    def verdict_on(program: Program, subject: str) -> Verdict:
        return verdicts[program.name]

    return recheck(chosen, verdict_on)
