"""Known issues and news: what an entry explains, and the wrong answers that it must not hide."""

from __future__ import annotations

import datetime
from dataclasses import replace

import pytest

from oracle.known.ledger import KnownIssue, Ledger, load_ledger
from oracle.known.matching import with_known_issue
from oracle.known.seen import Ending, Seen
from oracle.known.severity import Severity
from oracle.program import Program
from oracle.records import PlannedCase
from oracle.subjects.registry import resolve
from oracle.verdict import Compared, Status, Verdict

TODAY = datetime.date(2026, 12, 1)
TORCH = "2.13.0+cpu"
WRONG = "call 0: output[0] is 22, but should be 8 (1 of 1 elements differ)"
NUMBER = Verdict(status=Status.FAIL_ACCURACY, symptom=WRONG)
PASS = Verdict(status=Status.PASS, compared=Compared(tensors=1, elements=1))


def ending(verdict: Verdict) -> Ending:
    return Ending.of(verdict)


def issue(name: str = "bug", rung: str = "aot_eager", **changes: object) -> KnownIssue:
    fields = {
        "id": name, "title": "t", "cause": "c", "severity": Severity.VALUE, "rung": rung, "expires": datetime.date(2027, 1, 1),
        "program": Program(name=name, source=""), "statuses": ("fail_accuracy",), "shown_by": ("regressions/x/y",),
    }  # fmt: skip
    return KnownIssue(**{**fields, **changes})


def ledger(*issues: KnownIssue, **endings: Verdict) -> Ledger:
    """Entries whose case was seen to end so; subjects are named with _ for characters that a keyword cannot hold."""
    by_subject = {subject: (ending(verdict),) for subject, verdict in endings.items()}
    return Ledger(issues=issues or (issue(),), seen=Seen(by_torch={"2.13": {"regressions/x/y": by_subject}}))


def judged(
    verdict: Verdict,
    known: Ledger,
    subject: str = "aot_eager",
    *,
    name: str = "x/y",
    torch: str = TORCH,
    device: str = "cpu",
) -> Verdict:
    case = PlannedCase(case_id="c", suite="regressions", group="x", name=name, subject=subject, device=device)
    return with_known_issue(verdict, case, resolve(subject), known, torch_version=torch, today=TODAY)


SEEN = ledger(dynamo=PASS, aot_eager=NUMBER, inductor=NUMBER)


def test_a_difference_that_was_seen_is_known_and_keeps_its_symptom() -> None:
    found = judged(NUMBER, SEEN)
    assert found == replace(NUMBER, status=Status.KNOWN, issue="bug", observed="fail_accuracy")


def test_numbers_and_places_may_differ_from_what_was_seen() -> None:
    other = replace(
        NUMBER, symptom="call 1: output[1][2, 3] is 0.5, but should be 0.25 (fp64 0.25): error 0.25, allowed 1e-6"
    )
    assert judged(other, SEEN).status is Status.KNOWN


@pytest.mark.parametrize(
    "verdict",
    [
        Verdict(status=Status.CRASH, symptom="the process died of signal 11 (SIGSEGV) in the subject"),
        Verdict(status=Status.TIMEOUT, symptom="no end within 120 s in the subject"),
        Verdict(status=Status.FAIL_GRAD, symptom="call 0: grad of args[0] is 1, but should be 2: error 1, allowed 0"),
        Verdict(status=Status.FAIL_STRIDE, symptom="call 0: output.stride() is (1, 2), but should be (2, 1)"),
        replace(NUMBER, symptom="call 0: output[0] is nan, but should be 8"),
        replace(NUMBER, symptom="call 0: output.shape is (3,), but should be (1,)"),
        Verdict(
            status=Status.FAIL_TO_RUN, symptom="call 0: outcome is RuntimeError in call ('no'), but should be a return"
        ),
    ],
    ids=lambda verdict: f"{verdict.status.value}: {verdict.symptom[:30]}",
)
def test_another_difference_of_the_same_case_stays_a_finding(verdict: Verdict) -> None:
    assert judged(verdict, SEEN) == verdict


@pytest.mark.parametrize("name", ["x/z", "x"])
def test_another_case_stays_a_finding(name: str) -> None:
    assert judged(NUMBER, SEEN, name=name) == NUMBER


def test_a_rung_that_agreed_when_it_was_measured_is_held_to_that() -> None:
    assert judged(NUMBER, SEEN, "dynamo") == NUMBER


@pytest.mark.parametrize(
    ("subject", "is_known"),
    [
        ("inductor[mode=max-autotune]", True),  # another setting of what was measured
        ("aot_eager_decomp_partition", True),  # a rung between two that were
        ("dynamo[fullgraph=true]", False),
        ("make_fx", False),
        ("export", False),
        ("refimpl.aot", False),
        (
            "fuzz.tests.planted:raises",
            False,
        ),  # a backend of the user's may have the same fault as aot_eager, or one of its own
        ("compile:fuzz.tests.planted:raises", False),
    ],
)
def test_subjects_that_were_not_measured(subject: str, is_known: bool) -> None:
    assert (judged(NUMBER, SEEN, subject).status is Status.KNOWN) == is_known


def test_what_dynamo_does_wrong_is_known_of_every_backend() -> None:
    known = ledger(issue(rung="dynamo"), dynamo=NUMBER)
    assert judged(NUMBER, known, "fuzz.tests.planted:raises").status is Status.KNOWN
    assert judged(NUMBER, known, "compile:fuzz.tests.planted:raises") == NUMBER


def test_what_eager_does_wrong_is_known_of_every_subject() -> None:
    known = ledger(issue(of_eager=True), aot_eager=NUMBER)
    assert judged(NUMBER, known, "refimpl.aot").status is Status.KNOWN


