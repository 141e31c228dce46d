"""Counting what verdicts rest on."""

from __future__ import annotations

import witnesses


def test_verdicts_and_elements_are_counted_by_subject_and_witness() -> None:
    rows = witnesses.count(
        [
            ("a", "pass", (("bits", 10), ("noise", 2))),
            ("a", "pass_due_to_skip", (("noise", 3),)),
            ("a", "fail_accuracy", (("noise", 7),)),
            ("b", "pass", ()),
        ]
    )
    counted = {(row["subject"], row["witness"]): (row["verdicts"], row["elements"]) for row in rows}
    assert counted == {
        ("a", "all"): ("3", "0"),
        ("a", "findings"): ("1", "0"),
        ("a", "pass_due_to_skip"): ("1", "0"),
        ("a", "bits"): ("1", "10"),
        ("a", "noise"): ("2", "5"),
        ("b", "all"): ("1", "0"),
    }
