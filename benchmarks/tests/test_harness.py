"""The harness: what is called in which order, what is made of times, and what is said of sides that fail. Nothing is timed."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks import harness
from benchmarks.__main__ import main
from benchmarks.harness import REGISTRY, Benchmark, Case, Figures, Row, measure
from oracle.errors import UsageError


class ClockState:
    """Two clocks that only work moves: the wall's goes twice as fast."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def __call__(self) -> tuple[float, float]:
        return self.now, 2 * self.now

    def side(self, name: str, *seconds: float, **figures: Any) -> Any:
        """Takes these seconds, one after the other, and the last for ever."""
        left = list(seconds)

        def work() -> Figures:
            self.calls.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]
            return Figures(figures)

        return work


@pytest.fixture
def clock() -> ClockState:
    return ClockState()


def two_sides(state: ClockState, **options: Any) -> Case:
    return Case("two", lambda: {"ours": state.side("a", 1.0), "theirs": state.side("b", 3.0)}, **options)


def test_sides_are_called_in_turn_and_the_order_is_reversed_from_round_to_round(clock: ClockState) -> None:
    row = measure("x", two_sides(clock), repeat=2, clocks=clock)
    assert "".join(clock.calls) == "baabba"  # the first pair is not counted
    assert {side: len(found) for side, found in row.samples.items()} == {"ours": 2, "theirs": 2}


def test_the_first_round_is_not_counted(clock: ClockState) -> None:
    row = measure("x", Case("one", lambda: {"ours": clock.side("a", 100.0, 1.0, 5.0, 2.0)}), repeat=3, clocks=clock)
    assert row.seconds("ours") == [2.0, 10.0, 4.0]
    assert row.medians() == {"ours": 4.0}


def test_a_ratio_is_the_peers_time_over_ours(clock: ClockState) -> None:
    row = measure("x", two_sides(clock), repeat=3, clocks=clock)
    (ratio,) = row.ratios().values()
    assert (ratio.speedup, ratio.speedup_low, ratio.speedup_high) == (3.0, 3.0, 3.0)
    assert measure("x", two_sides(clock, parts=("theirs",)), repeat=1, clocks=clock).ratios() == {}


def test_times_are_of_one_call_on_the_clock_of_the_case(clock: ClockState) -> None:
    row = measure("x", two_sides(clock, calls=4, clock="processor"), repeat=1, clocks=clock)
    assert clock.calls.count("a") == 8
    assert row.medians() == {"ours": 1.0, "theirs": 3.0}


def test_figures_are_columns_and_may_be_the_time(clock: ClockState) -> None:
    sides = {"ours": clock.side("a", 1.0, nodes=7, wall_s=0.5), "theirs": clock.side("b", 1.0, size=1.5, word="w")}
    case = Case("two", lambda: sides, derive=lambda found: {"twice": 2 * found["nodes"]})
    row = measure("x", case, repeat=2, clocks=clock)
    assert row.figures == {"nodes": 7, "size": 1.5, "word": "w", "twice": 14}
    assert row.medians() == {"ours": 0.5, "theirs": 2.0}


def test_a_side_that_raises_has_an_error_and_the_others_go_on(clock: ClockState) -> None:
    def broken() -> None:
        raise RuntimeError("no such\nthing")

    row = measure("x", Case("c", lambda: {"ours": broken, "theirs": clock.side("b", 1.0)}), repeat=2, clocks=clock)
    assert row.errors == {"ours": "RuntimeError: no such"}
    assert (list(row.samples), row.ratios()) == (["theirs"], {})
    no_set_up = measure("x", Case("c", lambda: {"ours": broken()}), repeat=2, clocks=clock)  # type: ignore[dict-item]
    assert no_set_up.errors == {"set-up": "RuntimeError: no such"}


def test_another_clock_may_time_all_sides_of_a_round(clock: ClockState) -> None:
    case = two_sides(clock, bench=lambda sides: [float(len(sides)), math.inf])
    row = measure("x", case, repeat=1, clocks=clock)
    assert row.medians() == {"ours": 2.0}
    assert row.errors == {"theirs": "could not be launched"}


def test_no_round_begins_when_there_is_enough(clock: ClockState) -> None:
    assert len(measure("x", two_sides(clock), repeat=9, enough_s=17.0, clocks=clock).samples["ours"]) == 2


def test_a_bound_is_of_our_side(clock: ClockState) -> None:
    assert measure("x", two_sides(clock, bound_s=1.9), repeat=1, clocks=clock).is_slow
    assert not measure("x", two_sides(clock, bound_s=2.1), repeat=1, clocks=clock).is_slow


def test_sides_that_a_row_lacks_are_added_to_it(clock: ClockState) -> None:
    first = measure("x", two_sides(clock), repeat=2, only=["theirs"], clocks=clock)
    assert (list(first.samples), first.ratios()) == (["theirs"], {})
    kept = Row.from_json(json.loads(json.dumps(first.to_json())))
    both = measure("x", two_sides(clock), repeat=1, only=["ours"], known=kept, clocks=clock)
    assert both.ratios()["theirs"].speedup == 3.0
    with pytest.raises(UsageError, match="no side others"):
        measure("x", two_sides(clock), repeat=1, only=["others"], clocks=clock)


