"""`torch-oracle issues`: lists are complete and sorted, one issue is shown whole, its script shows the difference alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from oracle.errors import UsageError
from oracle.known.ledger import load_ledger
from oracle.known.severity import Severity
from oracle.tests.forked_script import run_forked
from oracle.verdict import Status, Verdict
from suites.regressions.commands import issue_text, issues, listing, script_of

LEDGER = load_ledger()
APP = typer.Typer()
APP.command()(issues)


def printed(*words: str) -> str:
    result = CliRunner().invoke(APP, list(words))
    assert result.exit_code == 0, result.exception
    return result.output


def test_the_list_has_one_line_for_each_cause_most_severe_first() -> None:
    counts, table = listing(LEDGER.issues, fold=True)
    assert len(table.rows) == len({issue.cause for issue in LEDGER.issues})
    ranks = [Severity(row[0]).rank for row in table.rows]
    assert ranks == sorted(ranks)
    assert sum(int(row[1]) for row in counts.rows) == len(table.rows)
    assert sum(int(row[2]) for row in counts.rows) == len(LEDGER.issues) == sum(int(row[3]) for row in table.rows)


def test_every_program_is_listed_on_request() -> None:
    text = printed("--all")
    assert all(issue.id in text for issue in LEDGER.issues)


@pytest.mark.parametrize(
    ("words", "holds"),
    [
        (["--severity", "strides"], lambda issue: issue.severity is Severity.STRIDES),
        (["--severity", "refusal,sign of zero"], lambda issue: issue.severity in (Severity.REFUSAL, Severity.SIGN)),
        (["--rung", "inductor"], lambda issue: issue.subject == "inductor"),
        (["--rung", "export*"], lambda issue: issue.subject.startswith("export")),
        (["--torch", "2.13.0"], lambda issue: "2.13" in LEDGER.torch_versions(issue)),
        (["197039"], lambda issue: issue.link.endswith("/197039")),
        (["pytorch-1970*"], lambda issue: issue.id.startswith("pytorch-1970")),
    ],
)
def test_a_selection_holds_what_was_asked_for_and_all_of_it(words: list[str], holds) -> None:
    found = [row["id"] for row in json.loads(printed(*words, "--json"))]
    assert sorted(found) == sorted(issue.id for issue in LEDGER.issues if holds(issue))
    assert found


def test_one_issue_is_shown_with_its_program_both_answers_and_its_link() -> None:
    text = printed("pytorch-183894")
    issue = LEDGER.of_id("pytorch-183894")
    assert issue is not None
    assert text == issue_text(issue, LEDGER)
    for part in (issue.title, issue.link, "argmin()", "is 22, but should be 8", "torch 2.13, inductor: fail_accuracy"):
        assert part in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pytorch-18389"], "did you mean pytorch-183894"),
        (["--severity", "bad"], "one of wrong value"),
        (["--rung", "eager"], "one of aot_eager"),
        (["--torch", "1.0"], "2.13"),
        (["--script"], "expected: the id of one issue"),
        (["--run"], "expected: an id, or a glob"),
        (["--known", "none"], "name a ledger"),
    ],
)
def test_a_wrong_word_is_refused_with_what_is_expected(words: list[str], message: str) -> None:
    result = CliRunner().invoke(APP, words)
    assert isinstance(result.exception, UsageError)
    assert message in str(result.exception)


def run_alone(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the script in an interpreter of its own, which finds installed modules only."""
    path = folder / "script.py"
    path.write_text(script)
    command = [sys.executable, "-I", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=folder)


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("pytorch-197859", run_alone),
        ("hardsigmoid-gradient-in-double", run_forked),
        ("shared-memory-dynamic", run_forked),
        ("causal-mask-in-export", run_forked),
        ("found-output-among-updated-arguments", run_forked),  # what differs is an argument that `derive` makes
    ],
)
def test_the_script_of_an_issue_shows_it_with_torch_alone(name: str, run: Callable[..., Any], tmp_path: Path) -> None:
    if not torch.__version__.startswith("2.13."):
        pytest.skip(f"measured on torch 2.13, this is {torch.__version__}")
    issue = LEDGER.of_id(name)
    assert issue is not None
    script = script_of(issue, LEDGER)
    done = run(script, tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "DIFFERENT"), (
        done.stdout[-2000:] + done.stderr[-2000:]
    )
    assert "oracle" not in script


def test_the_printed_script_has_a_few_lines() -> None:
    if not torch.__version__.startswith("2.13."):
        pytest.skip(f"measured on torch 2.13, this is {torch.__version__}")
    text = printed("pytorch-198102", "--script")
    assert len(text.splitlines()) <= 20
    assert 'torch.compile(program, backend="aot_eager")' in text


def test_the_script_says_that_nothing_differs_where_nothing_does(tmp_path: Path) -> None:
    issue = LEDGER.of_id("pytorch-198102")
    assert issue is not None
    script = script_of(issue, LEDGER)
    done = run_forked(script.replace("torch.compile(target, backend='aot_eager')", "target"), tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "the same"), done.stdout + done.stderr


def test_an_issue_is_run_on_its_rung() -> None:
    text = printed("pytorch-198102", "--run")
    assert text.splitlines()[0] == "pytorch-198102 on aot_eager: fail_accuracy"
    assert text.splitlines()[2].startswith("differs as the ledger says")


@pytest.mark.parametrize(
    ("fixed", "status", "said", "code"),
    [
        ("", Status.FAIL_ACCURACY, "differs as the ledger says (fail_accuracy)", 0),
        ("", Status.PASS, "agrees with eager, and the ledger says that it differs", 1),
        ("", Status.CRASH, "differs otherwise than the ledger says (fail_accuracy)", 1),
        ("fixed = '2.13'", Status.PASS, "agrees, as it should since 2.13", 0),
        (
            "fixed = '2.13'",
            Status.FAIL_ACCURACY,
            "differs as the ledger says (fail_accuracy), but was fixed since 2.13",
            1,
        ),
        ("", Status.EAGER_FAIL_TO_RUN, "no verdict, and the ledger says that it differs (fail_accuracy)", 1),
    ],
)
def test_programs_of_an_own_ledger_must_end_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fixed: str, status: Status, said: str, code: int
) -> None:
    path = tmp_path / "own.toml"
    path.write_text(f"""
[[issue]]
id = "mine"
title = "t"
severity = "wrong value"
rung = "inductor"
statuses = ["fail_accuracy"]
expires = 2099-01-01
source = "def program(): pass"
{fixed}
""")
    monkeypatch.setattr(
        "suites.regressions.commands.verdicts_of",
        lambda chosen: iter([(issue, Verdict(status=status)) for issue in chosen]),
    )
    result = CliRunner().invoke(APP, ["--known", str(path), "--run"])
    assert (result.exit_code, result.output.splitlines()[1]) == (code, said)
    shown = CliRunner().invoke(APP, ["mine", "--known", str(path)]).output
    assert f"torch-oracle issues mine --known {path} --run" in shown
    assert "Measured results" not in shown
    assert ("must agree" in shown) == bool(fixed)
    line = json.loads(CliRunner().invoke(APP, ["--known", str(path), "--run", "--json"]).output)
    assert (line["id"], line["subject"], line["as_said"]) == ("mine", "inductor", code == 0)
    assert (line["torch"], line["verdict"]["status"]) == (version("torch"), status.value)
