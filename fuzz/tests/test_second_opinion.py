"""refimpl as a second opinion on findings past capture: when it is asked, what is made of its answers, where it is shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fuzz.campaign.corpus import Corpus
from fuzz.campaign.records import _bucket_row
from fuzz.campaign.results import Listener, ResultTaker
from fuzz.campaign.settings import CampaignSettings
from fuzz.campaign.state import CampaignState, FoundProgram, Work, new_state
from fuzz.campaign.summary import bucket_json, repeat_command, summary_lines
from fuzz.campaign.work import task_of
from fuzz.program.parsing import program_of
from fuzz.program.structure import FuzzProgram
from fuzz.reduce.task import reduce_finding
from fuzz.triage.localise import judge_here, second_opinion
from oracle.isolate import Completed, TaskResult
from oracle.localisation.ladder import AGREES, SECOND, ladder_of
from oracle.program import Call
from oracle.subjects.registry import resolve
from oracle.subjects.spec import SubjectSpec
from oracle.symptom import Symptom, symptom_of
from oracle.verdict import Status, Verdict

_XOR = program_of(
    "def program(a):\n    r = torch.bitwise_xor(a, 5)\n    return r\n",
    [{"$": "tensor", "shape": [3], "dtype": "int64"}],
)
_WRONG = Symptom(status="fail_accuracy", kind="output: number")
_NUMBER = Verdict(status=Status.FAIL_ACCURACY, symptom="call 0: output is 3, but should be 4 (1 of 1 elements differ)")
_STRIDE = Verdict(status=Status.FAIL_STRIDE, symptom="call 0: output.stride() is (1,), but should be (2,)")
_REFUSAL = Verdict(
    status=Status.FAIL_TO_RUN, symptom="outcome is RuntimeError in call ('no rule'), but should be a return"
)
_PASS = Verdict(status=Status.PASS)


def _opinion(*answers: Verdict, rung: str = "aot_eager", program: FuzzProgram = _XOR, kept: Symptom = _WRONG) -> str:
    by_name: dict[str, Verdict] = dict(zip(SECOND, answers, strict=True))
    return second_opinion(program, resolve(rung), kept, judge_on=lambda _, spec: by_name[spec.name])


def test_what_refimpl_does_is_said() -> None:
    assert _opinion(_PASS, _PASS) == f"refimpl {AGREES}"
    assert _opinion(_NUMBER, _NUMBER) == "refimpl differs too: look at eager or the judge first"
    assert _opinion(_REFUSAL, _REFUSAL) == "refimpl cannot say: fail_to_run"
    assert _opinion(_STRIDE, _STRIDE).startswith("refimpl differs in another way (fail_stride: output.stride())")
    both = _opinion(_PASS, _NUMBER)
    assert both == f"refimpl.aot {AGREES}; refimpl.partitioned differs too: look at eager or the judge first"
    assert _opinion(Verdict(status=Status.PASS_DUE_TO_SKIP), _PASS).startswith(
        "refimpl.aot cannot say: pass_due_to_skip;"
    )


@pytest.mark.parametrize(
    ("rung", "is_asked"),
    [
        ("dynamo", False), ("aot_eager", True), ("aot_eager_decomp_partition", True), ("inductor", True),
        ("fuzz.tests.planted_bugs:integer_value", True), ("export", False), ("refimpl.aot", False),
        ("compile:fuzz.tests.planted:honest", False),
    ],
)  # fmt: skip
def test_it_is_asked_past_capture_only(rung: str, is_asked: bool) -> None:
    assert bool(_opinion(_PASS, _PASS, rung=rung)) == is_asked


def test_it_has_no_guards_on_what_is_around_a_program() -> None:
    call = Call(args=[{"$": "tensor", "shape": [3], "dtype": "int64"}])
    changed = replace(_XOR, calls=(call, replace(call, before="x = 1")))
    guard = Symptom(status="fail_guard", kind="output: number")
    assert _opinion(_PASS, _PASS, program=changed, kept=guard) == "refimpl cannot say: it guards its arguments only"
    assert _opinion(_PASS, _PASS, program=changed) == f"refimpl {AGREES}"


def test_options_of_the_rung_hold_for_refimpl() -> None:
    asked: list[SubjectSpec] = []

    def judge_on(program: FuzzProgram, subject: SubjectSpec) -> Verdict:
        asked.append(subject)
        return _PASS

    second_opinion(_XOR, resolve("inductor[dynamic=true]"), _WRONG, judge_on=judge_on)
    assert [(spec.name, spec.options.get("dynamic")) for spec in asked] == [(name, True) for name in SECOND]


def test_refimpl_is_right_where_a_backend_is_wrong() -> None:
    planted = resolve("fuzz.tests.planted_bugs:integer_value")
    assert second_opinion(_XOR, planted, symptom_of(judge_here(_XOR, planted))) == f"refimpl {AGREES}"


def _found(subject: SubjectSpec, reduced: dict[str, Any]) -> tuple[CampaignSettings, CampaignState]:
    settings, found = CampaignSettings(subject=subject), _finding(reduced)
    state = new_state(settings)
    state.add_work(Work(kind="reduce", found=found))
    task = task_of(0, state.work[0], settings, state)
    end = Completed(value=reduced, wall_s=1.0)
    ResultTaker(settings, state, Listener()).take(TaskResult(task=task, end=end, worker_pid=1, tasks_before=0))
    return settings, state


def _finding(reduced: dict[str, Any]) -> FoundProgram:
    return FoundProgram(numbers=(4,), program=_XOR.to_json(), verdict=reduced["verdict"], symptom=reduced["symptom"])


def test_the_opinion_is_in_the_summary_the_script_and_the_record(tmp_path: Path) -> None:
    planted = resolve("fuzz.tests.planted_bugs:integer_value")
    symptom = symptom_of(judge_here(_XOR, planted)).to_json()
    payload = {
        "program": _XOR.to_json(), "subject": planted.to_json(), "symptom": symptom, "budget_s": 10, "culprit": False,
    }  # fmt: skip
    reduced = reduce_finding(payload, lambda stage: None)
    assert reduced["opinion"] == f"refimpl {AGREES}"
    assert f"# refimpl {AGREES}" in reduced["script"]
    settings, state = _found(planted, reduced)
    (bucket,) = CampaignState.from_json(state.to_json()).buckets.values()
    text = "\n".join(summary_lines(settings, state, corpus=None))
    assert f"second opinion: refimpl {AGREES}" in text
    assert bucket_json(bucket, settings, corpus=None)["opinion"] == f"refimpl {AGREES}"
    case, _, _ = _bucket_row(bucket, settings, None)
    assert case.tags == (planted.name, f"refimpl {AGREES}")
    with Corpus(tmp_path, settings.identity()) as corpus:
        assert corpus.save_script(bucket.key, bucket.script).read_text() == reduced["script"]


def test_the_command_that_repeats_a_finding_leaves_out_what_comes_after_the_first_wrong_rung(tmp_path: Path) -> None:
    subject = replace(resolve("my.own:backend[dynamic=true]"), name="mine", options={"dynamic": True})
    settings = CampaignSettings(subject=subject, seed=7, subjects_file="/there/subjects.toml")
    reduced = {
        "program": _XOR.to_json(), "verdict": _NUMBER.to_json(), "symptom": symptom_of(_NUMBER).to_json(), "rung": "dynamo",
    }  # fmt: skip
    found, own = (
        next(iter(_found(subject, {**reduced, "rung": rung})[1].buckets.values())) for rung in ("dynamo", "mine")
    )
    again = repeat_command(found, settings, corpus=tmp_path)
    assert again == f"torch-oracle fuzz --subject 'dynamo[dynamic=true]' --replay {tmp_path}/findings/{found.key}.json"
    assert dict(resolve("dynamo[dynamic=true]").options) == dict(ladder_of(subject)[0].options)
    file = "--subject mine --subjects-file /there/subjects.toml"
    assert repeat_command(own, settings, corpus=tmp_path).startswith(f"torch-oracle fuzz {file} --replay ")
    assert repeat_command(found, settings, corpus=None) == f"torch-oracle fuzz {file} --seed 7 --number 4"
