"""The tool on a CUDA device: workers are spawned, inputs and models are made there, every case has its row."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

# What would say that the tool, and not the subject, failed on the device.
OURS = {"model_fail_to_load", "missing", "eager_fail_to_run", "crash", "OOM", "timeout"}


@pytest.mark.gpu
@pytest.mark.parametrize(
    "selection",
    [
        ("opinfo", "--match", "add", "--match", "softmax", "--match", "sort", "--max-samples", "3"),
        ("models", "--match", "mlp", "--match", "torch-transformer"),
        ("features", "--match", "c*"),
    ],
    ids=lambda selection: selection[0],
)
def test_a_sweep_on_cuda_runs_every_case(tmp_path: Path, selection: tuple[str, ...]) -> None:
    command = [
        sys.executable,
        "-m",
        "oracle.cli",
        "sweep",
        "--suite",
        *selection,
        "--subject",
        "eager,aot_eager,inductor",
    ]
    command += ["--device", "cuda", "--json", "--db", str(tmp_path / "x.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode in (0, 1), done.stderr[-3000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    records, summary = rows[:-1], rows[-1]["summary"]
    assert summary["done"] == summary["planned"] == len(records)
    assert not [row["case_id"] for row in records if row["verdict"]["status"] in OURS]
    assert all(row["verdict"]["status"] == "pass" for row in records if row["subject"] == "eager")
