"""Compare two runs case by case: new failures, fixed cases, missing cases, changes of speed.

Cases are matched by id over the *planned* cases of both runs, so a case that crashed the run, or that was not planned again, is
a row of the comparison too. Only what differs is read of the runs, and what was measured (`results.pairs`).
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any, Final, TypeAlias

from oracle.records import Measurements, Record
from oracle.verdict import Status, Verdict
from results.bias import BiasFinding, find_bias
from results.bias import tables_of as bias_tables_of
from results.groups import FindingGroup, columns_of, group_findings, groups_table
from results.history import machine_of
from results.outcomes import NOT_COMPARABLE
from results.pairs import ComparedRow, Pair, Pairs, may_have_moved, measured_rows, pairs_of, read_pairs
from results.queries import bias_findings, notable_columns, rerun_findings
from results.render import TextTable, number, ratio, seconds, shorten
from results.speed import Judgement, SpeedVerdict, Word
from results.speed.of_records import COUNTS, Judgements, Measured, judge_measurements
from results.statistics import Estimate, geomean, sign_test
from results.store import RunInfo, Store


class ChangeKind(str, Enum):
    """How one case changed. The value is the word in tables and JSON."""

    NEW_FAILURE = "new failure"  # a finding in head that is none in base, or is not in base
    MISSING_ROW = "missing row"  # in base but not planned in head, or planned in head without a record
    NO_LONGER_COMPARED = "no longer compared"  # judged in base, not comparable in head
    CHANGED_SYMPTOM = "changed symptom"  # fails in both, differently; or a failure that became known, or the reverse
    STILL_FAILING = "still failing"  # fails in both with the same symptom
    FIXED = "fixed"  # a finding in base, passes in head
    NEW_ROW = "new row"  # not in base, or not compared there; no finding
    UNCHANGED = "unchanged"

    @property
    def is_regression(self) -> bool:
        """Whether a comparison with this kind of change exits with 1."""
        return self in (ChangeKind.NEW_FAILURE, ChangeKind.MISSING_ROW, ChangeKind.NO_LONGER_COMPARED)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseChange:
    """One case in both runs. A status is None if the case is not planned in that run."""

    case_id: str
    kind: ChangeKind
    base_status: str | None
    head_status: str | None
    base_symptom: str = ""
    head_symptom: str = ""
    head_frequency: str = ""  # of a finding that head ran again: "in 1 of 3 runs"
    is_flaky: bool = False  # whether it then did not fail each time


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedChange:
    """A case that passes in both runs and whose speedup over eager became better or worse (`results.speed`).

    Speedups are compared, not times: a slower machine slows eager too.
    """

    case_id: str
    base: Estimate
    head: Estimate
    verdict: SpeedVerdict

    @property
    def change(self) -> float:
        """Head's speedup divided by base's: below 1 is slower."""
        return 1 / self.verdict.effect if self.verdict.effect else self.head.value / self.base.value

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "change": self.change, "verdict": self.verdict.to_json()}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileTimeChange:
    """A case that passes in both runs and whose cold compile time, in seconds, became better or worse."""

    case_id: str
    base_s: float
    head_s: float
    verdict: SpeedVerdict

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict.to_json()}


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherChange:
    """A case that passes in both runs and of which something else became better or worse."""

    case_id: str
    what: str  # "peak memory" in bytes, "graph breaks", "recompiles" or "kernels"
    base: int
    head: int
    verdict: SpeedVerdict

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict.to_json()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All differences between two runs. `cases` has the changed cases; `totals` counts all cases."""

    base: RunInfo
    head: RunInfo
    cases: tuple[CaseChange, ...]
    totals: Mapping[str, int]  # ChangeKind.value -> count, every kind present
    speed: tuple[SpeedChange, ...]  # largest slowdown first
    compile_time: tuple[CompileTimeChange, ...]  # largest growth first
    timed_in_both: int
    speed_change: float  # geomean of head's speedup over base's, for cases timed in both; NaN for none
    speed_change_p: float  # p-value of a sign test for the same cases
    speed_words: Mapping[str, int]  # Word.value -> number of verdicts on speed, every word present
    speed_invalid: str  # why nothing is said about speed; "" if something is
    compile_invalid: str  # why nothing is said about compile times
    other: tuple[OtherChange, ...]  # peak memory and counts
    new_failures: tuple[FindingGroup, ...]  # the cases of kind NEW_FAILURE, grouped
    environment: tuple[tuple[str, str, str], ...]  # (key, base, head) of each difference between the environments
    new_bias: tuple[BiasFinding, ...] = ()  # systematic errors that only head has; they do not fail the comparison
    # Cases whose program differs in head, so that the program may explain the change. Filled by `compare_runs` only.
    definitions: tuple[str, ...] = ()
    subjects: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())  # those of base alone, and of head alone

    @property
    def has_regression(self) -> bool:
        """Whether there are new failures, missing rows, rows no longer compared, or a head that was not planned completely."""
        return self.head.state == "planning" or any(change.kind.is_regression for change in self.cases)

    @property
    def slower(self) -> tuple[SpeedChange, ...]:
        return tuple(change for change in self.speed if change.change < 1)

    def of_kind(self, kind: ChangeKind) -> tuple[CaseChange, ...]:
        return tuple(change for change in self.cases if change.kind is kind)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; unknown numbers are null."""
        return {
            "base": _run_json(self.base),
            "head": _run_json(self.head),
            "has_regression": self.has_regression,
            "totals": dict(self.totals),
            "new_failures": [group.to_json() for group in self.new_failures],
            "cases": [{**asdict(change), "kind": change.kind.value} for change in self.cases],
            "speed": [change.to_json() for change in self.speed],
            "speed_words": dict(self.speed_words),
            "speed_invalid": self.speed_invalid,
            "compile_invalid": self.compile_invalid,
            "compile_time": [change.to_json() for change in self.compile_time],
            "other": [change.to_json() for change in self.other],
            "timed_in_both": self.timed_in_both,
            "speed_change": None if math.isnan(self.speed_change) else self.speed_change,
            "speed_change_p": self.speed_change_p,
            "new_systematic_errors": [one.to_json() for one in self.new_bias],
            "definitions_changed": list(self.definitions),
            "subjects_changed": {"base_only": list(self.subjects[0]), "head_only": list(self.subjects[1])},
            "environment": [{"key": key, "base": base, "head": head} for key, base, head in self.environment],
        }


_AllMeasured: TypeAlias = tuple[Measured, Measured, Sequence[Measured]]  # of base, of head, of earlier runs


def compare(
    base: Iterable[Record],
    head: Iterable[Record],
    *,
    base_run: RunInfo,
    head_run: RunInfo,
    history: Iterable[Iterable[Record]] = (),
) -> Comparison:
    """Compare two runs. Both iterables come from `Store.records(run, with_missing=True)`.

    `history`: the records of runs before base on a machine like base's, oldest first; they tell the noise of each case.
    """
    base, head = list(base), list(head)

    def new_bias() -> tuple[BiasFinding, ...]:
        known = {finding.key for finding in find_bias(base)}
        return tuple(finding for finding in find_bias(head) if finding.key not in known)

    return _comparison(
        pairs_of(_rows(base), _rows(head)),
        base_run=base_run,
        head_run=head_run,
        head_table=lambda: columns_of(head),
        new_bias=new_bias,
        rerun=lambda: {record.case_id: record.verdict for record in head if record.verdict.reruns},
        measured=lambda _: (_measured(base), _measured(head), [_measured(run) for run in history]),
    )


def compare_runs(
    base: Store, head: Store, *, base_run: RunInfo, head_run: RunInfo, history: Sequence[RunInfo] = ()
) -> Comparison:
    """Compare two runs of one or two databases, without reading either as a whole. `history`: runs of base's database."""

    def new_bias() -> tuple[BiasFinding, ...]:
        found = bias_findings(head, head_run)
        known = {finding.key for finding in bias_findings(base, base_run)} if found else set()
        return tuple(finding for finding in found if finding.key not in known)

    def measured(case_ids: Sequence[str]) -> _AllMeasured:
        past: list[Measured] = [measured_rows(base, run, case_ids) for run in history]
        return measured_rows(base, base_run, case_ids), measured_rows(head, head_run, case_ids), past

    with ThreadPoolExecutor(max_workers=1) as thread:
        bias = thread.submit(new_bias)  # the database adds sums of all records meanwhile, on another processor
        return _comparison(
            read_pairs(base, base_run, head, head_run),
            base_run=base_run,
            head_run=head_run,
            head_table=lambda: notable_columns(head, head_run),
            new_bias=bias.result,
            rerun=lambda: dict(rerun_findings(head, head_run)),
            measured=measured,
        )


