"""Runs the programs of known issues, each on its first wrong rung and in a process of its own. Does not import torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from oracle.isolate import Completed, End, Pool, Task
from oracle.known.ledger import REGRESSIONS, KnownIssue
from oracle.records import PlannedCase
from oracle.subjects.registry import check_requirements, resolve
from oracle.sweep import verdict_of_end
from oracle.verdict import Verdict

_TIMEOUT_S = 300.0
_MEMORY_BYTES = 6 * 2**30


def verdicts_of(issues: Sequence[KnownIssue]) -> Iterator[tuple[KnownIssue, Verdict]]:
    """Each issue with the verdict on its program on its subject, in the order in which they end."""
    by_key: dict[str, list[KnownIssue]] = {}
    for issue in issues:
        by_key.setdefault(_task(issue).key, []).append(issue)
    with Pool(workers=1, preload=("torch", "oracle.case")) as pool:
        for result in pool.run([_task(same[0]) for same in by_key.values()]):
            for issue in by_key[result.task.key]:
                yield issue, _verdict(result.end)


def _verdict(end: End) -> Verdict:
    if isinstance(end, Completed):
        return Verdict.from_json(end.value["verdict"])  # type: ignore[arg-type]
    return verdict_of_end(end)


def _task(issue: KnownIssue) -> Task:
    spec = resolve(issue.subject)
    check_requirements(spec)
    case = PlannedCase(
        case_id=f"{issue.shown_by[0]}@{spec.name}",
        suite=REGRESSIONS,
        group=issue.program_name.partition("/")[0],
        name=issue.program_name,
        subject=spec.name,
        program=replace(issue.program, name=issue.program_name).to_json(),
    )
    return Task(
        key=case.case_id,
        function="oracle.case:run_case",
        payload={"case": case.to_json(), "subject": spec.to_json(), "options": {"speed": False, "device": "cpu"}},
        group=case.group,
        timeout_s=_TIMEOUT_S,
        memory_bytes=_MEMORY_BYTES,
        environment=tuple(sorted(spec.env.items())),
    )
