"""A command runs after a worker was killed for its time limit, before another worker starts."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from oracle.isolate import AfterHang, Pool, TaskResult, TimedOut
from oracle.records import PlannedCase, Record
from oracle.subjects.spec import SubjectSpec
from oracle.sweep import Limits, execute
from oracle.tests.isolate_tasks import task, value_of
from oracle.tests.test_sweep_timeouts import Sink, StandInPool, late

PRELOAD = ["oracle.tests.isolate_tasks"]
HANGS = "hang_in_python"


def results_of(command: str, *arguments: str, timeout_s: float = 20.0) -> dict[str, TaskResult]:
    """A task that hangs and two that say when they ran, on one worker whose pool runs this Python script after a hang."""
    after = AfterHang(command=(sys.executable, "-c", command, *arguments), device="cuda:1", timeout_s=timeout_s)
    tasks = [task(HANGS, key="hangs", timeout_s=0.3), *(task("sleep", key=f"t{n}", seconds=0) for n in range(2))]
    with Pool(workers=1, preload=PRELOAD, after_hang=after) as pool:
        return {result.task.key: result for result in pool.run(tasks)}


def test_it_runs_between_two_workers_and_is_told_case_and_device(tmp_path: Path) -> None:
    script = (
        "import os, sys, time; pid = int(os.environ['TORCH_ORACLE_WORKER_PID']); alive = os.path.exists(f'/proc/{pid}');"
        "time.sleep(0.3); names = ('TORCH_ORACLE_CASE', 'TORCH_ORACLE_DEVICE');"
        "print(time.time(), alive, *(os.environ[name] for name in names), file=open(sys.argv[1], 'a'))"
    )
    results = results_of(script, str(tmp_path / "log"))
    ended_at, *said = (tmp_path / "log").read_text().split()
    assert said == ["False", "hangs", "cuda:1"]
    assert isinstance(results["hangs"].end, TimedOut)
    assert results["hangs"].end.reset_failure == ""
    assert all(value_of(results[key])["at"] > float(ended_at) for key in ("t0", "t1"))


def test_what_went_wrong_with_it_is_told_and_the_run_goes_on() -> None:
    failing = results_of("import sys; print('no such\\ndevice'); sys.exit(3)")
    end = failing["hangs"].end
    assert isinstance(end, TimedOut)
    assert "ended with exit code 3, saying: no such device" in end.reset_failure
    assert value_of(failing["t1"])
    began = time.monotonic()
    hanging = results_of("import time; time.sleep(60)", timeout_s=0.3)
    end = hanging["hangs"].end
    assert isinstance(end, TimedOut)
    assert "had not ended after 0.3 s and was killed" in end.reset_failure
    assert time.monotonic() - began < 30
    assert value_of(hanging["t1"])


def test_a_failure_is_recorded_with_each_case_and_warned_of_once() -> None:
    warnings: list[str] = []
    sink: Any = Sink()
    pool: Any = StandInPool(lambda task: late(15.0, reset_failure="reset-gpu ended with exit code 3"))
    summary = execute(
        [PlannedCase(case_id=f"c{i}", suite="s", group="g", name=f"c{i}", subject="eager") for i in range(2)],
        subjects={"eager": SubjectSpec(name="eager", kind="eager")},
        sink=sink, run_id="r", pool=pool, limits=Limits(timeout_s=15.0), options={}, on_warning=warnings.append,
    )  # fmt: skip
    records: list[Record] = sink.records
    note = "the command after a hang failed: reset-gpu ended with exit code 3"
    assert [record.verdict.explained for record in records] == [(note, note)] * 2  # both attempts
    assert len(summary.reset_failures) == 4
    assert len(warnings) == 1
    assert "reset-gpu ended with exit code 3" in warnings[0]