def _measured(records: Iterable[Record]) -> Measured:
    """What was measured of the passing cases."""
    return {record.case_id: record.measurements for record in records if record.verdict.status is Status.PASS}


def _rows(records: Iterable[Record]) -> list[ComparedRow]:
    rows = [
        ComparedRow(
            case_id=record.case_id,
            ordinal=ordinal,
            status=record.verdict.status.value,
            symptom=record.verdict.symptom,
            is_timed=_is_timed(record.measurements),
            compile_cold_s=record.measurements.compile_cold_s,
            graph_breaks=record.measurements.graph_breaks,
            recompiles=record.measurements.recompiles,
        )
        for ordinal, record in enumerate(records)
    ]
    return sorted(rows, key=_case_id)


def _case_id(row: ComparedRow) -> str:
    return row.case_id


def _planned_order(pair: Pair) -> tuple[bool, int]:
    """Base's planned order, then the cases that only head has."""
    old, new = pair
    if old is not None:
        return False, old.ordinal
    assert new is not None
    return True, new.ordinal


def _comparison(
    pairs: Pairs,
    *,
    base_run: RunInfo,
    head_run: RunInfo,
    head_table: Callable[[], dict[str, list[Any]]],
    new_bias: Callable[[], tuple[BiasFinding, ...]],
    rerun: Callable[[], Mapping[str, Verdict]],
    measured: Callable[[Sequence[str]], _AllMeasured],
) -> Comparison:
    counts: Counter[ChangeKind] = Counter({ChangeKind.UNCHANGED: pairs.alike})
    changes: list[CaseChange] = []
    case_ids: list[str] = []  # passing cases whose measurements may differ
    redefined: list[str] = []
    for old, new in sorted(pairs.differing, key=_planned_order):
        if old is not None and new is not None and old.program_hash != new.program_hash:
            redefined.append(old.case_id)
        if old is not None and new is not None and old.status == new.status == _PASS:
            counts[ChangeKind.UNCHANGED] += 1
            if may_have_moved(old, new):
                case_ids.append(old.case_id)
            continue
        change = _case_change(old, new)
        counts[change.kind] += 1
        if change.kind is not ChangeKind.UNCHANGED:
            changes.append(change)
    if any(change.head_status is not None and Status(change.head_status).is_finding for change in changes):
        again = rerun()
        changes = [_with_frequency(change, again.get(change.case_id)) for change in changes]
    olds, news, past = measured(case_ids) if case_ids else ({}, {}, [])
    olds, news = ({case_id: run[case_id] for case_id in case_ids} for run in (olds, news))
    judged = judge_measurements(olds, news, past)
    speed = judged.quantities["speed"]
    moved = _moved(base_run, head_run)
    timed = [case_id for case_id in case_ids if _is_timed(olds[case_id]) and _is_timed(news[case_id])]
    ratios = [(news[case_id].speedup or 0.0) / (olds[case_id].speedup or 1.0) for case_id in timed]
    return Comparison(
        base=base_run,
        head=head_run,
        cases=tuple(changes),
        totals={kind.value: counts[kind] for kind in ChangeKind},
        speed=() if moved else _speed_changes(olds, news, speed, timed),
        compile_time=() if moved else _compile_changes(olds, news, judged.quantities["compile time"]),
        timed_in_both=len(timed),
        speed_change=geomean(ratios),
        speed_change_p=sign_test(ratios),
        speed_words={
            word.value: len(timed) * (word is Word.RUN_INVALID) if moved else speed.count(word) for word in Word
        },
        compile_invalid=moved,
        speed_invalid=moved or ("" if speed.is_valid else f"{speed.drift}: measure both runs again"),
        other=_other_changes(olds, news, judged),
        new_failures=_new_failures(changes, head_table),
        environment=_environment_changes(base_run.environment, head_run.environment),
        new_bias=new_bias(),
        definitions=tuple(redefined),
        subjects=_subjects_apart(base_run, head_run),
    )