# ---------------------------------------------------------------------------------------------------------- command line


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch, clock: ClockState) -> dict[str, Benchmark]:
    """Benchmarks for a test, which take the place of the real ones."""

    def quick(words: int = 2, loud: bool = False):
        """Two words."""
        for name in ("one", "two")[:words]:
            yield dataclasses.replace(two_sides(clock), name=name + "!" * loud)

    def needy():
        """Needs what is not there."""
        raise UsageError(seen="no device", expected="one", do="buy one")
        yield

    def slow():
        """Has a bound."""
        yield two_sides(clock, bound_s=0.0)

    monkeypatch.setattr("benchmarks.__main__.load", lambda: {"absent": "No module named 'absent'"})
    monkeypatch.setattr("benchmarks.__main__.measure", partial(measure, clocks=clock))
    for name in list(REGISTRY):
        monkeypatch.delitem(REGISTRY, name)
    for function in (quick, needy, slow):
        monkeypatch.setitem(REGISTRY, function.__name__, Benchmark(function, 3, "each"))
    return REGISTRY


@pytest.mark.usefixtures("benchmarks")
def test_a_table_and_a_file_with_the_machine_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, table = tmp_path / "out.json", tmp_path / "out.csv"
    assert main(["quick", "--json", str(file), "--csv", str(table)]) == 0
    assert logging.root.manager.disable == logging.NOTSET, "who calls main keeps the settings of the process"
    written = json.loads(file.read_text())
    assert written["machine"]["versions"]["torch"]
    assert [row["case"] for row in written["rows"]] == ["one", "two"]
    assert written["rows"][0]["sides"]["ours"] == {"median_s": 2.0, "quartiles_s": [2.0, 2.0], "rounds": 3}
    assert written["rows"][0]["ratios"]["theirs"]["ratio"] == 3.0
    assert table.read_text().splitlines()[1] == "quick,one,2.0,6.0,3.0,"
    printed = capsys.readouterr().out
    assert "3.00 [3.00, 3.00]" in printed
    assert "theirs/ours: 3.00 geometric mean of 2" in printed


@pytest.mark.usefixtures("benchmarks")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["quik"], "no benchmark quik\n  expected: some of quick, needy, slow\n  absent was left out: No module named"),
        (["quick", "--set", "words=many"], "expected: int for words"),
        (["quick", "--set", "world=1"], "expected: NAME=VALUE with a name of loud, words"),
        (["quick", "--sides", "mine"], "no side mine in quick, one\n  expected: some of ours, theirs"),
        (["quick", "--only", "three"], "no case with 'three' in its name"),
        (["needy"], "no device\n  expected: one\n  what to do: buy one"),
    ],
)
def test_bad_names_are_errors(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--repeat", "0"], ["--resume"]])
def test_options_that_mean_nothing_are_errors(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2


@pytest.mark.usefixtures("benchmarks")
def test_without_names_all_run_and_what_cannot_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--set", "words=1", "--set", "loud=true"]) == 1  # one is too slow
    printed = capsys.readouterr().out
    assert "one!" in printed
    assert "left out: no device" in printed
    assert "TOO SLOW" in printed


@pytest.mark.usefixtures("benchmarks")
def test_the_list_has_what_can_be_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert "Two words.  [words=2 loud=False]" in capsys.readouterr().out


@pytest.mark.usefixtures("benchmarks")
def test_a_run_goes_on_behind_the_case_at_which_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ClockState, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["quick", "--json", str(tmp_path / "out.json"), "--resume"]
    with monkeypatch.context() as patched:
        patched.setattr("benchmarks.__main__.measure", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            main(command)
    assert main([*command, "--time", "-1"]) == 0
    assert "1 cases were not begun" in capsys.readouterr().out
    assert main([*command, "--sides", "ours"]) == 0
    before = len(clock.calls)
    assert main([*command, "--sides", "ours"]) == 0
    assert len(clock.calls) == before
    one, two = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert (one["errors"], list(one["samples"])) == ({"all": "did not end"}, [])
    assert (two["errors"], list(two["samples"])) == ({}, ["ours"])


@pytest.mark.usefixtures("benchmarks")
def test_a_lost_gpu_ends_the_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("benchmarks.__main__.is_lost", lambda: True)
    assert main(["quick"]) == 3
    assert "--resume goes on" in capsys.readouterr().err


def test_every_benchmark_can_be_imported_and_says_what_it_measures() -> None:
    assert harness.load() == {}
    assert len(REGISTRY) >= 18
    for benchmark in REGISTRY.values():
        assert (
            (benchmark.function.__doc__ or "").splitlines()[0].endswith((".", ":", "per node, should stay the same."))
        )
