"""The script for reducers of any text: it says yes to a file that shows the finding, and no to others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from fuzz.reduce.interesting import interestingness_script, is_interesting
from oracle.program import Call, Program
from oracle.subjects.registry import resolve
from oracle.symptom import Symptom
from oracle.tests.forked_script import run_program

_SOURCE = """
import torch


def program(x):
    y = torch.nn.functional.gelu(x)
    return y * 2
"""
_SPEC = {"$": "tensor", "shape": [2, 3], "dtype": "float32", "fill": {"kind": "arange"}}
_PROGRAM = Program(name="a $file", source=_SOURCE, calls=(Call(args=[_SPEC]),))
_SUBJECT = resolve("fuzz.tests.planted_rules:gelu")
_SYMPTOM = Symptom(status="fail_accuracy", kind="output: number")


def _exit_code(script: Path) -> int:
    """The exit code of the script in an interpreter of its own, as a reducer runs it."""
    return subprocess.run([sys.executable, script], cwd=script.parent, check=False, capture_output=True).returncode


def test_the_script_says_yes_to_the_program_and_no_to_no_program(tmp_path: Path) -> None:
    script = tmp_path / "interesting.py"
    script.write_text(interestingness_script(_PROGRAM, _SUBJECT, _SYMPTOM, file_name="wrong.py"))
    (tmp_path / "wrong.py").write_text(_SOURCE)
    (tmp_path / "cut.py").write_text(_SOURCE[:-9])
    assert _exit_code(script) == 0
    assert run_program(script, tmp_path, str(tmp_path / "cut.py")).returncode == 1
    assert run_program(script, tmp_path, str(tmp_path / "wrong.py")).returncode == 0


def test_a_file_without_the_finding_or_with_another_one_is_not_interesting() -> None:
    text = interestingness_script(_PROGRAM, _SUBJECT, _SYMPTOM)
    line = next(line for line in text.splitlines() if line.startswith("CASE = "))
    case = json.loads(eval(line.removeprefix("CASE = json.loads(").removesuffix(")")))
    assert is_interesting(_SOURCE, case)
    assert not is_interesting(_SOURCE.replace("gelu", "silu"), case)
    assert not is_interesting(_SOURCE.replace("y * 2", "unknown"), case)
    other = {**case, "symptom": {"status": "fail_stride", "kind": "output.stride"}}
    assert not is_interesting(_SOURCE, other)
