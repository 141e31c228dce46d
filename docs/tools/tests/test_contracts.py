"""The keeper of docs/contracts.md: accepts the real data, and names each way the data can be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

import contracts

DATA = (contracts.ROOT / "docs/contracts_status.toml").read_text(encoding="utf-8")
A_ROW = next(line for line in DATA.splitlines() if line.startswith("PX-20"))
TESTS = "def test_one(): ...\nclass TestGroup:\n    def test_two(self): ...\n    def helper(self): ...\n"


def with_row(line: str) -> list[str]:
    """Returns the problems of the real data with one row replaced."""
    return contracts.parse(DATA.replace(A_ROW, line))[1]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Returns a copy of what the keeper reads, with one test file, and a page made from it."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/contracts_status.toml").write_text(DATA, encoding="utf-8")
    (tmp_path / "test_sample.py").write_text(TESTS, encoding="utf-8")
    assert contracts.main(["--write"], root=tmp_path) in (0, 1)
    return tmp_path


def test_every_contract_is_there_exactly_once():
    status, problems = contracts.parse(DATA)
    assert problems == []
    # Rows of one system, and rows that cut across them.
    assert len({row.id for row in status.rows}) == len(status.rows) == 262 + 19


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("", "PX-20 is missing"),
        (f"{A_ROW}\nPX-99 = {{ title = 't' }}", "PX-99 is not a contract of [PX]"),
        ('PX-20 = { title = "t", weight = "core", status = "soon", reason = "r" }', "status is 'soon'"),
        ('PX-20 = { title = "t", weight = "main", status = "todo", reason = "r" }', "weight is 'main'"),
        ('PX-20 = { title = "t", weight = "core", status = "todo" }', "todo needs a reason"),
        ('PX-20 = { title = "t", weight = "core", status = "done" }', "done needs the tests"),
        ('PX-20 = { title = "t", weight = "core", status = "partial", tests = ["a::b"] }', "partial needs a reason"),
        ('PX-20 = { title = "t", weight = "core", status = "todo", reason = "r", tests = ["a::b"] }', "is it partial?"),
        ('PX-20 = { title = "t", weight = "core", status = "todo", reason = "r", test = "a" }', "unknown field 'test'"),
        ('PX-20 = { weight = "core", status = "todo", reason = "r" }', "no title"),
    ],
)
def test_a_wrong_row_is_named(line: str, problem: str):
    problems = with_row(line)
    assert len(problems) == 1
    assert "PX-" in problems[0]
    assert problem in problems[0]


def test_a_row_given_twice_is_refused():
    with pytest.raises(contracts.tomllib.TOMLDecodeError):
        contracts.parse(DATA.replace(A_ROW, f"{A_ROW}\n{A_ROW}"))


@pytest.mark.parametrize(
    ("node_id", "problem"),
    [
        ("test_sample.py::test_one", None),
        ("test_sample.py::test_one[float32-True]", None),
        ("test_sample.py::TestGroup::test_two", None),
        ("test_sample.py::test_two", "has no test 'test_two'"),
        ("test_sample.py::TestGroup::helper", "has no test 'TestGroup::helper'"),
        ("test_sample.py", "has no test ''"),
        ("test_gone.py::test_one", "there is no file test_gone.py"),
    ],
)
def test_named_tests_are_looked_up(tree: Path, node_id: str, problem: str | None):
    row = contracts.Row(id="PX-20", title="t", weight="core", status="done", tests=(node_id,))
    problems = contracts.missing_tests((row,), tree)
    assert problems == ([] if problem is None else [f"PX-20: {node_id}: {problems[0].split(': ', 2)[2]}"])
    assert problem is None or problem in problems[0]


def test_a_done_row_shows_its_tests_and_its_note():
    row = 'PX-20 = { title = "t", weight = "core", status = "done", tests = ["a.py::test_b"], note = "as 2.13" }'
    status, _ = contracts.parse(DATA.replace(A_ROW, row))
    assert "| PX-20 | t | core | done | `a.py::test_b`; as 2.13 |" in contracts.render(status)


def test_a_page_out_of_date_is_named_and_repaired(tree: Path, capsys: pytest.CaptureFixture[str]):
    page = tree / "docs/contracts.md"
    good = page.read_text(encoding="utf-8")
    page.write_text(good.replace("| PX-20 |", "| PX-2O |"), encoding="utf-8")
    assert contracts.main(["--check"], root=tree) == 1
    assert "contracts.md is not what the data says" in capsys.readouterr().err
    contracts.main(["--write"], root=tree)
    assert page.read_text(encoding="utf-8") == good


def answers(tree: Path, *changes: tuple[str, str]) -> list[str]:
    """Returns the problems of a copy of the table of answers after replacements."""
    text = (contracts.ROOT / contracts.READ).read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tree / contracts.READ
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return contracts.read_answers(contracts.parse(DATA)[0], tree)[1]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("PX-01,yes,,2026-11-28\n", "", "one row for each contract"),
        ("PX-01,yes,", "PX-01,maybe,", "shown is 'maybe'"),
        ("PX-01,yes,", "PX-01,no,", "what is missing is said"),
        ("PX-01,yes,,", "PX-01,yes,much,", "what is missing is said"),
    ],
)
def test_a_wrong_answer_is_named(tmp_path: Path, old: str, new: str, problem: str):
    (found,) = answers(tmp_path, (old, new))
    assert problem in found


def test_answers_are_summed_up_on_the_page(tmp_path: Path):
    assert answers(tmp_path) == []
    status, _ = contracts.parse(DATA)
    rows, _ = contracts.read_answers(status, tmp_path)
    assert f"{sum(row['shown'] == 'yes' for row in rows)} yes" in contracts.render(status, rows)
    assert "were read" not in contracts.render(status)
