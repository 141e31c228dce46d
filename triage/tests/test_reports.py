"""The commands minimise and repro, from the command line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fuzz.reduce.minimise import Size
from oracle.cli import run
from oracle.tests.forked_script import run_program
from triage.reports import time_note

_WRONG = "fuzz.tests.planted_bugs:integer_value"  # gives another number than bitwise_xor
_MODEL = """
import torch

class Mix(torch.nn.Module):
    def forward(self, a):
        b = a + 1
        c = b * 2
        d = torch.bitwise_xor(c, 5)
        return d - 3, c.sum()
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "model.py").write_text(_MODEL)
    monkeypatch.chdir(tmp_path)
    return "model.py:Mix"


def test_minimise_prints_the_smallest_program(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["minimise", model, "--inputs", "i64[4, 3]", "--subject", _WRONG]) == 1
    text = capsys.readouterr().out
    assert "statements to 1, " in text
    assert "bitwise_xor" in text
    assert "a + 1" not in text
    assert run(["minimise", model, "--inputs", "i64[4]", "--subject", "aot_eager", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["reproduced"], found["shown"], found["runs"]) == (False, 0, 3)


def test_repro_writes_a_script_that_shows_the_bug_and_the_text_of_an_issue(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["repro", model, "--inputs", "i64[4]", "--subject", _WRONG, "--output", "out"]) == 1
    assert capsys.readouterr().out.splitlines() == ["out/repro.py", "out/issue.md"]
    done = run_program(Path("out/repro.py").resolve(), Path.cwd())
    assert done.returncode == 1
    assert "compiled" in done.stdout
    issue = Path("out/issue.md").read_text()
    assert issue.startswith(f"[{_WRONG}] bitwise_xor: output")
    assert "It shows in 3 of 3 runs" in issue
    assert f"| `{_WRONG}` | `wrong` |" in issue
    assert "- first wrong value: `bitwise_xor, in " in issue
    assert "refimpl" not in issue


def test_repro_for_a_backend_of_this_folder_prints_a_command_that_runs_the_script(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("backend_of_mine.py").write_text("from fuzz.tests.planted_bugs import integer_value as compiled\n")
    arguments = ["repro", model, "--inputs", "i64[4]", "--subject", "backend_of_mine:compiled", "--output", "out"]
    assert run([*arguments, "--no-localise"]) == 1
    (command,) = re.findall(r"^run it with: (PYTHONPATH=\S+) python (\S+)$", capsys.readouterr().err, re.M)
    assert "import backend_of_mine" in Path(command[1]).read_text()
    done = subprocess.run(
        ["env", f"{command[0]}:{Path(__file__).parents[2]}", sys.executable, command[1]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "compiled tensor" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("finished", "reproduced", "how", "reasons", "is_told"),
    [
        (False, True, "captured", (), True),
        (False, True, "", (), True),
        (True, True, "captured", (), False),
        (False, False, "", (), False),
        (False, True, "", ("it has no structured form",), False),  # more time would not help
    ],
)
def test_a_search_that_ran_out_of_time_says_so_and_how_to_give_it_more(
    finished: bool, reproduced: bool, how: str, reasons: tuple[str, ...], is_told: bool
) -> None:
    after = Size(statements=58, elements=16)
    found: Any = SimpleNamespace(
        is_finished=finished, reproduced=reproduced, how=how, reasons=reasons, after=after, trials=7
    )
    expected = (
        "the program may get smaller than 58 statements: after 7 trials the time was over; --budget 300 gives more\n"
    )
    assert time_note(found, 60.0) == (expected if is_told else "")


def test_repro_of_a_program_that_agrees_writes_nothing(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["repro", model, "--inputs", "i64[4]", "--subject", "aot_eager", "--output", "out"]) == 0
    assert "0 of 3 runs differ from eager" in capsys.readouterr().out
    assert not Path("out").exists()


def test_repro_touches_no_folder_of_another_kind(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("out").mkdir()
    Path("out/mine.txt").write_text("kept")
    arguments = ["repro", model, "--inputs", "i64[4]", "--subject", _WRONG, "--output", "out", "--no-localise"]
    assert run(arguments) == 2
    assert "out, which holds mine.txt" in capsys.readouterr().err
    assert [path.name for path in Path("out").iterdir()] == ["mine.txt"]


def test_explain_shows_graphs_and_breaks(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", model, "--inputs", "i64[4]"]) == 0
    text = capsys.readouterr().out
    assert "graphs" in text
    assert "bitwise_xor" in text
