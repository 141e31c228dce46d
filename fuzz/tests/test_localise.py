"""The first wrong rung of a drawn program; and the child process in which candidates are judged."""

from __future__ import annotations

import time
from typing import Any

from fuzz.program.parsing import program_of
from fuzz.program.structure import FuzzProgram
from fuzz.reduce.trials import TrialProcess
from fuzz.tests.specs import tensor_spec
from fuzz.triage.localise import first_wrong, judge_here
from oracle.localisation.ladder import LADDER, ladder_of
from oracle.program import Call
from oracle.subjects.registry import resolve
from oracle.subjects.spec import SubjectSpec
from oracle.symptom import Symptom, symptom_of
from oracle.verdict import Status, Verdict

_XOR = program_of("def program(a):\n    r = torch.bitwise_xor(a, 5)\n    return r\n", [tensor_spec(3, dtype="int64")])
# the inverse of unfold fills the gaps with zeros: wrong from AOT autograd on
_GAPS = program_of(
    "def program(a):\n    w = a.unfold(1, 1, 5)\n    w.add_(w)\n    return a\n",
    [tensor_spec(4, 6, dtype="int64", fill={"kind": "arange"})],
)
_WRONG = Symptom(status="fail_accuracy", kind="output: number")


def _judge_by(wrong: dict[str, Verdict]) -> Any:
    asked: list[str] = []

    def judge_on(program: FuzzProgram, subject: SubjectSpec) -> Verdict:
        asked.append(subject.name)
        return wrong.get(subject.name, Verdict(status=Status.PASS))

    judge_on.asked = asked  # type: ignore[attr-defined]
    return judge_on


def test_the_ladder_of_a_subject_is_what_lies_below_it() -> None:
    assert [rung.name for rung in ladder_of(resolve("inductor"))] == [*LADDER]
    assert [rung.name for rung in ladder_of(resolve("aot_eager"))] == ["dynamo", "aot_eager"]
    assert [rung.name for rung in ladder_of(resolve("export"))] == ["export"]
    planted = resolve("fuzz.tests.planted_bugs:integer_value")
    assert [rung.name for rung in ladder_of(planted)] == ["dynamo", "aot_eager", planted.name]
    dynamic = ladder_of(resolve("inductor[dynamic=true]"))
    assert all(rung.options["dynamic"] is True for rung in dynamic)


def test_below_a_program_that_was_put_through_something_is_the_program() -> None:
    full = "refimpl.export[strict=false,decomposed=all,through=torch]"
    rungs = ladder_of(resolve(full))
    names = ["refimpl.export[strict=false]", "refimpl.export[strict=false,decomposed=all]", full]
    assert [rung.name for rung in rungs] == names
    assert [dict(rung.options) for rung in rungs] == [dict(resolve(name).options) for name in names]
    assert [rung.name for rung in ladder_of(resolve("export[through=saved]"))] == ["export", "export[through=saved]"]
    assert [rung.name for rung in ladder_of(resolve("export[decomposed=no]"))] == ["export[decomposed=no]"]


def test_a_wrong_answer_names_the_first_stage_of_an_exported_program_that_gives_it() -> None:
    wrong = Verdict(status=Status.FAIL_ACCURACY, symptom="output is 1, but should be 2")
    symptom = symptom_of(wrong)
    subject = resolve("refimpl.export[decomposed=all,through=saved]")
    judge_on = _judge_by({"refimpl.export[decomposed=all]": wrong, subject.name: wrong})
    assert first_wrong(_XOR, subject, symptom, judge_on=judge_on).name == "refimpl.export[decomposed=all]"
    assert judge_on.asked == ["refimpl.export", "refimpl.export[decomposed=all]"]
    assert first_wrong(_XOR, subject, symptom, judge_on=_judge_by({subject.name: wrong})).name == subject.name


def test_the_lowest_rung_with_the_same_symptom_is_the_first_wrong_one() -> None:
    number = Verdict(
        status=Status.FAIL_ACCURACY, symptom="call 0: output is 3, but should be 4 (1 of 1 elements differ)"
    )
    other = Verdict(status=Status.FAIL_STRIDE, symptom="call 0: output.stride() is (1,), but should be (2,)")
    judge_on = _judge_by({"dynamo": other, "aot_eager_decomp_partition": number, "inductor": number})
    assert first_wrong(_XOR, resolve("inductor"), _WRONG, judge_on=judge_on).name == "aot_eager_decomp_partition"
    assert judge_on.asked == [
        "dynamo",
        "aot_eager",
        "aot_eager_decomp_partition",
    ]  # cheapest first, the subject not again
    assert first_wrong(_XOR, resolve("inductor"), _WRONG, judge_on=_judge_by({})).name == "inductor"


def test_rungs_are_judged_for_real() -> None:
    planted = resolve("fuzz.tests.planted_bugs:integer_value")
    assert first_wrong(_XOR, planted, symptom_of(judge_here(_XOR, planted))).name == planted.name
    decomposed = resolve("aot_eager_decomp_partition")
    symptom = symptom_of(judge_here(_GAPS, decomposed))
    assert symptom == _WRONG
    assert first_wrong(_GAPS, decomposed, symptom).name == "aot_eager"


# ---------------------------------------------------------------------------------------------------- trials in a child


def test_a_child_that_dies_is_replaced() -> None:
    deadly = program_of("def program(a):\n    r = torch.erfinv(a)\n    return r\n", [tensor_spec(3)])
    subject = resolve("fuzz.tests.planted_bugs:crashes")
    with TrialProcess() as trials:
        assert symptom_of(trials.judge(deadly, subject)) == Symptom(status="crash", kind="signal 9")
        assert trials.judge(_XOR, subject).status is Status.PASS
        assert symptom_of(trials.judge(deadly, subject)) == Symptom(status="crash", kind="signal 9")
        assert trials.judged == 3


def test_a_child_that_hangs_is_ended() -> None:
    endless = program_of("def program(a):\n    r = torch.digamma(a)\n    return r\n", [tensor_spec(3)])
    subject = resolve("fuzz.tests.planted_bugs:hangs")
    with TrialProcess(timeout_s=10.0) as trials:
        assert trials.judge(_XOR, subject).status is Status.PASS
        trials.timeout_s = 1.0
        started = time.monotonic()
        assert trials.judge(endless, subject).status is Status.TIMEOUT
        assert time.monotonic() - started < 9.0


def test_gradients_and_plans_reach_the_child() -> None:
    calls = (Call(args=[tensor_spec(2, 3, requires_grad=True)], backward=True),)
    program = program_of("def program(a):\n    r = torch.asinh(a)\n    return r\n", [], calls=calls)
    with TrialProcess() as trials:
        verdict = trials.judge(program, resolve("fuzz.tests.planted_bugs:wrong_gradient"))
    assert symptom_of(verdict) == Symptom(status="fail_grad", kind="grad: number")
