"""What the commands of triage are asked about."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fuzz.program.parsing import program_of
from oracle.errors import UsageError
from oracle.program import Program
from oracle.records import PlannedCase
from results.store import Store
from triage.target import FileOptions, Target, find_target

_SOURCE = "import torch\n\ndef program():\n    return torch.ones(2)\n"


def _find(text: str, *, subject: str = "", db: str = "none.db", **options: object) -> Target:
    return find_target(text, subject=subject, db=db, options=FileOptions(**options))  # type: ignore[arg-type]


@pytest.fixture
def results(tmp_path: Path) -> str:
    path = str(tmp_path / "results.db")
    program = Program(name="ones", source=_SOURCE)
    case = PlannedCase(
        case_id="mine/ones/0@aot_eager", suite="mine", group="ones", name="ones/0", subject="aot_eager",
        program=program.to_json(),
    )  # fmt: skip
    with Store.open(path, create=True) as store:
        store.begin_run(run_id="one", environment={}, arguments={})
        store.plan("one", [case])
    return path


def test_a_file_on_its_subject_and_the_command_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "m.py"
    path.write_text("def f(x, n=1):\n    return x * n\n")
    found = _find(f"{path}:f", inputs="f32[2], n=3", calls=2, dynamic=True)
    assert found.subject.name == "inductor"
    assert len(found.program.calls) == 2
    assert found.command("check") == f"torch-oracle check {path}:f --inputs 'f32[2], n=3' --calls 2 --dynamic"
    assert _find(f"{path}:f", inputs="f32[2]", subject="dynamo").subject.name == "dynamo"


def test_a_case_of_a_run_has_the_subject_it_ran_on(results: str) -> None:
    for run in ("one", "latest"):
        found = _find(f"{run}:mine/ones/0@aot_eager", db=results)
        assert (found.program.source, found.subject.name) == (_SOURCE, "aot_eager")
    assert found.command("localise") == f"torch-oracle localise latest:mine/ones/0@aot_eager --db {results}"
    with pytest.raises(UsageError, match="is not planned in run one"):
        _find("latest:mine/zeros/0@aot_eager", db=results)
    with pytest.raises(UsageError):
        _find("two:mine/ones/0@aot_eager", db=results)


def test_a_known_issue_is_named_by_its_number() -> None:
    found = _find("issue:197829")
    assert found.subject.name == "inductor"
    assert "x[1:] = x[:-1].clone()" in found.program.source
    with pytest.raises(UsageError, match="names 0 issues"):
        _find("issue:1")


def test_a_finding_of_a_campaign_is_read_from_its_file(tmp_path: Path) -> None:
    program = program_of(
        "def program(a):\n    r = torch.sin(a)\n    return r\n", [{"$": "tensor", "shape": [2], "dtype": "float32"}]
    )
    path = tmp_path / "abc.json"
    path.write_text(json.dumps({"format": 1, "subject": "aot_eager", "program": program.to_json()}))
    found = _find(str(path))
    assert found.subject.name == "aot_eager"
    assert "torch.sin" in found.program.source


@pytest.mark.parametrize("text", ["model", "model.py", "a/b@c", "findings/none.json", ""])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        _find(text)


def test_options_of_a_file_are_refused_for_a_record() -> None:
    with pytest.raises(UsageError, match=r"--inputs 'f32\[2\]' for 'issue:197829'"):
        _find("issue:197829", inputs="f32[2]")


def test_a_text_of_no_form_is_told_so_even_with_inputs() -> None:
    with pytest.raises(UsageError, match=r"expected: FILE\.py:NAME"):
        _find("model.py", inputs="f32[2]")


def test_an_import_path_is_told_as_the_file_that_it_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "model.py").touch()
    with pytest.raises(UsageError, match=r"did you mean net/model\.py:make\(\)\?"):
        _find("net.model:make()")


def test_a_damaged_finding_is_told_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text('{"program": {"format": 1, "arguments": []}}')
    with pytest.raises(UsageError, match=r"broken\.json: a damaged structured program: KeyError"):
        find_target(str(path), subject="", db="none.db", options=FileOptions())
