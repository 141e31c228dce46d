"""The runs in a database and the history of one case over them, by queries that read no whole run.

`torch-oracle show --runs` and `torch-oracle history` print them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby, pairwise, takewhile
from operator import itemgetter
from typing import Any, Final

import sqlalchemy as sa

from oracle.records import Record
from oracle.verdict import Status
from results.kept import measures_speed
from results.merge import SHARD_KEYS
from results.queries import BLOCK, case_filter, literal_prefix
from results.render import Part, TextTable, one_line, ratio, shorten
from results.schema import CASES, FACTS, RECORDS, RUNS, fact_at
from results.statistics import proportion_interval
from results.store import (
    CASE_SELECTION,
    COMPLETE,
    PLANNING,
    RECORD_SELECTION,
    SAME_CASE,
    RunInfo,
    Store,
    to_record,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The software and machine of a run, and what the run says of its subjects. Unknown texts are ""."""

    run_id: str
    state: str
    started_at: str  # ISO 8601, UTC
    ended_at: str | None
    torch: str  # version
    torch_git: str  # commit
    triton: str
    machine: str  # the GPU, or else the processor
    command: str
    suites: tuple[str, ...]
    subjects: tuple[str, ...]
    label: str = ""  # the user's name for what was tested
    versions: Mapping[str, str] = field(default_factory=dict)  # of subjects that are not torch's, by their names
    place: str = ""  # as `machine_of`: the GPU and the processor


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A run in one line: how its cases ended, and how fast its passing cases are."""

    facts: RunFacts
    planned: int
    recorded: int
    passed: int
    new: int  # findings, cases without a record of a complete run included
    known: int  # differ as the ledger says
    timed: int  # passing cases with a speedup
    speedup: float | None  # their geometric mean of eager's time / the subject's; None for none

    @property
    def not_compared(self) -> int:
        """Cases that were run, and about which nothing could be judged."""
        missing = self.planned - self.recorded if self.facts.state == COMPLETE else 0
        return self.recorded + missing - self.passed - self.new - self.known

    def to_json(self) -> dict[str, Any]:
        counts = {
            name: getattr(self, name) for name in ("planned", "recorded", "passed", "new", "known", "timed", "speedup")
        }
        return {**asdict(self.facts), **counts, "not_compared": self.not_compared}


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRun:
    """One case in one run."""

    facts: RunFacts
    program_hash: str  # SHA-256 of the program: two runs with the same one ran the same definition
    record: Record  # with status `missing` or `not_run` for a planned case without one

    @property
    def status(self) -> Status:
        return self.record.verdict.status

    @property
    def version(self) -> str:
        """The version of the case's subject; "" if the run did not record one."""
        return self.facts.versions.get(self.record.subject, "")

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self.facts), "program_hash": self.program_hash, "record": self.record.to_json()}


_FACT_NAMES: Final = ("run_id", "state", "started_at", "ended_at", *FACTS, "suites", "subjects")
_RUN_COLUMNS: Final = tuple(RUNS.c[name].label(f"run_{name}") for name in (*_FACT_NAMES, "environment"))
_FINDINGS: Final = tuple(status.value for status in Status if status.is_finding)
_PASSES: Final = (Status.PASS.value, Status.XPASS.value)


def case_history(store: Store, case_id: str, *, limit: int | None = None) -> list[CaseRun]:
    """The case in every run that planned it, oldest run first; the newest `limit` of them. Empty for an unknown case."""
    query = (
        sa.select(*_RUN_COLUMNS, CASES.c.program_hash, *CASE_SELECTION, *RECORD_SELECTION)
        .join_from(CASES, RUNS, RUNS.c.run == CASES.c.run)
        .join(RECORDS, SAME_CASE, isouter=True)
        .where(CASES.c.case_id == case_id)
        .order_by(CASES.c.run.desc())
        .limit(limit)
    )
    with store.reading() as connection:
        rows = connection.execute(query).mappings().all()
    return [
        CaseRun(
            facts=_facts(row),
            program_hash=row["program_hash"],
            record=to_record(row, run_id=row["run_run_id"], state=row["run_state"]),
        )
        for row in reversed(rows)
    ]


