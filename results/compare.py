"""Compare two runs case by case: new failures, fixed cases, missing cases, changes of speed.

Cases are matched by id over the *planned* cases of both runs, so a case that crashed the run, or that was not planned again, is
a row of the comparison too. Only what differs is read of the runs, and what was measured (`results.pairs`).
"""

from __future__ import annotations

import gc
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import takewhile
from operator import itemgetter
from typing import Any, Final, TypeAlias, TypeVar, overload

from oracle.records import Measurements, Record
from oracle.verdict import Status
from results.bias import BiasFinding, find_bias
from results.bias import tables_of as bias_tables_of
from results.changes import (
    NOT_PLANNED,
    CaseChange,
    CaseIds,
    ChangeKind,
    Changes,
    Places,
    ReadTexts,
    RowText,
    kind_of,
)
from results.groups import FindingGroup, columns_of, group_findings, groups_table
from results.history import is_other_version, machine_of, tested
from results.kept_past import past_run
from results.pairs import ComparedRow, Pairs, may_have_moved, pairs_of, read_pairs, read_texts
from results.queries import bias_findings, finding_groups, flaky_places
from results.render import TextTable, number, ratio, seconds, shorten
from results.speed import Judgement, SpeedVerdict, Word
from results.speed.measured import Measured, MeasuredCase
from results.speed.of_records import COUNTS, Judgements, judge_measurements
from results.speed.past import PastRun
from results.statistics import Estimate, geomean, sign_test
from results.store import RunInfo, Store


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


class SpeedChanges(Sequence[SpeedChange]):
    """Changes of speed, the largest slowdown first. Each is made when it is asked for, since few are shown."""

    def __init__(self, case_ids: Sequence[str], make: Callable[[str], SpeedChange]) -> None:
        self._case_ids = case_ids
        self._make = make

    def __len__(self) -> int:
        return len(self._case_ids)

    @overload
    def __getitem__(self, index: int) -> SpeedChange: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[SpeedChange]: ...
    def __getitem__(self, index: int | slice) -> SpeedChange | Sequence[SpeedChange]:
        if isinstance(index, slice):
            return SpeedChanges(self._case_ids[index], self._make)
        return self._make(self._case_ids[index])

    def __iter__(self) -> Iterator[SpeedChange]:
        return map(self._make, self._case_ids)


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
    """All differences between two runs. `cases` has the changed cases; `totals` counts all cases.

    `cases` and `definitions` of a comparison of databases read them anew, so these have to be open.
    """

    base: RunInfo
    head: RunInfo
    cases: Changes
    totals: Mapping[str, int]  # ChangeKind.value -> count, every kind present
    speed: Sequence[SpeedChange]  # largest slowdown first
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
    definitions: Sequence[str] = ()
    subjects: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())  # those of base alone, and of head alone
    # Subjects of which head runs another version: name, version in base, in head; and the run's label, if it changed.
    versions: tuple[tuple[str, str, str], ...] = ()

    @property
    def has_regression(self) -> bool:
        """Whether there are new failures, missing rows, rows no longer compared, or a head that was not planned completely."""
        regressed = (self.totals[kind.value] for kind in ChangeKind if kind.is_regression)
        return self.head.state == "planning" or any(regressed)

    @property
    def slower(self) -> tuple[SpeedChange, ...]:
        return tuple(takewhile(lambda change: change.change < 1, self.speed))

    def of_kind(self, kind: ChangeKind) -> Changes:
        return self.cases.of_kind(kind)

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
            "versions_changed": [{"what": what, "base": base, "head": head} for what, base, head in self.versions],
            "environment": [{"key": key, "base": base, "head": head} for key, base, head in self.environment],
        }


_History: TypeAlias = Callable[[Sequence[str]], Sequence[PastRun]]  # what earlier runs measured of some cases


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

    def new_failures(is_new: Callable[[int], bool]) -> list[FindingGroup]:
        table = columns_of(head)
        return group_findings(
            {**table, "is_finding": [flag and is_new(i) for i, flag in enumerate(table["is_finding"])]}
        )

    def texts(olds: Sequence[int], news: Sequence[int]) -> tuple[dict[int, RowText], dict[int, RowText]]:
        return _texts(base, olds), _texts(head, news)

    return _comparison(
        pairs_of(_rows(base), _rows(head)),
        base_run=base_run,
        head_run=head_run,
        texts=texts,
        new_failures=new_failures,
        new_bias=new_bias,
        flaky=lambda: {i for i, record in enumerate(head) if _is_flaky(record)},
        history=lambda _: [PastRun.of(_measured(run)) for run in history],
    )


