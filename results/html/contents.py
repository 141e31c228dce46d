"""The contents of a run's report: counts of all its cases, groups of failures, and the rows and details that the file carries."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from typing import Any, Final

import numpy as np
import pandas as pd
import sqlalchemy as sa

from oracle.known.ledger import load_ledger
from oracle.known.severity import Severity
from oracle.records import Measurements, Record
from oracle.verdict import WorstElement
from results import changes, tables
from results.bias import BiasFinding
from results.changes import ChangeKind
from results.compare import Comparison, compare_runs
from results.engine import Location, open_engine, reading
from results.groups import FindingGroup
from results.history import speed_history
from results.html.history import RUNS_SHOWN, History, is_flaky, read_history
from results.html.payload import number_column, text_column
from results.html.words import NOT_PLANNED
from results.queries import MOST_PARAMETERS, bias_findings, finding_groups, planned_in, read_columns
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

_MEASURED: Final = (
    *("speedup", "speedup_low", "speedup_high", "compile_cold_s", "compile_warm_s"),
    *("peak_memory", "eager_peak_memory", "graph_breaks", "recompiles"),
)
_READ: Final = ("ordinal", "case_id", "suite", "subject", "status", *_MEASURED)  # of all cases
_LABELS: Final = ("suite", "group", "name", "subject", "dtype", "direction", "device")

# Bits of the column `flags`.
FLAKY, SLOWER, FASTER, COMPILE_SLOWER, COMPILE_FASTER = 1, 2, 4, 8, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One run to report on: its database as typed, and a few columns of its planned cases.

    Records are read only of the cases that the file carries, some hundred at once: those of a run in which most cases fail would
    not fit into memory.
    """

    place: str
    run: RunInfo
    columns: Mapping[str, Sequence[Any]] = field(repr=False)  # _READ of each planned case, in planned order

    @classmethod
    def read(cls, place: str, run_id: str) -> Side:
        """A run. Raises UsageError for a database or run that is not there."""
        with Store.open(place, create=False, read_only=True) as store:
            run = store.run(run_id)
            return cls(place=place, run=run, columns=read_columns(store, run, _READ, *planned_in(run)))

    @property
    def cases(self) -> int:
        """Number of the planned cases."""
        return len(self.columns["case_id"])

    def texts(self, cases: Sequence[int], names: Sequence[str]) -> dict[str, list[Any]]:
        """These columns of the cases at these indices, which ascend."""
        found: dict[str, list[Any]] = {name: [] for name in names}
        with Store.open(self.place, create=False, read_only=True) as store:
            for ordinals in self._ordinals(cases):
                at_these = CASES.c.ordinal.in_(ordinals)
                for name, values in read_columns(store, self.run, names, *planned_in(self.run), at_these).items():
                    found[name] += values
        return found

    def records(self, cases: Sequence[int]) -> Iterator[Record]:
        """The records of the cases at these indices, which ascend; those of cases that have none too."""
        with Store.open(self.place, create=False, read_only=True) as store:
            for ordinals in self._ordinals(cases):
                yield from store.records_at(self.run, ordinals)

    def _ordinals(self, cases: Sequence[int]) -> Iterator[list[int]]:
        ordinals = self.columns["ordinal"]
        for first in range(0, len(cases), MOST_PARAMETERS):
            yield [ordinals[case] for case in cases[first : first + MOST_PARAMETERS]]


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
    case: int  # column of the history: head's cases, then those that only base planned
    own: int  # index of the case in its run: head, or base if head did not plan it
    base: int  # index of the case in base; -1 if base did not plan it
    status: str
    change: str  # ChangeKind.value; "" without an earlier run
    group: int  # number of its group; -1 for none
    flags: int


