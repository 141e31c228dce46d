"""Lasting changes of a case: since which run it is slower, compiles longer, needs more memory, or breaks the graph more often.

Costs change at the change points of their history (`results.speed.change_points`), by the same smallest changes as in a
comparison. A count changes where another one begins that stays: one odd run is none, as with costs. Times are compared with those
of runs on the same machine only, and a case whose generated code is the same before and after has not changed its speed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import numpy as np
import sqlalchemy as sa

from oracle.costs import centre_for, duration_class
from oracle.verdict import Status
from results.history import (
    CaseRun,
    RunFacts,
    case_history,
    change_text,
    changes_between,
    machine_of,
    runs_before,
)
from results.kept import measures_speed
from results.kept_past import past_run
from results.measurements import IS_TIMED
from results.render import TextTable, ratio, seconds, shorten
from results.schema import CASES, RECORDS, RUNS
from results.speed.change_points import histories_of
from results.speed.costs import CostTable
from results.speed.counts import judge_count
from results.speed.measured import MeasuredCase
from results.speed.noise import ASSUMED
from results.speed.of_records import ASSUMED_NOISE, COUNTS, LEAST, LEAST_SECONDS, Count, Quantity
from results.speed.otava import HistoryPoint
from results.speed.past import Past, PastRun, Source
from results.store import SAME_CASE, RunInfo, Store

_TIMES: Final[tuple[Quantity, ...]] = ("speed", "compile time")  # which another machine changes
_MOST_RUNS: Final = 60  # of a history in which changes are looked for
_FEWEST_RUNS: Final = 5  # with fewer, costs have no change points


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A lasting change, by the positions of the two runs around it."""

    what: Quantity | Count
    last: int  # the last run before it
    first: int  # the first one after it
    before: float  # speed: the subject's time over eager's; seconds, bytes or a count
    after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LastingChange:
    """A lasting change of one case, with the run since which it is there."""

    what: Quantity | Count
    before: float  # as in Step
    after: float
    last_run: RunFacts
    first_run: RunFacts
    changes: tuple[tuple[str, str, str], ...]  # what differs between the two runs: name, value before, after

    @property
    def is_worse(self) -> bool:
        return self.after > self.before

    def to_json(self) -> dict[str, Any]:
        changes = [{"what": what, "before": old, "after": new} for what, old, new in self.changes]
        return {
            "what": self.what, "is_worse": self.is_worse, "before": self.before, "after": self.after,
            "since": self.first_run.run_id, "since_started_at": self.first_run.started_at,
            "last_before": self.last_run.run_id, "changes": changes,
        }  # fmt: skip


# ------------------------------------------------------------------------------------------------------- many cases


def lasting_steps(runs: Sequence[PastRun], classes: Mapping[str, str], whats: Iterable[str]) -> dict[str, list[Step]]:
    """The lasting changes of some quantities and counts, by case. `runs`: oldest first; `classes`: `duration_class` by case."""
    names = tuple(classes)
    past = Past(names, runs)
    found: dict[str, list[Step]] = {name: [] for name in names}
    for what in whats:
        steps = _steps_of_count(what, names, past) if what in COUNTS else _steps_of_quantity(what, classes, past)  # pyright: ignore[reportArgumentType]
        for name, step in steps:
            found[name].append(step)
    return found


def _steps_of_quantity(quantity: Quantity, classes: Mapping[str, str], past: Past) -> Iterator[tuple[str, Step]]:
    names = tuple(classes)
    moments = past.aligned(names, _sources(quantity, classes, past))
    absent = np.zeros((len(names), 1))  # a table ends with head, of which nothing is measured here
    table = CostTable(
        names=names,
        classes=tuple(classes.values()) if quantity == "speed" else ("",) * len(names),
        count=np.hstack([moments.count, absent.astype(np.int64)]),
        mean=np.hstack([moments.mean, absent + math.nan]),
        squares=np.hstack([moments.squares, absent]),
    )
    assumed = ASSUMED_NOISE.get(quantity, ASSUMED)
    for name, history in histories_of(table, least=LEAST[quantity], assumed=assumed, is_alone=True).items():
        bounds = [0, *(point.index for point in history.points), len(history.costs)]
        means = [math.fsum(history.costs[a:b]) / (b - a) for a, b in itertools.pairwise(bounds) if b > a]
        for point, (old, new) in zip(history.points, itertools.pairwise(means), strict=True):
            before, after = math.exp(old), math.exp(new)
            if quantity == "compile time" and abs(after - before) < LEAST_SECONDS:
                continue
            last, first = history.runs[point.index - 1], history.runs[point.index]
            yield name, Step(what=quantity, last=last, first=first, before=before, after=after)