def _moved(base: RunInfo, head: RunInfo) -> str:
    """Why times of two runs cannot be compared: they were made on two machines; "" if they were not.

    The same program has a different speedup over eager on another processor or GPU.
    """
    places = machine_of(base), machine_of(head)
    if "" in places or places[0] == places[1]:
        return ""
    return f"base ran on {places[0]}, head on {places[1]}: measure both on one machine"


def _subjects_apart(base: RunInfo, head: RunInfo) -> tuple[tuple[str, ...], tuple[str, ...]]:
    old, new = base.subjects, head.subjects
    return tuple(one for one in old if one not in new), tuple(one for one in new if one not in old)


def _new_failures(
    changes: Iterable[CaseChange], head_table: Callable[[], dict[str, list[Any]]]
) -> tuple[FindingGroup, ...]:
    new = {change.case_id for change in changes if change.kind is ChangeKind.NEW_FAILURE}
    if not new:
        return ()
    table = head_table()
    flags = zip(table["is_finding"], table["case_id"], strict=True)
    return tuple(group_findings({**table, "is_finding": [flag and case_id in new for flag, case_id in flags]}))


def _case_change(base: ComparedRow | None, head: ComparedRow | None) -> CaseChange:
    known = base or head
    assert known is not None
    return CaseChange(
        case_id=known.case_id,
        kind=_kind(base, head),
        base_status=base.status if base else None,
        head_status=head.status if head else None,
        base_symptom=base.symptom if base else "",
        head_symptom=head.symptom if head else "",
    )