def contents_of(
    head: Side, base: Side | None, *, limit: int = ROWS_CARRIED, history_runs: int = RUNS_SHOWN
) -> Contents:
    """Compare, group, and choose the rows that the file carries: at most `limit`, those that call for action first."""
    with ExitStack() as stack:
        stores = [
            stack.enter_context(Store.open(side.place, create=False, read_only=True))
            for side in (head, *((base,) if base else ()))
        ]
        findings = finding_groups(stores[0], head.run)
        comparison = None
        if base is not None:
            past = speed_history(stores[1], base.run)
            comparison = compare_runs(stores[1], stores[0], base_run=base.run, head_run=head.run, history=past)
            bias = comparison.new_bias
            flaky = [change.case_id for change in comparison.cases.flaky()]
        else:
            bias, flaky = tuple(bias_findings(stores[0], head.run)), []
    changed = _Changed(comparison, head, base)
    counted = [(group, sum(map(changed.is_new_failure, group.case_ids))) for group in findings]
    counted.sort(key=_urgency)  # stable
    groups = tuple(Group(finding=group, new=count, number=i) for i, (group, count) in enumerate(counted))
    group_of = {case_id: group.number for group in groups for case_id in group.finding.case_ids}

    columns = changed.columns()
    sources = [(side.place, side.run) for side in (*((base,) if base else ()), head)]
    programs = _program_hashes(sources)
    history = read_history(sources, columns, programs=programs, limit=history_runs)
    flags = _flags(comparison, flaky, history, columns)

    def row(case_id: str, case: int) -> _Row:
        in_base = changed.in_base.get(case_id, -1)
        is_planned = case < head.cases
        return _Row(
            case=case,
            own=case if is_planned else in_base,
            base=in_base,
            status=head.columns["status"][case] if is_planned else NOT_PLANNED,
            change=changed.word(case if is_planned else -1, in_base),
            group=group_of.get(case_id, -1),
            flags=flags.get(case_id, 0),
        )

    table = _frame(head)
    return Contents(
        head=head,
        base=base,
        comparison=comparison,
        groups=groups,
        bias=bias,
        history=history,
        rates=tables.pass_rates(table),
        speed=tables.speed_summary(table),
        flags=flags,
        statuses=dict(Counter(head.columns["status"])),
        programs=programs,
        rows=_chosen([row(case_id, case) for case_id, case in columns.items()], limit),
        rows_in_all=len(columns),
    )


def _frame(side: Side) -> pd.DataFrame:
    """The columns of results.tables.frame that pass rates and the speed summary need."""
    table = pd.DataFrame({name: side.columns[name] for name in ("suite", "subject", "status")}, dtype="object")
    for name in _MEASURED:
        table[name] = pd.Series(side.columns[name], dtype="float64")
    return table


class _Changed:
    """The change of each case, by its place in one of the runs."""

    def __init__(self, comparison: Comparison | None, head: Side, base: Side | None) -> None:
        self.in_head = {case_id: case for case, case_id in enumerate(head.columns["case_id"])}
        self.in_base = {case_id: case for case, case_id in enumerate(base.columns["case_id"])} if base else {}
        self._unchanged = ChangeKind.UNCHANGED.value if comparison else ""
        self._head: dict[int, str] = {}
        self._base: dict[int, str] = {}  # of cases that head did not plan
        if comparison is None or base is None:
            return
        places = comparison.cases.places
        of_head, of_base = _index_of(head), _index_of(base)
        for at in range(len(places)):
            if places.head[at] == changes.NOT_PLANNED:
                self._base[of_base(places.base[at])] = places.kind(at).value
            else:
                self._head[of_head(places.head[at])] = places.kind(at).value

    def columns(self) -> dict[str, int]:
        """The column of each case in the history: head's cases, then those that only base planned."""
        lost = [case_id for case_id in self.in_base if case_id not in self.in_head]
        return self.in_head | {case_id: len(self.in_head) + i for i, case_id in enumerate(lost)}

    def word(self, in_head: int, in_base: int) -> str:
        """ChangeKind.value of the case at these indices; "" without an earlier run."""
        return (self._base.get(in_base) if in_head < 0 else self._head.get(in_head)) or self._unchanged

    def is_new_failure(self, case_id: str) -> bool:
        return self._head.get(self.in_head[case_id]) == ChangeKind.NEW_FAILURE.value


def _index_of(side: Side) -> Callable[[int], int]:
    """Maps the planned places of a run's cases to their indices. They are equal unless places were left out."""
    ordinals = side.columns["ordinal"]
    if not ordinals or ordinals[-1] == len(ordinals) - 1:
        return int
    return {ordinal: index for index, ordinal in enumerate(ordinals)}.__getitem__


def _urgency(entry: tuple[FindingGroup, int]) -> tuple[bool, int, int, int]:
    """Groups with new failures first, then the most severe, then those with most new failures, then the largest."""
    group, new = entry
    return new == 0, len(Severity) if group.severity is None else group.severity.rank, -new, -group.cases


