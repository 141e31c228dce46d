"""Versions that are tried: what is set up, what is read from what ran, and the page that tells it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

import versions

RUNNING = ".".join(map(str, sys.version_info[:2]))
MAKE = """
import pathlib, sys
folder = pathlib.Path(next(word for word in sys.argv if word.startswith("VENV="))[5:])
(folder / "bin").mkdir(parents=True)
(folder / "bin" / "python").symlink_to({other!r})
"""
OTHER = """#!{python}
import sys
if "pytest" in sys.argv:
    print("FAILED one\\n= 1 failed, 20 passed, 3 skipped, 2 deselected, 1 error in 2.51s (0:00:02) =")
    sys.exit(1)
for subject, status in [("dynamo", "pass"), ("dynamo", "fail_accuracy"), ("refimpl.aot", "known")]:
    print('{{"run_id": "x", "subject": "%s", "verdict": {{"status": "%s"}}}}' % (subject, status))
"""


def _row(torch: str, python: str, **options) -> versions.Row:
    return versions.Row(
        torch=torch, python=python, tests=options.get("tests", ("5", "0", "1")), agreed=("1/2",) * len(versions.SUBJECTS),
        on="2026-01-01",
    )  # fmt: skip


@pytest.fixture
def tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Tries one pair with a `make` and an interpreter that only say what they were asked."""
    (tmp_path / "other").write_text(OTHER.format(python=sys.executable))
    (tmp_path / "make.py").write_text(MAKE.format(other=str(tmp_path / "other")))
    (tmp_path / "make").write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path / "make.py"} "$@"\n')
    for name in ("make", "other"):
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(versions, "OUTPUT", tmp_path / "build")
    monkeypatch.setattr(versions, "PAGE", tmp_path / "versions.md")

    def tried(*arguments: str) -> tuple[int, str, str]:
        code = versions.main(["--torch", "2.12.0", "--python", sys.executable, *arguments])
        return code, capsys.readouterr().out, (tmp_path / "versions.md").read_text()

    return tried


def test_a_pair_gets_its_row_and_others_keep_theirs(tried, tmp_path: Path) -> None:
    other = _row("2.13.0", RUNNING)
    (tmp_path / "versions.md").write_text(versions.page([other, _row("2.12.0", RUNNING)]))
    code, printed, text = tried()
    assert code == 1
    found = versions.rows_of(text)
    assert [row.torch for row in found] == ["2.12.0", "2.13.0"]
    assert found[1] == other
    assert found[0].tests == ("20", "2", "3")
    assert found[0].agreed == ("1/2", "not ended", "not ended", "1/1")
    assert f"| 2.12.0 | {RUNNING} | 20 | 2 | 3 |" in printed
    assert [path.name for path in (tmp_path / "build").iterdir() if path.is_dir()] == []


def test_an_environment_is_kept_if_asked_for(tried, tmp_path: Path) -> None:
    tried("--keep")
    assert (tmp_path / "build" / f"torch-2.12.0-python-{RUNNING}" / "bin" / "python").exists()


def test_an_environment_whose_removal_is_stopped_is_not_taken_for_whole(tried, tmp_path: Path, monkeypatch) -> None:
    """`make setup` does nothing where there is a stamp."""
    folder = tmp_path / "build" / f"torch-2.12.0-python-{RUNNING}"

    def stopped(*_, **__) -> None:
        raise KeyboardInterrupt

    (tmp_path / "make.py").write_text((tmp_path / "make.py").read_text() + '(folder / ".ready").touch()\n')
    monkeypatch.setattr(versions.shutil, "rmtree", stopped)
    with pytest.raises(KeyboardInterrupt):
        tried()
    assert folder.exists()
    assert not (folder / ".ready").exists()


def test_a_pair_that_cannot_be_set_up_says_so(tried, tmp_path: Path) -> None:
    (tmp_path / "make").write_text("#!/bin/sh\necho no such version; exit 2\n")
    code, printed, text = tried()
    assert code == 1
    assert "not set up; see" in printed
    assert versions.rows_of(text)[0].tests == ("not set up", "", "")


def test_a_python_that_is_not_there_is_an_error() -> None:
    with pytest.raises(
        SystemExit, match=r"--python /no/python: no such program that runs; expected one of 3\.10.*PATH"
    ):
        versions.main(["--python", "/no/python", "--show"])


def test_what_is_tried_is_what_the_project_claims() -> None:
    project = (versions.ROOT / "pyproject.toml").read_text()
    least, most = re.findall(r'"torch>=(\d+\.\d+),<(\d+\.\d+)"', project)[0]
    assert versions.TORCHES[0].rsplit(".", 1)[0] == least
    assert versions.TORCHES[-1].split(".")[1] == str(int(most.split(".")[1]) - 1)
    assert re.findall(r"Programming Language :: Python :: (3\.\d+)", project) == list(versions.PYTHONS)


def test_every_pattern_of_tests_finds_files() -> None:
    assert [pattern for pattern in versions.TESTS if not list(versions.ROOT.glob(pattern))] == []


def test_the_page_is_what_its_rows_give() -> None:
    """It is written by the program, never by hand; its rows are of pairs that are claimed."""
    text = versions.PAGE.read_text()
    rows = versions.rows_of(text)
    assert rows
    assert versions.page(rows) == text


def test_records_of_a_sweep_are_counted_by_subject() -> None:
    record = {"run_id": "x", "subject": "dynamo", "verdict": {"status": "timeout"}}
    assert versions.agreement(f"noise\n{json.dumps(record)}\n")[0] == "0/1"


def test_tests_that_did_not_end_are_no_zeros() -> None:
    assert versions.counts("....\nInterrupted\n")[0] == "not ended"