def compare_runs(
    base: Store, head: Store, *, base_run: RunInfo, head_run: RunInfo, history: Sequence[RunInfo] = ()
) -> Comparison:
    """Compare two runs of one or two databases, without reading either as a whole. `history`: runs of base's database."""

    def new_bias() -> tuple[BiasFinding, ...]:
        found = bias_findings(head, head_run)
        known = {finding.key for finding in bias_findings(base, base_run)} if found else set()
        return tuple(finding for finding in found if finding.key not in known)

    def texts(olds: Sequence[int], news: Sequence[int]) -> tuple[dict[int, RowText], dict[int, RowText]]:
        return read_texts(base, base_run, olds), read_texts(head, head_run, news)

    def past(case_ids: Sequence[str]) -> list[PastRun]:
        with base.reading() as connection:
            return [past_run(connection, run.run_id, case_ids, recorded=run.recorded) for run in history]

    with ThreadPoolExecutor(max_workers=1) as thread:
        bias = thread.submit(new_bias)  # the database adds sums of all records meanwhile, on another processor
        return _comparison(
            read_pairs(base, base_run, head, head_run),
            base_run=base_run,
            head_run=head_run,
            texts=texts,
            new_failures=lambda is_new: finding_groups(head, head_run, is_wanted=is_new),
            new_bias=bias.result,
            flaky=lambda: flaky_places(head, head_run),
            history=past,
        )


def _measured(records: Iterable[Record]) -> Measured:
    """The measurements of the passing cases."""
    return {record.case_id: record.measurements for record in records if record.verdict.status is Status.PASS}


def _rows(records: Iterable[Record]) -> list[ComparedRow]:
    rows = [
        ComparedRow(
            case_id=record.case_id,
            ordinal=ordinal,
            status=record.verdict.status.value,
            symptom=record.verdict.symptom,
            is_timed=_is_timed(record.measurements.speedup),
            measured=MeasuredCase.of(record.measurements),
        )
        for ordinal, record in enumerate(records)
    ]
    return sorted(rows, key=_case_id)


def _texts(records: Sequence[Record], places: Iterable[int]) -> dict[int, RowText]:
    found = [(place, records[place]) for place in places if place != NOT_PLANNED]
    return {
        place: RowText(record.case_id, record.verdict.status.value, record.verdict.symptom, record.verdict.reruns)
        for place, record in found
    }


def _is_flaky(record: Record) -> bool:
    return record.verdict.status.is_finding and record.verdict.is_flaky


def _case_id(row: ComparedRow) -> str:
    return row.case_id


class _Sorted:
    """The pairs of two runs, sorted by what is said of them: places of changed cases, and measurements of passing ones."""

    def __init__(self, pairs: Pairs) -> None:
        self.counts: Counter[ChangeKind] = Counter()
        self.has_findings = False  # whether a changed case is a finding in head
        changes, redefined = Places(), Places()
        measured: list[tuple[int, str, MeasuredCase, MeasuredCase]] = []
        for old, new in pairs:
            places = old and old.ordinal, new and new.ordinal
            if old is not None and new is not None:
                if old.program_hash != new.program_hash:
                    redefined.add(*places)
                if old.status == new.status == _PASS:
                    self.counts[ChangeKind.UNCHANGED] += 1
                    if may_have_moved(old, new):
                        measured.append((old.ordinal, old.case_id, old.measured, new.measured))
                    continue
            kind = kind_of(
                old and old.status, new and new.status, old.symptom if old else "", new.symptom if new else ""
            )
            self.counts[kind] += 1
            if kind is not ChangeKind.UNCHANGED:
                changes.add(*places, kind)
                self.has_findings |= new is not None and new.status in _FINDINGS
        self.counts[ChangeKind.UNCHANGED] += pairs.alike
        self.changes = changes.in_planned_order()
        self.redefined = redefined.in_planned_order()
        measured.sort(key=itemgetter(0))
        self.case_ids = [case_id for _, case_id, _, _ in measured]  # passing cases whose measurements may differ
        self.olds: Measured = {case_id: old for _, case_id, old, _ in measured}
        self.news: Measured = {case_id: new for _, case_id, _, new in measured}


