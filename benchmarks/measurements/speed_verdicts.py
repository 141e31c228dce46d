"""Drills the verdicts on speed: runs of the same code, and cases that were made slower by a known share.

    python -m benchmarks.measurements.speed_verdicts --db FILE [--runs 8] [--processes 4] [--part 2] [--csv FILE]

Each run measures the same programs, operators and models, as `sweep --speed` does, on a compiler of which nothing changed
(`benchmarks.slowed`, 0 %); every `--slowed-every`th run also on one that is 5 % and on one that is 10 % slower. Runs are kept in
--db, and further calls add to them; `--runs 0` only makes the table. A run that was stopped counts with the cases that it has.
`--part 2` takes the second of each N programs, and so others than `--part 1`. With `--with FILE` the first run of another
database counts as a part of the first run of this one, and so on: two parts that were measured side by side are one drill.

Then each two runs are compared. `slower_percent` 0: two runs of the same code, so every "better" or "worse" is false. Otherwise a
fifth of the cases is slower in head, in turn; found ones count, and so do false verdicts on the others. The table has a line for
each kind of program, each number of processes of which verdicts are made, and with or without history: the other runs, at most
HISTORY. `old` is the rule that `torch-oracle compare` had before: two disjoint bootstrap intervals over the pairs of one process.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measurements.frame import options_of, shown
from oracle.errors import UsageError
from oracle.isolate import Pool
from oracle.records import Measurements, PlannedCase, Record
from oracle.subjects.registry import resolve
from oracle.sweep import Limits, execute
from oracle.verdict import Status
from results.speed import Word
from results.speed.of_records import judge_measurements
from results.speed.past import PastRun
from results.statistics import Estimate, is_real_speed_change
from results.store import Store
from suites.base import Selection
from suites.execution import PRELOAD
from suites.planning import Shard, make_plan
from suites.registry import modules_of

Measured = Mapping[str, Measurements]
SUITES = ("opinfo", "models")
SLOWED = (5, 10)  # percent
HISTORY = 6
PARTS = 5  # of the cases, of which one is slowed in a comparison
_FEWEST_FOR_HISTORY = 4  # runs, so that the others show a change
_BUDGET_S = 0.15  # of each process and case
_COMPILER = ("torch._dynamo", "torch._functorch.aot_autograd")


def subject_of(backend: str, percent: int) -> str:
    return f"compile:benchmarks.slowed:slowed[backend={backend},percent={percent}]"


# ------------------------------------------------------------------------------------------------------------- measuring


def planned(shards: Mapping[str, int], part: int) -> list[PlannedCase]:
    """Forward programs in float32, one of each group: of each suite, one of so many, from the `part`th on."""
    selection = Selection(dtypes=("float32",), directions=("forward",), max_samples=1)
    with Pool(workers=1, preload=PRELOAD) as pool:
        plans = [
            make_plan(suite, selection, subjects=["-"], pool=pool, shard=Shard(index=part, count=count))
            for suite, count in shards.items()
        ]
    return [case for plan in plans for case in plan.cases]


def measure(
    store: Store, run_id: str, programs: Sequence[PlannedCase], subjects: Sequence[str], processes: int
) -> None:
    """One run, as the command `sweep --speed --workers 1` measures it."""
    cases = [
        replace(case, subject=name, case_id=f"{case.suite}/{case.name}@{name}")
        for case in programs
        for name in subjects
    ]
    before = os.getloadavg()[0]
    store.begin_run(run_id=run_id, environment={"load": [before]}, arguments={"processes": processes})
    store.plan(run_id, cases)
    store.finish_planning(run_id)
    with ExitStack() as stack:
        cache = stack.enter_context(tempfile.TemporaryDirectory(prefix="speed-verdicts-"))
        environment = {"TORCHINDUCTOR_CACHE_DIR": cache, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        pool = stack.enter_context(
            Pool(workers=1, preload=(*PRELOAD, *_COMPILER, *modules_of(SUITES)), environment=environment)
        )
        execute(
            cases,
            subjects={name: resolve(name) for name in subjects},
            sink=store,
            run_id=run_id,
            pool=pool,
            limits=Limits(),
            options={"speed": True, "speed_budget_s": _BUDGET_S * processes, "speed_processes": processes},
            speed_cache=cache,
        )
    store.end_run(run_id, state="complete")
    sys.stderr.write(f"{run_id}: load {before:.1f} before, {os.getloadavg()[0]:.1f} after\n")


# ------------------------------------------------------------------------------------------------------------- comparing


def measured(records: Sequence[Record], subject: str) -> dict[str, Measurements]:
    """The measurements of one subject's passing cases, by program."""
    return {
        f"{record.suite}/{record.name}": record.measurements
        for record in records
        if record.subject == subject and record.verdict.status is Status.PASS and record.measurements.costs
    }


