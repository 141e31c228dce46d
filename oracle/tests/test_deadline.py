"""A deadline ends the results of a pool whatever its workers are doing, and leaves a pool that can go on."""

from __future__ import annotations

import threading
import time

from oracle.deadline import closed_at
from oracle.isolate import Completed, Pool, Task


def task(key: str, seconds: float) -> Task:
    return Task(
        key=key,
        function="oracle.tests.isolate_tasks:sleep",
        payload={"seconds": seconds},
        group=key,
        timeout_s=600.0,
        memory_bytes=2**30,
    )


def test_a_task_that_runs_at_the_deadline_is_ended_and_the_pool_goes_on() -> None:
    with Pool(workers=1) as pool:
        with closed_at(time.monotonic() + 0.5, pool.run([task("long", 500), task("never", 0)])) as results:
            assert list(results) == []
        with closed_at(None, pool.run([task("short", 0)])) as results:
            assert [type(result.end) for result in results] == [Completed]


def test_results_that_are_there_in_time_are_untouched() -> None:
    with Pool(workers=1) as pool:
        with closed_at(time.monotonic() + 300, pool.run([task(str(i), 0) for i in range(3)])) as results:
            assert [result.task.key for result in results] == ["0", "1", "2"]


def test_a_close_that_has_begun_ends_before_the_block_does() -> None:
    class Slow:
        is_closed = False

        def close(self) -> None:
            begun.set()
            time.sleep(0.3)
            self.is_closed = True

    begun, results = threading.Event(), Slow()
    with closed_at(time.monotonic(), results):
        assert begun.wait(30)
    assert results.is_closed
