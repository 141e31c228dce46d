"""The gate on pairs of real runs with planted changes: `python -m benchmarks.measurements.gate_pairs --db FILE [--csv FILE]`.

FILE has at least four runs of `torch-oracle sweep --speed` of the same cases, by the same code on the same machine. A pair is
two of them, base and head, after two others that tell how much each case varies. Three cases of base fail and are accepted by a
baseline. Changes are planted in head: calls become 30 % slower, compilations 60 % and 0.2 s. The gate allows 5 % and 10 %.
Nothing is planted in every fourth pair. The columns count what is planted, what the gate tells, and what it tells wrongly or
misses, by case and kind.
"""

from __future__ import annotations

import math
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path

from benchmarks.measurements.frame import options_of, shown
from oracle.errors import UsageError
from oracle.records import Measurements, Record
from oracle.verdict import Status, Verdict
from results.baseline import AcceptedFailure
from results.compare import compare_runs
from results.gate import Budgets, Cases, ProblemKind, gate
from results.history import speed_history
from results.store import Store
from results.tests.fabricate import cases_of

_SLOWER, _COMPILES_SLOWER = 1.3, 1.6
_MORE_S = 0.2  # of a planted compile time at least: verdicts ignore changes of moments
_ACCEPTED = 3
_BUDGETS = Budgets(speed=5.0, compile_time=10.0)
_WRONG = Verdict(status=Status.FAIL_ACCURACY, symptom="call 0: output is 1, but should be 0")
_Told = Counter[tuple[ProblemKind, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What the gate told about one pair of runs."""

    pair: int
    cases: int
    timed: int
    planted: str
    told: str
    wrongly: int
    missed: int
    is_open: bool


def slower(measured: Measurements, factor: float) -> Measurements:
    """The measurements of a subject that takes so many times as long."""
    shift = math.log(factor)
    return replace(
        measured,
        subject_s=factor * (measured.subject_s or 0.0),
        speedup=measured.speedup / factor if measured.speedup else None,
        speedup_low=measured.speedup_low / factor if measured.speedup_low else None,
        speedup_high=measured.speedup_high / factor if measured.speedup_high else None,
        costs=tuple(tuple(cost + shift for cost in process) for process in measured.costs),
    )


def compiles_slower(measured: Measurements, factor: float) -> Measurements:
    seconds = tuple(max(factor * one, one + _MORE_S) for one in measured.compile_cpu_s)
    return replace(measured, compile_cpu_s=seconds)


class Planter:
    """Plants changes in the records of a run. Mutable."""

    def __init__(self, records: Sequence[Record], accepted: Sequence[str], chooser: random.Random) -> None:
        self.records = {record.case_id: record for record in records}
        self.planted: _Told = Counter()
        self._accepted = list(accepted)
        timed = [one.case_id for one in records if one.measurements.costs and one.measurements.compile_cpu_s]
        self._left = [case_id for case_id in timed if case_id not in accepted]
        chooser.shuffle(self._left)
        for case_id in accepted:
            self.records[case_id] = replace(self.records[case_id], verdict=_WRONG)

    def plant(self, kind: ProblemKind) -> None:
        """One change of a kind, in a case that has none yet."""
        case_id = (self._accepted if kind in (ProblemKind.XPASS, ProblemKind.CHANGED) else self._left).pop()
        record = self.records[case_id]
        measured = record.measurements
        match kind:
            case ProblemKind.NEW:
                record = replace(record, verdict=_WRONG)
            case ProblemKind.XPASS:
                record = replace(record, verdict=Verdict(status=Status.PASS))
            case ProblemKind.CHANGED:
                record = replace(record, verdict=replace(_WRONG, status=Status.FAIL_STRIDE))
            case ProblemKind.SLOWER:
                record = replace(record, measurements=slower(measured, _SLOWER))
            case ProblemKind.COMPILES_SLOWER:
                record = replace(record, measurements=compiles_slower(measured, _COMPILES_SLOWER))
            case _:
                raise ValueError(f"kind={kind}, but should be one that can be planted")
        self.records[case_id] = record
        self.planted[kind, case_id] += 1


def pairs(runs: Sequence[Sequence[Record]], environment: Mapping[str, object], count: int, seed: int) -> Iterator[Pair]:
    """Judge so many pairs. `runs` are the records of real runs."""
    chooser = random.Random(seed)
    usable = set.intersection(*({one.case_id for one in run if one.verdict.status is Status.PASS} for run in runs))
    ordered = sorted(usable)
    for number in range(1, count + 1):
        *past, base, head = chooser.sample(list(runs), 4)
        accepted = chooser.sample(ordered, _ACCEPTED)
        planter = Planter([one for one in head if one.case_id in usable], accepted, chooser)
        if number % 4:
            for kind, most in (
                (ProblemKind.NEW, 2), (ProblemKind.XPASS, 1), (ProblemKind.CHANGED, 1), (ProblemKind.SLOWER, 2),
                (ProblemKind.COMPILES_SLOWER, 2),
            ):  # fmt: skip
                for _ in range(chooser.randint(0, most)):
                    planter.plant(kind)
        old = [
            replace(one, verdict=_WRONG) if one.case_id in accepted else one for one in base if one.case_id in usable
        ]
        written = [*([one for one in run if one.case_id in usable] for run in past), old, [*planter.records.values()]]
        yield _judged(number, written, environment, accepted, planter.planted)


def _judged(
    number: int, runs: Sequence[Sequence[Record]], environment: Mapping[str, object], accepted: Sequence[str],
    planted: _Told,
) -> Pair:  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "pair.db", create=True) as store:
        for index, records in enumerate(runs):
            run_id = f"run-{index}"
            store.begin_planned(
                run_id=run_id,
                environment=environment,
                arguments={"suites": ["opinfo"], "options": {"speed": True}},
                cases=cases_of(records),
            )
            store.append(replace(record, run_id=run_id) for record in records)
            store.end_run(run_id, state="complete")
        base, head = store.run(f"run-{len(runs) - 2}"), store.run(f"run-{len(runs) - 1}")
        comparison = compare_runs(store, store, base_run=base, head_run=head, history=speed_history(store, base))
        today = date(2026, 1, 1)
        baseline = {
            case_id: AcceptedFailure(
                case_id=case_id,
                status=_WRONG.status,
                expires=today + timedelta(days=30),
                reason="planted",
                link="",
                line=1,
            )
            for case_id in accepted
        }
        report = gate(
            Cases.read(store, head, baseline), baseline, run=head, today=today, comparison=comparison,
            budgets=_BUDGETS,
        )  # fmt: skip
    told: _Told = Counter((problem.kind, problem.case_id) for problem in report.problems)
    return Pair(
        pair=number,
        cases=len(runs[-1]),
        timed=report.timed or 0,
        planted=_in_words(planted),
        told=_in_words(told),
        wrongly=(told - planted).total(),
        missed=(planted - told).total(),
        is_open=report.is_open,
    )


def _in_words(found: _Told) -> str:
    counts = Counter(kind.value for kind, _ in found.elements())
    return "; ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "nothing"


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--db", required=True, help="real runs")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with Store.open(options.db, create=False, read_only=True) as store:
        infos = [run for run in store.runs() if run.is_complete]
        runs = [list(store.records(run.run_id)) for run in infos]
    if len(runs) < 4:
        raise UsageError(
            seen=f"{len(runs)} complete runs in {options.db}", expected="four or more", do="run the sweep again"
        )
    shown(pairs(runs, infos[0].environment, options.pairs, options.seed), options.csv)


if __name__ == "__main__":
    main()
