"""The promises of a run: each task ends exactly once, whatever happens to workers, consumer or parent."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from oracle.isolate import (
    Completed,
    Died,
    End,
    Failed,
    InternalError,
    Pool,
    PoolBusyError,
    PoolStoppedError,
    TaskNotSendableError,
    TaskResult,
    TimedOut,
)
from oracle.isolate.delivery import Delivery
from oracle.isolate.worker_handle import QUEUE_DEPTH
from oracle.tests.isolate_tasks import is_alive, run_one, task, value_of, wait_until

PRELOAD = ["oracle.tests.isolate_tasks"]


@pytest.mark.parametrize("seed", [0, 1])
def test_each_task_ends_exactly_once_under_random_failures(seed: int) -> None:
    generator = random.Random(seed)
    weights = {"fine": 60, "exit": 8, "kill": 8, "segfault": 8, "raise": 8, "replace": 6, "hang": 2}
    ways = generator.choices(list(weights), list(weights.values()), k=200)
    tasks = [
        task(
            "misbehave",
            key=str(number),
            group=str(number // 15),
            timeout_s=0.3 if way == "hang" else 20.0,
            way=way,
            seed=number,
        )
        for number, way in enumerate(ways)
    ]
    with Pool(workers=3, preload=PRELOAD, max_tasks_per_worker=17) as pool:
        results = list(pool.run(tasks))
    assert sorted(int(result.task.key) for result in results) == list(range(200))
    for result in results:
        way = ways[int(result.task.key)]
        assert _describe(result.end) == _EXPECTED[way], f"seed={seed} task={result.task.key} way={way} {result.end}"


_EXPECTED = {
    "fine": "completed",
    "replace": "completed",
    "raise": "failed",
    "exit": "exited",
    "kill": "died by 9",
    "segfault": "died by 11",
    "hang": "timed out",
}


def _describe(end: End) -> str:
    match end:
        case Completed():
            return "completed"
        case Failed():
            return "failed"
        case Died(signal=None):
            return "exited"
        case Died():
            return f"died by {end.signal}"
        case TimedOut():
            return "timed out"
        case _:
            return "out of memory"


def test_one_pool_runs_twice_and_keeps_its_workers() -> None:
    with Pool(workers=2, preload=PRELOAD) as pool:
        assert list(pool.run([])) == []
        first = [value_of(result)["pid"] for result in pool.run(task("echo", key=str(n)) for n in range(10))]
        second = [value_of(result)["pid"] for result in pool.run(task("echo", key=str(n)) for n in range(10))]
    assert set(second) <= set(first) or len(set(first) | set(second)) <= 2


def test_workers_go_on_while_the_consumer_is_slow() -> None:
    tasks = [task("sleep", key=str(number), seconds=0.02) for number in range(20)]
    with Pool(workers=2, preload=PRELOAD) as pool:
        results = pool.run(tasks)
        last_at = value_of(next(results))["at"]
        began = time.time()
        time.sleep(0.6)
        last_at = max([last_at, *(value_of(result)["at"] for result in results)])
    assert last_at < began + 0.5  # all had ended before the consumer asked again


def test_results_that_wait_are_bounded() -> None:
    """A consumer that stops reading also stops the start of tasks."""
    with Pool(workers=2, preload=PRELOAD) as pool:
        pool._settings = replace(pool._settings, max_waiting_results=5)
        results = pool.run(task("echo", key=str(number)) for number in range(60))
        next(results)
        time.sleep(0.4)
        assert pool._current is not None
        # Those that were running or queued at the workers when it was full come on top.
        assert 5 <= len(pool._current.delivery._results) <= 5 + 2 * QUEUE_DEPTH
        assert sum(isinstance(result.end, Completed) for result in results) == 59


def test_waiting_results_are_bounded_by_their_size_too() -> None:
    rooms: list[str] = []
    delivery = Delivery(max_results=10, max_bytes=100, on_room=lambda: rooms.append("room"))
    result = TaskResult(task=task("echo"), end=Failed(error=""), worker_pid=1, tasks_before=0)
    delivery.put(result, 60)
    assert not delivery.is_full()
    delivery.put(result, 60)
    assert delivery.is_full()
    assert delivery.take() is result
    assert rooms == ["room"]
    assert not delivery.is_full()


def test_a_bug_of_the_supervisor_is_raised_and_leaves_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    with Pool(workers=1, preload=PRELOAD) as pool:
        pid = value_of(run_one(pool, task("echo")))["pid"]

        def fail(*arguments: object, **options: object) -> None:
            raise ZeroDivisionError("a bug")

        monkeypatch.setattr(pool._supervisor._assignment, "assign", fail)
        with pytest.raises(InternalError, match="a bug"):
            list(pool.run([task("echo")]))
        assert wait_until(lambda: not is_alive(pid))
        with pytest.raises(PoolStoppedError):
            pool.run([task("echo")])


def test_time_limits_hold_while_the_consumer_is_slow() -> None:
    with Pool(workers=1, preload=PRELOAD) as pool:
        results = pool.run([task("echo"), task("hang_in_python", timeout_s=0.3)])
        next(results)
        time.sleep(1.0)
        end = next(results).end
    assert isinstance(end, TimedOut)
    assert end.seconds < 0.9


def test_leaving_the_loop_kills_what_runs_and_keeps_the_pool() -> None:
    with Pool(workers=2, preload=PRELOAD) as pool:
        results = pool.run([task("echo"), task("hang_in_python"), task("sleep", seconds=30)])
        pid = next(results).worker_pid
        results.close()
        assert list(results) == []
        assert value_of(run_one(pool, task("echo")))["payload"] == {}
        assert pid


def test_a_run_that_is_dropped_unread_is_over() -> None:
    with Pool(workers=1, preload=PRELOAD) as pool:
        pool.run([task("hang_in_python")])
        assert value_of(run_one(pool, task("echo")))["payload"] == {}


def test_one_run_at_a_time() -> None:
    with Pool(workers=1, preload=PRELOAD) as pool:
        first = pool.run([task("echo"), task("echo", key="2")])
        next(first)
        with pytest.raises(PoolBusyError):
            pool.run([task("echo")])
        list(first)
        list(pool.run([task("echo")]))


def test_a_stopped_pool_says_so() -> None:
    pool = Pool(workers=1)
    pool.stop()
    pool.stop()
    with pytest.raises(PoolStoppedError):
        pool.run([task("echo")])


def test_stop_lets_running_tasks_end_within_its_grace() -> None:
    with Pool(workers=1, preload=PRELOAD) as pool:
        results = pool.run([task("echo"), task("sleep", seconds=0.4), *(task("echo", key=str(n)) for n in range(5))])
        next(results)
        time.sleep(0.1)
        pool.stop(grace_s=10)
        assert [result.task.key for result in results] == ["sleep"]


def test_stop_kills_after_its_grace() -> None:
    with Pool(workers=1, preload=PRELOAD) as pool:
        results = pool.run([task("echo"), task("hang_in_python")])
        pid = next(results).worker_pid
        began = time.monotonic()
        pool.stop(grace_s=0.3)
        assert time.monotonic() - began < 3
        assert list(results) == []
    assert not is_alive(pid)


def test_a_plan_that_cannot_be_sent_is_refused_before_anything_runs() -> None:
    with Pool(workers=1) as pool:
        with pytest.raises(TaskNotSendableError, match="key 'echo' is not unique"):
            pool.run([task("echo"), task("echo")])
        with pytest.raises(TaskNotSendableError, match="payload of task 'echo' is not JSON"):
            pool.run([task("echo", value=float("inf"))])
        with pytest.raises(TaskNotSendableError, match="no such variable"):
            pool.run([task("echo", environment=(("A=B", "1"),))])


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # other processes have pools, too
    threads = threading.active_count()
    files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    with Pool(workers=2, preload=PRELOAD) as pool:
        pids = {result.worker_pid for result in pool.run(task("echo", key=str(n)) for n in range(20))}
        list(pool.run([task("segfault"), task("hang_in_python", timeout_s=0.2), task("kill_the_starter")]))
    assert not any(is_alive(pid) for pid in pids)
    assert threading.active_count() == threads
    assert list(tmp_path.iterdir()) == []
    if files is not None:
        assert len(os.listdir("/proc/self/fd")) <= files  # fewer, if files of earlier tests were closed meanwhile


_PARENT = """
import json, signal, sys
from oracle.isolate import Pool
from oracle.tests.isolate_tasks import task

