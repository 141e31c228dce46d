"""Compare two runs case by case: new failures, fixed cases, missing cases, changes of speed.

Cases are matched by id over the *planned* cases of both runs, so a case that crashed the run, or that was not planned again, is
a row of the comparison too. Both runs are read in the order of their case ids, side by side, so that only what differs is kept:
the runs may be in two databases, which no query can join.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

import pandas as pd

from oracle.records import Record
from oracle.verdict import Status
from results.bias import BiasFinding, find_bias
from results.bias import tables_of as bias_tables_of
from results.groups import FindingGroup, group_findings
from results.queries import ComparedRow, bias_findings, compared_rows, notable_rows
from results.render import TextTable, number, ratio, seconds, shorten
from results.report import groups_table
from results.statistics import Estimate, geomean, is_real_speed_change, sign_test
from results.store import RunInfo, Store
from results.tables import NOT_COMPARABLE, frame


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedChange:
    """A case that passes in both runs and whose speedup over eager changed significantly (statistics.is_real_speed_change).

    Speedups are compared, not times: a slower machine slows eager too.
    """

    case_id: str
    base: Estimate
    head: Estimate

    @property
    def change(self) -> float:
        """Head's speedup divided by base's: below 1 is slower."""
        return self.head.value / self.base.value


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileTimeChange:
    """A case that passes in both runs and whose cold compile time, in seconds, changed a lot."""

    case_id: str
    base_s: float
    head_s: float


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
    new_failures: tuple[FindingGroup, ...]  # the cases of kind NEW_FAILURE, grouped
    environment: tuple[tuple[str, str, str], ...]  # (key, base, head) of each difference between the environments
    new_bias: tuple[BiasFinding, ...] = ()  # systematic errors that only head has; they do not fail the comparison

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
            "speed": [{**asdict(change), "change": change.change} for change in self.speed],
            "compile_time": [asdict(change) for change in self.compile_time],
            "timed_in_both": self.timed_in_both,
            "speed_change": None if math.isnan(self.speed_change) else self.speed_change,
            "speed_change_p": self.speed_change_p,
            "new_systematic_errors": [one.to_json() for one in self.new_bias],
            "environment": [{"key": key, "base": base, "head": head} for key, base, head in self.environment],
        }


# A cold compile is measured once, so only a change that a busy machine does not explain is reported.
_COMPILE_RATIO: Final = 1.5
_COMPILE_SECONDS: Final = 0.5


def compare(base: Iterable[Record], head: Iterable[Record], *, base_run: RunInfo, head_run: RunInfo) -> Comparison:
    """Compare two runs. Both iterables come from `Store.records(run, with_missing=True)`."""
    base, head = list(base), list(head)
    known = {finding.key for finding in find_bias(base)}
    return _comparison(
        _rows(base),
        _rows(head),
        base_run=base_run,
        head_run=head_run,
        head_table=lambda: frame(head),
        new_bias=tuple(finding for finding in find_bias(head) if finding.key not in known),
    )


def compare_runs(base: Store, head: Store, *, base_run: RunInfo, head_run: RunInfo) -> Comparison:
    """Compare two runs of one or two databases, without reading either as a whole."""
    found = bias_findings(head, head_run)
    known = {finding.key for finding in bias_findings(base, base_run)} if found else set()
    return _comparison(
        compared_rows(base, base_run),
        compared_rows(head, head_run),
        base_run=base_run,
        head_run=head_run,
        head_table=lambda: notable_rows(head, head_run),
        new_bias=tuple(finding for finding in found if finding.key not in known),
    )


def _rows(records: Iterable[Record]) -> list[ComparedRow]:
    rows = [
        ComparedRow(
            case_id=record.case_id,
            ordinal=ordinal,
            status=record.verdict.status.value,
            symptom=record.verdict.symptom,
            speedup=record.measurements.speedup,
            speedup_low=record.measurements.speedup_low,
            speedup_high=record.measurements.speedup_high,
            compile_cold_s=record.measurements.compile_cold_s,
        )
        for ordinal, record in enumerate(records)
    ]
    return sorted(rows, key=_case_id)


def _case_id(row: ComparedRow) -> str:
    return row.case_id


_Pair: TypeAlias = tuple[ComparedRow | None, ComparedRow | None]  # one case in base and in head


def _side_by_side(base: Iterable[ComparedRow], head: Iterable[ComparedRow]) -> Iterator[_Pair]:
    """Every case of either run. Both are in the order of their case ids."""
    olds, news = iter(base), iter(head)
    old, new = next(olds, None), next(news, None)
    while old is not None or new is not None:
        if new is None or (old is not None and old.case_id < new.case_id):
            yield old, None
            old = next(olds, None)
        elif old is None or new.case_id < old.case_id:
            yield None, new
            new = next(news, None)
        else:
            yield old, new
            old, new = next(olds, None), next(news, None)


def _planned_order(pair: _Pair) -> tuple[bool, int]:
    """Base's planned order, then the cases that only head has."""
    old, new = pair
    if old is not None:
        return False, old.ordinal
    assert new is not None
    return True, new.ordinal


