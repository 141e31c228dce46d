"""Figures are computed from results/data, and a page of results that contradicts itself is an error."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import measurements

_SECTION = """<!-- begin dynamo_x -->

**{passed} of 8 (50.0 %)** of the tests that depend on the 59 names that refimpl stands in for.

Tests of PyTorch 2.1.0a0, torch 2.13.0+cpu, Python 3.11.7, CPU. 18 tests.

### do not pass (1)

| test | ends as | category | reason | says |
| --- | --- | --- | --- | --- |
| A.test_b | fail | text | words | AssertionError: a \\| b |
| A.test_c | error | NOT EXPECTED | - | RuntimeError |

<!-- end dynamo_x -->
"""


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page of conformance, in a folder of results of its own."""
    monkeypatch.setattr(measurements, "DATA", tmp_path)
    return tmp_path / "conformance.md"


def test_a_section_gives_the_figures_of_its_suite(page: Path) -> None:
    page.write_text(_SECTION.format(passed=6))
    table = measurements.tables()["conformance.capture"]()
    assert "| `dynamo_x` | 2.1.0a0 | 8 | 6 | 75.0 | 1 not expected, 1 text |" in table
    assert "| all | 2.1.0a0 | 8 | 6 | 75.0 | 1 not expected, 1 text |" in table


def test_a_section_whose_figures_and_tests_differ_is_an_error(page: Path) -> None:
    page.write_text(_SECTION.format(passed=7))
    with pytest.raises(ValueError, match="section dynamo_x"):
        measurements.conformance()


def test_a_total_that_the_page_of_decompositions_lacks_is_an_error(page: Path) -> None:
    page.with_name("decompositions.md").write_text("| figure | value |\n")
    with pytest.raises(ValueError, match="'calls judged'"):
        measurements.figures()["decompositions.calls"]()


@pytest.mark.parametrize("key", [key for key in sorted(measurements.tables()) if key.startswith("conformance")])
def test_every_table_has_a_row_for_each_suite(key: str) -> None:
    table = measurements.tables()[key]()
    assert re.search(r"^\| `\w+` \| 2\.\d", table, re.MULTILINE)
    assert "| 0 | 0 |" not in table


@pytest.mark.parametrize("key", [key for key in sorted(measurements.tables()) if key.startswith("judge")])
def test_tables_of_the_judge_have_numbers_in_every_row(key: str) -> None:
    head, rule, *rows = measurements.tables()[key]().strip().splitlines()
    assert len(rows) > 3
    assert {line.count("|") for line in (head, rule, *rows)} == {head.count("|")}
    assert all(re.search(r"\d|none", row) for row in rows)
