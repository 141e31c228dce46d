"""Why torch is wrong: every kind of failure has a cause, every cause a regression or a reason, and the tables say so."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from oracle.records import Record
from oracle.verdict import Status, Verdict
from suites.mutations.causes import BUCKETS, CAUSES, UNKNOWN
from suites.mutations.minimise import kind_of
from suites.mutations.torch_buckets import by_bucket, by_cause, causes_of
from suites.regressions.suite import LADDER, first_rung, snippets

COMMITTED = Path(__file__).parents[2] / "results" / "data" / "cpu-torch-2.13.0" / "mutations-torch-buckets.csv"


def record(name: str, status: Status, symptom: str, traceback: str = "", subject: str = "aot_eager") -> Record:
    return Record(
        run_id="r", case_id=f"mutations/{name}@{subject}", suite="mutations", group=name.split("/")[0], name=name,
        subject=subject, dtype="", direction="forward", device="cpu", verdict=Verdict(status=status, symptom=symptom),
        traceback=traceback,
    )  # fmt: skip


def raised(name: str, message: str) -> Record:
    wrapped = f"torch._dynamo.exc.BackendCompilerFailed: backend='aot_eager' raised:\n{message}\n"
    return record(name, Status.FAIL_TO_RUN, "call 0: outcome is BackendCompilerFailed in call", wrapped)


def test_causes_have_one_row_each_and_all_of_them_show_somewhere() -> None:
    words = [cause.word for cause in CAUSES]
    assert len(words) == len(set(words))
    assert {word for causes in BUCKETS.values() for word in causes} == set(words)


def test_a_cause_without_a_regression_says_why() -> None:
    silent = [cause for cause in CAUSES if not cause.regressions]
    assert silent
    assert all("no regression is kept" in cause.line for cause in silent)


def test_regressions_of_causes_differ_on_a_rung_of_torch_and_each_found_program_has_one_cause() -> None:
    named = [name for cause in CAUSES for name in cause.regressions]
    assert len(named) == len(set(named))
    assert all("differs" in snippets()[name].tags and first_rung(name) in LADDER[:2] for name in named)
    assert sorted(name for name in named if name.startswith("found/")) == sorted(
        name for name in snippets() if name.startswith("found/")
    )


@pytest.mark.parametrize(
    ("bucket", "words"),
    [
        ("fail_to_run: AssertionError: outs_to_grad length # != tangents length #", ["base-tangents"]),
        (
            "fail_to_run: RuntimeError: one of the variables needed for gradient computation has been modified by an inplace"
            " operation: [CPUBoolType #] is at version",
            ["joint-all-updates"],
        ),
        ("fail_to_run: ZeroDivisionError: nobody has seen this", []),
    ],
)
def test_the_longest_beginning_that_is_listed_holds(bucket: str, words: list[str]) -> None:
    assert [cause.word for cause in causes_of(bucket)] == words


def test_kinds_of_failure_are_counted_with_causes_and_unknown_ones_are_said() -> None:
    lines = by_bucket(
        [
            record("views/00001", Status.PASS, ""),
            raised("views/00002", "ZeroDivisionError: nobody has seen this"),
            raised("views/00003", "AssertionError: outs_to_grad length (1) != tangents length (2)"),
            raised("views/00004", "AssertionError: outs_to_grad length (3) != tangents length (1)"),
            record(
                "views/00005",
                Status.FAIL_RNG,
                "call 0: generator state after the call is 1, but should be 2",
                subject="x",
            ),
        ],
        "aot_eager",
    )
    assert [(line["programs"], line["example"], line["causes"], line["regressions"]) for line in lines] == [
        (2, "views/00003", "base-tangents", "found/written_view_and_base_no_results"),
        (1, "views/00002", UNKNOWN, ""),
    ]
    counted = {line["cause"]: line["kinds"] for line in by_cause(lines)}
    assert len(counted) == len(CAUSES)
    assert {cause for cause, kinds in counted.items() if kinds} == {"base-tangents"}


def test_failures_that_a_compiler_wraps_alike_are_of_different_kinds() -> None:
    one, same, other = (
        raised("views/1", text) for text in ("ValueError: 1 is a", "ValueError: 2 is a", "ValueError: b")
    )
    assert kind_of(one) == kind_of(same)
    assert kind_of(one) != kind_of(other)


def test_every_kind_of_the_committed_table_has_a_cause() -> None:
    with COMMITTED.open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) > 50
    assert [line["symptom"] for line in lines if line["causes"] == UNKNOWN] == []
    for line in lines:
        assert line["causes"].split() == [cause.word for cause in causes_of(line["symptom"])]
