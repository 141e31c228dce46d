"""The runs in a database and the history of one case over them, by queries that read no whole run.

`torch-oracle show --runs` and `torch-oracle history` print them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import sqlalchemy as sa

from oracle.records import Record
from oracle.verdict import Status
from results.render import TextTable, ratio, shorten
from results.schema import CASES, FACTS, RECORDS, RUNS
from results.store import CASE_SELECTION, COMPLETE, RECORD_SELECTION, SAME_CASE, Store, to_record


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What a run was made with. Texts are "" where the run does not say."""

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

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self.facts), "program_hash": self.program_hash, "record": self.record.to_json()}


_FACT_NAMES: Final = ("run_id", "state", "started_at", "ended_at", *FACTS, "suites", "subjects")
_RUN_COLUMNS: Final = tuple(RUNS.c[name].label(f"run_{name}") for name in _FACT_NAMES)
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
    return RunFacts(**{name: row[f"run_{name}"] for name in _FACT_NAMES})


# ------------------------------------------------------------------------------------------------------------ tables


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