def _flags(
    comparison: Comparison | None, flaky: Iterable[str], history: History, columns: Mapping[str, int]
) -> dict[str, int]:
    """`flaky`: the cases that head ran again and that did not fail each time."""
    flags: Counter[str] = Counter()
    if comparison:
        for speed in comparison.speed:
            flags[speed.case_id] |= SLOWER if speed.change < 1 else FASTER
        for cold in comparison.compile_time:
            flags[cold.case_id] |= COMPILE_SLOWER if cold.head_s > cold.base_s else COMPILE_FASTER
    for case_id in flaky:
        flags[case_id] |= FLAKY
    known: dict[tuple[tuple[str, ...], tuple[tuple[int, ...], ...]], bool] = {}
    for case_id, column in columns.items():
        ends = history.steady_words(column), history.steady_versions(column)
        if ends not in known:
            known[ends] = is_flaky(*ends)
        if known[ends]:
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
    carried = Counter(row.group for row in rows)
    names = ("case_id", *_LABELS, "status", "symptom", "issue", "wall_s", *_MEASURED)
    read: dict[str, list[Any]] = {name: [] for name in names}
    for side, own in _by_side(contents, rows):
        for name, values in side.texts([row.own for row in own], names).items():
            read[name] += values
    plain = map("{}/{}@{}".format, read["suite"], read["name"], read["subject"])
    old = contents.base.columns if contents.base else {}

    def text(name: str) -> dict[str, Any]:
        return text_column(map(one_line, read[name]))

    def of_base(name: str) -> list[Any]:
        return [old[name][row.base] if row.base >= 0 else None for row in rows]

    return {
        "rows": len(rows),
        "in_block": _CASES_IN_BLOCK,
        "programs_in_block": _PROGRAMS_IN_BLOCK,
        **{name: text(name) for name in _LABELS},
        "id": {
            str(i): one_line(id_)
            for i, (id_, usual) in enumerate(zip(read["case_id"], plain, strict=True))
            if id_ != usual
        },
        "status": text_column(row.status for row in rows),
        "base_status": text_column(status or "" for status in of_base("status")),
        "change": text_column(row.change for row in rows),
        "symptom": text_column(_cut(one_line(symptom), _SYMPTOM_LENGTH) for symptom in read["symptom"]),
        "issue": text("issue"),
        "history": text_column(contents.history.word(row.case) for row in rows),
        "finding": [row.group for row in rows],
        "flags": [row.flags for row in rows],
        **{name: number_column(read[name]) for name in ("wall_s", *_MEASURED)},
        "base_speedup": number_column(of_base("speedup")),
        "base_compile_cold_s": number_column(of_base("compile_cold_s")),
        "groups": _group_columns(contents, carried),
        "groups_left": max(0, len(contents.groups) - _GROUPS_CARRIED),
        "runs": _run_columns(contents.history),
        "issues": _issues({issue for issue in read["issue"] if issue}),
    }


def _by_side(contents: Contents, rows: Sequence[_Row]) -> list[tuple[Side, Sequence[_Row]]]:
    """The rows of head's cases and those of base's that head did not plan, each with their run."""
    planned = [row for row in rows if row.case < contents.head.cases]
    found: list[tuple[Side, Sequence[_Row]]] = [(contents.head, planned)]
    if contents.base is not None:
        found.append((contents.base, rows[len(planned) :]))
    return found


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


def details_of(contents: Contents) -> tuple[Iterator[dict[str, Any]], list[dict[str, Any]]]:
    """The contents of case pages: a detail for each row, with the position of its program, and the programs.

    Details are made while their records are read. Programs of failures and of flagged rows come first; when their text is over a
    limit, the rest have none (position -1).
    """
    wanted: dict[str, int] = {}
    for row in sorted(contents.rows, key=_rank):
        if (digest := contents.programs.get(_case_id(contents, row))) is not None:
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
    return _details(contents, position), programs


def _case_id(contents: Contents, row: _Row) -> str:
    side = contents.head if row.case < contents.head.cases else contents.base
    assert side is not None
    return side.columns["case_id"][row.own]


def _details(contents: Contents, position: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """The details of the rows, in their order. `position` of a program, by its hash."""
    for side, rows in _by_side(contents, contents.rows):
        for first in range(0, len(rows), MOST_PARAMETERS):
            block = rows[first : first + MOST_PARAMETERS]
            olds = _base_symptoms(contents, block)
            for row, record in zip(block, side.records([row.own for row in block]), strict=True):
                program = position.get(contents.programs.get(record.case_id, ""), -1)
                yield _detail(row, record, olds.get(row.base, ""), contents.history, program)


def _base_symptoms(contents: Contents, rows: Sequence[_Row]) -> dict[int, str]:
    """The symptoms of these cases in base, by their index there."""
    wanted = sorted(row.base for row in rows if row.base >= 0)
    if contents.base is None or not wanted:
        return {}
    return dict(zip(wanted, contents.base.texts(wanted, ("status", "symptom"))["symptom"], strict=True))


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


def _detail(row: _Row, record: Record, base_symptom: str, history: History, program: int) -> dict[str, Any]:
    """One case in full. Empty and unknown fields are left out."""
    verdict = record.verdict
    symptom = one_line(verdict.symptom)
    compared = verdict.compared
    data = {
        "symptom": _cut(symptom, _TEXT_LENGTH) if len(symptom) > _SYMPTOM_LENGTH else "",
        "base_symptom": _cut(one_line(base_symptom), _TEXT_LENGTH),
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
