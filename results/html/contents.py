"""What the report of a run holds: counts of all its cases, groups of failures, and the rows and details that the file carries."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

import numpy as np
import pandas as pd
import sqlalchemy as sa

from oracle.known.ledger import load_ledger
from oracle.known.severity import Severity
from oracle.records import Measurements, Record
from oracle.verdict import Verdict, WorstElement
from results import tables
from results.bias import BiasFinding, find_bias
from results.changes import CaseChange, ChangeKind
from results.compare import Comparison, compare_runs
from results.engine import Location, open_engine, reading
from results.groups import FindingGroup, group_findings
from results.history import speed_history
from results.html.history import RUNS_SHOWN, History, is_flaky, read_history
from results.html.payload import number_column, text_column
from results.html.words import NOT_PLANNED
from results.render import one_line, visible
from results.schema import CASES, PROGRAMS, RUNS
from results.store import RunInfo, Store

ROWS_CARRIED: Final = 200_000  # rows in the file; the counts are always of all cases
_GROUPS_CARRIED: Final = 2_000
_CASES_IN_BLOCK: Final = 200  # a case page unpacks one block
_PROGRAMS_IN_BLOCK: Final = 100
_PROGRAM_BYTES: Final = 40_000_000  # limit of all programs' text before compression; those of failures are kept first
_SYMPTOM_LENGTH: Final = 240  # in tables; a case page has it in full
_TEXT_LENGTH: Final = 20_000  # of a symptom, a traceback or a program on a case page

# Bits of the column `flags`.
FLAKY, SLOWER, FASTER, COMPILE_SLOWER, COMPILE_FASTER = 1, 2, 4, 8, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One run to report on: its database as typed, and its records with those of planned cases that have none."""

    place: str
    run: RunInfo
    records: Sequence[Record]

    @classmethod
    def read(cls, place: str, run_id: str, *, later: Side | None = None) -> Side:
        """A run with its records; cases that a `later` run has too keep only what a comparison needs, for memory.

        Raises UsageError for a database or run that is not there.
        """
        again = {record.case_id for record in later.records} if later else frozenset[str]()
        with Store.open(place, create=False, read_only=True) as store:
            run = store.run(run_id)
            found = store.records(run.run_id, with_missing=True)
            return cls(place=place, run=run, records=[_brief(one) if one.case_id in again else one for one in found])


