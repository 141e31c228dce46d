"""The options that say where a sweep runs, checked before anything is written, and a device that is reset after a hang."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from oracle.cli import run
from oracle.cluster import make_execution
from oracle.errors import UsageError
from oracle.tests.command_here import run_here


def execution(**options: Any) -> Any:
    defaults = {"executor": "local", "ray_address": None, "ray_resources": None, "ray_slots": None, "on_hang": None}
    return make_execution(**{**defaults, "on_hang_timeout": 60.0, **options})


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ({"executor": "slurm"}, "--executor slurm"),
        ({"ray_address": "host:6379"}, "without --executor ray"),
        ({"ray_slots": 3}, "without --executor ray"),
        ({"executor": "ray", "ray_slots": 0}, "--ray-slots 0"),
        ({"executor": "ray", "ray_resources": "CPU"}, "--ray-resources CPU"),
        ({"on_hang": ""}, "no command was not found"),
        ({"on_hang": "'open"}, "No closing quotation"),
        ({"on_hang": "no-such-program --now"}, "no-such-program was not found"),
        ({"on_hang": "true", "on_hang_timeout": 0.0}, "--on-hang-timeout 0.0"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, Any], seen: str) -> None:
    with pytest.raises(UsageError, match=seen):
        execution(**options)


def test_the_command_after_a_hang_is_split_as_a_shell_does_and_may_be_on_the_nodes_only() -> None:
    assert execution(on_hang="sh -c 'echo $TORCH_ORACLE_DEVICE | cat'").on_hang == (
        "sh",
        "-c",
        "echo $TORCH_ORACLE_DEVICE | cat",
    )
    assert execution(executor="ray", on_hang="no-such-program").on_hang == ("no-such-program",)


def test_the_options_can_be_said_again_for_a_run_that_goes_on() -> None:
    options = {"executor": "ray", "ray_resources": "CPU=4,GPU=0.5", "ray_address": "head:6379", "ray_slots": 3}
    command = "sh -c 'reset $TORCH_ORACLE_DEVICE'"
    words = execution(**options, on_hang=command, on_hang_timeout=5.0).words()
    place = ["--executor", "ray", "--ray-resources", "CPU=4,GPU=0.5", "--ray-address", "head:6379", "--ray-slots", "3"]
    assert words[:8] == place
    assert words[8:] == ["--on-hang", command, "--on-hang-timeout", "5"]
    assert execution().words() == []
    assert execution(executor="ray").words() == ["--executor", "ray"]


def test_workers_follow_the_resources_of_a_slot() -> None:
    assert execution(executor="ray").default_workers == 1
    slots = execution(executor="ray", ray_resources="CPU=4,GPU=0.5")
    assert slots.default_workers == 4
    assert slots.place(4) == "slots of 4 workers in a cluster"


def test_a_sweep_resets_the_device_after_each_hang_and_says_once_that_this_failed(tmp_path: Path) -> None:
    log = tmp_path / "resets"
    script = "import os, sys; print(os.environ['TORCH_ORACLE_CASE'], file=open(sys.argv[1], 'a')); sys.exit(3)"
    command = f'"{sys.executable}" -c "{script}" "{log}"'
    # Compiling takes longer than this limit, and than three times of it.
    sweep = (
        "sweep",
        "--suite",
        "features",
        "--match",
        "closure_cell",
        "--subject",
        "aot_eager",
        "--case-timeout",
        "0.01",
    )
    options = ("--workers", "1", "--on-hang", command, "--json", "--db", str(tmp_path / "hangs.db"))
    done = run_here(*sweep, *options)
    record, end = map(json.loads, done.stdout.splitlines())
    case_id = "features/closure_cell/forward@aot_eager"
    assert done.returncode in (0, 1), done.stderr
    assert record["case_id"] == case_id
    assert "nor within 0 s when run again alone" in record["verdict"]["symptom"]
    assert log.read_text().split() == [case_id, case_id]  # the first attempt, and the one alone
    assert ["ended with exit code 3" in note for note in record["verdict"]["explained"]] == [True, True]
    assert done.stderr.count("warning: --on-hang: ") == 1
    assert len(end["summary"]["reset_failures"]) == 2


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["sweep", "--suite", "features", "--subject", "aot_eager", "--speed", "--executor", "ray"], "--shard"),
        (["fuzz", "--subject", "aot_eager", "--ray-slots", "2"], "without --executor ray"),
        (["fuzz", "--subject", "aot_eager", "--executor", "slurm"], "--executor slurm"),
    ],
    ids=["speed", "slots", "executor"],
)
def test_what_a_cluster_cannot_do_is_refused_before_anything_is_written(
    command: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--db", str(tmp_path / "results.db")]) == 2
    assert told in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
