"""Fault drill: whatever a subject does to its process is one row, and every other row is as it would have been."""

from __future__ import annotations

import collections
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from oracle.tests.command_here import run_here
from results.store import Store

PROGRAMS = ("closure_cell", "early_return", "aliased_inputs")  # of the features suite: quick, one graph each
DRILL = "suites.tests.drill_subjects"
EXPECTED = {  # `good` last: it would see what another one leaves behind
    "leaks_state": "fail_state",
    "wrong": "fail_accuracy",
    "segfault": "crash",
    "exits": "crash",
    "aborts": "crash",
    "overflows_the_stack": "crash",
    "hangs": "timeout",
    "eats_memory": "OOM",
    "raises": "fail_to_run",
    "good": "pass",
}
MATCH = [word for program in PROGRAMS for word in ("--match", program)]


def latest(store: Store) -> str:
    return store.run().run_id


def test_every_fault_is_its_own_row_and_touches_no_other(tmp_path: Path) -> None:
    subjects = ",".join(["aot_eager", *(f"{DRILL}:{name}" for name in EXPECTED)])
    database = tmp_path / "drill.db"
    limits = ("--case-timeout", "2", "--memory", "1")
    match = ("--match", PROGRAMS[0])
    done = run_here("sweep", "--suite", "features", *match, "--subject", subjects, *limits, "--db", str(database))
    assert done.returncode == 1, done.stderr[-3000:]
    with Store.open(database, create=False) as store:
        run_id = latest(store)
        records = list(store.records(run_id))
        planned = store.planned(run_id)
    assert len(planned) == len(EXPECTED) + 1
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
    assert "no end within 2 s, nor within 6 s when run again alone" in symptoms["hangs"]
    assert "SIGABRT" in symptoms["aborts"]
    assert "default dtype is torch.float64" in symptoms["leaks_state"]


def test_a_parent_killed_in_the_middle_is_resumed_without_loss_or_double(tmp_path: Path) -> None:
    """It is killed after the first record, and once more, with more records, after it was resumed."""
    database = str(tmp_path / "killed.db")
    first = ("--suite", "features", "--subject", "eager,eager_fp64", "--match", "c*")
    run_id, kept = "", []
    for options, records in ((first, 1), (("--resume",), 12)):
        command = [sys.executable, "-m", "oracle.cli", "sweep", *options, "--db", database, "--json"]
        parent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert parent.stdout is not None
        for _ in range(records):
            assert parent.stdout.readline()
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        with Store.open(Path(database), create=False) as store:
            run_id = run_id or latest(store)
            assert latest(store) == run_id
            planned = {case.case_id for case in store.planned(run_id)}
            before, kept = kept, [record.case_id for record in store.records(run_id)]
        assert len(kept) < len(planned), "the parent was to be killed before its end"
        assert len(kept) == len(set(kept))
        assert set(before) <= set(kept)
    resumed = run_here("sweep", "--resume", "--db", database, "--json")
    lines = [json.loads(line) for line in resumed.stdout.splitlines()]
    assert len(lines) - 1 == len(planned) - len(kept), resumed.stderr[-2000:]
    with Store.open(Path(database), create=False) as store:
        after = [record.case_id for record in store.records(run_id)]
        assert latest(store) == run_id
    assert sorted(after) == sorted(planned)
    again = run_here("sweep", "--resume", "--db", database)
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


def test_ctrl_c_while_planning_keeps_nothing_and_says_so(tmp_path: Path) -> None:
    database = tmp_path / "planning.db"
    done = run_here("sweep", "--db", str(database), interrupted_at="planning: ")
    assert (done.returncode, done.stdout) == (2, "")
    assert "nothing is kept" in done.stderr
    assert "same command" in done.stderr
    assert "Traceback" not in done.stderr
    with Store.open(database, create=False) as store:
        assert store.runs() == []


def test_ctrl_c_while_running_prints_the_table_of_what_ran_and_the_command_that_goes_on(tmp_path: Path) -> None:
    """The whole group of the command's process gets the signal, as from a terminal."""
    database = tmp_path / "running.db"
    subjects = f"{DRILL}:wrong,{DRILL}:hangs"
    command = [sys.executable, "-m", "oracle.cli", "sweep", "--suite", "features", "--subject", subjects, *MATCH]
    process = subprocess.Popen(
        [*command, "--db", str(database)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    before = ""
    for line in process.stderr:
        before += line
        if "fail_accuracy" in line:
            break
    os.killpg(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 2, before + errors
    assert f"sweep --resume --db {database}" in errors
    with Store.open(database, create=False) as store:
        recorded = store.run().recorded
        assert 0 < recorded < store.run().planned
    assert f"interrupted: {recorded} of {len(PROGRAMS) * 2} cases have run" in errors
    assert f"0 pass, {recorded} new, {len(PROGRAMS) * 2 - recorded} not run" in out


def test_a_time_limit_ends_what_hangs_and_the_exit_code_is_that_of_what_ran(tmp_path: Path) -> None:
    database = str(tmp_path / "limited.db")
    command = ("sweep", "--suite", "features", *MATCH, "--subject", f"{DRILL}:hangs", "--db", database)
    interrupted = run_here(*command, interrupted_at="Ctrl-C stops it")
    assert interrupted.returncode == 2, interrupted.stderr
    began = time.monotonic()
    done = run_here("sweep", "--resume", "--time", "3s", "--db", database)
    assert time.monotonic() - began < 90  # one case may take 120 s
    assert done.returncode == 0, done.stderr
    assert "the time is over (--time 3 s): 0 of 3 cases have run: 0 new findings" in done.stderr
    assert f"sweep --resume --db {database}" in done.stderr
    assert "3 not run" in done.stdout
    again = run_here("sweep", "--resume", "--suite", "features", "--db", database)
    assert again.returncode == 2
    assert "--resume with --suite" in again.stderr


def test_a_time_limit_counts_planning(tmp_path: Path) -> None:
    done = run_here("sweep", "--time", "1s", "--db", str(tmp_path / "none.db"))
    assert done.returncode == 2
    assert "while programs were being listed" in done.stderr
    assert "nothing has run" in done.stderr


def test_what_turns_out_wrong_in_the_default_sweep_runs_on_lower_rungs_also_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole second step, on a default sweep whose plan is cut down to a program that aot_eager gets wrong today."""
    database = tmp_path / "rungs.db"
    name = "features/gradient_penalty/backward"
    monkeypatch.setattr("suites.request.ALL_SUITES", ("features",))  # the plan of the others takes long to make
    command = ("sweep", "--known", "none", "--direction", "backward", "--db", str(database))
    interrupted = run_here(*command, interrupted_at="Ctrl-C stops it")
    assert interrupted.returncode == 2, interrupted.stderr
    with sqlite3.connect(database) as connection:
        connection.execute("DELETE FROM records")
        connection.execute("DELETE FROM cases WHERE case_id != ?", (f"{name}@aot_eager",))
    connection.close()
    done = run_here("sweep", "--resume", "--db", str(database))
    assert "1 further case: what is new, on lower rungs" in done.stderr
    with Store.open(database, create=False) as store:
        assert store.run().is_complete
        assert [(record.case_id, record.verdict.status.is_finding) for record in store.records()] == [
            (f"{name}@aot_eager", True),
            (f"{name}@dynamo", False),
        ]
