"""`torch-oracle traces` and `torch-oracle metadata`: what is planned, that every case is one row, exit codes, tables."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from oracle.cli import run
from oracle.errors import UsageError
from oracle.isolate import Died, Failed, OutOfMemory, Pool, TimedOut
from oracle.program import Program
from suites.planning import Shard
from suites.registry import modules_of
from suites.traces.commands import PRELOAD, row_of, run_cases
from suites.traces.planning import TracesRequest, plan_traces
from suites.traces.records import BOTH_REFUSE, DIFFERS, EQUAL, Difference, TraceCase, TraceRow
from suites.traces.tables import CSV_FILE, DIFFERENCES_FILE, ROWS_FILE, read_rows, summary, write_tables

REQUEST = TracesRequest(
    suites=("opinfo",),
    modes=("real",),
    dtypes=("float32", "integer"),
    directions=("forward",),
    match=(),
    max_samples=1,
    shard=Shard(),
)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(workers=1, preload=(*PRELOAD, *modules_of(["opinfo"]))) as made:
        yield made


def case(name: str, source: str) -> TraceCase:
    return TraceCase(
        case_id=f"opinfo/{name}@real",
        suite="opinfo",
        group=name,
        name=name,
        dtype="float32",
        direction="forward",
        mode="real",
        program=Program(name=name, source=source).to_json(),
    )


def row(status: str, **fields: object) -> TraceRow:
    return replace(TraceRow.of(case("add", ""), status=status), **fields)


def test_the_integer_dtype_is_int64_or_the_first_of_the_others_that_the_operator_takes(pool: Pool) -> None:
    match = ("add", "nn.functional.interpolate.bilinear", "exp")
    planned = plan_traces(replace(REQUEST, match=match), pool)
    assert {(one.group, one.dtype) for one in planned} == {
        ("add", "float32"),
        ("add", "int64"),
        ("exp", "float32"),
        ("exp", "int64"),
        ("nn.functional.interpolate.bilinear", "float32"),
        ("nn.functional.interpolate.bilinear", "uint8"),
    }


def test_every_program_is_planned_once_in_every_mode_and_belongs_to_one_shard(pool: Pool) -> None:
    request = replace(REQUEST, modes=("real", "fake"), match=("a*",), dtypes=("integer",))
    whole = [one.case_id for one in plan_traces(request, pool)]
    parts = [
        one.case_id for i in (1, 2, 3) for one in plan_traces(replace(request, shard=Shard(index=i, count=3)), pool)
    ]
    assert len(set(whole)) == len(whole) > 40
    assert sorted(parts) == sorted(whole)


def test_models_are_planned_as_joint_functions(pool: Pool) -> None:
    request = replace(REQUEST, suites=("models",), directions=("joint",), match=("mlp",), modes=("real", "symbolic"))
    assert [one.case_id for one in plan_traces(request, pool)] == [
        "models/mlp/float32/joint@real",
        "models/mlp/float32/joint@symbolic",
    ]


def test_a_selection_without_programs_is_a_usage_error(pool: Pool) -> None:
    with pytest.raises(UsageError, match="no program matches"):
        plan_traces(replace(REQUEST, match=("no.such.operator",)), pool)


def test_every_case_is_one_row_whatever_becomes_of_its_worker(pool: Pool) -> None:
    cases = [
        case("fine", "import torch\n\n\ndef program():\n    return torch.ones(2) + 1\n"),
        case("dies", "import os\n\n\ndef program():\n    os._exit(3)\n"),
        case("hangs", "import time\n\n\ndef program():\n    time.sleep(60)\n"),
        case("absent", "raise ValueError('no such program')\n"),
    ]
    rows = run_cases(cases, pool, timeout_s=4, memory_gib=2, err=Console(quiet=True))
    assert [(one.name, one.status) for one in rows] == [
        ("fine", "equal"),
        ("dies", "crash"),
        ("hangs", "timeout"),
        ("absent", "missing"),
    ]
    assert [one.is_finding for one in rows] == [False, True, True, True]


def test_every_end_of_a_worker_is_a_finding() -> None:
    planned = case("add", "")
    ends = [
        Died(signal=11, exit_code=None, stage="ours", traceback="", stderr=""),
        TimedOut(seconds=5, stage="ours", traceback="", stderr=""),
        OutOfMemory(bytes=2**30, stage="ours", traceback=""),
        Failed(error="Traceback\nValueError: ours"),
    ]
    rows = [row_of(planned, end) for end in ends]
    assert [one.status for one in rows] == ["crash", "timeout", "OOM", "missing"]
    assert all(one.is_finding for one in rows)


def test_the_command_writes_its_tables_and_ends_with_0_where_nothing_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--ops", "add", "--mode", "real", "--dtype", "float32", "--max-samples", "2", "--workers", "1"]
    monkeypatch.setattr(sys, "argv", ["torch-oracle", "traces", *arguments, "--output", str(tmp_path)])
    assert run(sys.argv[1:]) == 0
    rows = read_rows(tmp_path / ROWS_FILE)
    assert [(one.status, one.aten_calls) for one in rows] == [("equal", 1), ("equal", 1)]
    text = capsys.readouterr().out
    assert "| opinfo | forward | real | float32 | 2 | 2 of 2 | 2 of 2 |" in text
    assert "--output" not in text, "a table goes to others, and the folder is this machine's"


def test_the_metadata_command_writes_its_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--ops", "sin", "--dtype", "float32", "--max-samples", "1", "--workers", "1"]
    assert run(["metadata", *arguments, "--output", str(tmp_path)]) == 0
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [(one["direction"], one["status"]) for one in lines] == [("forward", "agrees"), ("joint", "agrees")]
    assert "# Fake metadata beside real" in capsys.readouterr().out


def test_shards_are_merged_and_explained_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    guards = Difference(aspect="guards", detail="5->10: our guards accept what torch's refuse")
    slow = row(DIFFERS, mode="symbolic", second="equal", differences=(guards,), case_id="opinfo/slow@symbolic")
    for name, members in (("one", [row(EQUAL)]), ("two", [slow])):
        write_tables(tmp_path / name, members, header=[f"command: {name}"])
    merge = ["--merge", str(tmp_path / "one"), "--merge", str(tmp_path / "two")]
    assert run(["traces", *merge, "--output", str(tmp_path / "both")]) == 0
    assert [one.status for one in read_rows(tmp_path / "both" / ROWS_FILE)] == ["equal", "explained"]
    assert "* command: one\n* command: two" in capsys.readouterr().out
    assert run(["traces", *merge, *merge[:2], "--output", str(tmp_path / "both")]) == 2


@pytest.mark.parametrize(
    "arguments", [["--mode", "dreamt"], ["--suite", "features"], ["--direction", "sideways"], ["--shard", "3/2"]]
)
def test_unknown_words_are_usage_errors(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["traces", *arguments]) == 2
    assert "expected:" in capsys.readouterr().err


def test_rows_survive_their_files_and_findings_are_listed(tmp_path: Path) -> None:
    wrong = row(
        DIFFERS,
        aten_calls=2,
        only_ours={"aten.mul.Tensor": 2},
        differences=(Difference(aspect="ops", detail="only ours: aten.mul.Tensor x2; only torch's: nothing"),),
    )
    crashed = row("crash", symptom="the process died of signal 11")
    rows = [
        row(EQUAL, aten_calls=1, verdict="pass"),
        wrong,
        crashed,
        row(BOTH_REFUSE, error_ours="A: x", error_torch="B: y"),
    ]
    write_tables(tmp_path, rows, header=["command: made up"])
    assert read_rows(tmp_path / ROWS_FILE) == rows
    with (tmp_path / DIFFERENCES_FILE).open() as file:
        listed = list(csv.DictReader(file))
    assert [one["aspect"] for one in listed] == ["ops", "crash"]
    with (tmp_path / CSV_FILE).open() as file:
        assert [one["only_ours"] for one in csv.DictReader(file)] == ["", "aten.mul.Tensor x2", "", ""]
    text = summary(rows, header=["command: made up"])
    assert "| real | A | B | 1 |" in text
    assert "| add | real | 1 | opinfo/add@real | crash | the process died of signal N |" in text
