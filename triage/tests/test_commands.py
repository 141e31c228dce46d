"""The commands check and localise, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oracle.cli import run

_WRONG = "fuzz.tests.planted_bugs:integer_value"  # gives another number than bitwise_xor


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model.py"
    path.write_text("import torch\n\ndef mix(a):\n    b = a + 1\n    return torch.bitwise_xor(b, 5)\n")
    return f"{path}:mix"


def test_check_says_which_subjects_differ(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", model, "--inputs", "i64[4]", "--subject", f"aot_eager,{_WRONG}"]) == 1
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == "aot_eager: pass"
    assert second.startswith(f"{_WRONG}: fail_accuracy: call 0: output[")
    assert run(["check", model, "--inputs", "i64[4]", "--subject", "dynamo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dynamo"]["status"] == "pass"


def test_localise_prints_where_it_goes_wrong(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["localise", model, "--inputs", "i64[4]", "--subject", _WRONG]) == 1
    text = capsys.readouterr().out
    assert f"on {_WRONG}: fail_accuracy, 3 of 3 runs" in text
    assert f"first wrong rung:   {_WRONG}" in text
    assert f"To repeat a row: torch-oracle check {model} --inputs 'i64[4]' OPTIONS" in text
    assert run(["localise", model, "--inputs", "i64[4]", "--subject", "aot_eager"]) == 0
    assert "pass, 0 of 3 runs differ from eager" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--inputs", "i64[4]", "--without", "scheduler"], "KIND:NAME"),
        (["--inputs", "i64[4]", "--subject", "inductr"], "did you mean inductor"),
        (["--inputs", "q8[4]"], "a tensor such as f32[4, 8]"),
        ([], "raises in eager: TypeError"),
    ],
)
def test_bad_input_is_told_with_exit_code_2(
    model: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", model, *arguments]) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")
