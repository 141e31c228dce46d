"""Starters kept between pools: who gets one, what it must not bring along, and when it ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from oracle.isolate import Completed, Died, Pool, keep_starters
from oracle.tests.isolate_tasks import is_alive, run_one, task, value_of, wait_until

PRELOAD = ("oracle.tests.isolate_tasks",)


@pytest.fixture(autouse=True)
def _kept() -> Iterator[None]:
    with keep_starters(2):
        yield


def starter_of_a_pool(preload: tuple[str, ...] = PRELOAD, **options: Any) -> int:
    """The pid of the process that forked the worker of a pool, which has stopped."""
    with Pool(workers=1, preload=preload, **options) as pool:
        worker = value_of(run_one(pool, task("echo")))["pid"]
        starter = psutil.Process(worker).ppid()
    assert not is_alive(worker)
    return starter


def test_pools_that_follow_one_another_have_one_starter_and_workers_of_their_own() -> None:
    starters, workers = set(), set()
    for _ in range(3):
        with Pool(workers=2, preload=PRELOAD) as pool:
            pids = {value_of(result)["pid"] for result in pool.run(task("echo", key=str(n)) for n in range(6))}
            starters |= {psutil.Process(pid).ppid() for pid in pids}
        assert not workers & pids
        assert not any(is_alive(pid) for pid in pids)
        workers |= pids
    assert len(starters) == 1


def test_pools_at_one_time_have_starters_of_their_own() -> None:
    kept = starter_of_a_pool()
    with Pool(workers=1, preload=PRELOAD) as pool:
        worker = value_of(run_one(pool, task("echo")))["pid"]
        assert psutil.Process(worker).ppid() == kept
        assert starter_of_a_pool() != kept


@pytest.mark.parametrize(
    "options",
    [
        {"preload": (*PRELOAD, "oracle.tests.isolate_preload")},
        {"environment": {"ORACLE_TEST": "other"}},
        {"threads_per_worker": 2},
        {"start_method": "spawn"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_other_settings_have_another_starter(options: dict[str, Any]) -> None:
    assert starter_of_a_pool() != starter_of_a_pool(**options)


def test_limits_of_workers_are_those_of_each_pool() -> None:
    first = starter_of_a_pool()
    with Pool(workers=1, preload=PRELOAD, max_tasks_per_worker=2) as pool:
        pids = [value_of(result)["pid"] for result in pool.run(task("echo", key=str(n)) for n in range(5))]
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [2, 2, 1]
    assert starter_of_a_pool() == first


def test_another_environment_folder_or_path_has_another_starter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = starter_of_a_pool()
    with monkeypatch.context() as patch:
        patch.setenv("ORACLE_TEST", "other")
        assert starter_of_a_pool() != first
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)
        assert starter_of_a_pool() != first
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        assert starter_of_a_pool() != first


def test_it_is_kept_by_the_environment_that_it_has_and_not_by_that_of_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with Pool(workers=1, preload=PRELOAD) as pool:
        run_one(pool, task("echo"))
        monkeypatch.setenv("ORACLE_TEST", "late")
    with Pool(workers=1, preload=PRELOAD) as pool:
        seen = value_of(run_one(pool, task("read_environment", names=["ORACLE_TEST"])))["values"]
    assert seen == {"ORACLE_TEST": "late"}


def test_ignored_variables_may_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    with keep_starters(1, ignored=frozenset({"ORACLE_TEST"})):
        first = starter_of_a_pool()
        monkeypatch.setenv("ORACLE_TEST", "other")
        assert starter_of_a_pool() == first


def test_nothing_of_one_pool_lives_on_into_the_next() -> None:
    with Pool(workers=2, preload=PRELOAD) as pool:
        results = pool.run([task("leave_a_child", replace_worker=False), task("hang_over_a_child", timeout_s=60)])
        left = next(results)
        starter = psutil.Process(left.worker_pid).ppid()
        assert wait_until(lambda: len(psutil.Process(starter).children(recursive=True)) >= 3)
        before = {process.pid for process in psutil.Process(starter).children(recursive=True)} | {
            value_of(left)["child"]
        }
    assert not any(is_alive(pid) for pid in before)
    with Pool(workers=1, preload=PRELOAD) as pool:
        worker = value_of(run_one(pool, task("echo")))["pid"]
        assert psutil.Process(worker).ppid() == starter
        assert [process.pid for process in psutil.Process(starter).children(recursive=True)] == [worker]


def test_a_task_that_kills_its_starter_harms_no_later_pool() -> None:
    first = starter_of_a_pool()
    with Pool(workers=1, preload=PRELOAD) as pool:
        ends = [result.end for result in pool.run([task("kill_the_starter", key="0"), task("echo", key="1")])]
    assert [type(end) for end in ends] == [Died, Completed]
    assert starter_of_a_pool() != first


def test_a_kept_starter_that_is_killed_is_replaced() -> None:
    first = starter_of_a_pool()
    os.kill(first, 9)
    assert wait_until(lambda: psutil.Process(first).status() == psutil.STATUS_ZOMBIE)
    assert starter_of_a_pool() != first
    assert not psutil.pid_exists(first)


def test_no_more_are_kept_than_the_limit_says() -> None:
    starters = [starter_of_a_pool(environment={"ORACLE_TEST": str(n)}) for n in range(4)]
    assert [is_alive(pid) for pid in starters] == [False, False, True, True]


def test_they_end_with_the_context_and_where_nothing_is_kept_with_the_pool() -> None:
    with keep_starters(2):
        starter = starter_of_a_pool()
        assert is_alive(starter)
        with keep_starters(0):
            assert not is_alive(starter_of_a_pool())
        assert is_alive(starter)
    assert not is_alive(starter)


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="limit=-1, but should be at least 0"), keep_starters(-1):
        pass


def test_a_pool_that_goes_on_after_the_context_ends_its_starter() -> None:
    with keep_starters(2):
        pool = Pool(workers=1, preload=PRELOAD)
        worker = value_of(run_one(pool, task("echo")))["pid"]
        starter = psutil.Process(worker).ppid()
    assert value_of(run_one(pool, task("echo")))["pid"] == worker
    with keep_starters(0):
        pool.stop()
    assert not is_alive(starter)