def of_processes(run: Measured, count: int) -> dict[str, Measurements]:
    """The run as if the last `count` processes had measured it."""
    return {
        name: replace(
            one,
            costs=one.costs[-count:],
            compile_cpu_s=one.compile_cpu_s[:count],
            peak_memories=one.peak_memories[-count:],
        )
        for name, one in run.items()
    }


def old_rule(base: Measurements, head: Measurements) -> bool:
    """Whether the intervals over the blocks of one process are disjoint, and the speedups 3 % apart."""
    return is_real_speed_change(*(_estimate(run.costs[0]) for run in (base, head)))


def _estimate(costs: Sequence[float]) -> Estimate:
    rng = np.random.default_rng(0)
    medians = np.median(rng.choice(np.array(costs), size=(1000, len(costs))), axis=1)
    low, middle, high = np.exp([*np.quantile(medians, [0.025]), np.median(costs), *np.quantile(medians, [0.975])])
    return Estimate(value=float(middle), low=float(low), high=float(high))


class CountsState:
    """Sums over comparisons."""

    def __init__(self) -> None:
        self.cases = self.false = self.undecided = self.slowed = self.found = self.old_false = self.old_found = 0
        self.others = self.others_false = 0  # verdicts on peak memory and counts
        self.compile_cases = self.compile_false = 0

    def add(self, base: Measured, head: Measured, slow: Measured, history: Sequence[Measured]) -> None:
        """Compare two runs; the cases of `slow` take the place of head's."""
        names = [name for name in base if name in head]
        given = {name: slow.get(name, head[name]) for name in names}
        judgements = judge_measurements(
            {name: base[name] for name in names}, given, [PastRun.of(run) for run in history]
        )
        for name, verdict in judgements.quantities["speed"].verdicts.items():
            is_old = old_rule(base[name], given[name])
            self.undecided += verdict.word is Word.NOT_ENOUGH_DATA
            if name in slow:
                self.slowed += 1
                self.found += verdict.word is Word.WORSE
                self.old_found += is_old
            else:
                self.cases += 1
                self.false += verdict.word.is_change
                self.old_false += is_old
        for name, verdict in judgements.quantities["compile time"].verdicts.items():
            if name not in slow:
                self.compile_cases += 1
                self.compile_false += verdict.word.is_change
        for verdicts in (judgements.quantities["peak memory"].verdicts, *judgements.counts.values()):
            self.others += sum(name not in slow for name in verdicts)
            self.others_false += sum(verdict.word.is_change for name, verdict in verdicts.items() if name not in slow)

    def row(self, **what: Any) -> dict[str, Any]:
        judged = self.cases + self.slowed
        return {
            **what, "untouched": self.cases, "false": self.false, "false_percent": _percent(self.false, self.cases),
            "old_false_percent": _percent(self.old_false, self.cases),
            "slowed": self.slowed, "found": self.found, "found_percent": _percent(self.found, self.slowed),
            "old_found_percent": _percent(self.old_found, self.slowed),
            "undecided_percent": _percent(self.undecided, judged),
            "compile_untouched": self.compile_cases, "compile_false": self.compile_false,
            "others_untouched": self.others, "others_false": self.others_false,
        }  # fmt: skip


def _percent(part: int, whole: int) -> float | None:
    return round(100 * part / whole, 2) if whole else None


def runs_of(stores: Sequence[Store]) -> list[list[Record]]:
    """The records of the first run of each database, those of the second, and so on, while each has one."""
    each = [[list(store.records(info.run_id)) for info in store.runs() if info.recorded] for store in stores]
    return [list(itertools.chain.from_iterable(together)) for together in zip(*each, strict=False)]