def test_a_case_that_agrees_now_is_an_unexpected_pass_on_what_was_measured() -> None:
    found = judged(PASS, SEEN)
    assert (found.status, found.issue, found.compared) == (Status.XPASS, "bug", PASS.compared)
    for changed in ({"torch": "2.14.0"}, {"device": "cuda"}):
        assert judged(PASS, SEEN, **changed) == PASS
    for subject in ("dynamo", "refimpl.aot", "inductor[mode=max-autotune]"):
        assert judged(PASS, SEEN, subject) == PASS


def test_an_older_torch_is_held_to_what_it_showed_itself() -> None:
    by_case = {"regressions/x/y": {"aot_eager": (ending(NUMBER),), "inductor": (ending(NUMBER),)}}
    older = {"regressions/x/y": {"aot_eager": (ending(PASS),)}}
    known = Ledger(issues=(issue(),), seen=Seen(by_torch={"2.12": older, "2.13": by_case}))
    for subject in ("aot_eager", "inductor"):  # fixed, or not run there
        assert judged(PASS, known, subject, torch="2.12.0") == PASS
        assert judged(PASS, known, subject, torch="2.13.0").status is Status.XPASS
    assert judged(NUMBER, known, torch="2.12.0") == NUMBER  # a new finding: it agreed when it was measured


def test_a_case_that_does_not_always_end_alike_is_no_unexpected_pass() -> None:
    both = Seen(by_torch={"2.13": {"regressions/x/y": {"aot_eager": (ending(NUMBER), ending(PASS))}}})
    known = Ledger(issues=(issue(),), seen=both)
    assert judged(PASS, known) == PASS
    assert judged(NUMBER, known).status is Status.KNOWN


@pytest.mark.parametrize("status", [Status.PASS_DUE_TO_SKIP, Status.EAGER_FAIL_TO_RUN, Status.EAGER_TWO_RUNS_DIFFER])
def test_what_was_not_compared_is_neither(status: Status) -> None:
    assert judged(Verdict(status=status), SEEN) == Verdict(status=status)


def test_an_expired_entry_explains_nothing() -> None:
    late = ledger(issue(expires=datetime.date(2026, 11, 30)), aot_eager=NUMBER)
    assert judged(NUMBER, late) == NUMBER
    assert judged(PASS, late) == PASS


def refusal(message: str) -> Verdict:
    return Verdict(
        status=Status.FAIL_TO_RUN,
        symptom=f"call 0: outcome is AssertionError in call ('{message}'), but should be a return",
    )


def test_a_refusal_is_known_by_its_message_in_any_program_from_its_rung_on() -> None:
    known = ledger(issue(statuses=("fail_to_run",), message="AssertionError: outs_to_grad length #*"))
    said = refusal("outs_to_grad length (1) != tangents length (2)")
    assert judged(said, known, name="any/other").issue == "bug"
    assert judged(said, known, "inductor", name="any/other").issue == "bug"
    assert judged(refusal("another message"), known, name="any/other") == refusal("another message")
    for subject in ("dynamo", "refimpl.aot", "fuzz.tests.planted:raises"):
        assert judged(said, known, subject, name="any/other") == said


def test_a_wrong_answer_is_never_known_by_a_message() -> None:
    known = ledger(issue(statuses=("fail_to_run",), message="*"))
    for verdict in (
        NUMBER,
        Verdict(status=Status.CRASH, symptom="the process died of signal 11 (SIGSEGV) in the subject"),
    ):
        assert judged(verdict, known, name="any/other") == verdict


def test_of_two_entries_with_one_case_the_one_of_the_subjects_rung_is_named() -> None:
    stride = Verdict(status=Status.FAIL_STRIDE, symptom="call 0: output.stride() is (1, 2), but should be (2, 1)")
    known = ledger(
        issue("capture", "dynamo"),
        issue("kernel", "inductor", statuses=("fail_stride",)),
        dynamo=NUMBER,
        inductor=stride,
    )
    assert judged(NUMBER, known, "dynamo").issue == "capture"
    assert judged(stride, known, "inductor").issue == "kernel"


def test_an_own_ledger_is_taken_at_its_word() -> None:
    own = Ledger(issues=(issue(rung="fuzz.tests.planted*"),))
    assert judged(NUMBER, own, "fuzz.tests.planted:raises").issue == "bug"
    assert judged(NUMBER, own, "aot_eager") == NUMBER
    assert judged(refusal("no"), own, "fuzz.tests.planted:raises") == refusal("no")


def test_a_program_of_an_own_ledger_that_agrees_is_told() -> None:
    own = Ledger(issues=(issue(rung="fuzz.tests.planted*"),))
    assert judged(PASS, own, "fuzz.tests.planted:raises").status is Status.XPASS
    assert judged(PASS, own, "aot_eager") == PASS  # its entry does not say that it differs there
    assert judged(PASS, own, "fuzz.tests.planted:raises", name="any/other") == PASS
    fixed = Ledger(issues=(issue(rung="fuzz.tests.planted*", fixed="2.13"),))
    assert judged(PASS, fixed, "fuzz.tests.planted:raises") == PASS
    assert judged(NUMBER, fixed, "fuzz.tests.planted:raises") == NUMBER


def test_no_entry_of_the_built_in_ledger_is_known_by_a_message_that_matches_anything() -> None:
    for entry in load_ledger().issues:
        assert not entry.refuses_with(Status.FAIL_TO_RUN, "RuntimeError: something else"), entry.id
        assert not entry.refuses_with(Status.FAIL_TO_RUN, ""), entry.id
