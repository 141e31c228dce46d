"""The page of our own speed: what it says of a history whose changes are known, and that the committed one is up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

import performance


def rows(*ratios: float, case: str = "a/b", processor: str = "P") -> list[performance.Row]:
    """One row a commit, with our time over the peer's."""
    costs = [" ".join(f"{cost + noise:.4f}" for noise in (-0.01, 0.0, 0.01, 0.004)) for cost in ratios]
    return [
        performance.Row(
            commit_time=f"2026-01-{day:02}T00:00:00+00:00", commit=f"{day:02}" * 20, measured="2026-02-01",
            processor=processor, benchmark="call", case=case, peer="torch", costs=cost,
        )
        for day, cost in enumerate(costs, 1)
    ]  # fmt: skip


def test_a_slower_commit_is_worse_on_the_page_and_a_lasting_change_is_named():
    text = performance.page([*rows(0.0, 0.0, 0.0, 0.3, 0.3, 0.31), *rows(0.0, 0.0, 0.0, 0.0, 0.0, 0.2, case="last")])
    assert "* call/a/b/torch: slower by 35 % since `04040404`" in text
    assert "| a/b | torch | 1.00 | 0.74 | 0.74 | 0.73 | 1.01 [" in text
    (last,) = [line for line in text.splitlines() if line.startswith("| last |")]
    assert last.endswith("| worse |")


def test_other_processors_are_not_compared_and_a_case_measured_again_replaces_its_row():
    history = performance.added(rows(0.0), rows(0.1))
    assert [row.costs for row in history] == [rows(0.1)[0].costs]
    text = performance.page([*rows(0.5, processor="old"), *rows(0.0, 0.0)])
    assert "0.61" not in text
    assert "| same |" in text


def test_a_history_is_read_back_as_it_was_written(tmp_path: Path):
    path = tmp_path / "h.csv"
    path.write_text(performance.written(rows(0.0, 0.25)), encoding="utf-8")
    assert performance.read_history(path) == rows(0.0, 0.25)


def test_the_committed_page_is_that_of_the_committed_history(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.argv", ["performance.py", "--check"])
    assert performance.main() == 0
