"""Change points of made-up histories, and what is written for Apache Otava."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from results.speed.change_points import change_points, histories
from results.speed.otava import HistoryPoint, write_otava
from results.speed.samples import Run


def noisy(*levels: tuple[int, float], noise: float = 0.01, seed: int = 0) -> list[float]:
    """Costs of runs: so many at each level, with noise."""
    rng = np.random.default_rng(seed)
    return [float(level + rng.normal(0.0, noise)) for count, level in levels for _ in range(count)]


@pytest.mark.parametrize("runs", [6, 12, 30])
def test_steady_histories_have_hardly_any_change_points(runs: int):
    found = [bool(change_points(noisy((runs, 0.0), noise=0.02, seed=seed))) for seed in range(100)]
    assert sum(found) <= 3


@pytest.mark.parametrize("runs", [4, 10])
def test_a_tenth_slower_is_found_at_its_run(runs: int):
    found = [change_points(noisy((runs, 0.0), (runs, math.log(1.1)), noise=0.015, seed=seed)) for seed in range(50)]
    right = [points for points in found if len(points) == 1 and abs(points[0].index - runs) <= 1]
    assert len(right) >= 47
    (point,) = right[0]
    assert point.effect == pytest.approx(1.1, rel=0.03)
    assert point.is_worse


def test_two_changes_are_two_points_and_small_ones_and_one_odd_run_are_none():
    there_and_back = change_points(noisy((8, 0.0), (8, 0.2), (8, 0.0)))
    assert [(point.index, point.is_worse) for point in there_and_back] == [(8, True), (16, False)]
    assert change_points(noisy((20, 0.0), (20, 0.02), noise=0.001)) == ()  # 2 %: real, and not worth a line
    assert change_points(noisy((8, 0.0), (1, 0.5), (8, 0.0))) == ()
    assert change_points([0.0, 0.0, 1.0, 1.0]) == ()  # too short to know the noise


def test_a_case_with_a_short_history_borrows_its_noise_and_gaps_are_kept_apart():
    cases: dict[str, Sequence[Run]] = {
        f"case-{i}": [((cost,),) for cost in noisy((12, 0.0), noise=0.015, seed=i)] for i in range(20)
    }
    first, *others = [((cost,),) for cost in noisy((3, 0.0), (3, 0.2), noise=0.015, seed=99)]
    cases["changed"] = [first, (), *others]
    cases["never measured"] = [(), ()]
    found = histories(cases)
    assert [name for name, history in found.items() if history.points] == ["changed"]
    changed = found["changed"]
    assert (changed.runs, changed.points[0].index) == ((0, 2, 3, 4, 5, 6), 3)
    assert changed.noise == pytest.approx(0.015, rel=0.7)
    assert found["never measured"].costs == ()


def test_otava_gets_one_file_for_each_test_and_a_configuration_that_names_them(tmp_path: Path):
    points = [
        HistoryPoint(time=f"2026-01-0{day}T00:00:00+00:00", run=f"r{day}", commit='c, "1"', value=value)
        for day, value in ((2, 1.5), (1, 1.25), (3, math.nan))
    ]
    name = "opinfo/add/float32@inductor[mode=x] speed"
    paths = write_otava({name: points, "other": points, "empty": []}, tmp_path / "new")
    configuration = json.loads((tmp_path / "new" / "otava.yaml").read_text())
    assert list(configuration["tests"]) == [name, "other"]
    assert len(set(paths)) == 3
    test = configuration["tests"][name]
    with open(test["file"], newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["run"], row["value"], row["commit"]) for row in rows] == [
        ("r1", "1.25", 'c, "1"'),
        ("r2", "1.5", 'c, "1"'),
    ]
    assert test["metrics"]["value"]["direction"] == -1
    assert set(test["attributes"]) | {test["time_column"]} <= set(rows[0])