@contextmanager
def _without_search_for_cycles() -> Iterator[None]:
    """Let Python not look for cycles of dead objects, as it does each time that many were made.

    Rows form none, and looking at all of them took a quarter of the time of a comparison.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@_without_search_for_cycles()
def _comparison(
    pairs: Pairs,
    *,
    base_run: RunInfo,
    head_run: RunInfo,
    texts: ReadTexts,
    new_failures: Callable[[Callable[[int], bool]], Sequence[FindingGroup]],
    new_bias: Callable[[], tuple[BiasFinding, ...]],
    flaky: Callable[[], Set[int]],
    history: _History,
) -> Comparison:
    found = _Sorted(pairs)
    olds, news = found.olds, found.news
    judged = judge_measurements(olds, news, history(found.case_ids) if found.case_ids else ())
    speed = judged.quantities["speed"]
    moved = _moved(base_run, head_run)
    timed = [name for name in found.case_ids if _is_timed(olds[name].speedup) and _is_timed(news[name].speedup)]
    ratios = [(news[name].speedup or 0.0) / (olds[name].speedup or 1.0) for name in timed]
    changes = Changes(found.changes, texts, flaky() if found.has_findings else frozenset())
    return Comparison(
        base=base_run,
        head=head_run,
        cases=changes,
        totals={kind.value: found.counts[kind] for kind in ChangeKind},
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
        new_failures=_new_failures(changes, new_failures),
        environment=_environment_changes(base_run.environment, head_run.environment),
        new_bias=new_bias(),
        definitions=CaseIds(Changes(found.redefined, texts)),
        subjects=_subjects_apart(base_run, head_run),
        versions=_versions_changed(base_run, head_run),
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


def _versions_changed(base: RunInfo, head: RunInfo) -> tuple[tuple[str, str, str], ...]:
    (old_label, olds), (new_label, news) = tested(base.environment), tested(head.environment)
    changed = [(name, olds[name], new) for name, new in news.items() if is_other_version(olds.get(name, ""), new)]
    return (*([("label", old_label, new_label)] if old_label != new_label else []), *changed)


def _new_failures(
    changes: Changes, group: Callable[[Callable[[int], bool]], Sequence[FindingGroup]]
) -> tuple[FindingGroup, ...]:
    new = changes.of_kind(ChangeKind.NEW_FAILURE).places.head
    if not new:
        return ()
    flags = bytearray(max(new) + 1)
    for place in new:
        flags[place] = 1
    return tuple(group(lambda place: place < len(flags) and bool(flags[place])))


_PASS: Final = Status.PASS.value
_FINDINGS: Final = frozenset(status.value for status in Status if status.is_finding)


def _is_timed(speedup: float | None) -> bool:
    return speedup is not None and 0 < speedup < math.inf


def _estimate(measured: Measurements | MeasuredCase) -> Estimate:
    assert measured.speedup is not None
    return Estimate(value=measured.speedup, low=measured.speedup_low, high=measured.speedup_high)


def _speed_changes(olds: Measured, news: Measured, judged: Judgement, timed: Iterable[str]) -> Sequence[SpeedChange]:
    verdicts = judged.verdicts

    def made(name: str) -> SpeedChange:
        return SpeedChange(case_id=name, base=_estimate(olds[name]), head=_estimate(news[name]), verdict=verdicts[name])

    def change(name: str) -> float:
        """The same as SpeedChange.change, without the rest of the verdict."""
        effect = verdicts.effect(name)
        return 1 / effect if effect else _estimate(news[name]).value / _estimate(olds[name]).value

    found = sorted((name for name in timed if verdicts.words[name].is_change), key=change)
    return SpeedChanges(found, made) if found else ()


def _compile_changes(olds: Measured, news: Measured, judged: Judgement) -> tuple[CompileTimeChange, ...]:
    found = [
        CompileTimeChange(
            case_id=name, base_s=_compile_seconds(olds[name]), head_s=_compile_seconds(news[name]), verdict=verdict
        )
        for name, verdict in judged.verdicts.changes().items()
    ]
    return tuple(sorted(found, key=lambda change: change.base_s - change.head_s))


def _compile_seconds(measured: Measurements | MeasuredCase) -> float:
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
        if kind is ChangeKind.NEW_ROW or (kind is ChangeKind.NEW_FAILURE and limit is not None):
            continue
        if changes := comparison.of_kind(kind):
            columns = ("case", "base", "head", "symptom")
            tables.append(_limited(kind.value, columns, changes, _change_row, limit, prose=frozenset({3})))
    if flaky := comparison.cases.flaky():
        columns = ("case", "change", "head", "fails in")
        tables.append(_limited("did not fail each time in head", columns, flaky, _flaky_row, limit))
    tables += bias_tables_of(comparison.new_bias, limit=limit, title="systematic errors of head alone")
    if comparison.speed:
        columns = ("case", "base", "head", "change", "verdict")
        tables.append(_limited("speedup over eager changed", columns, comparison.speed, _speed_row, limit))
    if comparison.compile_time:
        columns = ("case", "base", "head", "verdict")
        tables.append(_limited("cold compile time changed", columns, comparison.compile_time, _compile_row, limit))
    if comparison.other:
        columns = ("case", "what", "base", "head", "verdict")
        tables.append(_limited("memory and counts changed", columns, comparison.other, _other_row, limit))
    if comparison.definitions:
        title = "program changed, so a change may be the program's"
        tables.append(_limited(title, ("case",), comparison.definitions, lambda case_id: (case_id,), limit))
    if any(comparison.subjects):
        rows = list(zip(("base", "head"), comparison.subjects, strict=True))
        columns = ("run", "subjects")
        tables.append(_limited("subjects of one run only", columns, rows, _subjects_row, None, prose=frozenset({1})))
    if comparison.versions:
        columns = ("subject", "base", "head")
        rows = comparison.versions
        title = "subjects at another version"
        tables.append(_limited(title, columns, rows, _version_row, limit, prose=frozenset({1, 2})))
    changed = [one for one in comparison.environment if one[0] != "label" and not one[0].startswith("subjects.")]
    if changed:
        columns = ("what", "base", "head")
        tables.append(
            _limited("environment changed", columns, changed, _environment_row, limit, prose=frozenset({1, 2}))
        )
    return tables


_Cells: TypeAlias = tuple[str, ...]


def _change_row(c: CaseChange) -> _Cells:
    return c.case_id, c.base_status or "-", c.head_status or "-", shorten(_symptom(c))


def _flaky_row(c: CaseChange) -> _Cells:
    return c.case_id, c.kind.value, c.head_status or "-", c.head_frequency.removeprefix("in ")


def _speed_row(s: SpeedChange) -> _Cells:
    change = f"{100 * (s.change - 1):+.1f} %"
    return s.case_id, _speedup(s.base), _speedup(s.head), change, s.verdict.word.value


def _compile_row(c: CompileTimeChange) -> _Cells:
    return c.case_id, seconds(c.base_s), seconds(c.head_s), c.verdict.word.value


def _other_row(c: OtherChange) -> _Cells:
    return c.case_id, c.what, str(c.base), str(c.head), c.verdict.word.value


def _subjects_row(of: tuple[str, Sequence[str]]) -> _Cells:
    return of[0], ", ".join(of[1]) or "-"


def _version_row(change: tuple[str, str, str]) -> _Cells:
    what, old, new = change
    return ("(label of the run)" if what == "label" else what), shorten(old) or "-", shorten(new) or "-"


def _environment_row(change: tuple[str, str, str]) -> _Cells:
    return change[0], shorten(change[1], 60), shorten(change[2], 60)


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


_Item = TypeVar("_Item")


def _limited(
    title: str,
    columns: tuple[str, ...],
    items: Sequence[_Item],
    row: Callable[[_Item], _Cells],
    limit: int | None,
    prose: frozenset[int] = frozenset(),
) -> TextTable:
    """A table with a row for each of the first `limit` items. Only those are read."""
    rows = tuple(row(item) for item in (items if limit is None else items[:limit]))
    note = f"{len(items) - len(rows)} more (--all)" if len(rows) < len(items) else ""
    return TextTable(title=f"{title} ({len(items)})", columns=columns, rows=rows, prose=prose, note=note)
