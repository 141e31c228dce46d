"""Overhead of the worker pool: wall time per task that does nothing, and time until the first result.

Run: python -m oracle.benchmarks.isolate_overhead [--tasks N] [--workers N] [--preload MODULE]
"""

from __future__ import annotations

import argparse
import statistics
import time

from oracle.isolate import Completed, Pool, Task

_ROUNDS = 5


def nothing(payload: dict[str, object], progress: object) -> dict[str, object]:
    return {}


def _tasks(count: int) -> list[Task]:
    return [
        Task(
            key=str(number),
            function="oracle.benchmarks.isolate_overhead:nothing",
            payload={"sample": number},
            group=str(number // 50),
            timeout_s=60.0,
            memory_bytes=1 << 30,
        )
        for number in range(count)
    ]


def _wall_s(pool: Pool, count: int) -> float:
    began = time.perf_counter()
    for result in pool.run(_tasks(count)):
        assert isinstance(result.end, Completed), result
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--preload", action="append", default=[])
    arguments = parser.parse_args()
    for workers in sorted({1, arguments.workers}):
        began = time.perf_counter()
        with Pool(workers=workers, preload=arguments.preload, max_tasks_per_worker=10**9) as pool:
            _wall_s(pool, 1)
            first_s = time.perf_counter() - began
            _wall_s(pool, arguments.tasks // 10)
            per_task_ms = [1000 * _wall_s(pool, arguments.tasks) / arguments.tasks for _ in range(_ROUNDS)]
        began = time.perf_counter()
        with Pool(workers=workers, preload=arguments.preload, max_tasks_per_worker=1) as pool:
            _wall_s(pool, 1)
            restart_ms = [1000 * _wall_s(pool, 20) / 20 for _ in range(_ROUNDS)]
        print(
            f"workers={workers}  per task: median {statistics.median(per_task_ms):.3f} ms "
            f"(of {_ROUNDS} rounds, {min(per_task_ms):.3f} to {max(per_task_ms):.3f})  "
            f"in a fresh worker each: median {statistics.median(restart_ms):.1f} ms  first result: {first_s:.2f} s"
        )


if __name__ == "__main__":
    main()
