"""Short scripts: one of each kind of symptom exits with 1 on a wrong backend, and with 0 on a right one."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import fuzz
from fuzz.judge.single import judge
from fuzz.program.parsing import program_of
from fuzz.program.structure import FuzzProgram
from fuzz.tests.specs import FLOOR, tensor_spec
from fuzz.triage.localise import judge_here
from fuzz.triage.script_runs import NO_END, exit_code
from fuzz.triage.short_script import ShortScript, short_scripts, shortest_script, verified
from oracle.errors import UsageError
from oracle.program import Call, Program
from oracle.subjects.registry import load, resolve
from oracle.verdict import Status, Verdict, WorstElement

_BUGS, _MORE = "fuzz.tests.planted_bugs", "fuzz.tests.planted_scripts"
_ALTERNATING = {"kind": "choice", "values": [0.5, -0.5, 0.25, -0.25], "seed": 3}


def _one(line: str, *specs: dict[str, Any], **call: Any) -> FuzzProgram:
    names = ", ".join("abc"[: len(specs)])
    return program_of(
        f"def program({names}):\n    r = {line}\n    return r\n", [], calls=(Call(args=list(specs), **call),)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    backend: str
    program: FuzzProgram | Program
    status: Status
    has: str  # a part of the script that this kind of symptom needs


_LINEAR = """
import torch


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.linear(x)


program = Layer


def inputs(call):
    return (torch.ones(1, 2),), {}
"""
_GLOBAL = """
import torch

LIMIT = 3


def program(x):
    return torch.clamp(x, max=LIMIT)


def inputs(call):
    return (torch.arange(6.0),), {}
"""
_DERIVED = """
import torch


def program(x):
    x.mul_(2)


def inputs(call):
    return (torch.ones(3, requires_grad=True),), {}


def derive(x):
    x = x * 3
    return (x,), {}
