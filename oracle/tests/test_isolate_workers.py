"""Which worker runs a task: groups, environments, replacement, and what becomes of a worker's children."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time

import pytest

from oracle.isolate import Died, Pool, TimedOut, WorkerStartError
from oracle.tests.isolate_tasks import is_alive, run_one, task, value_of, wait_until

PRELOAD = ["oracle.tests.isolate_tasks"]
MIB = 1 << 20


def test_tasks_of_a_group_run_in_order_on_one_worker() -> None:
    tasks = [
        task("sleep", key=f"{group}-{number}", group=group, seconds=0.002)
        for number, group in itertools.product(range(20), ["a", "b"])  # interleaved in the plan
    ]
    with Pool(workers=2, preload=PRELOAD) as pool:
        results = list(pool.run(tasks))
    for group in ("a", "b"):
        by_worker: dict[int, list[int]] = {}
        for result in results:
            if result.task.group == group:
                by_worker.setdefault(result.worker_pid, []).append(int(result.task.key.split("-")[1]))
        ended = [number for numbers in by_worker.values() for number in numbers]
        assert sorted(ended) == list(range(20))
        # An idle worker takes the second half of what is left of a group, so both may: 20, 10, 5, 3, 2 and 1 were left at most.
        breaks = sum(at + 1 != after for numbers in by_worker.values() for at, after in itertools.pairwise(numbers))
        assert breaks + len(by_worker) <= 7, by_worker


def test_idle_workers_take_the_tail_of_a_long_group() -> None:
    tasks = [task("sleep", key=str(number), seconds=0.01) for number in range(60)]
    with Pool(workers=2, preload=PRELOAD) as pool:
        results = list(pool.run(tasks))
    by_pid = [sum(result.worker_pid == pid for result in results) for pid in {result.worker_pid for result in results}]
    assert sorted(by_pid)[0] >= 20, by_pid


def test_nothing_waits_behind_a_hanging_task() -> None:
    """A task queued at a worker that hangs goes to an idle worker before the hang is over."""
    tasks = [task("hang_in_python", timeout_s=1.5), *(task("echo", key=str(number)) for number in range(6))]
    with Pool(workers=2, preload=PRELOAD) as pool:
        ended_after = {}
        began = time.monotonic()
        for result in pool.run(tasks):
            ended_after[result.task.key] = time.monotonic() - began
            if result.task.key != "hang_in_python":
                value_of(result)
            else:
                assert isinstance(result.end, TimedOut)
    assert max(moment for key, moment in ended_after.items() if key != "hang_in_python") < 1.0


def test_replace_worker() -> None:
    with Pool(workers=1, preload=PRELOAD) as pool:
        tasks = [task("replace_me"), *(task("remember", key=str(number)) for number in range(2))]
        first, second, third = pool.run(tasks)
    assert getattr(first.end, "replace_worker")
    assert "replace_worker" not in value_of(first)
    assert [value_of(second)["calls"], value_of(third)["calls"]] == [1, 2]
    assert (first.tasks_before, second.tasks_before, third.tasks_before) == (0, 0, 1)
    assert first.worker_pid != second.worker_pid == third.worker_pid


def test_a_worker_is_replaced_after_so_many_tasks() -> None:
    with Pool(workers=1, preload=PRELOAD, max_tasks_per_worker=3) as pool:
        calls = [value_of(result)["calls"] for result in pool.run(task("remember", key=str(n)) for n in range(7))]
    assert calls == [1, 2, 3, 1, 2, 3, 1]


def test_a_worker_that_leaks_is_replaced() -> None:
    with Pool(workers=1, preload=PRELOAD, max_worker_growth_bytes=50 * MIB) as pool:
        results = list(pool.run(task("grow", key=str(number), bytes=20 * MIB) for number in range(6)))
    assert [result.tasks_before for result in results] == [0, 1, 2, 0, 1, 2]


def test_children_left_behind_end_with_their_worker() -> None:
    with Pool(workers=1, preload=PRELOAD) as pool:
        child = value_of(run_one(pool, task("leave_a_child", replace_worker=True)))["child"]
        assert wait_until(lambda: not is_alive(child))
        child = value_of(run_one(pool, task("leave_a_child", replace_worker=False)))["child"]
        assert is_alive(child)
    assert not is_alive(child)


def test_memory_of_a_child_left_behind_is_not_charged_to_the_next_task() -> None:
    with Pool(workers=1, preload=PRELOAD) as pool:
        tasks = [task("leave_a_large_child", memory_bytes=600 * MIB), task("sleep", seconds=0.3)]
        left, slept = pool.run(tasks)
    assert value_of(left)["pid"] == value_of(slept)["pid"]


def test_each_environment_has_workers_of_its_own() -> None:
    environments = [(), (("ORACLE_TEST", "one"),), (("ORACLE_TEST", "two"), ("OMP_NUM_THREADS", "3"))]
    names = ["ORACLE_TEST", "MKL_NUM_THREADS", "ORACLE_BASE"]
    tasks = [
        task("read_environment", key=str(number), names=names, environment=environments[number % 3])
        for number in range(9)
    ]
    with Pool(workers=2, preload=PRELOAD, environment={"ORACLE_BASE": "yes"}) as pool:
        values = {result.task.key: value_of(result)["values"] for result in pool.run(tasks)}
    expected = [
        {"ORACLE_TEST": None, "MKL_NUM_THREADS": "1", "ORACLE_BASE": "yes"},
        {"ORACLE_TEST": "one", "MKL_NUM_THREADS": "1", "ORACLE_BASE": "yes"},
        {"ORACLE_TEST": "two", "MKL_NUM_THREADS": "3", "ORACLE_BASE": "yes"},
    ]
    assert [values[str(number)] for number in range(9)] == [expected[number % 3] for number in range(9)]
    assert "ORACLE_TEST" not in os.environ


def test_more_environments_than_starters_are_kept() -> None:
    tasks = [
        task("read_environment", key=str(number), names=["N"], environment=(("N", str(number)),)) for number in range(7)
    ]
    with Pool(workers=2, preload=PRELOAD) as pool:
        for _ in range(2):
            values = {result.task.key: value_of(result)["values"]["N"] for result in pool.run(tasks)}
            assert values == {str(number): str(number) for number in range(7)}


def test_the_time_to_start_is_not_charged_to_a_task() -> None:
    slow = (("ORACLE_TEST_IMPORT", "sleep"),)
    with Pool(workers=1, preload=["oracle.tests.isolate_preload"]) as pool:
        started = time.monotonic()
        result = run_one(pool, task("echo", timeout_s=0.4, environment=slow))
        waited_s = time.monotonic() - started
    assert value_of(result)["pid"] == result.worker_pid  # not ended at its time limit
    assert waited_s > 0.6  # though its worker was not there before


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("raise", "ImportError: this module does not load"),
        ("exit", "exit code 7"),
        ("segfault", "Segmentation fault"),
        ("hang", "not ready after start_timeout_s=0.5"),
    ],
)
def test_a_preload_that_fails_is_one_clear_error(start_method: str, behaviour: str, message: str) -> None:
    if (start_method, behaviour) == ("spawn", "exit"):
        message = "exit status 7"
    start_timeout_s = 0.5 if behaviour == "hang" else 30.0
    pool = Pool(
        workers=2,
        preload=["oracle.tests.isolate_preload"],
        start_method=start_method,  # type: ignore[arg-type]
        environment={"ORACLE_TEST_IMPORT": behaviour},
        start_timeout_s=start_timeout_s,
    )
    with pool, pytest.raises(WorkerStartError) as caught:
        list(pool.run([task("echo", key=str(number)) for number in range(5)]))
    assert message in str(caught.value)
    assert "oracle.tests.isolate_preload" in str(caught.value)
    assert "what to do" in str(caught.value)


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_a_function_that_is_preloaded_is_called_before_the_first_task(start_method: str) -> None:
    preload = (*PRELOAD, "oracle.tests.isolate_preload:note")
    with Pool(workers=1, preload=preload, start_method=start_method) as pool:  # type: ignore[arg-type]
        found = value_of(run_one(pool, task("preloaded")))
    assert len(found["called_in"]) == 1
    assert (found["called_in"] == [found["pid"]]) is (start_method == "spawn")
    assert found["collects"] == [False, True], "garbage is collected while tasks run, not while modules load"


def test_a_module_that_does_not_exist_is_named() -> None:
    with Pool(workers=1, preload=["oracle.no_such_module"]) as pool, pytest.raises(WorkerStartError) as caught:
        list(pool.run([task("echo")]))
    assert "No module named 'oracle.no_such_module'" in str(caught.value)


def test_an_idle_worker_that_is_killed_is_replaced() -> None:
    with Pool(workers=1, preload=PRELOAD) as pool:
        killed = []
        for _ in range(3):
            killed.append(value_of(run_one(pool, task("echo")))["pid"])
            os.kill(killed[-1], 9)
        assert value_of(run_one(pool, task("echo")))["pid"] not in killed


def test_a_death_blames_the_task_that_ran_and_not_the_one_that_waited() -> None:
    functions = ["remember", "segfault", "remember", "kill_itself", "remember"]
    with Pool(workers=1, preload=PRELOAD) as pool:
        results = list(pool.run([task(function, key=f"{n}-{function}") for n, function in enumerate(functions)]))
    assert [isinstance(result.end, Died) for result in results] == [False, True, False, True, False]


def test_the_parent_imports_no_torch() -> None:
    code = "import oracle.isolate, sys; print([name for name in sys.modules if name.split('.')[0] == 'torch'])"
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert printed.stdout == "[]\n"