def run_summaries(store: Store, *, limit: int | None = None) -> list[RunSummary]:
    """The runs, oldest first; the newest `limit` of them. Counts come from an index, without reading records."""
    with store.reading() as connection:
        runs = (
            connection.execute(sa.select(RUNS.c.run, *_RUN_COLUMNS).order_by(RUNS.c.run.desc()).limit(limit))
            .mappings()
            .all()
        )
        return [_summary(connection, row) for row in reversed(runs)]


def _summary(connection: sa.Connection, row: sa.RowMapping) -> RunSummary:
    run = row["run"]
    planned = connection.execute(sa.select(sa.func.count()).where(CASES.c.run == run)).scalar_one()
    by_status = sa.select(RECORDS.c.status, sa.func.count()).where(RECORDS.c.run == run).group_by(RECORDS.c.status)
    counts = {row[0]: row[1] for row in connection.execute(by_status)}
    is_timed = (RECORDS.c.run == run, RECORDS.c.status == Status.PASS.value, RECORDS.c.speedup > 0)
    speedups: Sequence[float] = connection.execute(sa.select(RECORDS.c.speedup).where(*is_timed)).scalars().all()
    speedups = [speedup for speedup in speedups if speedup < math.inf]
    facts = _facts(row)
    recorded = sum(counts.values())
    missing = planned - recorded if facts.state == COMPLETE else 0
    return RunSummary(
        facts=facts,
        planned=planned,
        recorded=recorded,
        passed=sum(counts.get(status, 0) for status in _PASSES),
        new=missing + sum(counts.get(status, 0) for status in _FINDINGS),
        known=counts.get(Status.KNOWN.value, 0),
        timed=len(speedups),
        speedup=math.exp(math.fsum(map(math.log, speedups)) / len(speedups)) if speedups else None,
    )


def _facts(row: sa.RowMapping) -> RunFacts:
    environment = _environment(row["run_environment"])
    label, versions = tested(environment)
    named = {name: row[f"run_{name}"] for name in _FACT_NAMES}
    return RunFacts(**named, label=label, versions=versions, place=machine_in(environment))


