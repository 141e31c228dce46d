"""A case is timed in several processes, and their measurements become one result."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oracle.again import FORKS, measured_again, together
from oracle.costs import Precision, imprecise
from oracle.isolate import Completed, Pool, Task, TaskResult
from oracle.measure import paired_blocks
from oracle.program import Program
from oracle.records import Measurements, PlannedCase
from oracle.speed import of_forks
from oracle.subjects import generated_code
from oracle.subjects.generated_code import GeneratedCode, normalised
from oracle.subjects.registry import resolve


def spin(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_costs_are_logarithms_of_the_ratio_of_times():
    pairs = paired_blocks(lambda: spin(1e-4), lambda: spin(2e-4), budget_s=0.2, is_alone=True)
    assert len(pairs.costs) == len(pairs.eager_wall_s) == len(pairs.subject_wall_s) >= 3
    assert statistics.median(pairs.costs) == pytest.approx(math.log(2), abs=0.2)
    assert len(pairs.compact(most=4)) == 4
    assert len(paired_blocks(lambda: None, lambda: None, budget_s=0.0, least_pairs=3).compact()) == 3


@pytest.mark.parametrize(("budget_s", "pairs"), [(10.0, 1000), (1.0, 200), (0.1, 100), (0.05, 60), (0.001, 3)])
def test_long_calls_are_timed_for_longer_until_there_are_enough_pairs(
    monkeypatch: pytest.MonkeyPatch, budget_s: float, pairs: int
):
    """On a clock on which a pair takes 5 ms: 1000 pairs at most, 3 at least, and 100 are enough."""
    now = 0.0

    def tick() -> float:
        nonlocal now
        now += 1e-3  # each pair looks five times, once of these for the budget
        return now

    clock = SimpleNamespace(perf_counter=tick, process_time=lambda: now)
    monkeypatch.setattr("oracle.measure.time", clock)
    found = paired_blocks(lambda: None, lambda: None, budget_s=budget_s, is_alone=True)
    assert len(found.costs) == pytest.approx(pairs, rel=0.05)


def test_a_call_that_waits_is_slow_although_it_needs_no_processor_time():
    pairs = paired_blocks(lambda: spin(1e-3), lambda: time.sleep(4e-3), budget_s=0.1, is_alone=True)
    assert statistics.median(pairs.costs) > math.log(2)


JUDGED = Measurements(
    eager_s=2.0, subject_s=1.0, speedup=2.0, speedup_low=1.9, speedup_high=2.1, repeats=10, compile_cold_s=7.0,
    costs=((-0.69, -0.70),), peak_memories=(999,), code="ab",
)  # fmt: skip
AGAIN = Measurements(
    eager_s=2.0, subject_s=1.25, repeats=5, costs=((-0.47,),), compile_cpu_s=(3.0,), peak_memories=(10,), code="ab"
)


def test_processes_become_one_result_whose_interval_covers_how_they_differ():
    found = together(JUDGED, [AGAIN, replace(AGAIN, subject_s=1.0, compile_cpu_s=())])
    assert found.speedup == pytest.approx((2.0 * 1.6) ** (1 / 2))
    assert found.speedup_low is not None
    assert found.speedup_high is not None
    assert found.speedup_low < 1.6 < 2.0 < found.speedup_high
    assert (found.eager_s, found.subject_s, found.repeats) == (2.0, 1.125, 10)
    assert found.costs == ((-0.47,), (-0.47,))
    assert (found.compile_cpu_s, found.peak_memories, found.compile_cold_s) == ((3.0,), (10, 10), 7.0)
    assert found.code == "ab"
    assert together(JUDGED, [replace(AGAIN, code="cd")]).code is None  # a compiler that is not deterministic
    assert together(JUDGED, []) == JUDGED


def test_measurements_come_back_from_json_as_they_were():
    plain: dict[str, Any] = {
        key: [*map(list, value)] if key == "costs" else value for key, value in asdict(JUDGED).items()
    }
    assert Measurements(**plain) == JUDGED


CODE = """# AOT ID: ['0_inference']
from torch._inductor import x  # kept
kernel = compile('''
#include "/tmp/cache-1/pi/cpi5ac2ngmhxmrvsaxxbvvhzbhdmlemcmqhvbdjzjzchxqtxzkvn.h"
// a comment
float a = 1;
''')
"""


def test_the_digest_of_code_knows_nothing_of_comments_paths_and_names_of_files(tmp_path: Path):
    other = (
        CODE.replace("0_inference", "7_inference").replace("/tmp/cache-1/", "/var/x/cache-2/").replace("cpi5", "cpi6")
    )
    assert normalised(CODE) == normalised(other)
    assert normalised(CODE) != normalised(CODE.replace("a = 1", "a = 2"))
    file = tmp_path / "code.py"
    file.write_text(CODE)
    assert GeneratedCode([str(file)]).digest() == GeneratedCode([str(file)]).digest() is not None
    assert GeneratedCode([]).digest() is None
    assert GeneratedCode([str(tmp_path / "gone.py")]).digest() is None


def test_files_of_code_are_noted_while_watched_and_the_cache_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch):
    class Cache:
        @classmethod
        def load_by_key_path(cls, key: str, path: str, linemap: Any = None) -> str:
            return f"{cls.__name__} loads {path}"

    monkeypatch.setitem(generated_code.sys.modules, generated_code._MODULE, type("m", (), {"PyCodeCache": Cache}))
    with generated_code.watched_code() as code:
        assert Cache.load_by_key_path("k", "a.py", linemap=[]) == "Cache loads a.py"
    Cache.load_by_key_path("k", "b.py")
    assert code.paths == ["a.py"]


SOURCE = """import torch

