"""What a process does once for a subject is done before a case is timed, and changes nothing that a case would see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from oracle import case
from oracle.case import run_case
from oracle.hygiene import differences, snapshot
from oracle.isolate import START_UP
from oracle.program import Call, Program
from oracle.records import PlannedCase
from oracle.subjects import start_up
from oracle.subjects.base import CompileRequest, Counters
from oracle.subjects.registry import resolve
from oracle.subjects.spec import SubjectSpec
from oracle.subjects.start_up import load_warm

CALLED: list[str] = []


def of_a_user(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    CALLED.append("of a user")
    return gm.forward


class Careless:
    """A subject that changes the process and raises."""

    def __init__(self, spec: SubjectSpec) -> None:
        self.spec = spec

    def reset(self) -> None:
        CALLED.append("reset")

    def compile(self, request: CompileRequest) -> Callable[..., Any]:
        CALLED.append("compile")
        torch.set_default_dtype(torch.float64)
        raise NotImplementedError("no such operator")

    def counters(self) -> Counters:
        return Counters()


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    CALLED.clear()
    monkeypatch.setattr(case, "_SUBJECTS", {})


def stages_of(subject: str) -> tuple[list[str], str]:
    """The stages of one case, and its status."""
    source = "import torch\ndef inputs(call): return (torch.ones(2),), {}\ndef program(x): return x * 2\n"
    program = Program(name="double", source=source, calls=(Call(),))
    planned = PlannedCase(
        case_id=f"s/double@{subject}",
        suite="s",
        group="double",
        name="double",
        subject=subject,
        program=program.to_json(),
    )
    stages: list[str] = []
    payload = {"case": planned.to_json(), "subject": resolve(subject).to_json(), "options": {}}
    value = run_case(payload, stages.append)
    return stages, value["verdict"]["status"]


def test_the_first_case_of_a_subject_in_a_process_starts_it_up_and_no_later_one() -> None:
    first, status = stages_of("aot_eager")
    second, _ = stages_of("aot_eager")
    other, _ = stages_of("eager")
    assert status == "pass"
    assert first[:2] == [START_UP, "load"]
    assert START_UP not in second
    assert second[0] == "load"
    assert other[:2] == [START_UP, "load"]


def test_the_code_of_a_user_runs_on_programs_only() -> None:
    subject = load_warm(resolve(f"{__name__}:of_a_user"))
    assert CALLED == []
    compiled = subject.compile(CompileRequest(target=torch.sin))
    assert torch.equal(compiled(torch.zeros(2)), torch.zeros(2))
    assert CALLED == ["of a user"]


@pytest.mark.parametrize("name", ["dynamo", "aot_eager", "make_fx", "export", "refimpl.capture"])
def test_no_trace_is_left(name: str) -> None:
    before, random_state = snapshot(), torch.get_rng_state()
    subject = load_warm(resolve(name))
    assert differences(before, snapshot()) == ()
    assert torch.equal(random_state, torch.get_rng_state())
    assert not subject.counters().graphs


def test_a_subject_that_raises_and_leaks_is_left_for_the_cases_to_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_up, "load", Careless)
    before = snapshot()
    load_warm(SubjectSpec(name="careless", kind="careless"))
    assert CALLED == ["reset", "compile", "reset"]
    assert differences(before, snapshot()) == ()
