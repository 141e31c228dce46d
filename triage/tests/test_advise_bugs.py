"""The known bugs that `advise` names for a program."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from oracle.known.ledger import Ledger, load_ledger
from oracle.known.seen import Ending
from oracle.program import Call, Program
from oracle.program.input_text import parse_call
from oracle.subjects.registry import resolve
from oracle.verdict import Status, Verdict
from triage.advise.bugs import Reason, Touched, touched_bugs


def _program(source: str = "def program(a):\n    return a\n", call: Call | None = None) -> Program:
    return Program(name="p", source=source, calls=(call or Call(),))


def _touched(
    program: Program,
    operators: Collection[str] = (),
    *,
    subject: str = "inductor",
    verdicts: tuple[Verdict | None, Verdict | None] = (None, None),
    versions: tuple[str, str] = ("2.13.0", "2.13.1"),
    ledger: Ledger | None = None,
) -> list[Touched]:
    found = ledger or load_ledger()
    return touched_bugs(found, program, resolve(subject), operators=operators, verdicts=verdicts, versions=versions)


def test_rare_operators_come_first_and_common_ones_alone_name_nothing() -> None:
    common = {"relu", "linear", "sum", "sin"}
    assert _touched(_program(), common) == []
    found = _touched(_program(), {*common, "fill_diagonal", "as_strided", "getitem"})
    assert {each.reason for each in found} == {Reason.OPERATORS}
    assert found[0].why == "operators fill_diagonal"
    weights = [each.weight for each in found]
    assert weights == sorted(weights, reverse=True)
    assert all(set(each.issue.finding.operators) <= {*common, "fill_diagonal", "as_strided", "getitem"}
               for each in found if each.issue.finding is not None)  # fmt: skip


def test_lines_and_arguments_count_more_than_operators_and_exclude_if_they_do_not_hold() -> None:
    floor = "def program(a, b):\n    return torch.div(a, b, rounding_mode='floor')\n"
    assert [each.issue.id for each in _touched(_program(floor), {"div"}) if each.reason is Reason.CONDITIONS] == [
        "pytorch-197895-div"
    ]
    plain = _touched(_program("def program(a, b):\n    return torch.div(a, b)\n"), {"div"})
    assert "pytorch-197895-div" not in [each.issue.id for each in plain]
    name = "ldexp-of-largest-integer"  # its pattern wants an argument of integers
    reasons = []
    for call in (parse_call("i64[4]"), parse_call("f32[4]"), None):
        found = {each.issue.id: each.reason for each in _touched(_program(call=call), {"ldexp"})}
        reasons.append(found.get(name))
    assert reasons == [Reason.CONDITIONS, None, Reason.OPERATORS]  # what the source makes is not known


def test_an_entry_that_shows_as_the_program_does_comes_before_rarer_operators() -> None:
    operators = {"fill_diagonal", "floor_divide"}
    assert _touched(_program(), operators)[0].why == "operators fill_diagonal"
    wrong = Verdict(status=Status.FAIL_ACCURACY)
    first = _touched(_program(), operators, verdicts=(wrong, wrong))[0]
    assert "fail_accuracy" in first.issue.statuses
    assert first.why == "operators floor_divide"


def test_a_line_that_many_programs_have_says_no_more_than_operators() -> None:
    name = "strides-of-written-part"  # its pattern wants a line with `_(`
    source = "class Net:\n    def __init__(self):\n        super().__init__()\n"
    found = {each.issue.id: each.reason for each in _touched(_program(source), {"getitem"})}
    assert found[name] is Reason.OPERATORS


def test_the_entrys_own_program_and_its_message_are_the_surest() -> None:
    ledger = load_ledger()
    issue = ledger.of_id("pytorch-197829")
    assert issue is not None
    found = _touched(issue.program, {"clone", "setitem", "fill_diagonal"})
    assert (found[0].issue.id, found[0].reason) == ("pytorch-197829", Reason.PROGRAM)
    passed, wrong = Verdict(status=Status.PASS), Verdict(status=Status.FAIL_ACCURACY)
    standings = [
        _touched(issue.program, verdicts=pair, versions=("2.12.0", "2.13.0"))[0].standing
        for pair in ((wrong, wrong), (wrong, passed), (passed, wrong), (passed, passed))
    ]  # the program itself was run, so the answer is not taken from the ledger
    assert standings == [
        "in both: seen here",
        "fixed in 2.13: seen here",
        "new in 2.13: seen here",
        "in neither: seen here",
    ]
    loud = next(each for each in ledger.issues if each.message and each.rung.startswith("aot_eager"))
    error, _, message = loud.message.replace("*", "x").replace(" in call", "").partition(": ")
    symptom = f"call 0: outcome is {error} in call ('{message}'), but should be a return"
    verdict = Verdict(status=Status.FAIL_TO_RUN, symptom=symptom)
    told = [each for each in _touched(_program(), verdicts=(None, verdict)) if each.reason is Reason.MESSAGE]
    assert loud.id in [each.issue.id for each in told]


def test_entries_of_stages_that_the_subject_lacks_are_not_named() -> None:
    names = {subject: {each.issue.rung for each in _touched(_program(), {"erf", "dropout", "stft"}, subject=subject)}
             for subject in ("dynamo", "aot_eager", "inductor")}  # fmt: skip
    assert names["dynamo"] == {"dynamo"}
    assert {rung.rstrip("*") for rung in names["aot_eager"]} == {"dynamo", "aot_eager"}
    assert "inductor" in names["inductor"]


@pytest.mark.parametrize(
    ("shown", "standing"),
    [
        (("2.12",), "fixed in 2.13"),
        (("2.13",), "new in 2.13"),
        (("2.12", "2.13"), "in both"),
        ((), None),
    ],
)
def test_versions_in_which_an_entry_was_measured(shown: tuple[str, ...], standing: str | None) -> None:
    ledger = load_ledger()
    issue = ledger.of_id("pytorch-198183-erf-near-zero")
    assert issue is not None
    measured = ledger.seen.by_torch["2.13"]
    agrees = {case: {issue.subject: (Ending(status=Status.PASS, kind=""),)} for case in measured}
    by_torch = {minor: measured if minor in shown else agrees for minor in ("2.12", "2.13")}
    one = replace(ledger, issues=(issue,), seen=replace(ledger.seen, by_torch=by_torch))
    found = _touched(_program(), {"erf"}, ledger=one, versions=("2.12.0+cpu", "2.13.0"))
    assert [each.standing for each in found] == ([standing] if standing else [])
    unknown = _touched(_program(), {"erf"}, ledger=one, versions=("2.10.0", "2.13.0"))
    assert unknown[0].standing == f"{'' if '2.13' in shown else 'not '}in 2.13; not measured with 2.10"


def test_an_entry_whose_program_an_older_torch_cannot_run_is_not_called_new() -> None:
    ledger = load_ledger()
    issue = ledger.of_id("pytorch-198183-erf-near-zero")
    assert issue is not None
    refused = {issue.shown_by[0]: {issue.subject: (Ending(status=Status.EAGER_FAIL_TO_RUN, kind=""),)}}
    seen = replace(ledger.seen, by_torch={"2.12": refused, "2.13": ledger.seen.by_torch["2.13"]})
    one = replace(ledger, issues=(issue,), seen=seen)
    (found,) = _touched(_program(), {"erf"}, ledger=one, versions=("2.12.0", "2.13.0"))
    assert found.standing == "in 2.13; not measured with 2.12"
