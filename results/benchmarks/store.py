"""Time of planning and recording a big run: python -m results.benchmarks.store [CASES] [BATCH]."""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from oracle.verdict import Status
from results.store import Store
from results.tests import fabricate


def measure(cases: int, batch: int) -> dict[str, float]:
    """Seconds per step for a run of `cases` cases, written in batches of `batch`, in a temporary directory."""
    # Four subjects per program, and one failure in fifty: what a sweep plans.
    planned = [
        fabricate.case(
            f"op{i // 40}/float32/forward/{i // 4}", subject=f"subject{i % 4}", source=f"# {i // 4}\n" + "x = 1\n" * 80
        )
        for i in range(cases)
    ]
    records = [
        fabricate.record(case, Status.FAIL_ACCURACY if i % 50 == 0 else Status.PASS, speedup=1.5)
        for i, case in enumerate(planned)
    ]
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "results.db"
        with Store.open(path, create=True) as store:
            store.begin_run(run_id="run-1", environment={}, arguments={})
            start = time.perf_counter()
            for i in range(0, cases, batch):
                store.plan("run-1", planned[i : i + batch])
            store.finish_planning("run-1")
            seconds["plan"] = time.perf_counter() - start
            start = time.perf_counter()
            for i in range(0, cases, batch):
                store.append(records[i : i + batch])
            store.end_run("run-1", state="complete")
            seconds["append"] = time.perf_counter() - start
            start = time.perf_counter()
            assert len(store.planned()) == cases
            seconds["planned"] = time.perf_counter() - start
            start = time.perf_counter()
            assert sum(1 for _ in store.records()) == cases
            seconds["records"] = time.perf_counter() - start
            store.begin_run(run_id="run-2", environment={}, arguments={})
            store.plan("run-2", planned[:200])
            store.finish_planning("run-2")
            few = [replace(record, run_id="run-2") for record in records[:200]]
            start = time.perf_counter()
            for record in few:
                store.append([record])
            seconds["one append"] = (time.perf_counter() - start) / min(200, cases)
        seconds["megabytes"] = path.stat().st_size / 1e6
    return seconds


if __name__ == "__main__":
    given = [int(argument) for argument in sys.argv[1:]]
    cases, batch = given + [20_000, 1000][len(given) :]
    figures = measure(cases, batch)
    for name, value in figures.items():
        print(f"{name:12} {value:8.4f}")