def _first(pair: tuple[int, Any]) -> int:
    return pair[0]


def _comparison(
    base: Iterable[ComparedRow],
    head: Iterable[ComparedRow],
    *,
    base_run: RunInfo,
    head_run: RunInfo,
    head_table: Callable[[], pd.DataFrame],
    new_bias: tuple[BiasFinding, ...],
) -> Comparison:
    counts: Counter[ChangeKind] = Counter()
    changed: list[_Pair] = []
    timed: list[tuple[int, SpeedChange]] = []  # with base's planned order
    compiled: list[tuple[int, CompileTimeChange]] = []
    for old, new in _side_by_side(base, head):
        if old is not None and new is not None and old.status == new.status == _PASS:
            counts[ChangeKind.UNCHANGED] += 1
            if _is_timed(old) and _is_timed(new):
                speed = SpeedChange(case_id=old.case_id, base=_estimate(old), head=_estimate(new))
                timed.append((old.ordinal, speed))
            if (change := _compile_change(old, new)) is not None:
                compiled.append((old.ordinal, change))
            continue
        kind = _kind(old, new)
        counts[kind] += 1
        if kind is not ChangeKind.UNCHANGED:
            changed.append((old, new))
    changes = [_case_change(old, new) for old, new in sorted(changed, key=_planned_order)]
    speeds = [speed for _, speed in sorted(timed, key=_first)]
    real = [speed for speed in speeds if is_real_speed_change(speed.base, speed.head)]
    compile_changes = [change for _, change in sorted(compiled, key=_first)]
    return Comparison(
        base=base_run,
        head=head_run,
        cases=tuple(changes),
        totals={kind.value: counts[kind] for kind in ChangeKind},
        speed=tuple(sorted(real, key=lambda speed: speed.change)),
        compile_time=tuple(sorted(compile_changes, key=lambda change: change.base_s - change.head_s)),
        timed_in_both=len(speeds),
        speed_change=geomean([speed.change for speed in speeds]),
        speed_change_p=sign_test([speed.change for speed in speeds]),
        new_failures=_new_failures(changes, head_table),
        environment=_environment_changes(base_run.environment, head_run.environment),
        new_bias=new_bias,
    )


def _new_failures(changes: Iterable[CaseChange], head_table: Callable[[], pd.DataFrame]) -> tuple[FindingGroup, ...]:
    new = {change.case_id for change in changes if change.kind is ChangeKind.NEW_FAILURE}
    if not new:
        return ()
    table = head_table()
    table["is_finding"] &= table["case_id"].isin(new)
    return tuple(group_findings(table))


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
    """The status, with `xpass` as a pass: the ledger's expectation is no change of the subject."""
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


def _is_timed(row: ComparedRow) -> bool:
    return row.speedup is not None and 0 < row.speedup < math.inf


def _estimate(row: ComparedRow) -> Estimate:
    assert row.speedup is not None
    return Estimate(value=row.speedup, low=row.speedup_low, high=row.speedup_high)


def _compile_change(base: ComparedRow, head: ComparedRow) -> CompileTimeChange | None:
    old, new = base.compile_cold_s, head.compile_cold_s
    if old is None or new is None or old <= 0 or new <= 0 or abs(new - old) < _COMPILE_SECONDS:
        return None
    if max(new / old, old / new) < _COMPILE_RATIO:
        return None
    return CompileTimeChange(case_id=base.case_id, base_s=old, head_s=new)


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
    tables += bias_tables_of(comparison.new_bias, limit=limit, title="systematic errors of head alone")
    if comparison.speed:
        rows = [
            (s.case_id, _speedup(s.base), _speedup(s.head), f"{100 * (s.change - 1):+.1f} %") for s in comparison.speed
        ]
        tables.append(_limited("speedup over eager changed", ("case", "base", "head", "change"), rows, limit))
    if comparison.compile_time:
        rows = [(c.case_id, seconds(c.base_s), seconds(c.head_s)) for c in comparison.compile_time]
        tables.append(_limited("cold compile time changed", ("case", "base", "head"), rows, limit))
    if comparison.environment:
        rows = [(key, shorten(base, 60), shorten(head, 60)) for key, base, head in comparison.environment]
        tables.append(_limited("environment changed", ("what", "base", "head"), rows, limit, prose=frozenset({1, 2})))
    return tables


def _symptom(change: CaseChange) -> str:
    if change.kind is ChangeKind.CHANGED_SYMPTOM and change.base_symptom and change.head_symptom:
        return f"{change.head_symptom} (was: {change.base_symptom})"
    if change.kind is ChangeKind.MISSING_ROW and change.head_status is None:
        return "not planned in head"
    return change.head_symptom or change.base_symptom


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