def _with_frequency(change: CaseChange, verdict: Verdict | None) -> CaseChange:
    """The change with how often head's finding was seen in its runs of the case, counted as in `gate` and `show`."""
    if verdict is None or not verdict.status.is_finding:
        return change
    return replace(change, head_frequency=verdict.frequency, is_flaky=verdict.is_flaky)


def _kind(base: ComparedRow | None, head: ComparedRow | None) -> ChangeKind:
    if head is None or Status(head.status).is_absent:
        return ChangeKind.MISSING_ROW
    new = _as_judged(head.status)
    if base is None:
        return ChangeKind.NEW_FAILURE if new.is_finding else ChangeKind.NEW_ROW
    old = _as_judged(base.status)
    if old.is_absent:
        # Base has no result for it, so a failure in head counts as new.
        return ChangeKind.NEW_FAILURE if new.is_finding else ChangeKind.NEW_ROW
    if new.is_finding and not old.is_finding:
        return ChangeKind.NEW_FAILURE
    if new.is_finding:
        is_alike = old is new and symptom_key(base.symptom) == symptom_key(head.symptom)
        return ChangeKind.STILL_FAILING if is_alike else ChangeKind.CHANGED_SYMPTOM
    if new in NOT_COMPARABLE:
        return ChangeKind.UNCHANGED if old in NOT_COMPARABLE else ChangeKind.NO_LONGER_COMPARED
    if old.is_finding or old is Status.KNOWN:
        return (
            ChangeKind.UNCHANGED
            if old is new
            else ChangeKind.FIXED
            if new is Status.PASS
            else ChangeKind.CHANGED_SYMPTOM
        )
    if old in NOT_COMPARABLE:
        return ChangeKind.NEW_ROW
    return ChangeKind.UNCHANGED if old is new else ChangeKind.CHANGED_SYMPTOM


_PASS: Final = Status.PASS.value


def _as_judged(word: str) -> Status:
    """The status, where `xpass` counts as a pass: the subject has not changed if the ledger expected a failure."""
    status = Status(word)
    return Status.PASS if status is Status.XPASS else status


_MEASURED: Final = re.compile(
    r"0x[0-9a-fA-F]+"  # addresses
    r"|[-+]?(?:\d+\.\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?\d+[eE][-+]?\d+"  # measured numbers, not shapes and indices
    r"|line \d+"
)


