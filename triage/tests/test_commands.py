"""The commands check and localise, from the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from oracle.cli import run
from oracle.verdict import Compared, Status, Verdict, describe, notes_on
from triage.looking import exit_code_of

_WRONG = "fuzz.tests.planted_bugs:integer_value"  # gives another number than bitwise_xor


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model.py"
    path.write_text("import torch\n\ndef mix(a):\n    b = a + 1\n    return torch.bitwise_xor(b, 5)\n")
    return f"{path}:mix"


def test_check_says_which_subjects_differ(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", model, "--inputs", "i64[4]", "--subject", f"aot_eager,{_WRONG}"]) == 1
    told = capsys.readouterr()
    first, second, *_ = told.out.splitlines()
    assert first == "aot_eager: pass"
    assert second.startswith(f"{_WRONG}: fail_accuracy: call 0: output[")
    assert f"next: torch-oracle localise {model} --inputs 'i64[4]' --subject {_WRONG}\n" in told.err
    assert run(["check", model, "--inputs", "i64[4]", "--subject", "dynamo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dynamo"]["status"] == "pass"


def test_localise_prints_where_it_goes_wrong(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["localise", model, "--inputs", "i64[4]", "--subject", _WRONG]) == 1
    told = capsys.readouterr()
    text = told.out
    assert f"next: torch-oracle repro {model} --inputs 'i64[4]' --subject {_WRONG}\n" in told.err
    assert f"on {_WRONG}: fail_accuracy, 3 of 3 runs" in text
    assert f"first wrong rung:   {_WRONG}" in text
    assert "first wrong value:  model.py:5, bitwise_xor\n" in text
    assert f"To repeat a row: torch-oracle check {model} --inputs 'i64[4]' OPTIONS" in text
    assert run(["localise", model, "--inputs", "i64[4]", "--subject", "aot_eager"]) == 0
    assert "pass, 0 of 3 runs differ from eager" in capsys.readouterr().out


@pytest.mark.fractional
@pytest.mark.parametrize("command", ["check", "localise", "minimise", "repro"])
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def mix(a):\n    return None\n", "pass_due_to_skip"),
        ("import time\n\ndef mix(a):\n    return a + time.time_ns() % 1000003\n", "eager_two_runs_differ"),
    ],
)
def test_a_program_of_which_nothing_is_judged_ends_with_exit_code_2(
    command: str, source: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.py"
    path.write_text(source)
    asked = [command, f"{path}:mix", "--inputs", "i64[4]", "--subject", "aot_eager", "--calls", "1"]
    output = ["--output", str(tmp_path / "report")] if command == "repro" else []
    assert run([*asked, *output]) == 2
    told = capsys.readouterr()
    assert "nothing was judged: " in told.err
    assert reason in told.err
    assert reason in told.out
    assert not (tmp_path / "report").exists()


def test_a_difference_on_one_subject_outweighs_nothing_judged_on_another(capsys: pytest.CaptureFixture[str]) -> None:
    silent = Verdict(status=Status.PASS_DUE_TO_SKIP, symptom="no graph")
    passed, wrong = Verdict(status=Status.PASS), Verdict(status=Status.FAIL_GRAD)
    assert [exit_code_of(them) for them in ([passed], [passed, silent], [silent, wrong])] == [0, 2, 1]
    assert capsys.readouterr().err == "nothing was judged: pass_due_to_skip: no graph (exit code 2)\n"


def test_a_subject_that_takes_too_long_is_told_which_option_gives_it_more(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", model, "--inputs", "i64[4]", "--subject", "aot_eager", "--timeout", "0.001"]) == 1
    assert "--timeout gives it more" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--inputs", "i64[4]", "--without", "scheduler"], "KIND:NAME"),
        (
            ["--inputs", "i64[4]", "--subject", "dynamo", "--without", "lowering: aten.add"],
            "whose parts can be left out",
        ),
        (["--inputs", "i64[4]", "--subject", "dynamo", "--without", "overload: aten.add"], "expected: export, whose"),
        (["--inputs", "i64[4]", "--subject", "export", "--without", "call: add"], "expected: torch.compile, whose"),
        (["--inputs", "i64[4]", "--subject", "inductr"], "did you mean inductor"),
        (["--inputs", "i64[4]", "--timeout", "0"], "leave --timeout out for the default"),
        (["--inputs", "q8[4]"], "a tensor such as f32[4, 8]"),
        ([], "raises in eager: TypeError"),
    ],
)
def test_bad_input_is_told_with_exit_code_2(
    model: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", model, *arguments]) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_what_the_program_prints_is_not_in_the_report(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "loud.py"
    path.write_text("def f(x):\n    print('hello')\n    return x ^ 5\n")
    assert run(["localise", f"{path}:f", "--inputs", "i64[4]", "--subject", "eager", "--calls", "1", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["shown"] == 0


def test_a_backend_that_raises_is_blamed_and_not_torch(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    subject = "triage.tests.models.wrong_backends:refuses"
    assert run(["localise", model, "--inputs", "i64[4]", "--subject", subject, "--calls", "1"]) == 1
    assert re.search(r"culprit: +raised in: wrong_backends\.py:\d+ refuses\n", capsys.readouterr().out)


def test_an_agreement_says_what_it_rests_on() -> None:
    compared = Compared(tensors=2, elements=5000, unstable_elements=3)
    verdict = Verdict(
        status=Status.PASS, compared=compared, witnesses=(("bits", 4000), ("noise", 1000)), explained=("a reason",)
    )
    assert notes_on(verdict) == [
        "accepted: a reason",
        "1,000 of 5,000 elements compared agree only because rounding noise moves them as far in eager",
        "not compared: 3 further elements, which rounding noise changes in eager",
    ]
    assert describe("inductor", verdict).splitlines()[1:] == [f"  {note}" for note in notes_on(verdict)]
    assert notes_on(Verdict(status=Status.PASS, compared=Compared(elements=9), witnesses=(("bits", 9),))) == []
    assert notes_on(Verdict(status=Status.FAIL_GRAD, explained=("a reason",))) == []
