"""Refusals: what an exporter may say no to is counted, what it fails on is a finding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fuzz
from fuzz.campaign.replay import judge_alone
from fuzz.campaign.results import Listener, ResultTaker
from fuzz.campaign.run import reason_to_stop
from fuzz.campaign.settings import CampaignSettings
from fuzz.campaign.state import CampaignState, Work, new_state
from fuzz.campaign.summary import summary_json, summary_lines
from fuzz.campaign.work import task_of
from fuzz.judge.refusal import REFUSED, refusal_of
from fuzz.judge.single import judge
from fuzz.program.parsing import program_of
from fuzz.program.render import to_program
from fuzz.program.structure import FuzzProgram
from oracle.isolate import Completed, Pool, TaskResult
from oracle.program import Call
from oracle.subjects.registry import load, resolve
from oracle.symptom import symptom_of
from oracle.verdict import Status, Verdict

_INTS = {"$": "tensor", "shape": [3], "dtype": "int64"}
_EQUAL = program_of("def program(a):\n    r = a + int(torch.equal(a, a))\n    return r\n", [_INTS])
_BRANCH = program_of(
    "def program(a):\n    n = a.max().item()\n    r = a + 1\n    if n > 1:\n        r = r * 2\n    return r\n", [_INTS]
)
_SUM = program_of("def program(a):\n    r = a.sum()\n    return r\n", [_INTS])
_OTHER_SIZE = replace(_SUM, calls=(Call(args=[_INTS]), Call(args=[{**_INTS, "shape": [5]}])))
_PAGE = "torch._dynamo.exc.Unsupported: no\n  Explanation: so\n  Hint: {hint}\n\n For more, see compile-graph-break-site/gb1.html"


def _judged(program: FuzzProgram, name: str) -> tuple[Verdict, str]:
    subject = load(resolve(name))
    result = judge(to_program(program, name="refused"), subject)
    return result.verdict, refusal_of(result.verdict, subject.spec, traceback=result.traceback)


def _raised(type_name: str, message: str, call: int = 0) -> Verdict:
    symptom = f"call {call}: outcome is {type_name} in call ({message!r}), but should be a return"
    return Verdict(status=Status.FAIL_TO_RUN, symptom=symptom, call=call)


@pytest.mark.parametrize(
    ("program", "name", "reason"),
    [
        (_EQUAL, "export", "Unsupported: Data dependent operator"),
        (_BRANCH, "export", "UserError: Could not guard on data-dependent expression"),
        (_BRANCH, "export[strict=false]", "GuardOnDataDependentSymNode: Could not guard on data"),
        (_OTHER_SIZE, "export", "guard of an exported program"),
        (_EQUAL, "dynamo[fullgraph=true]", "Unsupported: Data dependent operator"),
        (_BRANCH, "make_fx[mode=fake]", "GuardOnDataDependentSymNode"),
        (_EQUAL, "make_fx[mode=fake]", "DataDependentOutputException"),
        (_EQUAL, "refimpl.export[strict=false]", "DataDependentRead"),
        (_BRANCH, "refimpl.export[strict=false]", "UserError: Consider annotating your code"),
        (_BRANCH, "refimpl.export", "UserError: graph break RC0008"),
        (_OTHER_SIZE, "refimpl.export[strict=false]", "guard of an exported program"),
    ],
)
def test_what_torch_documents_as_not_supported_is_a_refusal(program: FuzzProgram, name: str, reason: str) -> None:
    verdict, refusal = _judged(program, name)
    assert verdict.status is Status.FAIL_TO_RUN, verdict
    assert refusal.startswith(reason), verdict.symptom


def test_what_agrees_is_no_refusal() -> None:
    assert _judged(_SUM, "export")[1] == ""
    assert _judged(_EQUAL, "dynamo") == (_judged(_EQUAL, "dynamo")[0], "")


@pytest.mark.parametrize(
    ("verdict", "traceback"),
    [
        (_raised("KeyError", "'self___c0_0'"), ""),
        (_raised("RuntimeError", "Cannot access data pointer of Tensor"), ""),
        (_raised("AssertionError", "expected 2 outputs", call=1), ""),
        (_raised("AssertionError", "Guard failed: a.size()[0] == 3", call=0), ""),  # of the very inputs it was exported with
        (_raised("RuntimeError", "Expected input at *args[0].shape[0] to be equal to 3, but got 5", call=0), ""),
        (_raised("torch._dynamo.exc.InternalTorchDynamoError", "KeyError: 3"), _PAGE),
        (_raised("torch._dynamo.exc.Unsupported", "no"), ""),  # without its page
        (_raised("torch._dynamo.exc.Unsupported", "no"), _PAGE.format(hint="This is likely to be a Dynamo bug.")),
        (_raised("torch._dynamo.exc.Unsupported", "no"), _PAGE.partition("Hint")[2]),  # its hints are cut off
        (_raised("mine.UserError", "no"), ""),
        (replace(_raised("torch._dynamo.exc.UserError", "no"), status=Status.FAIL_ACCURACY), ""),
    ],
)  # fmt: skip
def test_what_may_be_an_internal_error_is_a_finding(verdict: Verdict, traceback: str) -> None:
    assert refusal_of(verdict, resolve("export"), traceback=traceback) == ""


@pytest.mark.parametrize(
    "verdict",
    [
        _raised("refimpl.export.errors.InputMismatch", "Guard failed: a.size()[0] == 3; it is 5", call=0),
        _raised("refimpl.export.errors.SpecViolationError", "no"),
        _raised("refimpl.capture.public.errors.Unsupported", "no"),  # without its id
        _raised("refimpl.capture.public.errors.TorchRuntimeError", "graph break RC0001"),
        _raised("refimpl.errors.UnsupportedByRefimpl", "no"),
        _raised("torch._dynamo.exc.UserError", "no"),  # not its own
        _raised("KeyError", "'x'", call=1),
    ],
)
def test_what_refimpl_fails_on_otherwise_is_a_finding(verdict: Verdict) -> None:
    assert refusal_of(verdict, resolve("refimpl.export")) == ""


@pytest.mark.parametrize("name", ["inductor", "dynamo", "aot_eager", "fuzz.tests.planted_bugs:refuses", "refimpl.aot"])
def test_who_may_break_the_graph_may_not_refuse(name: str) -> None:
    traceback = _PAGE.format(hint="none")
    for type_name in ("torch._dynamo.exc.Unsupported", "torch._dynamo.exc.UserError"):
        verdict = _raised(type_name, "no")
        assert refusal_of(verdict, resolve(name), traceback=traceback) == ""
        assert refusal_of(verdict, resolve("export"), traceback=traceback)


def test_a_refusal_where_eager_raises_is_one_too() -> None:
    symptom = (
        "call 0: exception is torch._dynamo.exc.UserError in call ('no'), but should be ValueError in call ('bad')"
    )
    verdict = Verdict(status=Status.FAIL_EXCEPTION, symptom=symptom, call=0)
    assert refusal_of(verdict, resolve("export")) == "UserError"


# ------------------------------------------------------------------------------------------------------------- campaigns

SETTINGS = CampaignSettings(subject=resolve("export"), chunk=10, workers=1, case_timeout_s=60)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(
        workers=1, preload=("torch", "oracle.case", "fuzz.campaign.worker"), address_space_margin_bytes=4 * 2**30
    ) as made:
        yield made


def _found(number: int, verdict: Verdict) -> dict[str, Any]:
    return {
        "numbers": [number], "program": _SUM.to_json(), "verdict": verdict.to_json(), "traceback": "",
        "symptom": symptom_of(verdict).to_json(),
    }  # fmt: skip


def test_refused_programs_are_counted_by_reason_and_are_no_findings() -> None:
    state = new_state(SETTINGS)
    numbers = tuple(range(24))
    verdicts = [
        *[_raised("torch._dynamo.exc.UserError", "no")] * 12,
        *[_raised("AssertionError", "Guard failed: a == 2", call=1)] * 11,
        _raised("KeyError", "'self'"),
    ]
    value = {
        "programs": [
            {"number": n, "status": "fail_to_run", "features": [], "seen": [], "program": None} for n in numbers
        ],
        "findings": [_found(n, verdict) for n, verdict in zip(numbers, verdicts, strict=True)],
        "errors": [], "judge_errors": [], "ill": [], "left": [], "judgements": 24, "draw_cpu_s": 0.0, "judge_cpu_s": 0.0,
    }  # fmt: skip
    state.add_work(Work(kind="range", numbers=numbers))
    task = task_of(0, state.work[0], SETTINGS, state)
    end = Completed(value=value, wall_s=0.1)
    ResultTaker(SETTINGS, state, Listener()).take(TaskResult(task=task, end=end, worker_pid=1, tasks_before=0))
    assert state.statuses == {REFUSED: 23, "fail_to_run": 1}
    assert state.refused == {"UserError: no": 12, "guard of an exported program": 11}
    assert sum(state.symptoms.values()) == 1
    assert [work.found.numbers for work in state.work.values() if work.found is not None] == [(23,)]
    assert not reason_to_stop(state)
    resumed = CampaignState.from_json(state.to_json())
    text = "\n".join(summary_lines(SETTINGS, resumed, corpus=None))
    assert "refused: 23 programs, by name; no findings\n  12 UserError: no\n  11 guard of an exported program" in text
    assert summary_json(SETTINGS, resumed, corpus=None)["refused"]["UserError: no"] == 12


def test_a_replayed_refusal_says_so(pool: Pool) -> None:
    verdict, refusal = judge_alone(_EQUAL, SETTINGS.subject, pool, SETTINGS)
    assert (verdict.status, refusal) == (Status.FAIL_TO_RUN, "Unsupported: Data dependent operator")


def test_a_refused_program_is_no_example_of_a_property() -> None:
    seen: list[FuzzProgram] = []

    @hypothesis.settings(max_examples=4, database=None)
    @given(st.sampled_from([_EQUAL, _SUM]))
    def agrees(program: FuzzProgram) -> None:
        fuzz.assert_agrees(program, "export")
        seen.append(program)

    agrees()
    assert seen
    assert all(program is _SUM for program in seen)