def symptom_key(symptom: str) -> str:
    """A symptom without the parts that vary between runs for the same bug: addresses, floats, line numbers."""
    return _MEASURED.sub("#", symptom)


def _is_timed(measured: Measurements) -> bool:
    return measured.speedup is not None and 0 < measured.speedup < math.inf


def _estimate(measured: Measurements) -> Estimate:
    assert measured.speedup is not None
    return Estimate(value=measured.speedup, low=measured.speedup_low, high=measured.speedup_high)


def _speed_changes(olds: Measured, news: Measured, judged: Judgement, timed: Iterable[str]) -> tuple[SpeedChange, ...]:
    words = judged.verdicts.words
    found = [
        SpeedChange(case_id=name, base=_estimate(olds[name]), head=_estimate(news[name]), verdict=judged.verdicts[name])
        for name in timed
        if words[name].is_change
    ]
    return tuple(sorted(found, key=lambda change: change.change))


def _compile_changes(olds: Measured, news: Measured, judged: Judgement) -> tuple[CompileTimeChange, ...]:
    found = [
        CompileTimeChange(
            case_id=name, base_s=_compile_seconds(olds[name]), head_s=_compile_seconds(news[name]), verdict=verdict
        )
        for name, verdict in judged.verdicts.changes().items()
    ]
    return tuple(sorted(found, key=lambda change: change.base_s - change.head_s))


def _compile_seconds(measured: Measurements) -> float:
    if measured.compile_cpu_s:
        return statistics.median(measured.compile_cpu_s)
    assert measured.compile_cold_s is not None
    return measured.compile_cold_s


def _other_changes(olds: Measured, news: Measured, judged: Judgements) -> tuple[OtherChange, ...]:
    found: list[OtherChange] = []
    for name, verdict in judged.quantities["peak memory"].verdicts.changes().items():
        peaks = [round(statistics.median(run[name].peak_memories)) for run in (olds, news)]
        found.append(OtherChange(case_id=name, what="peak memory", base=peaks[0], head=peaks[1], verdict=verdict))
    for count, verdicts in judged.counts.items():
        for name, verdict in verdicts.changes().items():
            values = [getattr(run[name], COUNTS[count]) for run in (olds, news)]
            found.append(OtherChange(case_id=name, what=count, base=values[0], head=values[1], verdict=verdict))
    return tuple(sorted(found, key=lambda change: (change.verdict.word is not Word.WORSE, change.what, change.case_id)))


def _environment_changes(base: Mapping[str, Any], head: Mapping[str, Any]) -> tuple[tuple[str, str, str], ...]:
    old, new = dict(_leaves(base)), dict(_leaves(head))
    keys = [*old, *(key for key in new if key not in old)]
    return tuple((key, old.get(key, "-"), new.get(key, "-")) for key in keys if old.get(key) != new.get(key))


def _leaves(data: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)


def _run_json(run: RunInfo) -> dict[str, Any]:
    return {"run_id": run.run_id, "state": run.state, "planned": run.planned, "recorded": run.recorded}


# ------------------------------------------------------------------------------------------------------------ tables


