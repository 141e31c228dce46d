"""A simulated fortnight of nightly runs, and each morning's report: `python -m benchmarks.measurements.nights [--csv FILE]`.

The runs are made up. Each night times every case in five processes; the noise of a process, of a night and of a case is drawn as
it was seen on machines like ours (1 to 4 % between processes, 1 % between nights). In night 9 three cases begin to fail and five
become 10 % slower; one case fails now and then without a reason; in night 12 the machine is another one, on which each case has a
speedup of its own. The rows say, night by night, what a comparison with the night before tells, and how much of it is planted;
and which cases `history` and the weekly report say are slower for good.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.measurements.frame import options_of, shown
from oracle.records import Measurements, PlannedCase, Record
from oracle.verdict import Status
from results.changes import ChangeKind
from results.compare import Comparison, compare_runs
from results.history import case_history, find_break, flaky_cases, speed_history
from results.lasting import LastingChange, lasting_changes, slower_since, worse_since
from results.store import RunInfo, Store
from results.tests.fabricate import case, record, write_run

_PROCESSES = 5
_WEEK = 7
_BAD_NIGHT, _OTHER_MACHINE = 9, 12
_BROKEN, _SLOWER, _FLAKY = range(3), range(10, 15), 20
_FLAKY_NIGHTS = frozenset({3, 6, 7, 11, 13})


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """What a comparison with the night before tells; `planted` counts are those that it should."""

    night: int
    new_failures: int
    new_failures_planted: int
    fixed: int
    slower: int
    slower_planted: int
    faster: int
    machine_named: bool
    flaky: int  # cases that the history calls flaky
    broke_named: int  # broken cases whose history names the bad night
    history_slower: int  # cases whose history has a lasting slowdown
    history_slower_planted: int  # of these, slowed ones of which it names the bad night
    triage_slower: int  # cases that the report of a week lists as slower
    triage_slower_planted: int  # of these, slowed ones of which it names the bad night


class Fortnight:
    """Draws the records of each night."""

    def __init__(self, cases: int, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self.cases = [case(f"op{number}/float32/forward/0") for number in range(cases)]
        self._log_speedup = self._random.normal(0.3, 0.3, cases)
        self._elsewhere = self._random.normal(0.0, 0.05, cases)  # the other machine's own speedups, as logarithms
        self._spread = self._random.uniform(0.01, 0.04, cases)

    def records(self, night: int) -> list[Record]:
        """All cases of one night."""
        return [self._record(number, planned, night) for number, planned in enumerate(self.cases)]

    def _record(self, number: int, planned: PlannedCase, night: int) -> Record:
        is_broken = number in _BROKEN and night >= _BAD_NIGHT
        if is_broken or (number == _FLAKY and night in _FLAKY_NIGHTS):
            return record(planned, Status.FAIL_ACCURACY)
        cost = -self._log_speedup[number] + self._random.normal(0, 0.01)
        cost += self._elsewhere[number] if night >= _OTHER_MACHINE else 0.0
        cost += math.log(1.10) if number in _SLOWER and night >= _BAD_NIGHT else 0.0
        costs = cost + self._random.normal(0, self._spread[number], _PROCESSES)
        made = record(planned, speedup=math.exp(-float(np.median(costs))))
        measured: Measurements = replace(made.measurements, costs=tuple((float(one),) for one in costs))
        return replace(made, measurements=measured)


def nights(fortnight: Fortnight, db: Path, count: int = 14) -> Iterator[Night]:
    """Write the runs one after another, and compare each with the one before."""
    with Store.open(db, create=True) as store:
        for night in range(1, count + 1):
            machine = "old machine" if night < _OTHER_MACHINE else "new machine"
            write_run(
                store,
                fortnight.records(night),
                run_id=f"night-{night:02}",
                environment={"torch": "2.13.0", "cpu_model": machine},
                arguments={"suite": ["made up"], "options": {"speed": True}},
            )
            if night > 1:
                yield _told(store, fortnight, night)


def _told(store: Store, fortnight: Fortnight, night: int) -> Night:
    base, head = store.run(f"night-{night - 1:02}"), store.run(f"night-{night:02}")
    comparison = compare_runs(store, store, base_run=base, head_run=head, history=speed_history(store, base))
    new = [change.case_id for change in comparison.of_kind(ChangeKind.NEW_FAILURE)]
    ids = [planned.case_id for planned in fortnight.cases]
    bad = {ids[number] for number in _BROKEN} if night == _BAD_NIGHT else set[str]()
    if night in _FLAKY_NIGHTS and night - 1 not in _FLAKY_NIGHTS:
        bad.add(ids[_FLAKY])
    slow = {ids[number] for number in _SLOWER} if night == _BAD_NIGHT else set[str]()
    broke = [find_break(case_history(store, ids[number])) for number in _BROKEN]
    return Night(
        night=night,
        new_failures=len(new),
        new_failures_planted=len(bad.intersection(new)),
        fixed=len(comparison.of_kind(ChangeKind.FIXED)),
        slower=len(comparison.slower),
        slower_planted=sum(one.case_id in slow for one in comparison.slower),
        faster=len(comparison.speed) - len(comparison.slower),
        machine_named=_names_machine(comparison),
        flaky=len(flaky_cases(store)),
        broke_named=sum(one is not None and f"night-{_BAD_NIGHT:02}" in str(one.to_json()) for one in broke),
        **_lasting(store, ids, head),
    )


def _lasting(store: Store, ids: list[str], head: RunInfo) -> dict[str, int]:
    """What histories say of lasting slowdowns, and the report of a week."""
    slower = {name: _slowdowns(lasting_changes(case_history(store, name))) for name in ids}
    bad = f"night-{_BAD_NIGHT:02}"
    right = {ids[number] for number in _SLOWER if [one.first_run.run_id for one in slower[ids[number]]] == [bad]}
    runs = store.runs()
    base = runs[max(0, len(runs) - 1 - _WEEK)]
    comparison = compare_runs(store, store, base_run=base, head_run=head, history=speed_history(store, base))
    since = worse_since(store, base, slower_since(store, base, head))
    dated = {name for name, changes in since.items() if _slowdowns(changes)}
    listed = set[str]() if comparison.speed_invalid else dated | {one.case_id for one in comparison.slower}
    return {
        "history_slower": sum(map(bool, slower.values())),
        "history_slower_planted": len(right),
        "triage_slower": len(listed),
        "triage_slower_planted": len(listed & right & dated),
    }


def _slowdowns(changes: Iterable[LastingChange]) -> list[LastingChange]:
    return [one for one in changes if one.what == "speed" and one.is_worse]


def _names_machine(comparison: Comparison) -> bool:
    return any(key == "cpu_model" for key, _, _ in comparison.environment)


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shown(nights(Fortnight(options.cases, options.seed), Path(folder) / "nights.db"), options.csv)


if __name__ == "__main__":
    main()