def _brief(record: Record) -> Record:
    verdict = record.verdict
    kept = Verdict(status=verdict.status, symptom=verdict.symptom, bias=verdict.bias)
    return replace(record, verdict=kept, repro="", traceback="", started_at="", tags=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Failures that are probably one bug, and how many of them are new."""

    finding: FindingGroup
    new: int
    number: int  # position in the report's list

    @property
    def is_new(self) -> bool:
        return self.new > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Everything that the page shows. Text is escaped for display (results.render), not for HTML."""

    head: Side
    base: Side | None
    comparison: Comparison | None
    groups: tuple[Group, ...]  # new ones first, then the most severe
    bias: tuple[BiasFinding, ...]  # new ones, if there is an earlier run
    history: History
    rates: pd.DataFrame  # tables.pass_rates
    speed: pd.DataFrame  # tables.speed_summary
    flags: Mapping[str, int]  # case id -> bits; 0 is left out
    statuses: Mapping[str, int]  # status -> cases of head
    programs: Mapping[str, str] = field(repr=False)  # case id -> hash of its program
    rows: tuple[_Row, ...] = field(repr=False)  # those that the file carries, in planned order
    rows_in_all: int

    def flagged(self, bit: int) -> int:
        """How many cases have a flag."""
        return sum(bool(flags & bit) for flags in self.flags.values())

    def changed(self, kind: ChangeKind) -> int:
        return 0 if self.comparison is None else self.comparison.totals[kind.value]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    record: Record  # base's, if head did not plan the case
    case: int  # column of the history
    status: str
    change: str  # ChangeKind.value; "" without an earlier run
    base: Record | None
    group: int  # number of its group; -1 for none
    flags: int


def contents_of(
    head: Side, base: Side | None, *, limit: int = ROWS_CARRIED, history_runs: int = RUNS_SHOWN
) -> Contents:
    """Compare, group, and choose the rows that the file carries: at most `limit`, those that call for action first."""
    comparison, cases = (None, ()) if base is None else _compared(base, head)
    changes = {change.case_id: change for change in cases}
    table = _frame(head.records)
    new = {case_id for case_id, change in changes.items() if change.kind is ChangeKind.NEW_FAILURE}
    counted = [(group, sum(case_id in new for case_id in group.case_ids)) for group in group_findings(table)]
    counted.sort(key=_urgency)  # stable
    groups = tuple(Group(finding=group, new=count, number=i) for i, (group, count) in enumerate(counted))
    group_of = {case_id: group.number for group in groups for case_id in group.finding.case_ids}

    old = {record.case_id: record for record in base.records} if base else {}
    planned = {record.case_id for record in head.records}
    lost = [record for record in old.values() if record.case_id not in planned]
    everything = [*head.records, *lost]
    columns = {record.case_id: i for i, record in enumerate(everything)}
    sources = [(side.place, side.run) for side in (*((base,) if base else ()), head)]
    programs = _program_hashes(sources)
    history = read_history(sources, columns, programs=programs, limit=history_runs)
    flags = _flags(comparison, cases, history, columns)

    rows = []
    for i, record in enumerate(everything):
        change = changes.get(record.case_id)
        rows.append(
            _Row(
                record=record,
                case=i,
                status=record.verdict.status.value if i < len(head.records) else NOT_PLANNED,
                change=change.kind.value if change else ChangeKind.UNCHANGED.value if comparison else "",
                base=old.get(record.case_id),
                group=group_of.get(record.case_id, -1),
                flags=flags.get(record.case_id, 0),
            )
        )
    return Contents(
        head=head,
        base=base,
        comparison=comparison,
        groups=groups,
        bias=comparison.new_bias if comparison else tuple(find_bias(head.records)),
        history=history,
        rates=tables.pass_rates(table),
        speed=tables.speed_summary(table),
        flags=flags,
        statuses=dict(Counter(table["status"])),
        programs=programs,
        rows=_chosen(rows, limit),
        rows_in_all=len(rows),
    )


def _compared(base: Side, head: Side) -> tuple[Comparison, tuple[CaseChange, ...]]:
    """The comparison, and its changed cases while the databases are open."""
    with (
        Store.open(base.place, create=False, read_only=True) as old,
        Store.open(head.place, create=False, read_only=True) as new,
    ):
        past = speed_history(old, base.run)
        found = compare_runs(old, new, base_run=base.run, head_run=head.run, history=past)
        return found, tuple(found.cases)


def _urgency(entry: tuple[FindingGroup, int]) -> tuple[bool, int, int, int]:
    """Groups with new failures first, then the most severe, then those with most new failures, then the largest."""
    group, new = entry
    return new == 0, len(Severity) if group.severity is None else group.severity.rank, -new, -group.cases


_MEASURED: Final = (
    *("speedup", "speedup_low", "speedup_high", "compile_cold_s", "compile_warm_s"),
    *("peak_memory", "eager_peak_memory", "graph_breaks", "recompiles"),
)


def _frame(records: Sequence[Record]) -> pd.DataFrame:
    """The columns of results.tables.frame that groups, pass rates and the speed summary need."""
    data: dict[str, Any] = {
        name: [getattr(record, name) for record in records]
        for name in ("case_id", "suite", "group", "name", "subject", "dtype", "direction")
    }
    data["status"] = [record.verdict.status.value for record in records]
    data["symptom"] = [record.verdict.symptom for record in records]
    series = {name: pd.Series(values, dtype="object") for name, values in data.items()}
    series["is_finding"] = pd.Series([record.verdict.status.is_finding for record in records], dtype="bool")
    for name in _MEASURED:
        series[name] = pd.Series([getattr(record.measurements, name) for record in records], dtype="float64")
    return pd.DataFrame(series)


def _flags(
    comparison: Comparison | None, cases: Iterable[CaseChange], history: History, columns: Mapping[str, int]
) -> dict[str, int]:
    flags: Counter[str] = Counter()
    if comparison:
        for speed in comparison.speed:
            flags[speed.case_id] |= SLOWER if speed.change < 1 else FASTER
        for cold in comparison.compile_time:
            flags[cold.case_id] |= COMPILE_SLOWER if cold.head_s > cold.base_s else COMPILE_FASTER
    for change in cases:
        if change.is_flaky:  # head ran it again, and it did not fail each time
            flags[change.case_id] |= FLAKY
    words: dict[tuple[str, ...], bool] = {}
    for case_id, column in columns.items():
        word = history.steady_words(column)
        if word not in words:
            words[word] = is_flaky(word)
        if words[word]:
            flags[case_id] |= FLAKY
    return dict(flags)


def _chosen(rows: list[_Row], limit: int) -> tuple[_Row, ...]:
    """At most `limit` rows in planned order: regressions, then findings and flagged rows, then changed ones, then others."""
    if len(rows) <= limit:
        return tuple(rows)
    kept = sorted(rows, key=_rank)[:limit]  # stable
    return tuple(sorted(kept, key=lambda row: row.case))


def _rank(row: _Row) -> int:
    if row.change and ChangeKind(row.change).is_regression:
        return 0
    if row.group >= 0 or row.flags:
        return 1
    return 3 if row.change in ("", ChangeKind.UNCHANGED.value) else 2


def _program_hashes(sources: Iterable[tuple[str, RunInfo]]) -> dict[str, str]:
    """The hash of each case's program; the last source's, if several have the case."""
    found: dict[str, str] = {}
    for place, run in sources:
        query = (
            sa.select(CASES.c.case_id, CASES.c.program_hash)
            .join(RUNS, RUNS.c.run == CASES.c.run)
            .where(RUNS.c.run_id == run.run_id)
        )
        found |= {row[0]: row[1] for row in _rows(place, query)}
    return found


def _rows(place: str, query: sa.Executable) -> Iterator[Any]:
    location = Location.parse(place)
    engine = open_engine(location, create=False, read_only=True)
    try:
        with reading(engine, location) as connection:
            yield from connection.execution_options(yield_per=5_000).execute(query)
    finally:
        engine.dispose()


# ------------------------------------------------------------------------------------------------------------ payload


def columns_of(contents: Contents) -> dict[str, Any]:
    """The table of cases as columns, with the groups and the runs of the history, for the page's scripts."""
    rows = contents.rows
    records = [row.record for row in rows]
    carried = Counter(row.group for row in rows)

    def text(name: str) -> dict[str, Any]:
        return text_column(one_line(getattr(record, name)) for record in records)

    def numbers(name: str) -> list[float | None]:
        return number_column(getattr(record.measurements, name) for record in records)

    return {
        "rows": len(rows),
        "in_block": _CASES_IN_BLOCK,
        "programs_in_block": _PROGRAMS_IN_BLOCK,
        **{name: text(name) for name in ("suite", "group", "name", "subject", "dtype", "direction", "device")},
        "id": {
            str(i): one_line(r.case_id) for i, r in enumerate(records) if r.case_id != f"{r.suite}/{r.name}@{r.subject}"
        },
        "status": text_column(row.status for row in rows),
        "base_status": text_column(row.base.verdict.status.value if row.base else "" for row in rows),
        "change": text_column(row.change for row in rows),
        "symptom": text_column(_cut(one_line(record.verdict.symptom), _SYMPTOM_LENGTH) for record in records),
        "issue": text_column(one_line(record.verdict.issue) for record in records),
        "history": text_column(contents.history.word(row.case) for row in rows),
        "finding": [row.group for row in rows],
        "flags": [row.flags for row in rows],
        **{name: numbers(name) for name in ("wall_s", *_MEASURED)},
        "base_speedup": number_column(row.base.measurements.speedup if row.base else None for row in rows),
        "base_compile_cold_s": number_column(
            row.base.measurements.compile_cold_s if row.base else None for row in rows
        ),
        "groups": _group_columns(contents, carried),
        "groups_left": max(0, len(contents.groups) - _GROUPS_CARRIED),
        "runs": _run_columns(contents.history),
        "issues": _issues({record.verdict.issue for record in records if record.verdict.issue}),
    }


def _group_columns(contents: Contents, carried: Mapping[int, int]) -> list[dict[str, Any]]:
    """The first groups of findings. `carried`: how many cases of the table belong to each, by its number."""
    return [
        {
            "what": one_line(group.finding.what),
            "suite": one_line(group.finding.suite),
            "status": group.finding.status,
            "kind": _cut(one_line(group.finding.kind), _SYMPTOM_LENGTH),
            "severity": group.finding.severity.value if group.finding.severity else "",
            "subjects": [one_line(subject) for subject in group.finding.subjects],
            "example": one_line(group.finding.example),
            "symptom": _cut(one_line(group.finding.symptom), _SYMPTOM_LENGTH),
            "cases": group.finding.cases,
            "carried": carried[group.number],
            "new": group.new,
        }
        for group in contents.groups[:_GROUPS_CARRIED]
    ]


def _run_columns(history: History) -> list[dict[str, Any]]:
    """The runs of the history, with their counts of statuses and medians of speed."""
    return [
        {
            "run_id": one_line(run.run_id),
            "started_at": one_line(run.started_at),
            "state": run.state,
            "torch": one_line(_torch_of(run)),
            **history.counts(i),
            "speedup": _median(history.speedup[i]),
            "compile_cold_s": _median(history.compile_cold_s[i]),
        }
        for i, run in enumerate(history.runs)
    ]


def _median(values: np.ndarray) -> float | None:
    known = values[np.isfinite(values)]
    return None if known.size == 0 else number_column([float(np.median(known))])[0]


def _torch_of(run: RunInfo) -> str:
    versions = run.environment.get("versions")
    found = versions.get("torch") if isinstance(versions, Mapping) else run.environment.get("torch")
    return str(found or "")


def _issues(ids: set[str]) -> dict[str, Any]:
    return {
        issue.id: {
            "title": one_line(issue.title),
            "cause": one_line(issue.cause),
            "link": one_line(issue.link),
            "where": one_line(issue.where),
        }
        for issue in load_ledger().issues
        if issue.id in ids
    }


def details_of(contents: Contents) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What case pages show: a detail for each row, with the position of its program, and the programs.

    Programs of failures and of flagged rows come first; when their text is over a limit, the rest have none (position -1).
    """
    wanted: dict[str, int] = {}
    for row in sorted(contents.rows, key=_rank):
        if (digest := contents.programs.get(row.record.case_id)) is not None:
            wanted.setdefault(digest, len(wanted))
    texts = _program_texts(contents, wanted)
    programs: list[dict[str, Any]] = []
    position: dict[str, int] = {}
    size = 0
    for digest in wanted:
        text = texts.get(digest)
        if text is None or (size := size + len(text)) > _PROGRAM_BYTES:
            break
        position[digest] = len(programs)
        programs.append(_program(text))
    details = [
        _detail(row, contents.history, position.get(contents.programs.get(row.record.case_id, ""), -1))
        for row in contents.rows
    ]
    return details, programs


def _program_texts(contents: Contents, wanted: Mapping[str, int]) -> dict[str, str]:
    texts: dict[str, str] = {}
    size = 0
    for side in (contents.head, *((contents.base,) if contents.base else ())):
        hashes = [digest for digest in wanted if digest not in texts]
        for start in range(0, len(hashes), 500):
            query = sa.select(PROGRAMS.c.program_hash, PROGRAMS.c.program).where(
                PROGRAMS.c.program_hash.in_(hashes[start : start + 500])
            )
            for digest, text in _rows(side.place, query):
                texts[digest] = text
                size += len(text)
            if size > _PROGRAM_BYTES:
                return texts
    return texts


def _program(text: str) -> dict[str, Any]:
    program = json.loads(text)
    source = program.get("source")
    rest = {key: value for key, value in program.items() if key not in ("source", "name", "format")}
    return {
        "source": visible(_cut(source, _TEXT_LENGTH)) if isinstance(source, str) else "",
        "plan": _cut(one_line(json.dumps(rest, ensure_ascii=False)), _TEXT_LENGTH) if rest else "",
    }


# Measurements that are columns of the table, so that a detail need not repeat them.
_IN_TABLE: Final = frozenset({"wall_s", *_MEASURED})
_OTHER_MEASURED: Final = tuple(f.name for f in fields(Measurements) if f.name not in _IN_TABLE)


def _detail(row: _Row, history: History, program: int) -> dict[str, Any]:
    """One case in full. Empty and unknown fields are left out."""
    record, verdict = row.record, row.record.verdict
    symptom = one_line(verdict.symptom)
    compared = verdict.compared
    data = {
        "symptom": _cut(symptom, _TEXT_LENGTH) if len(symptom) > _SYMPTOM_LENGTH else "",
        "base_symptom": _cut(one_line(row.base.verdict.symptom), _TEXT_LENGTH) if row.base and row.change else "",
        "stage": one_line(verdict.stage or ""),
        "call": verdict.call,
        "worst": _worst(verdict.worst),
        "compared": (compared.tensors, compared.elements, compared.others, compared.unstable_elements),
        "witnesses": [(one_line(name), count) for name, count in verdict.witnesses],
        "also": [_cut(one_line(text), _TEXT_LENGTH) for text in verdict.also],
        "explained": [_cut(one_line(text), _TEXT_LENGTH) for text in verdict.explained],
        "max_ulp": _json_number(verdict.max_ulp),
        "observed": one_line(verdict.observed),
        "reruns": list(verdict.reruns),
        "frequency": verdict.frequency,
        "seed": str(record.seed),
        "repro": one_line(record.repro),
        "started_at": one_line(record.started_at),
        "tags": [one_line(tag) for tag in record.tags],
        "traceback": visible(record.traceback[-_TEXT_LENGTH:]),
        "speeds": _series(history.speedup[:, row.case]),
        "compile_times": _series(history.compile_cold_s[:, row.case]),
        "measured": {
            name: _json_number(value)
            for name in _OTHER_MEASURED
            if isinstance(value := getattr(record.measurements, name), int | float)
        },
        "program": program,
    }
    return {key: value for key, value in data.items() if value not in (None, "", [], {}, ())}


def _worst(worst: WorstElement | None) -> dict[str, Any]:
    if worst is None:
        return {}
    data = {f.name: getattr(worst, f.name) for f in fields(WorstElement)}
    return {key: one_line(value) if isinstance(value, str) else _json_number(value) for key, value in data.items()}


def _json_number(value: Any) -> Any:
    """The value, with NaN and infinities as text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _series(values: np.ndarray) -> list[float | None]:
    known = np.isfinite(values)
    return number_column(values.tolist()) if known.sum() > 1 else []


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