def program(x):
    return torch.sin(x)

def inputs(generator):
    return (torch.ones(8),), {}
"""


def test_further_processes_time_the_case_and_one_that_dies_takes_nothing_away():
    program = Program(name="p", source=SOURCE)
    case = PlannedCase(case_id="s/p@eager", suite="s", group="g", name="p", subject="eager", program=program.to_json())
    task = Task(
        key=case.case_id,
        function="oracle.case:run_case",
        payload={
            "case": case.to_json(),
            "subject": resolve("eager").to_json(),
            "options": {"speed": True, "speed_budget_s": 0.06, "speed_processes": 3},
        },
        group="g",
        timeout_s=60,
        memory_bytes=2**31,
    )
    with Pool(workers=1, preload=("torch", "oracle.case")) as pool:
        judged = list(pool.run([task]))
        broken = replace(judged[0], task=replace(task, payload={**task.payload, "subject": {"name": "?"}}))
        (good,) = measured_again(judged, pool, 2, cache=None, deadline=None)
        (alone,) = measured_again([broken], pool, 1, cache=None, deadline=None)
    assert isinstance(judged[0].end, Completed), judged
    assert [len(_measurements(result).costs) for result in (judged[0], good, alone)] == [1, 2, 1]
    assert [len(costs) for costs in _measurements(good).costs] == [FORKS, FORKS], (
        "a short call is timed in several forks"
    )
    assert _measurements(good).speedup == pytest.approx(1.0, abs=0.5)


def _measurements(result: TaskResult) -> Measurements:
    assert isinstance(result.end, Completed)
    value: Any = result.end.value
    return Measurements(**value["measurements"])


def result_of(key: str, measured: Measurements) -> TaskResult:
    task = Task(key=key, function="-", payload={}, group="g", timeout_s=1, memory_bytes=1)
    value = {"verdict": {"status": "pass"}, "measurements": asdict(measured)}
    return TaskResult(task=task, end=Completed(value=value, wall_s=0.0), worker_pid=0, tasks_before=0)


class MadeUpPool:
    """Measures cases whose cost varies by as much as their name says, with another one in each process."""

    def __init__(self, *, dies: str = "") -> None:
        self.rounds: list[list[str]] = []
        self._dies = dies

    def run(self, tasks: Sequence[Task]) -> Iterator[TaskResult]:
        self.rounds.append([task.key for task in tasks])
        sign = 1 if len(self.rounds) % 2 else -1
        for task in tasks:
            if task.key != self._dies:
                yield result_of(task.key, replace(AGAIN, costs=((sign * float(task.key),),)))


def test_cases_that_vary_are_timed_in_more_processes_and_steady_ones_are_not():
    judged = [result_of(key, JUDGED) for key in ("0.001", "0.002", "0.003", "0.03", "0.9")]
    pool: Any = MadeUpPool()
    precision = Precision(half_width=0.02, most=12)
    found = {
        result.task.key: len(_measurements(result).costs)
        for result in measured_again(judged, pool, 3, cache=None, deadline=None, precision=precision)
    }
    assert [found[key] for key in ("0.001", "0.002", "0.003")] == [3, 3, 3]
    assert 3 < found["0.03"] < found["0.9"] == 12
    assert pool.rounds[3] == ["0.03", "0.9"]
    assert sum(map(len, pool.rounds)) == sum(found.values())


def test_a_case_whose_processes_all_die_does_not_go_on_for_ever():
    judged = [result_of(key, JUDGED) for key in ("0.001", "0.9")]
    pool: Any = MadeUpPool(dies="0.9")
    precision = Precision(half_width=0.02, most=12)
    found = list(measured_again(judged, pool, 3, cache=None, deadline=None, precision=precision))
    assert len(pool.rounds) == 3
    assert [_measurements(result).costs for result in found] == [((0.001,), (-0.001,), (0.001,)), JUDGED.costs]


def test_a_fork_counts_by_its_undisturbed_part_and_only_the_first_one_compiled_without_caches():
    forks = [
        replace(AGAIN, costs=((-0.47, -0.45, -0.1),)),
        replace(
            AGAIN, subject_s=1.05, costs=((0.9, -0.5, 0.9, -0.4, 0.9, 0.9),), compile_cpu_s=(0.5,), peak_memories=(99,)
        ),
        replace(AGAIN, subject_s=9.0, costs=((-0.3,),), compile_cpu_s=()),
    ]
    found = of_forks(forks)
    assert found.costs == ((-0.47, -0.45, -0.3),)
    assert (found.subject_s, found.repeats, found.compile_cpu_s, found.peak_memories) == (1.25, 15, (3.0,), (10,))
    assert of_forks(forks[:1]) is forks[0]


@pytest.mark.parametrize(("subject_s", "forks"), [(1e-5, FORKS), (2e-3, 1), (None, 1)])
def test_short_calls_are_timed_in_several_forks_of_each_process(subject_s: float | None, forks: int):
    asked: list[Any] = []

    class Recording(MadeUpPool):
        def run(self, tasks: Sequence[Task]) -> Iterator[TaskResult]:
            asked.extend(task.payload["forks"] for task in tasks)
            return super().run(tasks)

    pool: Any = Recording()
    list(measured_again([result_of("0.1", replace(JUDGED, subject_s=subject_s))], pool, 2, cache=None, deadline=None))
    assert asked == [forks, forks]


def test_processes_that_agree_by_chance_are_not_taken_for_precise():
    noisy = {f"noisy {i}": [(0.05 * sign,) for sign in (1, -1, 1, -1)] for i in range(4)}
    runs = {**noisy, "agrees": [(0.0,)] * 4}
    classes = dict.fromkeys(runs, "")
    assert imprecise(runs, classes, Precision(half_width=0.02, most=20)) == set(runs)
    assert imprecise(runs, classes, Precision(half_width=0.02, most=4)) == set()
    assert imprecise(runs, classes, Precision(half_width=0.2, most=20)) == set()