def tables_of(comparison: Comparison, *, limit: int | None = 50) -> list[TextTable]:
    """The comparison as tables: the totals, then the changes, at most `limit` rows of each kind.

    New failures are grouped; without a limit each of their cases has a row too.
    """
    tables = [_totals(comparison)]
    if comparison.new_failures:
        tables.append(groups_table(comparison.new_failures, limit, title="new failures", more="--all"))
    for kind in ChangeKind:
        changes = comparison.of_kind(kind)
        if kind is ChangeKind.NEW_FAILURE and limit is not None:
            continue
        if changes and kind is not ChangeKind.NEW_ROW:
            rows = [(c.case_id, c.base_status or "-", c.head_status or "-", shorten(_symptom(c))) for c in changes]
            tables.append(_limited(kind.value, ("case", "base", "head", "symptom"), rows, limit, prose=frozenset({3})))
    if flaky := [change for change in comparison.cases if change.is_flaky]:
        rows = [(c.case_id, c.kind.value, c.head_status or "-", c.head_frequency.removeprefix("in ")) for c in flaky]
        tables.append(_limited("did not fail each time in head", ("case", "change", "head", "fails in"), rows, limit))
    tables += bias_tables_of(comparison.new_bias, limit=limit, title="systematic errors of head alone")
    if comparison.speed:
        rows = [
            (s.case_id, _speedup(s.base), _speedup(s.head), f"{100 * (s.change - 1):+.1f} %", s.verdict.word.value)
            for s in comparison.speed
        ]
        tables.append(
            _limited("speedup over eager changed", ("case", "base", "head", "change", "verdict"), rows, limit)
        )
    if comparison.compile_time:
        rows = [
            (c.case_id, seconds(c.base_s), seconds(c.head_s), c.verdict.word.value) for c in comparison.compile_time
        ]
        tables.append(_limited("cold compile time changed", ("case", "base", "head", "verdict"), rows, limit))
    if comparison.other:
        rows = [(c.case_id, c.what, str(c.base), str(c.head), c.verdict.word.value) for c in comparison.other]
        tables.append(_limited("memory and counts changed", ("case", "what", "base", "head", "verdict"), rows, limit))
    if comparison.definitions:
        rows = [(case_id,) for case_id in comparison.definitions]
        tables.append(_limited("program changed, so a change may be the program's", ("case",), rows, limit))
    if any(comparison.subjects):
        rows = [
            (run, ", ".join(of_run) or "-") for run, of_run in zip(("base", "head"), comparison.subjects, strict=True)
        ]
        tables.append(_limited("subjects of one run only", ("run", "subjects"), rows, None, prose=frozenset({1})))
    if comparison.environment:
        rows = [(key, shorten(base, 60), shorten(head, 60)) for key, base, head in comparison.environment]
        tables.append(_limited("environment changed", ("what", "base", "head"), rows, limit, prose=frozenset({1, 2})))
    return tables


def _symptom(change: CaseChange) -> str:
    if change.kind is ChangeKind.CHANGED_SYMPTOM and change.base_symptom and change.head_symptom:
        return f"{change.head_symptom} (was: {change.base_symptom})"
    if change.kind is ChangeKind.MISSING_ROW and change.head_status is None:
        return "not planned in head"
    often = f"{change.head_frequency}: " if change.head_frequency else ""
    return f"{often}{change.head_symptom or change.base_symptom}"


def _speedup(estimate: Estimate) -> str:
    return ratio(estimate.value, estimate.low, estimate.high)


def _totals(comparison: Comparison) -> TextTable:
    rows = [(kind.value, str(comparison.totals[kind.value])) for kind in ChangeKind]
    base, head = comparison.base, comparison.head
    note = f"base {base.run_id}: {base.recorded} of {base.planned} cases recorded; "
    note += f"head {head.run_id}: {head.recorded} of {head.planned}"
    if comparison.timed_in_both:
        note += f". Speedup head / base over {comparison.timed_in_both} cases timed in both: "
        note += f"{number(comparison.speed_change)}x (sign test p = {comparison.speed_change_p:.2g})"
        note += f". Speed: {', '.join(f'{count} {word}' for word, count in comparison.speed_words.items() if count)}"
    if comparison.speed_invalid and comparison.timed_in_both:
        note += f". Nothing is said about speed: {comparison.speed_invalid}"
    for name, run in (("base", base), ("head", head)):
        if run.state == "planning":
            note += f". The plan of {name} is not complete: the run died while planning"
    return TextTable(title="comparison", columns=("what", "cases"), rows=tuple(rows), right=frozenset({1}), note=note)


def _limited(
    title: str,
    columns: tuple[str, ...],
    rows: list[tuple[str, ...]],
    limit: int | None,
    prose: frozenset[int] = frozenset(),
) -> TextTable:
    shown = rows if limit is None else rows[:limit]
    note = f"{len(rows) - len(shown)} more (--all)" if len(shown) < len(rows) else ""
    return TextTable(title=f"{title} ({len(rows)})", columns=columns, rows=tuple(shown), prose=prose, note=note)
