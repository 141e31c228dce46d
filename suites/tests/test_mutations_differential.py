"""Who is wrong: every program is in one class, failures fall into buckets, and the tables say so."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from oracle.records import Record
from oracle.verdict import Status, Verdict
from suites.mutations.buckets import bucket_of
from suites.mutations.differential import (
    BOTH,
    NEITHER,
    NOT_COMPARED,
    REFIMPL_WRONG,
    TORCH_WRONG,
    by_symptom,
    by_theme,
    rows_of,
    write_tables,
    wrong_programs,
)


def record(name: str, subject: str, status: Status, symptom: str = "", traceback: str = "") -> Record:
    return Record(
        run_id="r", case_id=f"mutations/{name}@{subject}", suite="mutations", group=name.split("/")[0], name=name,
        subject=subject, dtype="", direction="forward", device="cpu", verdict=Verdict(status=status, symptom=symptom),
        traceback=traceback,
    )  # fmt: skip


ENDINGS = {
    "out/00001": (Status.PASS, Status.PASS, NEITHER),
    "out/00002": (Status.FAIL_ALIAS, Status.PASS, TORCH_WRONG),
    "out/00003": (Status.PASS, Status.FAIL_GRAD, REFIMPL_WRONG),
    "views/00001": (Status.FAIL_TO_RUN, Status.CRASH, BOTH),
    "views/00002": (Status.EAGER_FAIL_TO_RUN, Status.EAGER_FAIL_TO_RUN, NOT_COMPARED),
    "views/00003": (Status.PASS_DUE_TO_SKIP, Status.PASS, NEITHER),
}


def rows():
    return rows_of(
        [record(name, "aot_eager", ending[0], "call 0: s") for name, ending in ENDINGS.items()],
        [record(name, "refimpl.aot", ending[1], "call 0: t") for name, ending in reversed(ENDINGS.items())],
    )


def test_every_program_is_in_one_class() -> None:
    assert {row.name: row.kind for row in rows()} == {name: ending[2] for name, ending in ENDINGS.items()}
    assert rows_of([record("out/00009", "aot_eager", Status.PASS)], []) == [], "programs that both have run"


def test_counts_by_theme_add_up() -> None:
    out, views, total = by_theme(rows())
    assert (out["theme"], out["programs"], out[TORCH_WRONG], out[REFIMPL_WRONG]) == ("out", 3, 1, 1)
    assert (views["programs"], views[BOTH], views[NOT_COMPARED]) == (3, 1, 1)
    assert total == {
        "theme": "total",
        "programs": 6,
        NEITHER: 2,
        TORCH_WRONG: 1,
        REFIMPL_WRONG: 1,
        BOTH: 1,
        NOT_COMPARED: 1,
    }


def test_symptoms_and_programs_name_who_and_where(tmp_path: Path) -> None:
    symptoms = by_symptom(rows())
    assert [(line["who"], line["programs"], line["example"]) for line in symptoms] == [
        ("refimpl", 1, "views/00001"),
        ("refimpl", 1, "out/00003"),
        ("torch", 1, "out/00002"),
        ("torch", 1, "views/00001"),
    ]
    assert [line["program"] for line in wrong_programs(rows())] == ["out/00002", "out/00003", "views/00001"]
    write_tables(tmp_path, {"symptoms": symptoms, "empty": []})
    with (tmp_path / "mutations-symptoms.csv").open(encoding="utf-8") as file:
        assert [line["who"] for line in csv.DictReader(file)] == ["refimpl", "refimpl", "torch", "torch"]


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (
            "call 0: output[0][1] is 2, but should be 3.5",
            "call 1: output[0][7, 2] is -1, but should be 0: error 1",
            True,
        ),
        ("call 0: output[0] is 2, but should be 3", "call 0: grad of args[0] is 2, but should be 3", False),
    ],
)
def test_values_differ_in_one_bucket_and_what_differs_tells_buckets_apart(one: str, other: str, is_same: bool) -> None:
    first, second = (bucket_of(record("out/1", "x", Status.FAIL_ACCURACY, symptom)) for symptom in (one, other))
    assert (first == second) is is_same


def test_the_bucket_of_an_exception_is_its_innermost_message() -> None:
    wrapped = (
        "Traceback\n  File x\ntorch._dynamo.exc.BackendCompilerFailed: backend='aot_eager' raised:\n"
        "AssertionError: view 3 of (2, 3) is wrong\n\nSet TORCHDYNAMO_VERBOSE=1\n"
    )
    found = bucket_of(record("out/1", "x", Status.FAIL_TO_RUN, "call 0: outcome is BackendCompilerFailed", wrapped))
    assert found == "fail_to_run: AssertionError: view # of # is wrong"
