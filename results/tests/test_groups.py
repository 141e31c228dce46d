"""Groups of findings: one bug in one operator is one group whatever the cases, and two bugs are two."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from oracle.known.severity import Severity
from oracle.records import Record
from oracle.verdict import Status
from results import tables
from results.groups import FindingGroup, GroupRow, columns_of, group_findings, group_rows, severity_of
from results.tests import fabricate

WRONG = "call 0: output[0, 1] is 1.5, but should be 2.5 (fp64 2.5): error 1, allowed 1e-05; 1 of 4 elements are wrong"


def finding(name: str, status: Status = Status.FAIL_ACCURACY, symptom: str = WRONG, **of_case: str) -> Record:
    return fabricate.record(fabricate.case(name, **of_case), status, symptom=symptom)  # pyright: ignore[reportArgumentType]


def sample(
    i: int,
    status: Status = Status.FAIL_ACCURACY,
    symptom: str = WRONG,
    *,
    subject: str = "inductor",
    dtype: str = "float32",
) -> Record:
    return finding(f"add/{dtype}/forward/sample-{i}", status, symptom, subject=subject, dtype=dtype)


def grouped(*records: Record) -> list[FindingGroup]:
    groups = group_findings(tables.frame(records))
    assert sorted(case_id for group in groups for case_id in group.case_ids) == sorted(
        record.case_id for record in records if record.verdict.status.is_finding
    )
    return groups


# ------------------------------------------------------------------------------------------------------------- one bug


def test_samples_dtypes_places_and_numbers_of_one_bug_are_one_group():
    records = [
        sample(0),
        sample(
            1, symptom="call 0: output[7] is -3e+20, but should be inf (fp64 inf): error not finite, allowed 1; 9 of 9"
        ),
        sample(
            2, symptom="call 3: output[1][2, 3] is 7, but should be 8: error 1, allowed 0.5; 1 of 1 elements are wrong"
        ),
        sample(3, dtype="bfloat16"),
        finding("add/float32/backward/sample-3", direction="backward"),
    ]
    (group,) = grouped(*records)
    assert (group.cases, group.what, group.example) == (5, "add", records[0].case_id)
    assert group.symptom == WRONG.removeprefix("call 0: ")


def test_one_refusal_with_other_sizes_is_one_group_also_where_the_judge_cut_the_message():
    text = (
        "call 0: outcome is torch._dynamo.exc.BackendCompilerFailed in call (\"backend='{name}' raised: RuntimeError: "
        'shape {shape} INTERNAL ASSERT FAILED at "/root/aten/src/ATen/core/ivalue.h":{line}, please report a bug to PyTorch'
    )
    long = [
        text.format(name=name, shape=shape, line=line)[:160] + "..."
        for name, shape, line in (
            ("aot_eager", "(2, 3)", 8),
            ("inductor", "(2, 3)", 8),
            ("inductor", "[1000, 2000, 3]", 812),
        )
    ]
    records = [
        sample(0, Status.FAIL_TO_RUN, long[0], subject="aot_eager"),
        sample(0, Status.FAIL_TO_RUN, long[1]),
        sample(1, Status.FAIL_TO_RUN, long[2]),
        sample(1, Status.FAIL_TO_RUN, long[0], subject="aot_eager"),
    ]
    (group,) = grouped(*records)
    assert group.subjects == ("aot_eager", "inductor")
    assert group.symptom.startswith("RuntimeError: shape (2, 3) INTERNAL ASSERT FAILED at")


def test_subjects_that_fail_the_same_way_are_one_group_and_the_lowest_of_them_gives_the_example():
    names = ("mine", "inductor[mode=max-autotune]", "inductor", "aot_eager")
    (group,) = grouped(*(sample(i, subject=name) for i in range(2) for name in names))
    assert group.subjects == ("aot_eager", "inductor", "inductor[mode=max-autotune]", "mine")
    assert group.example == "opinfo/add/float32/forward/sample-0@aot_eager"
    assert group.cases == 8


@pytest.mark.parametrize("below", [Status.NOT_RUN, Status.PASS_DUE_TO_SKIP, Status.TIMEOUT, None])
def test_a_rung_that_said_nothing_of_a_program_does_not_make_a_second_group(below: Status | None):
    records = [sample(0, subject="aot_eager"), sample(0), sample(1)]
    if below is not None:
        records.append(sample(1, below, symptom="", subject="aot_eager"))
    groups = [group for group in grouped(*records) if group.status == "fail_accuracy"]
    assert [group.cases for group in groups] == [3]


def test_programs_of_a_generator_that_have_only_numbers_are_samples():
    (group,) = grouped(*(finding(f"overlap/{i:05d}", dtype="") for i in range(3)))
    assert (group.what, group.cases) == ("overlap", 3)


def test_cases_without_a_record_are_one_group_whatever_their_operators():
    records = [finding(f"op{i}/float32/forward/sample-0", Status.MISSING, "no record") for i in range(5)]
    (group,) = grouped(*records)
    assert (group.cases, group.severity, group.label) == (5, None, "missing")


# ------------------------------------------------------------------------------------------------------------ two bugs


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (sample(0), finding("sub/float32/forward/sample-0")),  # another operator
        (sample(0), sample(1, Status.FAIL_GRAD, WRONG.replace("output", "grad of args[0]"))),
        (sample(0), sample(1, symptom=WRONG.replace("is 1.5", "is nan"))),  # NaN for a number
        (sample(0), sample(1, symptom="call 0: output[0] is 0, but should be -0 (the sign of zero, which fp64 keeps)")),
        (sample(0), sample(1, symptom=WRONG.replace("output[0, 1]", "args[0][1]"))),  # an argument, not the result
        (
            sample(0, Status.FAIL_METADATA, "call 0: output.dtype is torch.int64, but should be torch.int32"),
            sample(1, Status.FAIL_METADATA, "call 0: output.shape is (2,), but should be (3,)"),
        ),
        (
            sample(
                0, Status.FAIL_TO_RUN, "call 0: outcome is RuntimeError in call ('no rule'), but should be a return"
            ),
            sample(
                1, Status.FAIL_TO_RUN, "call 0: outcome is RuntimeError in call ('no kernel'), but should be a return"
            ),
        ),
        (sample(0, Status.CRASH, "died: signal 11"), sample(1, Status.CRASH, "died: signal 6")),
        (
            finding("found/alias_set", dtype=""),
            finding("found/view_written", dtype=""),
        ),  # programs with nothing in common
        (finding("a/float32/0", suite="opinfo"), finding("a/float32/0", suite="models")),
    ],
)
def test_what_differs_in_operator_status_or_kind_stays_apart(one: Record, other: Record):
    assert len(grouped(one, other)) == 2


def test_the_same_symptom_that_begins_on_a_higher_rung_is_another_bug_where_the_lower_one_agrees():
    records = [
        sample(0, subject="aot_eager"),
        sample(0),
        sample(1, Status.PASS, "", subject="aot_eager"),
        sample(1),
        sample(2, Status.XPASS, "", subject="aot_eager"),
        sample(2),
    ]
    groups = grouped(*records)
    assert {(group.subjects, group.cases) for group in groups} == {(("aot_eager", "inductor"), 2), (("inductor",), 2)}


def test_rungs_above_the_first_of_another_bug_are_not_mixed_up():
    # aot_eager has wrong strides, inductor wrong values on top of them.
    strides = "call 0: output.stride() is (1, 2), but should be (2, 1)"
    groups = grouped(sample(0, Status.FAIL_STRIDE, strides, subject="aot_eager"), sample(0))
    assert [(group.status, group.subjects) for group in groups] == [
        ("fail_accuracy", ("inductor",)),
        ("fail_stride", ("aot_eager",)),
    ]


# --------------------------------------------------------------------------------------------------------------- order


def test_silent_wrong_values_come_first_then_what_is_most_frequent():
    records = [
        sample(0, Status.FAIL_STRIDE, "call 0: output.stride() is (1,), but should be (2,)"),
        finding(
            "a/float32/0", Status.FAIL_TO_RUN, "call 0: outcome is RuntimeError in call ('x'), but should be a return"
        ),
        finding("b/float32/0", Status.CRASH, "signal 11"),
        finding("c/float32/0"),
        *(finding(f"d/float32/{i}") for i in range(2)),
        finding("e/float32/0", Status.FAIL_GRAD, WRONG.replace("output", "grad of args[0]")),
        finding("f/float32/0", Status.FAIL_RNG, "call 0: generator state after the call is 'a', but should be 'b'"),
        finding("g/float32/0", Status.FAIL_ALIAS, "call 0: output shares the storage of args[0], but should not"),
        finding("h/float32/0", symptom="call 0: output[0] is 0, but should be -0 (the sign of zero, which fp64 keeps)"),
        finding("i/float32/0", Status.MISSING, "no record"),
    ]
    assert [group.what for group in grouped(*records)] == ["d", "c", "e", "g", "f", "b", "a", "add", "h", ""]


@pytest.mark.parametrize("status", [status for status in Status if status.is_finding])
def test_every_finding_has_a_severity_and_a_group(status: Status):
    (group,) = grouped(fabricate.record(fabricate.case(), status))
    assert group.severity is severity_of(group.status, group.kind)
    assert json.loads(json.dumps(group.to_json()))["cases"] == 1


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("output: number", Severity.VALUE),
        ("grad: number", Severity.GRADIENT),
        ("argument: number", Severity.MUTATION),
        ("output.stride()", Severity.STRIDES),
        ("output.dtype", Severity.METADATA),
        ("output: sign of zero", Severity.SIGN),
    ],
)
def test_what_is_wrong_on_a_later_call_only_is_as_bad_as_what_is_wrong(kind: str, expected: Severity):
    assert severity_of("fail_guard", kind) is expected


def test_no_findings_are_no_groups():
    assert grouped() == []
    statuses = [status for status in Status if not status.is_finding]
    assert grouped(*(fabricate.record(fabricate.case(f"{status.value}/f"), status) for status in statuses)) == []


def test_the_order_of_the_rows_changes_no_group():
    records = [sample(i, subject=s) for i in range(4) for s in ("inductor", "aot_eager", "dynamo")]
    records[4] = replace(records[4], verdict=fabricate.verdict(Status.PASS))
    records[5] = replace(records[5], verdict=fabricate.verdict(Status.NOT_RUN))
    expected = {(group.subjects, frozenset(group.case_ids)) for group in grouped(*records)}
    assert {(group.subjects, frozenset(group.case_ids)) for group in grouped(*reversed(records))} == expected


def test_ten_thousand_cases_of_one_bug_are_one_group():
    base = sample(0)
    records = [
        replace(base, case_id=f"opinfo/add/float32/forward/sample-{i}@inductor", name=f"add/float32/forward/sample-{i}")
        for i in range(10_000)
    ]
    records = [
        replace(r, verdict=replace(r.verdict, symptom=WRONG.replace("1.5", f"{i}.5"))) for i, r in enumerate(records)
    ]
    assert [group.cases for group in grouped(*records)] == [10_000]


def test_rows_of_one_name_at_a_time_are_grouped_as_whole_tables_in_any_order():
    draw = random.Random(0)
    records = [
        fabricate.record(
            fabricate.case(f"op{i % 5}/float32/{i // 12}", suite=suite, subject=subject, group=f"op{i % 5}"),
            draw.choice([Status.PASS, Status.PASS, Status.CRASH, Status.FAIL_ACCURACY, Status.MISSING]),
            symptom=draw.choice(["call 0: output[0] is 1.5, but should be 1.0", "call 0: signal 11"]),
        )
        for i in range(60)
        for suite in ("opinfo", "models")
        for subject in ("dynamo", "aot_eager", "inductor")
    ]
    records = list({record.case_id: record for record in records}.values())
    draw.shuffle(records)
    names = ("suite", "group", "name", "subject", "dtype", "direction", "status", "symptom", "case_id")
    table = columns_of(records)
    rows = [
        GroupRow._make((*(table[name][i] for name in names), i, table["is_finding"][i])) for i in range(len(records))
    ]
    by_name: dict[str, list[GroupRow]] = {}
    for row in rows:
        by_name.setdefault(row.name, []).append(row)
    order = list(by_name)
    draw.shuffle(order)
    found = group_rows(row for name in order for row in by_name[name])
    assert found == group_findings(table)
    assert sum(group.cases for group in found) == sum(table["is_finding"])
    place = {case_id: i for i, case_id in enumerate(table["case_id"])}
    for group in found:
        assert list(group.case_ids) == sorted(group.case_ids, key=place.__getitem__)
