"""Reduction: every kind of failure comes down to the few statements it needs, inside a larger program."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fuzz.program.parsing import program_of
from fuzz.program.render import render_function
from fuzz.program.structure import FuzzProgram
from fuzz.reduce.task import reduce_finding
from fuzz.reduce.trials import TrialProcess
from fuzz.tests.specs import tensor_spec
from oracle.program import Call
from oracle.subjects.registry import resolve
from oracle.subjects.spec import SubjectSpec
from oracle.symptom import Symptom, symptom_of
from oracle.verdict import Status, Verdict

_INTEGERS = {"kind": "integers", "low": 0, "high": 9, "seed": 1}
_HALF = {"kind": "uniform", "low": -0.5, "high": 0.5, "seed": 1}

# What is around the guilty statements, in every program: values it reads and values that read it.
_AROUND = """
def program(a, b, n):
    c = torch.sin(a) + b
    d = c.sum(dim=0)
    {0}
    e = c * 2
    with torch.no_grad():
        f = torch.relu(e)
    g = torch.cat([f, c], dim=0)
    {1}
    h = g.t().contiguous()
    return (d, h, {2})
"""
_ARGUMENTS = [tensor_spec(6, 7), tensor_spec(7, requires_grad=True), tensor_spec(6, 7, dtype="int64", fill=_INTEGERS)]


def _program(first: str, second: str, result: str, args: list[Any] = _ARGUMENTS, **fields: Any) -> FuzzProgram:
    return program_of(_AROUND.format(first, second, result), args, **fields)


def _backward(args: list[Any]) -> tuple[Call, ...]:
    return (Call(args=args, backward=True),)


CASES: dict[str, tuple[FuzzProgram, str, str]] = {
    # backend -> program, status, the reduced function
    "integer_value": (
        _program("w = n + 1", "x = torch.bitwise_xor(w, n).abs()", "x"),
        "fail_accuracy",
        """
        def program(a0):
            v0 = torch.bitwise_xor(a0, 0)
            return v0
        """,
    ),
    "number_in_one_place": (
        _program("w = torch.exp(c)", "x = torch.hypot(w, c).sum()", "x"),
        "fail_accuracy",
        """
        def program(a0):
            v0 = torch.hypot(a0, a0)
            return v0
        """,
    ),
    "lost_write": (
        _program("w = a[1:]", "w.mul_(3.5)", "d"),
        "fail_mutation",
        """
        def program(a0):
            a0.mul_(2.0)
            return None
        """,
    ),
    "lost_alias": (
        _program("w = a.view(7, 6)", "x = torch.narrow(w, 0, 1, 3)", "x"),
        "fail_alias",
        """
        def program(a0):
            v0 = torch.narrow(a0, 0, 0, 1)
            return v0
        """,
    ),
    "lost_stride": (
        _program("w = torch.cos(a.t())", "x = torch.atan(w)", "x"),
        "fail_stride",
        """
        def program(a0):
            v0 = torch.atan(a0)
            return v0
        """,
    ),
    "wrong_gradient": (
        _program("w = torch.asinh(c)", "x = w.exp()", "x", calls=_backward(_ARGUMENTS)),
        "fail_grad",
        """
        def program(a0):
            v0 = torch.asinh(a0)
            return v0
        """,
    ),
    "wrong_exception": (
        _program("w = n + 40", "x = torch.take(e, w)", "x", expects_raise=True),
        "fail_exception",
        """
        def program(a0, a1):
            v0 = torch.take(a0, a1)
            return None
        """,
    ),
    "refuses": (
        _program("w = torch.cumprod(c, 1)", "x = w + e", "x"),
        "fail_to_run",
        """
        def program(a0):
            v0 = torch.cumprod(a0, 0)
            return None
        """,
    ),
    "crashes": (
        _program("w = torch.tanh(c)", "x = torch.erfinv(w)", "x"),
        "crash",
        """
        def program(a0):
            v0 = torch.erfinv(a0)
            return None
        """,
    ),
    "stale_number": (
        _program(
            "w = c * n", "x = w.sum()", "x",
            calls=tuple(Call(args=[*_ARGUMENTS[:2], n]) for n in (5, 5, 7)),
        ),
        "fail_guard",
        """
        def program(a0):
            return a0
        """,
    ),
}  # fmt: skip


def _reduced(name: str, program: FuzzProgram, *, budget_s: float = 30.0) -> dict[str, Any]:
    prefix = "compile:" if name == "stale_number" else ""
    subject = resolve(f"{prefix}fuzz.tests.planted_bugs:{name}")
    with TrialProcess() as trials:
        symptom = symptom_of(trials.judge(program, subject))
    payload = {
        "program": program.to_json(), "subject": subject.to_json(), "symptom": symptom.to_json(), "budget_s": budget_s,
    }  # fmt: skip
    return reduce_finding(json.loads(json.dumps(payload)), lambda stage: None)


@pytest.mark.parametrize("name", CASES)
def test_a_failure_comes_down_to_what_it_needs(name: str) -> None:
    program, status, expected = CASES[name]
    found = _reduced(name, program, budget_s=120.0)
    assert found["reproduced"], found["verdict"]
    assert status == found["verdict"]["status"], found["verdict"]["symptom"]
    reduced = FuzzProgram.from_json(found["program"])
    lines = [line[8:] for line in expected.strip("\n").splitlines()]
    assert "\n".join(lines).rstrip() == render_function(reduced).rstrip(), reduced.calls
    assert found["finished"], found


def test_a_symptom_that_the_program_does_not_show_gives_the_program_back() -> None:
    program, _, _ = CASES["integer_value"]
    subject = resolve("fuzz.tests.planted_bugs:lost_write")  # which is right on it
    for symptom in (Symptom(status="fail_accuracy", kind="output: number"), Symptom(status="pass", kind="")):
        payload = {"program": program.to_json(), "subject": subject.to_json(), "symptom": symptom.to_json()}
        found = reduce_finding({**payload, "budget_s": 30.0}, lambda stage: None)
        assert not found["reproduced"]
        assert program == FuzzProgram.from_json(found["program"])


def test_a_rung_that_was_too_slow_once_is_still_named_and_reduced_on(monkeypatch: pytest.MonkeyPatch) -> None:
    program = program_of(
        """
        def program(a, b):
            c = torch.sin(a)
            x = torch.stack([b, c])
            torch._foreach_copy_([a, c], [c, a])
            return (a, c, x)
        """,
        [tensor_spec(3, 2), tensor_spec(3, 2)],
    )
    subject, slow = resolve("aot_eager_decomp_partition"), ["aot_eager"]

    class OnceSlow(TrialProcess):
        def judge(self, program: FuzzProgram, subject: SubjectSpec) -> Verdict:
            if subject.name in slow:
                slow.remove(subject.name)
                return Verdict(status=Status.TIMEOUT, symptom="no end within 60 s")
            return super().judge(program, subject)

    monkeypatch.setattr("fuzz.reduce.task.TrialProcess", OnceSlow)
    with TrialProcess() as trials:
        symptom = symptom_of(trials.judge(program, subject))
    assert symptom.status in ("fail_mutation", "fail_accuracy"), symptom
    payload = {"program": program.to_json(), "subject": subject.to_json(), "symptom": symptom.to_json()}
    found = reduce_finding({**payload, "budget_s": 60.0, "culprit": False}, lambda stage: None)
    assert not slow
    assert found["rung"] == "aot_eager"
    assert "stack" not in found["source"], found["source"]