with Pool(workers=2, preload=["oracle.tests.isolate_tasks"], start_method=sys.argv[1]) as pool:
    pids = []
    tasks = [task("echo", group="a"), task("leave_a_child", group="b", replace_worker=False)]
    for result in pool.run(tasks):
        pids.append(result.worker_pid)
        pids += [result.end.value["child"]] if "child" in result.end.value else []
    hanging = [task(name, group=name) for name in ["hang_in_python", "hang_holding_the_gil"]]
    results = pool.run(hanging + [task("echo", key="last", group=name) for name in ["hang_in_python"]])
    print(json.dumps({"pids": pids, "directory": str(pool._supervisor._directory)}), flush=True)
    try:
        for result in results:
            print(result, flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        raise SystemExit(130)
"""


def _start_parent(start_method: str) -> tuple[subprocess.Popen[str], list[int], Path]:
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, start_method], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    said = json.loads(parent.stdout.readline())
    time.sleep(0.4)  # the hanging tasks have begun
    return parent, said["pids"], Path(said["directory"])


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_no_worker_survives_a_killed_parent(start_method: str) -> None:
    parent, pids, directory = _start_parent(start_method)
    assert len(pids) == 3
    assert all(is_alive(pid) for pid in pids)
    assert directory.exists()
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    assert wait_until(lambda: not any(is_alive(pid) for pid in pids))
    assert wait_until(lambda: not directory.exists())


def test_no_worker_survives_a_killed_starter() -> None:
    with Pool(workers=2, preload=PRELOAD) as pool:
        results = pool.run([task("sleep", key=str(n), group=str(n), seconds=0.1) for n in range(4)])
        pid = next(results).worker_pid
        list(results)
        os.kill(_parent_of(pid), signal.SIGKILL)
        assert wait_until(lambda: not is_alive(pid))
        value_of(run_one(pool, task("echo")))


def _parent_of(pid: int) -> int:
    printed = subprocess.run(["ps", "-o", "ppid=", "-p", str(pid)], check=True, capture_output=True, text=True)
    return int(printed.stdout)


def test_ctrl_c_reaches_the_parent_only_and_ends_everything() -> None:
    parent, pids, directory = _start_parent("forkserver")
    os.kill(pids[0], signal.SIGINT)  # workers ignore it; first, for the parent ends them
    os.kill(parent.pid, signal.SIGINT)
    said, errors = parent.communicate(timeout=10)
    assert said == "interrupted\n"
    assert errors == ""
    assert parent.returncode == 130
    assert wait_until(lambda: not any(is_alive(pid) for pid in pids))
    assert not directory.exists()