def _sources(quantity: Quantity, classes: Mapping[str, str], past: Past) -> list[Source]:
    names = tuple(classes)
    match quantity:
        case "speed":
            shortest = past.shortest(names).tolist()
            return [centre_for(one, noise_class) for one, noise_class in zip(shortest, classes.values(), strict=True)]
        case "compile time":  # by the clock that the newest run of a case has
            walls: list[Source] = ["compile wall"] * len(names)
            cpus: list[Source] = ["compile CPU"] * len(names)
            counts = zip(past.aligned(names, walls).count, past.aligned(names, cpus).count, strict=True)
            return ["compile CPU" if _newest(wall, cpu) else "compile wall" for wall, cpu in counts]
        case "peak memory":
            return ["peak memory"] * len(names)


def _newest(wall: np.ndarray, cpu: np.ndarray) -> bool:
    """Whether the newest run that measured a compile time has it in processor time."""
    measured = np.flatnonzero(wall + cpu)
    return bool(len(measured) and cpu[measured[-1]])


def _steps_of_count(count: Count, names: Sequence[str], past: Past) -> Iterator[tuple[str, Step]]:
    for name, row in zip(names, past.aligned_counts(names, COUNTS[count]).tolist(), strict=True):
        known = [(run, int(value)) for run, value in enumerate(row) if not math.isnan(value)]
        for (last, before), (first, after) in _lasting_counts(known):
            yield name, Step(what=count, last=last, first=first, before=before, after=after)


