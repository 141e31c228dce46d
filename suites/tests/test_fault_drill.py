"""Fault drill: whatever a subject does to its process is one row, and every other row is as it would have been."""

from __future__ import annotations

import collections
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from results.store import Store

PROGRAMS = ("closure_cell", "early_return", "aliased_inputs")  # of the features suite: quick, one graph each
DRILL = "suites.tests.drill_subjects"
EXPECTED = {
    "good": "pass",
    "wrong": "fail_accuracy",
    "segfault": "crash",
    "exits": "crash",
    "aborts": "crash",
    "overflows_the_stack": "crash",
    "hangs": "timeout",
    "eats_memory": "OOM",
    "leaks_state": "fail_state",
    "raises": "fail_to_run",
}
MATCH = [word for program in PROGRAMS for word in ("--match", program)]


def torch_oracle(*arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "oracle.cli", *arguments], capture_output=True, text=True, timeout=timeout, check=False
    )


def latest(store: Store) -> str:
    run_id = store.latest_run_id()
    assert run_id is not None
    return run_id


def test_every_fault_is_its_own_row_and_touches_no_other(tmp_path: Path) -> None:
    subjects = ",".join(["aot_eager", *(f"{DRILL}:{name}" for name in EXPECTED)])
    database = tmp_path / "drill.db"
    limits = ("--case-timeout", "3", "--memory", "1")
    done = torch_oracle("sweep", "--suite", "features", *MATCH, "--subject", subjects, *limits, "--db", str(database))
    assert done.returncode == 1, done.stderr[-3000:]
    with Store.open(database, create=False) as store:
        run_id = latest(store)
        records = list(store.records(run_id))
        planned = store.planned(run_id)
    assert len(planned) == len(PROGRAMS) * (len(EXPECTED) + 1)
    assert collections.Counter(record.case_id for record in records) == collections.Counter(
        case.case_id for case in planned
    )
    expected = {f"{DRILL}:{name}": status for name, status in EXPECTED.items()} | {"aot_eager": "pass"}
    seen = {(record.name, record.subject): record.verdict.status.value for record in records}
    wrong = {key: status for key, status in seen.items() if status != expected[key[1]]}
    assert not wrong, {key: [r.verdict for r in records if (r.name, r.subject) == key] for key in wrong}
    symptoms = {record.subject.split(":")[-1]: record.verdict.symptom for record in records}
    assert "SIGSEGV" in symptoms["segfault"]
    assert "exit code 7" in symptoms["exits"]
    assert "no end within 3 s, nor within 9 s when run again alone" in symptoms["hangs"]
    assert "SIGABRT" in symptoms["aborts"]
    assert "default dtype is torch.float64" in symptoms["leaks_state"]


@pytest.mark.parametrize("kill_after_records", [1, 12])
def test_a_parent_killed_in_the_middle_is_resumed_without_loss_or_double(
    tmp_path: Path, kill_after_records: int
) -> None:
    database = tmp_path / "killed.db"
    command = [sys.executable, "-m", "oracle.cli", "sweep", "--suite", "features", "--subject", "eager,dynamo"]
    command += ["--match", "c*", "--db", str(database), "--json"]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert parent.stdout is not None
    for _ in range(kill_after_records):
        assert parent.stdout.readline()
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    with Store.open(database, create=False) as store:
        run_id = latest(store)
        planned = {case.case_id for case in store.planned(run_id)}
        before = [record.case_id for record in store.records(run_id)]
    assert len(before) < len(planned), "the parent was to be killed before its end"
    assert len(before) == len(set(before))
    resumed = torch_oracle("sweep", "--resume", "--db", str(database), "--json")
    lines = [json.loads(line) for line in resumed.stdout.splitlines()]
    assert len(lines) - 1 == len(planned) - len(before), resumed.stderr[-2000:]
    with Store.open(database, create=False) as store:
        after = [record.case_id for record in store.records(run_id)]
        assert latest(store) == run_id
    assert sorted(after) == sorted(planned)
    again = torch_oracle("sweep", "--resume", "--db", str(database))
    assert again.returncode == 2
    assert "no interrupted run" in again.stderr


def test_two_interrupts_close_the_run_properly(tmp_path: Path) -> None:
    database = tmp_path / "interrupted.db"
    command = [sys.executable, "-m", "oracle.cli", "sweep", "--suite", "features", "--subject", f"eager,{DRILL}:hangs"]
    parent = subprocess.Popen(
        [*command, "--match", "c*", "--db", str(database), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    assert parent.stdout.readline()
    os.kill(parent.pid, signal.SIGINT)
    time.sleep(0.2)
    os.kill(parent.pid, signal.SIGINT)
    _, errors = parent.communicate(timeout=60)
    assert parent.returncode == 2, errors
    assert "--resume" in errors
    with Store.open(database, create=False) as store:
        run = store.run(latest(store))
        assert run.state == "interrupted"
        assert 0 < run.recorded < run.planned