def rows(runs: Sequence[Sequence[Record]], backend: str) -> Iterator[Mapping[str, Any]]:
    """The table: kinds of programs, numbers of processes, with and without history, A/A and both slowdowns."""
    plain = [measured(records, subject_of(backend, 0)) for records in runs]
    slow = {percent: [measured(records, subject_of(backend, percent)) for records in runs] for percent in SLOWED}
    most = max((len(one.costs) for run in plain for one in run.values()), default=0)
    for kind, count, with_history in itertools.product((*SUITES, ""), range(1, most + 1), (True, False)):
        if with_history and len(runs) < _FEWEST_FOR_HISTORY:
            continue
        chosen = [_of_kind(of_processes(run, count), kind) for run in plain]
        what = {"programs": kind or "all", "processes": count, "history": with_history}
        for percent in (0, *SLOWED):
            counts = CountsState()
            for base, head in itertools.permutations(range(len(runs)), 2):
                others = [run for number, run in enumerate(chosen) if number not in (base, head)]
                history = others[-HISTORY:] if with_history else []
                if percent == 0:
                    if base < head:
                        counts.add(chosen[base], chosen[head], {}, history)
                    continue
                slowed = _of_kind(of_processes(slow[percent][head], count), kind)
                for part in range(PARTS) if slowed else ():
                    names = list(slowed)[part::PARTS]
                    counts.add(chosen[base], chosen[head], {name: slowed[name] for name in names}, history)
            yield counts.row(**what, slower_percent=percent)


def _of_kind(run: Measured, kind: str) -> dict[str, Measurements]:
    return {name: one for name, one in run.items() if name.startswith(kind)}


def realised(runs: Sequence[Sequence[Record]], backend: str) -> Iterator[str]:
    """How much slower the slowed cases were than the others of their run. This checks the drill itself."""
    for percent in SLOWED:
        shifts = []
        for records in runs:
            plain, slow = (measured(records, subject_of(backend, p)) for p in (0, percent))
            shifts += [_centre(slow[name]) - _centre(plain[name]) for name in slow if name in plain]
        if shifts:
            low, middle, high = 100 * (np.exp(np.quantile(shifts, [0.1, 0.5, 0.9])) - 1)
            yield f"{percent} % slower: measured {middle:.1f} % in the median case, {low:.1f} to {high:.1f} % in eight of ten"


def _centre(one: Measurements) -> float:
    return float(np.mean([np.median(costs) for costs in one.costs]))


def main() -> None:
    """Measure the runs that --db lacks, and write the table."""
    parser = options_of(__doc__)
    parser.add_argument("--db", type=Path, required=True, help="SQLite file of the runs")
    parser.add_argument("--runs", type=int, default=8, help="runs that --db is to have")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--backend", default="aot_eager", help="of torch.compile")
    parser.add_argument("--slowed-every", type=int, default=3, metavar="N")
    parser.add_argument("--part", type=int, default=1, metavar="K", help="from the Kth of each N programs on")
    parser.add_argument("--with", dest="others", type=Path, action="append", default=[], help="runs of another part")
    parser.add_argument("--operators", type=int, default=24, metavar="N", help="one of N operators")
    parser.add_argument("--models", type=int, default=9, metavar="N", help="one of N models")
    asked = parser.parse_args()
    with ExitStack() as stack:
        store = stack.enter_context(Store.open(asked.db, create=True))
        done = len(store.runs())
        if done < asked.runs:
            programs = planned(dict(zip(SUITES, (asked.operators, asked.models), strict=True)), asked.part)
            for number in range(done, asked.runs):
                percents = (0, *SLOWED) if number % asked.slowed_every == asked.slowed_every - 1 else (0,)
                names = [subject_of(asked.backend, percent) for percent in percents]
                measure(store, f"run-{number + 1}", programs, names, asked.processes)
        others = [stack.enter_context(Store.open(path, create=False, read_only=True)) for path in asked.others]
        runs = runs_of([store, *others])
        if len(runs) < 2:
            raise UsageError(seen=f"{asked.db} with records of fewer than two runs", expected="two", do="raise --runs")
        shown(rows(runs, asked.backend), asked.csv)
        sys.stdout.write("".join(f"{line}\n" for line in realised(runs, asked.backend)))


if __name__ == "__main__":
    main()