def _environment(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:  # a damaged cell is told by whoever needs all of it
        return {}
    return found if isinstance(found, Mapping) else {}


def tested(environment: Mapping[str, Any]) -> tuple[str, Mapping[str, str]]:
    """The label of a run, and the versions of its subjects by their names, as its environment says."""
    label, versions = environment.get("label"), environment.get("subjects")
    known = versions if isinstance(versions, Mapping) else {}
    return (label if isinstance(label, str) else ""), {str(name): str(version) for name, version in known.items()}


def case_ids(store: Store, glob: str) -> list[str]:
    """The ids of all runs that equal the glob or match it, sorted."""
    query = sa.select(CASES.c.case_id).where(case_filter(glob)).distinct().order_by(CASES.c.case_id)
    with store.reading() as connection:
        if connection.dialect.name == "sqlite" and (prefix := literal_prefix(glob)):
            # SQLite orders texts by their code points, and has an index of the ids: only those with the prefix are read.
            query = query.where(CASES.c.case_id >= prefix, CASES.c.case_id < prefix[:-1] + chr(ord(prefix[-1]) + 1))
        return list(connection.execute(query).scalars())


def _both_ends() -> sa.Select[Any]:
    """The ids of the cases that pass in one run and are findings in another one."""
    is_bad = sa.case((RECORDS.c.status.in_(_FINDINGS), 1), else_=0)
    return (
        sa.select(CASES.c.case_id)
        .join_from(CASES, RECORDS, SAME_CASE)
        .where(RECORDS.c.status.in_((*_FINDINGS, *_PASSES)))
        .group_by(CASES.c.case_id)
        .having(sa.func.min(is_bad) < sa.func.max(is_bad))
    )


# --------------------------------------------------------------------------------------------- when a case broke

COMPARED_FACTS: Final = ("torch", "torch_git", "triton", "machine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """The run at which a case that fails now began to fail."""

    first_bad: CaseRun
    last_good: CaseRun | None  # None if it never passed before
    changes: tuple[
        tuple[str, str, str], ...
    ]  # what differs between the two: name, value in the good run, in the bad one

    def to_json(self) -> dict[str, Any]:
        good = self.last_good.facts.run_id if self.last_good else None
        changes = [{"what": what, "good": old, "bad": new} for what, old, new in self.changes]
        return {"first_bad": self.first_bad.facts.run_id, "last_good": good, "changes": changes}


def changes_between(base: CaseRun, head: CaseRun) -> tuple[tuple[str, str, str], ...]:
    """Versions, machine, label and program that differ between two runs of a case: name, value in base, in head."""
    names = [name for name in COMPARED_FACTS if getattr(base.facts, name) != getattr(head.facts, name)]
    changes = [(name, getattr(base.facts, name), getattr(head.facts, name)) for name in names]
    if base.facts.label != head.facts.label:
        changes.append(("label", base.facts.label, head.facts.label))
    if is_other_version(base.version, head.version):
        changes.append((head.record.subject, base.version, head.version))
    if base.program_hash != head.program_hash:
        changes.append(("program", base.program_hash[:12], head.program_hash[:12]))
    return tuple(changes)


def is_other_version(old: str, new: str) -> bool:
    """Whether the subject surely changed. Runs of older versions of torch-oracle, and stages of torch, have no version."""
    return bool(old and new) and old != new


def find_break(history: Sequence[CaseRun]) -> Break | None:
    """The first bad run after the last good one. None for a case whose newest judged run is good, or that was never judged."""
    judged = [one for one in history if _is_judged(one.status)]
    if not judged or not judged[-1].status.is_finding:
        return None
    first = len(judged) - 1
    while first and judged[first - 1].status.is_finding:
        first -= 1
    good = judged[first - 1] if first else None
    return Break(first_bad=judged[first], last_good=good, changes=changes_between(good, judged[first]) if good else ())


def _is_judged(status: Status) -> bool:
    """Whether a run says anything of the case: it agreed with eager, or is a finding. A known issue is neither."""
    return status.value in _PASSES or (status.is_finding and not status.is_absent)


# ------------------------------------------------------------------------------------------------------ flakiness


@dataclass(frozen=True, slots=True, kw_only=True)
class Flakiness:
    """A case whose verdict goes to and fro over runs with the same versions, machine and program."""

    runs: int  # judged runs of the same kind
    failures: int  # of these
    switches: int  # times that the verdict changed from one of these runs to the next
    rate: float  # share of failures to expect
    low: float  # its 95 % interval
    high: float


def find_flakiness(history: Sequence[CaseRun]) -> Flakiness | None:
    """How flaky a case is, or None for one that is not.

    Runs with the same versions, machine and program should agree. A subject may have changed without any of these, which is one
    switch; with two or more the case is flaky. A switch at which the subject is known to be another one counts half, since a
    bug that came with a version and went with another one is two of these. The rate of failures is estimated from such runs with
    Jeffreys' prior, a Beta(1/2, 1/2) distribution; the interval is that of its posterior. Of several kinds of runs, that with
    most switches counts.
    """
    return _flakiness(
        (
            (*(getattr(one.facts, name) for name in COMPARED_FACTS), one.program_hash),
            one.status,
            f"{one.facts.label}{one.version}",
        )
        for one in history
    )


def _flakiness(runs: Iterable[tuple[tuple[str, ...], Status, str]]) -> Flakiness | None:
    """The same of the status of each run, oldest first, with what the run was made with, and the version of the subject."""
    kinds: dict[tuple[str, ...], list[tuple[bool, str]]] = {}
    for key, status, version in runs:
        if _is_judged(status):
            kinds.setdefault(key, []).append((status.is_finding, version))
    found = [kind for kind in kinds.values() if weighed_switches(kind) >= 2]
    if not found:
        return None
    ends = [is_bad for is_bad, _ in max(found, key=lambda kind: (weighed_switches(kind), len(kind)))]
    failures, count = sum(ends), len(ends)
    low, high = proportion_interval(failures, count)
    return Flakiness(
        runs=count,
        failures=failures,
        switches=switches(ends),
        rate=(failures + 0.5) / (count + 1),
        low=low,
        high=high,
    )


def switches(ends: Sequence[bool]) -> int:
    return sum(one != other for one, other in pairwise(ends))


def weighed_switches(ends: Sequence[tuple[bool, str]]) -> float:
    """The switches of a case, each with the version of its subject; those that came with another version count half."""
    return sum(
        0.5 if is_other_version(old, new) else 1.0 for (one, old), (other, new) in pairwise(ends) if one != other
    )


# ------------------------------------------------------------------------------------------------------------ tables


def history_parts(case_id: str, history: Sequence[CaseRun]) -> list[Part]:
    """The runs of a case in a table, where it broke, and how flaky it is."""
    rows = []
    previous: CaseRun | None = None
    for one in history:
        changed = changes_between(previous, one) if previous else ()
        rows.append(
            (
                one.facts.run_id,
                one.facts.started_at[:16].replace("T", " "),
                one.facts.torch or "-",
                one.status.value,
                ratio(one.record.measurements.speedup),
                shorten(", ".join(change_text(change) for change in changed), 120) or "-",
                shorten(one.record.verdict.symptom) or "-",
            )
        )
        previous = one
    columns = ("run", "started", "torch", "status", "speed", "changed since the run before", "symptom")
    table = TextTable(
        title=f"{one_line(case_id)}: {len(rows)} run{'s' if len(rows) != 1 else ''}",
        columns=columns,
        rows=tuple(rows),
        right=frozenset({4}),
        prose=frozenset({5, 6}),
    )
    parts: list[Part] = [table]
    if (flaky := find_flakiness(history)) is not None:
        parts.append(
            f"flaky: {flaky.failures} of {flaky.runs} runs with the same versions, machine and program fail, and the verdict "
            f"changed {flaky.switches} times; a run fails with probability {100 * flaky.rate:.0f} % "
            f"[{100 * flaky.low:.0f}, {100 * flaky.high:.0f}]"
        )
    elif (broke := find_break(history)) is not None:
        parts.append(one_line(_break_text(broke)))
    return parts


def _break_text(broke: Break) -> str:
    first = f"run {broke.first_bad.facts.run_id} ({broke.first_bad.facts.started_at[:10]})"
    if broke.last_good is None:
        return f"it fails since {first}, the first one that judged it"
    good = f"run {broke.last_good.facts.run_id} ({broke.last_good.facts.started_at[:10]})"
    changed = "; ".join(change_text(change) for change in broke.changes)
    why = f"between them changed: {changed}" if changed else "versions, machine and program are the same in both"
    return f"it broke in {first}; {good} was the last good one; {why}"


def change_text(change: tuple[str, str, str]) -> str:
    what, old, new = change
    return f"{what} {old[:_CHANGED] or '-'} -> {new[:_CHANGED] or '-'}"


_CHANGED: Final = 90  # characters of a changed value: a distribution, a commit and a digest of changes


def flaky_cases(store: Store) -> list[tuple[str, Flakiness]]:
    """The flaky cases of a database, by case id."""
    runs = sa.select(RUNS.c.run, RUNS.c.environment, *(RUNS.c[name] for name in COMPARED_FACTS))
    query = (
        sa.select(CASES.c.case_id, CASES.c.run, CASES.c.program_hash, RECORDS.c.status, CASES.c.subject)
        .join_from(CASES, RECORDS, SAME_CASE)
        .where(CASES.c.case_id.in_(_both_ends()), RECORDS.c.status.in_((*_FINDINGS, *_PASSES)))
        .order_by(CASES.c.case_id, CASES.c.run)
    )
    found: list[tuple[str, Flakiness]] = []
    with store.reading() as connection:
        known: list[Any] = [*connection.execute(runs)]
        facts = {row[0]: tuple(row[2:]) for row in known}
        labels = {row[0]: tested(_environment(row[1])) for row in known}
        rows = connection.execution_options(yield_per=BLOCK).execute(query)
        for case_id, of_case in groupby(rows, key=itemgetter(0)):
            one = _flakiness(
                ((*facts[run], program), Status(status), f"{labels[run][0]}{labels[run][1].get(subject, '')}")
                for _, run, program, status, subject in of_case
            )
            if one is not None:
                found.append((case_id, one))
    return found


def flaky_table(flaky: Sequence[tuple[str, Flakiness]]) -> TextTable:
    """One line per flaky case."""
    rows = [
        (
            case_id,
            f"{one.failures} of {one.runs}",
            str(one.switches),
            f"{100 * one.rate:.0f} % [{100 * one.low:.0f}, {100 * one.high:.0f}]",
        )
        for case_id, one in flaky
    ]
    return TextTable(
        title=f"flaky cases ({len(rows)})",
        columns=("case", "failures", "switches", "failure rate"),
        rows=tuple(rows),
        right=frozenset({1, 2, 3}),
        note="of runs with the same versions, machine and program; the rate with its 95 % interval",
    )


def runs_table(summaries: Sequence[RunSummary]) -> TextTable:
    """One line per run."""
    rows = [
        (
            one.facts.run_id,
            one.facts.started_at[:16].replace("T", " "),
            one.facts.state,
            f"{one.recorded} of {one.planned}" if one.recorded != one.planned else str(one.planned),
            *(str(count) if count else "." for count in (one.passed, one.new, one.known)),
            ratio(one.speedup),
            shorten(", ".join(one.facts.subjects), 80),
            one.facts.torch or "-",
            shorten(one.facts.machine, 40) or "-",
            shorten(one.facts.command, 120) or "-",
        )
        for one in summaries
    ]
    columns = (
        "run",
        "started",
        "state",
        "cases",
        "pass",
        "new",
        "known",
        "speed",
        "subjects",
        "torch",
        "on",
        "command",
    )
    note = "speed: eager's time / the subject's, geometric mean of the passing cases that were timed"
    return TextTable(
        title=f"runs ({len(rows)})",
        columns=columns,
        rows=tuple(rows),
        right=frozenset(range(3, 8)),
        prose=frozenset({8, 10, 11}),
        note=note if any(one.timed for one in summaries) else "",
    )


_MOST_SPEED_RUNS: Final = 8


def speed_history(store: Store, base: RunInfo) -> list[RunInfo]:
    """The last runs before base that measured speed on the same machine, oldest first: they tell how much each case varies."""
    if not measures_speed(base.arguments):
        return []
    earlier = takewhile(lambda run: run.run_id != base.run_id, store.runs())
    alike = [
        run
        for run in earlier
        if run.is_complete and measures_speed(run.arguments) and machine_of(run) == machine_of(base)
    ]
    return alike[-_MOST_SPEED_RUNS:]


def machine_of(run: RunInfo) -> str:
    """The GPU, if it has one, and the processor on which a run was made; "" if neither is known."""
    return machine_in(run.environment)


def machine_in(environment: Mapping[str, Any]) -> str:
    """The same of the environment of a run."""
    names = (fact_at(environment, path) for path in (("worker", "devices", 0, "name"), ("cpu_model",)))
    return ", ".join(dict.fromkeys(name for name in names if isinstance(name, str) and name))


def runs_before(store: Store, head: RunInfo) -> list[RunInfo]:
    """The runs before `head` with the same suites, subjects and selection, whose plan is complete, oldest first."""
    earlier = takewhile(lambda run: run.run_id != head.run_id, store.runs())
    return [run for run in earlier if run.state != PLANNING and _selection(run) == _selection(head)]


def _selection(run: RunInfo) -> dict[str, object]:
    """The arguments of a run without those that do not choose its cases."""
    ignored = {*SHARD_KEYS, "limits", "threads", "merged_from"}
    return {key: value for key, value in run.arguments.items() if key not in ignored}