"""
CASES = {
    "value": _Case(
        backend=f"{_BUGS}:integer_value",
        program=_one("torch.bitwise_xor(a, 5)", tensor_spec(2, dtype="int64")),
        status=Status.FAIL_ACCURACY,
        has="assert_close(compiled, eager, equal_nan=True)",
    ),
    "value beside text": _Case(
        backend=f"{_BUGS}:integer_value",
        program=program_of(
            "def program(a):\n    r = torch.bitwise_xor(a, 5)\n    return ['text', r]\n", [tensor_spec(2, dtype="int64")]
        ),
        status=Status.FAIL_ACCURACY,
        has="program(*args)[1]",
    ),
    "small value": _Case(
        backend=f"{_BUGS}:small_error",
        program=_one("torch.expm1(a)", tensor_spec(3, fill={"kind": "uniform", "low": 0.001, "high": 0.002, "seed": 1})),
        status=Status.FAIL_ACCURACY,
        has="atol=",
    ),
    "sign of zero": _Case(
        backend=f"{_MORE}:lost_sign",
        program=_one("torch.trunc(a)", tensor_spec(2, fill={"kind": "choice", "values": [-0.5], "seed": 1})),
        status=Status.FAIL_ACCURACY,
        has=".signbit().item()",
    ),
    "dtype": _Case(
        backend=f"{_MORE}:other_dtype",
        program=_one("torch.ceil(a)", tensor_spec(2)),
        status=Status.FAIL_METADATA,
        has="return f(torch.",
    ),
    "requires_grad": _Case(
        backend=f"{_MORE}:lost_history",
        program=_one("torch.acos(a)", tensor_spec(2, fill=_ALTERNATING, requires_grad=True)),
        status=Status.FAIL_METADATA,
        has=".requires_grad\n",
    ),
    "strides": _Case(
        backend=f"{_BUGS}:lost_stride",
        program=_one("torch.atan(a)", tensor_spec(2, 3, stride=[1, 2])),
        status=Status.FAIL_STRIDE,
        has=".stride()\n",
    ),
    "memory": _Case(
        backend=f"{_BUGS}:lost_alias",
        program=_one("torch.narrow(a, 0, 0, 1)", tensor_spec(2)),
        status=Status.FAIL_ALIAS,
        has="output.untyped_storage().data_ptr() == args[0].untyped_storage().data_ptr()",
    ),
    "argument": _Case(
        backend=f"{_BUGS}:lost_write",
        program=program_of("def program(a):\n    a.mul_(2)\n    return None\n", [tensor_spec(2, fill=_ALTERNATING)]),
        status=Status.FAIL_MUTATION,
        has="return args[0]",
    ),
    "derived argument": _Case(
        backend=f"{_BUGS}:lost_write",
        program=Program(name="derived", source=_DERIVED),
        status=Status.FAIL_MUTATION,
        has="    x = x * 3\n    args = [x]",
    ),
    "gradient": _Case(
        backend=f"{_BUGS}:wrong_gradient",
        program=_one("torch.asinh(a)", tensor_spec(2, requires_grad=True), backward=True),
        status=Status.FAIL_GRAD,
        has="output.sum().backward()\n    return args[0].grad",
    ),
    "gradient of uneven tangents": _Case(
        backend=f"{_BUGS}:uneven_gradient",
        program=_one("torch.sinh(a)", tensor_spec(2, 3, requires_grad=True), backward=True),
        status=Status.FAIL_GRAD,
        has="torch.arange(1.0, t.numel() + 1)",
    ),
    "exception": _Case(
        backend=f"{_BUGS}:wrong_exception",
        program=program_of(
            "def program(a, b):\n    r = torch.take(a, b)\n    return r\n",
            [tensor_spec(2), tensor_spec(1, dtype="int64", fill={"kind": "choice", "values": [9], "seed": 1})],
            expects_raise=True,
        ),
        status=Status.FAIL_EXCEPTION,
        has="return type(error)",
    ),
    "refusal": _Case(
        backend=f"{_BUGS}:refuses",
        program=_one("torch.cumprod(a, 0)", tensor_spec(2)),
        status=Status.FAIL_TO_RUN,
        has="# raises NotImplementedError",
    ),
    "random generator": _Case(
        backend=f"{_MORE}:draws",
        program=_one("torch.frac(a)", tensor_spec(2)),
        status=Status.FAIL_RNG,
        has="the next random number",
    ),
    "module with random weights": _Case(
        backend=f"{_MORE}:weighted",
        program=Program(name="linear", source=_LINEAR, is_module=True),
        status=Status.FAIL_ACCURACY,
        has="run(model())",
    ),
    "second call": _Case(
        backend=f"{_MORE}:first_graph",
        program=Program(name="global", source=_GLOBAL, calls=(Call(), Call(before="LIMIT = 4"))),
        status=Status.FAIL_GUARD,
        has="optimized(torch.arange(6.0))\nLIMIT = 4\n",
    ),
}  # fmt: skip


def _verdict(case: _Case) -> Verdict:
    program, subject = case.program, resolve(case.backend)
    if isinstance(program, FuzzProgram):
        return judge_here(program, subject)
    return judge(program, load(subject)).verdict


@pytest.mark.parametrize("name", CASES)
def test_a_short_script_shows_the_bug_and_only_that(name: str) -> None:
    case = CASES[name]
    subject, verdict = resolve(case.backend), _verdict(case)
    assert verdict.status is case.status, verdict.symptom
    script = verified(short_scripts(case.program, subject, verdict), exit_code)
    assert case.has in script
    assert "oracle" not in script
    assert len(script.splitlines()) <= 30
    named = case.backend.replace(":", ".")
    assert exit_code(script.replace(f"backend={named}", 'backend="eager"')) == 0


def test_the_script_of_one_line_has_few_lines_and_runs_in_an_interpreter_of_its_own(tmp_path: Path) -> None:
    program, subject = CASES["value"].program, resolve(CASES["value"].backend)
    script = short_scripts(program, subject, _verdict(CASES["value"]))[0].text
    assert len(script.splitlines()) <= 15
    path = tmp_path / "script.py"
    path.write_text(script)
    root = str(Path(fuzz.__file__).parent.parent)  # for the planted backend alone
    environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(path)], capture_output=True, text=True, timeout=300, check=False,
        env=environment, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("eager    tensor(")
    assert "Tensor-likes are not equal!" in done.stderr


_TEN = Verdict(
    status=Status.FAIL_ACCURACY,
    symptom="call 0: output[0] is 10, but should be 9 (fp64 9.0): error 1, allowed 1e-05; 1 of 1 elements are wrong",
    worst=WorstElement(where="call 0: output", index=(0,), subject="10", eager="9", truth="9.0", allowed_error=1e-5),
)


def test_the_shortest_script_is_the_program_and_its_values() -> None:
    lines = short_scripts(FLOOR, resolve("inductor"), _TEN)[0].text.splitlines()
    assert lines[0] == "# inductor: output[0] is 10, eager gives 9 (float64: 9.0)"
    assert lines[2:] == [
        "import torch",
        "",
        "def program(a, b):",
        "    return a // b",
        "",
        "args = [torch.tensor([1.0]), torch.tensor([0.1])]",
        'eager, compiled = program(*args), torch.compile(program, backend="inductor")(*args)',
        'print("eager   ", eager)',
        'print("compiled", compiled)',
        "torch.testing.assert_close(compiled, eager, equal_nan=True)",
    ]


def test_the_long_form_is_taken_where_no_short_one_shows_the_bug() -> None:
    subject = resolve("inductor")
    assert "DIFFERENT" in shortest_script(FLOOR, subject, _TEN, runs=lambda script: 0)
    assert "DIFFERENT" in shortest_script(FLOOR, subject, _TEN, runs=lambda script: 1)  # eager alone fails as well
    assert "DIFFERENT" in shortest_script(FLOOR, subject, _TEN, runs=lambda script: NO_END)
    right = shortest_script(FLOOR, subject, _TEN, runs=lambda script: int("torch.compile" in script))
    assert "DIFFERENT" not in right


@pytest.mark.parametrize(
    ("calls", "status", "symptom"),
    [
        ((Call(), Call(values="moved")), Status.FAIL_GUARD, "call 1: output[0] is 1, but should be 2: error 1, allowed 0"),
        ((Call(),), Status.CRASH, "the process died of signal 11"),
        ((Call(),), Status.FAIL_STATE, "process state: default dtype is torch.float64, but should be torch.float32"),
        ((Call(),), Status.FAIL_STATE, "call 0: globals.LIMIT is 1, but should be 2"),
        ((Call(backward=True, double_backward=True),), Status.FAIL_GRAD, "call 0: grad of args[0] is 1, but should be 2"),
    ],
)  # fmt: skip
def test_there_is_no_short_form_for(calls: tuple[Call, ...], status: Status, symptom: str) -> None:
    program = Program(name="floor", source=FLOOR.source, calls=calls)
    assert short_scripts(program, resolve("inductor"), Verdict(status=status, symptom=symptom)) == []


def test_a_subject_that_torch_does_not_have_is_refused() -> None:
    assert short_scripts(FLOOR, resolve("refimpl.aot"), _TEN) == []
    with pytest.raises(UsageError, match="first wrong rung"):
        shortest_script(FLOOR, resolve("refimpl.aot"), _TEN, runs=lambda script: 0)


@pytest.mark.parametrize(
    "verdict",
    [
        _TEN,
        Verdict(
            status=Status.FAIL_TO_RUN, symptom="call 0: outcome is KeyError in call ('text'), but should be a return"
        ),
    ],
)
def test_another_exception_is_not_the_symptom(verdict: Verdict) -> None:
    case = CASES["refusal"]  # raises NotImplementedError
    scripts = short_scripts(case.program, resolve(case.backend), verdict)
    assert [exit_code(scripts[0].control), exit_code(scripts[0].trial), exit_code(scripts[0].text)] == [0, 2, 1]
    assert verified(scripts, exit_code) == ""


def test_only_a_few_forms_are_compiled() -> None:
    asked: list[str] = []

    def runs(script: str) -> int:
        asked.append(script)
        return 0

    assert (
        verified([ShortScript(text=f"{n}", trial=f"compiled {n}", control=f"eager {n}") for n in range(9)], runs) == ""
    )
    assert sum(script.startswith("compiled") for script in asked) == 3


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("print(1)", 0),
        ("raise SystemExit(True)", 1),
        ("raise SystemExit(3)", 3),
        ("raise SystemExit('text')", 1),
        ("1 / 0", 1),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)", -15),
    ],
)
def test_the_exit_code_is_that_of_an_interpreter(script: str, code: int) -> None:
    assert exit_code(script) == code


def test_a_script_without_end_is_stopped() -> None:
    assert exit_code("while True: pass", timeout_s=0.5) == NO_END
