"""The measurement on models: each names the line and the operator that its wrong backend changes."""

from __future__ import annotations

from benchmarks.measurements.localisation_models import rows
from triage.tests.models import MODELS


def test_every_model_says_where_its_wrong_rule_is() -> None:
    for model in MODELS:
        file, _, number = model.source.partition(":")
        lines = (model.path.partition(".py:")[0] + ".py", int(number))
        with open(lines[0], encoding="utf-8") as opened:
            assert model.text in opened.read().splitlines()[lines[1] - 1], (model.name, file)


def test_a_model_has_a_row_with_both_times_and_sizes() -> None:
    (row,) = rows("state space", budget_s=120.0)
    assert (row.found, row.rung_is, row.value_is) == ("wrong_cumsum", "right", "right")
    assert row.value == "total, state_space.py:57, cumsum"
    assert (row.after, row.how) == (1, "captured")
    assert row.before > row.after
    assert row.localise_cpu_s > 0
    assert row.minimise_cpu_s > 0
