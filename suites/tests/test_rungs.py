"""The second step of the default sweep: which cases follow from what was found."""

from __future__ import annotations

from dataclasses import replace

from oracle.records import PlannedCase, Record
from oracle.verdict import Status, Verdict
from suites.rungs import cases_below


def case(name: str, subject: str, suite: str = "opinfo") -> PlannedCase:
    return PlannedCase(
        case_id=f"{suite}/{name}@{subject}",
        suite=suite,
        group=name,
        name=name,
        subject=subject,
        dtype="float32",
        tags=("sample",),
        program={"name": name, "source": f"# {name}"},
    )


def ended(planned: PlannedCase, status: Status) -> Record:
    return Record.of(planned, run_id="run", verdict=Verdict(status=status))


def test_a_wrong_program_runs_on_every_rung_below_that_it_has_not_run_on() -> None:
    planned = [case("atanh", "inductor"), case("add", "inductor"), case("sub", "aot_eager"), case("sub", "dynamo")]
    statuses = [Status.FAIL_ACCURACY, Status.PASS, Status.FAIL_GRAD, Status.PASS]
    records = [ended(one, status) for one, status in zip(planned, statuses, strict=True)]
    further = cases_below(planned, records)
    assert further == [
        replace(planned[0], case_id=f"opinfo/atanh@{rung}", subject=rung)
        for rung in ("dynamo", "aot_eager", "aot_eager_decomp_partition")
    ]


def test_what_follows_is_the_same_when_it_is_asked_again_after_an_interruption() -> None:
    planned = [case("atanh", "inductor")]
    records = [ended(planned[0], Status.FAIL_ACCURACY)]
    further = cases_below(planned, records)
    assert cases_below([*planned, *further[:1]], records) == further[1:]
    below = [ended(further[0], Status.FAIL_ACCURACY), ended(further[1], Status.PASS)]
    assert cases_below([*planned, *further], [*records, *below]) == []


def test_known_issues_and_ends_that_say_nothing_of_the_subject_need_no_lower_rung() -> None:
    silent = (Status.KNOWN, Status.XPASS, Status.MODEL_FAIL_TO_LOAD, Status.MISSING, Status.EAGER_FAIL_TO_RUN)
    planned = [case(status.value, "inductor") for status in silent]
    records = [ended(one, status) for one, status in zip(planned, silent, strict=True)]
    assert cases_below(planned, records) == []


def test_subjects_beside_the_ladder_have_no_rung_below() -> None:
    planned = [case("mlp", subject) for subject in ("export[strict=false]", "export[decomposed=true]", "mine:backend")]
    assert cases_below(planned, [ended(one, Status.FAIL_ACCURACY) for one in planned]) == []
