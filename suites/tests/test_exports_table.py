"""The table of exported models: what each verdict is called, what is counted, and that nothing that fails is called equal."""

from __future__ import annotations

import pytest

from oracle.records import Measurements, Record
from oracle.verdict import Status, Verdict
from suites.exports.table import COLUMNS, agreement, counts, markdown, rows_of, word_of
from suites.text_tables import csv_text

REFUSED = Verdict(status=Status.PASS, explained=("call 1, outside of the sizes, is refused: Guard failed: x <= 8",))
PASS = Verdict(status=Status.PASS)
STATE = Verdict(
    status=Status.FAIL_STATE, symptom="call 0: module.layer.size is 1, but should be 2", also=("module.a is 1",)
)
MIXED = Verdict(
    status=Status.FAIL_STATE, symptom="call 0: module.b is 1, but should be 2", also=("call 1: output is 1",)
)
READS = Verdict(status=Status.FAIL_TO_RUN, symptom="call 0: outcome is UserError ('Data-dependent')")
WRONG = Verdict(status=Status.FAIL_ACCURACY, symptom="call 1: output is 1 | 2, but should be 3")


def record(model: str, kind: str, subject: str, verdict: Verdict) -> Record:
    name = f"{model}/float32/forward/{kind}"
    return Record(
        run_id="r", case_id=f"exports/{name}@{subject}", suite="exports", group=model, name=name, subject=subject,
        dtype="float32", direction="forward", device="cpu", tags=(), verdict=verdict, measurements=Measurements(),
        seed=0, repro="", started_at="", traceback="",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("verdict", "is_outside", "word"),
    [
        (PASS, False, "equal"),
        (REFUSED, True, "refused"),
        (PASS, True, "no range"),
        (STATE, False, "equal but for attributes"),
        (MIXED, False, "fail_state"),
        (READS, False, "reads data"),
        (WRONG, False, "fail_accuracy"),
        (Verdict(status=Status.FAIL_GUARD, symptom="call 1, outside of the sizes: accepted"), True, "fail_guard"),
        (Verdict(status=Status.EAGER_FAIL_TO_RUN), False, "no ground truth"),
        (Verdict(status=Status.CRASH), False, "crash"),
    ],
)
def test_each_verdict_has_its_word(verdict: Verdict, is_outside: bool, word: str) -> None:
    assert word_of(verdict, is_outside=is_outside) == word


def test_rows_counts_and_agreement() -> None:
    rows = rows_of(
        [
            record("a", "inside", "refimpl.export", PASS),
            record("a", "above", "refimpl.export", REFUSED),
            record("b", "inside", "refimpl.export", WRONG),
            record("a", "inside", "export", PASS),
            record("b", "inside", "export", PASS),
            record("c", "inside", "export", PASS),
        ]
    )
    assert counts(rows) == [
        ["refimpl.export", "2", "1 equal, 1 fail_accuracy", "1 refused", "not run"],
        ["export", "3", "3 equal", "not run", "not run"],
    ]
    assert agreement(rows, ["refimpl.export", "export"]) == (2, 1, ["b"])
    text = markdown(rows, environment="torch 0")
    assert "all subjects (2) end alike on 1 of 2 models; not on b." in text
    assert (
        "| b | refimpl.export | fail_accuracy | not run | not run | call 1: output is 1 \\| 2, but should be 3 |"
        in text
    )
    lines = csv_text(COLUMNS, [row.cells() for row in rows]).splitlines()
    assert lines[0] == "model,subject,inside,above,below,symptom"
    assert len(lines) == 6