def _lasting_counts(known: Sequence[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """The pairs of runs, with their counts, between which a count changed and stayed changed.

    The newest run alone counts too, unless the history shows that the count varies.
    """
    parts = [list(part) for _, part in itertools.groupby(known, key=lambda one: one[1])]
    kept: list[list[tuple[int, int]]] = []
    for number, part in enumerate(parts):
        if number == len(parts) - 1 and number and len(part) == 1:
            counts = [value for _, value in known[:-1]]
            is_lasting = judge_count(counts[-1], part[0][1], counts[:-1]).word.is_change
        else:
            is_lasting = number == 0 or len(part) > 1
        if not is_lasting:
            continue
        if kept and kept[-1][0][1] == part[0][1]:
            kept[-1] += part
        else:
            kept.append(part)
    for old, new in itertools.pairwise(kept):
        yield old[-1], new[0]


# --------------------------------------------------------------------------------------------------------- one case


def lasting_changes(history: Sequence[CaseRun]) -> list[LastingChange]:
    """The lasting changes of a case, in the order of the runs since which they are there."""
    passing = [one for one in history if one.status is Status.PASS][-_MOST_RUNS:]
    found = [*_of_case(passing, [what for what in (*LEAST, *COUNTS) if what not in _TIMES])]
    for place in dict.fromkeys(one.facts.place for one in passing):
        found += _of_case([one for one in passing if one.facts.place == place], _TIMES)
    order = {one.facts.run_id: number for number, one in enumerate(passing)}
    return sorted(found, key=lambda change: (order[change.first_run.run_id], change.what))


def _of_case(runs: Sequence[CaseRun], whats: Sequence[str]) -> Iterator[LastingChange]:
    if not runs:
        return
    newest = runs[-1].record
    measured = [PastRun.of({newest.case_id: MeasuredCase.of(one.record.measurements)}) for one in runs]
    classes = {newest.case_id: duration_class(newest.measurements.subject_s)}
    for step in lasting_steps(measured, classes, whats)[newest.case_id]:
        last, first = runs[step.last], runs[step.first]
        code = last.record.measurements.code
        if step.what == "speed" and code is not None and code == first.record.measurements.code:
            continue
        yield LastingChange(
            what=step.what, before=step.before, after=step.after, last_run=last.facts, first_run=first.facts,
            changes=changes_between(last, first),
        )  # fmt: skip


def worse_since(store: Store, base: RunInfo, case_ids: Iterable[str]) -> dict[str, list[LastingChange]]:
    """The lasting changes for the worse after `base`, of those of these cases that have any."""
    found: dict[str, list[LastingChange]] = {}
    for case_id in sorted(case_ids):
        history = case_history(store, case_id, limit=_MOST_RUNS)
        later_runs = _after(base, [one.facts for one in history])
        # The last change of each quantity: an earlier slowdown may have been repaired.
        newest = {one.what: one for one in lasting_changes(history)}.values()
        if later := [one for one in newest if one.is_worse and one.first_run.run_id in later_runs]:
            found[case_id] = later
    return found


def slower_since(store: Store, base: RunInfo, head: RunInfo) -> set[str]:
    """The cases of `head` whose costs became worse, for good, after `base`, as all cases together tell it.

    Only timed cases, over the runs of the same selection on the same machine.
    """
    alike = [run for run in (*runs_before(store, head), head) if run.is_complete and measures_speed(run.arguments)]
    runs = [run for run in alike if machine_of(run) == machine_of(head)][-_MOST_RUNS:]
    if len(runs) < _FEWEST_RUNS or runs[-1].run_id != head.run_id:
        return set()
    with store.reading() as connection:
        past = [past_run(connection, run.run_id, (), recorded=run.recorded) for run in runs]
        classes = _classes(connection, head)
    later_runs = _after(base, runs)
    found: set[str] = set()
    for name, steps in lasting_steps(past, classes, LEAST).items():
        newest = {step.what: step for step in steps}.values()
        if any(step.after > step.before and runs[step.first].run_id in later_runs for step in newest):
            found.add(name)
    return found


def _after(base: RunInfo, runs: Sequence[RunFacts] | Sequence[RunInfo]) -> set[str]:
    """The ids of the runs after `base`. It may be in another database, or have another selection."""
    ids = [run.run_id for run in runs]
    if base.run_id in ids:
        return {*ids[ids.index(base.run_id) + 1 :]}
    return {run.run_id for run in runs if run.started_at > base.started_at}


def _classes(connection: sa.Connection, run: RunInfo) -> dict[str, str]:
    """The duration classes of a run's timed cases."""
    query = (
        sa.select(CASES.c.case_id, RECORDS.c.subject_s)
        .join_from(CASES, RECORDS, SAME_CASE)
        .join(RUNS, RUNS.c.run == CASES.c.run)
        .where(RUNS.c.run_id == run.run_id, RECORDS.c.status == Status.PASS.value, IS_TIMED)
    )
    return {case_id: duration_class(duration) for case_id, duration in connection.execute(query)}


def otava_histories(case_id: str, history: Sequence[CaseRun]) -> dict[str, list[HistoryPoint]]:
    """The measured runs of a case for Apache Otava, by test: the case and a quantity. Smaller values are better."""
    found: dict[str, list[HistoryPoint]] = {}
    for one in history:
        measured = one.record.measurements
        values: dict[Quantity, float | None] = {
            "speed": 1 / measured.speedup if measured.speedup else None,
            "compile time": median(measured.compile_cpu_s) if measured.compile_cpu_s else measured.compile_cold_s,
            "peak memory": measured.peak_memory,
        }
        for quantity, value in values.items():
            if value is None or one.status is not Status.PASS:
                continue
            commit = one.version or one.facts.torch_git
            point = HistoryPoint(time=one.facts.started_at, run=one.facts.run_id, commit=commit, value=float(value))
            found.setdefault(f"{case_id} {quantity}", []).append(point)
    return found


# ------------------------------------------------------------------------------------------------------------ tables

_WORDS: Final[Mapping[str, tuple[str, str]]] = {
    "speed": ("slower", "faster"), "compile time": ("longer", "shorter"), "peak memory": ("more", "less"),
}  # fmt: skip


def change_words(change: Step | LastingChange) -> str:
    """The size of a change in words: "12.3 % slower", "from 0 to 2"."""
    if change.what in COUNTS:
        return f"from {change.before:.0f} to {change.after:.0f}"
    percent = 100 * abs(change.after / change.before - 1)
    return f"{percent:.1f} % {_WORDS[change.what][change.after < change.before]}"


def lasting_table(changes: Sequence[LastingChange]) -> TextTable:
    """One line for each lasting change of a case."""
    rows = [
        (
            one.what,
            one.first_run.run_id,
            one.first_run.started_at[:16].replace("T", " "),
            _value(one.what, one.before),
            _value(one.what, one.after),
            f"{'worse' if one.is_worse else 'better'}: {change_words(one)}",
            shorten(", ".join(change_text(change) for change in one.changes), 120) or "-",
        )
        for one in changes
    ]
    return TextTable(
        title=f"lasting changes ({len(rows)})",
        columns=("what", "since run", "started", "before", "after", "change", "changed since the run before"),
        rows=tuple(rows),
        right=frozenset({3, 4}),
        prose=frozenset({5, 6}),
        note="before and after: means over the runs of each side; speed is eager's time / the subject's",
    )


def _value(what: Quantity | Count, value: float) -> str:
    match what:
        case "speed":
            return ratio(1 / value)
        case "compile time":
            return seconds(value)
        case "peak memory":
            return f"{value / 2**20:.1f} MiB"
        case _:
            return f"{value:.0f}"
