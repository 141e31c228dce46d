"""The command promote, and what becomes of its entries in sweeps."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
import torch

from oracle.cli import run
from oracle.errors import UsageError
from oracle.known.ledger import load_ledger
from oracle.program import Program
from oracle.subjects.registry import resolve
from oracle.verdict import Status, Verdict
from triage.promoting import _neighbours, promote
from triage.target import Target

_WRONG = "fuzz.tests.planted_bugs:integer_value"  # gives another number than bitwise_xor
_MODEL = '''
import torch


def mix(a, b):
    c = a + b * 2
    return torch.bitwise_xor(c, 5) - 3


def right(a):
    return a + 1


def quotes(a):
    """Has quotes of both kinds: \'\'\' and a backslash \\\\."""
    return a + 1
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model.py").write_text(_MODEL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_wrong_program_becomes_an_entry_with_its_smallest_form(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "own.toml").write_text("# ours\n")
    words = ["--inputs", "i64[4], i64[4]", "--to", "own.toml", "--subject", _WRONG, "--no-localise", "--budget", "20"]
    assert run(["promote", "model.py:mix", *words, "--link", "https://example.org/1", "--expires", "2030-01-01"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("own.toml: model-mix\n")
    assert "\ntorch-oracle issues model-mix --known own.toml --run\n" in printed
    assert printed.endswith(f"--known torch,own.toml --match 'own.toml/*' --subject {_WRONG}\n")
    assert (folder / "own.toml").read_text().startswith("# ours\n\n[[issue]]\n")
    (issue,) = load_ledger(folder / "own.toml").issues
    assert (issue.rung, issue.statuses, issue.severity.value) == (_WRONG, ("fail_accuracy",), "wrong value")
    assert (issue.link, issue.expires) == ("https://example.org/1", datetime.date(2030, 1, 1))
    assert issue.program_name == "own.toml/model-mix"
    assert issue.found.startswith(f"model.py:mix, torch {torch.__version__}, ")
    assert issue.found.endswith(" statements reduced to 1")
    assert issue.finding is not None
    assert issue.finding.operators == ("bitwise_xor",)
    assert issue.finding.extra == 0, "no culprit is known, so another operator is another finding"
    assert "a + b" not in issue.program.source


def _asked(**options: object) -> None:
    given = {
        "target": "model.py:right", "to": Path("own.toml"), "inputs": "i64[4]", "subject": "dynamo", "id": "", "title": "",
        "link": "", "expires": "", "fixed": False, "as_it_is": True, "budget": 5.0, "calls": 1, "seed": 0, "dynamic": None,
        "allow_effects": False, "db": "none.sqlite", "localises": False,
    }  # fmt: skip
    promote(**{**given, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "add --fixed"),
        ({"target": "model.py:mix", "inputs": "i64[4], i64[4]", "subject": _WRONG, "fixed": True}, "leave --fixed out"),
        ({"to": Path("own.txt")}, "a TOML file"),
        ({"to": Path("none/own.toml")}, "a folder that exists"),
        ({"id": "a b"}, "letters, digits"),
        ({"expires": "soon"}, "a day such as"),
        ({"target": "imports.py:wrong", "subject": _WRONG}, "imports model from the folder"),
    ],
)
def test_what_cannot_be_kept_is_refused_and_nothing_is_written(
    folder: Path, options: dict[str, object], message: str
) -> None:
    (folder / "imports.py").write_text("import torch\nimport model\n\ndef wrong(a):\n    return model.mix(a, a)\n")
    with pytest.raises(UsageError, match=message):
        _asked(**options)
    assert sorted(path.name for path in folder.iterdir() if path.is_file()) == ["imports.py", "model.py"]


def test_a_program_that_agrees_is_kept_as_a_regression_under_an_id_of_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[Verdict] = [Verdict(status=Status.PASS)]
    monkeypatch.setattr("triage.promoting.verdicts_of", lambda issues: zip(issues, ended, strict=True))
    for target in ("model.py:right", "model.py:right", f"{folder}/model.py:quotes"):  # the id has no folder in it
        _asked(target=target, fixed=True)
    first, second, third = load_ledger(folder / "own.toml").issues
    assert (first.id, second.id, third.id) == ("model-right", "model-right-2", "model-quotes")
    assert {issue.fixed for issue in (first, second, third)} == {f"torch {torch.__version__}"}
    assert third.program.source.startswith((folder / "model.py").read_text().strip())
    text = (folder / "own.toml").read_text()
    with pytest.raises(UsageError, match="which the ledger has already"):
        _asked(fixed=True, id="model-right")
    ended[:] = [Verdict(status=Status.FAIL_ACCURACY, symptom="another process says so")]
    with pytest.raises(UsageError, match=r"another process says so.*in a process of its own"):
        _asked(fixed=True)
    assert (folder / "own.toml").read_text() == text


def test_modules_of_the_files_package_are_named_as_its_neighbours(tmp_path: Path) -> None:
    package = tmp_path / "net_of_a_promoted_file"
    package.mkdir()
    for name in ("__init__.py", "config.py"):
        (package / name).touch()
    (package / "model.py").write_text("import torch\nfrom .config import WIDTH\n")
    source = "import torch\nfrom net_of_a_promoted_file.config import WIDTH\n"
    asked = Target(
        name="m", program=Program(name="m", source=source), subject=resolve("dynamo"), words=(f"{package}/model.py:f",)
    )
    assert list(_neighbours(source, asked)) == [package.name]
