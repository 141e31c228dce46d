"""Simulates how many processes verdicts on speed need: `python -m benchmarks.measurements.speed_processes [--repeats N]`.

Nothing is timed here. Noise is drawn from the costs in results/data/cpu-torch-2.13.0/speed-noise.csv, which
`benchmarks.measurements.speed_verdicts` measured in six runs of unchanged programs on a busy machine: each simulated process of a
program is one of its measured ones, relative to the mean of its run, and each simulated run is moved as a whole by as much as the
measured runs differ beyond their processes. Then `results.speed` judges two such runs, with others as history. At 0 % nothing
changed, else a fifth of the programs is slower in head, by exactly 5 or 10 %.

Columns: processes of each case, or the fewest and most of --speed-precision and its percent; earlier runs; mean number of
processes that were used; percent of false verdicts, of slower cases found, and of unchanged cases that remain undecided.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.measurements.frame import options_of, shown
from oracle.costs import Precision, Run, centre_of, duration_class, imprecise
from results.speed import SpeedCase, Word, judge_speed

NOISE: Final = Path(__file__).parents[2] / "results" / "data" / "cpu-torch-2.13.0" / "speed-noise.csv"
PLANS: Final = (
    *((count, count, None) for count in (3, 5, 8, 12, 20)),
    *((5, most, percent) for most, percent in ((20, 2.4), (20, 1.6), (30, 1.6))),
)
HISTORY: Final = (6, 0)  # earlier runs
SLOWER: Final = (5, 10)  # percent
_COPIES: Final = 4  # of each program
_PART: Final = 5  # one case of so many is slower


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """How the cost of one program varies."""

    noise_class: str
    residuals: np.ndarray  # of processes, from the mean of their run
    run_variance: float  # of runs, beyond what their processes make expected; may be below 0 by chance


def measured_noise(path: Path = NOISE) -> dict[str, Noise]:
    """The noise of each program in the table."""
    seconds: dict[str, float] = {}
    runs: dict[str, dict[str, list[tuple[float, ...]]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            seconds[row["program"]] = float(row["seconds"])
            of_run = runs.setdefault(row["program"], {}).setdefault(row["run"], [])
            of_run.append(tuple(map(float, row["costs"].split())))
    return {name: _noise(list(of.values()), duration_class(seconds[name])) for name, of in runs.items()}


def _noise(runs: Sequence[Run], noise_class: str) -> Noise:
    centre = centre_of(runs, noise_class)
    costs = [np.array([centre(process) for process in run]) for run in runs]
    within = float(np.mean([run.var(ddof=1) / run.size for run in costs]))
    between = float(np.var([run.mean() for run in costs], ddof=1))
    residuals = [(run - run.mean()) * math.sqrt(run.size / (run.size - 1)) for run in costs]
    return Noise(noise_class=noise_class, residuals=np.concatenate(residuals), run_variance=between - within)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """In how many processes each case is timed."""

    fewest: int
    precision: Precision | None

    def measured(self, noise: Mapping[str, Noise], run_noise: float, rng: np.random.Generator) -> dict[str, Run]:
        """One simulated run of all cases."""
        most = self.precision.most if self.precision else self.fewest
        shift = {name: rng.normal(0.0, run_noise) for name in noise}
        drawn = {name: (shift[name] + rng.choice(one.residuals, most)).tolist() for name, one in noise.items()}
        counts = dict.fromkeys(noise, self.fewest)
        going_on = set(noise) if self.precision else set()
        while going_on and self.precision:
            runs = {name: tuple((cost,) for cost in drawn[name][: counts[name]]) for name in noise}
            going_on &= imprecise(runs, dict.fromkeys(noise, ""), self.precision)
            for name in going_on:
                counts[name] += 1
        return {name: tuple((cost,) for cost in drawn[name][: counts[name]]) for name in noise}


@dataclass(slots=True)
class CountsState:
    """Sums over simulated comparisons."""

    processes: int = 0
    timed: int = 0
    cases: int = 0
    false: int = 0
    undecided: int = 0
    found: dict[int, list[bool]] = field(default_factory=lambda: {percent: [] for percent in SLOWER})

    def add(self, noise: Mapping[str, Noise], runs: Sequence[Mapping[str, Run]]) -> None:
        """Judge the last two of these runs: as they are, and with a part of the cases slower."""
        self.processes += sum(len(run) for of_run in runs for run in of_run.values())
        self.timed += len(runs) * len(noise)
        slower = set(list(noise)[::_PART])
        for percent in (0, *SLOWER):
            words = judge_speed(_cases(noise, runs, slower, math.log1p(percent / 100))).verdicts.words
            if percent:
                self.found[percent] += [words[name] is Word.WORSE for name in slower]
            else:
                self.cases += len(words)
                self.false += sum(word.is_change for word in words.values())
                self.undecided += sum(word is Word.NOT_ENOUGH_DATA for word in words.values())

    def row(self) -> dict[str, Any]:
        return {
            "mean_processes": round(self.processes / self.timed, 1),
            "cases": self.cases,
            "false_percent": round(100 * self.false / self.cases, 2),
            **{f"found_{percent}_percent": round(100 * statistics.fmean(self.found[percent]), 1) for percent in SLOWER},
            "undecided_percent": round(100 * self.undecided / self.cases, 1),
        }


def _cases(
    noise: Mapping[str, Noise], runs: Sequence[Mapping[str, Run]], slower: set[str], by: float
) -> dict[str, SpeedCase]:
    *history, base, head = runs
    return {
        name: SpeedCase(
            base=base[name],
            head=tuple((cost + by * (name in slower),) for (cost,) in head[name]),
            history=tuple(run[name] for run in history),
            noise_class=one.noise_class,
        )
        for name, one in noise.items()
    }


def rows(noise: Mapping[str, Noise], *, repeats: int) -> Iterator[dict[str, Any]]:
    """One row for each plan, with and without history."""
    run_noise = math.sqrt(max(0.0, statistics.fmean(one.run_variance for one in noise.values())))
    copies = {f"{name} {copy}": one for name, one in noise.items() for copy in range(_COPIES)}
    for earlier in HISTORY:
        for fewest, most, percent in PLANS:
            precision = Precision(half_width=math.log1p(percent / 100), most=most) if percent else None
            plan = Plan(fewest=fewest, precision=precision)
            rng, counts = np.random.default_rng(0), CountsState()
            for _ in range(repeats):
                counts.add(copies, [plan.measured(copies, run_noise, rng) for _ in range(earlier + 2)])
            what = {"fewest": fewest, "most": most, "precision_percent": percent, "history": earlier}
            yield {**what, **counts.row()}


def main() -> None:
    """Simulate all plans, and write the table."""
    parser = options_of(__doc__)
    parser.add_argument("--repeats", type=int, default=12, help="simulated comparisons of each plan")
    asked = parser.parse_args()
    shown(rows(measured_noise(), repeats=asked.repeats), asked.csv)


if __name__ == "__main__":
    main()
