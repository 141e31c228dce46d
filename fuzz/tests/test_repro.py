"""Scripts for reports: they run by themselves, exit with 1 while the bug is live, and with 0 when it is not."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fuzz
from fuzz.program.parsing import program_of
from fuzz.program.render import to_program
from fuzz.program.structure import Definition, FuzzProgram, StateEntry
from fuzz.reduce.task import reduce_finding
from fuzz.reduce.trials import TrialProcess
from fuzz.tests.specs import tensor_spec
from fuzz.triage.localise import judge_here
from fuzz.triage.repro import repro_script
from oracle.errors import UsageError
from oracle.program import Call
from oracle.program.build import instantiate
from oracle.program.inputs import decode
from oracle.subjects.registry import resolve
from oracle.symptom import symptom_of
from oracle.tests.forked_script import run_forked
from oracle.verdict import Status, Verdict


def _written(args: list[Any]) -> FuzzProgram:
    return program_of("def program(a, b):\n    b.mul_(2)\n    return None\n", args)


_SHARED = [
    tensor_spec(4, storage="m", fill={"kind": "normal", "seed": 3}),
    tensor_spec(2, storage="m", stride=[2], offset=1),
]
_GRADIENT = [Call(args=[tensor_spec(2, 3, stride=[1, 2], requires_grad=True)], backward=True)]
_ABOVE_ONE = {"kind": "uniform", "low": 2.0, "high": 3.0, "seed": 1}
CASES: dict[str, FuzzProgram] = {
    "integer_value": program_of(
        "def program(a):\n    r = torch.bitwise_xor(a, 5)\n    return [r, 'text']\n", [tensor_spec(3, dtype="int64")]
    ),
    "lost_write": _written(_SHARED),
    "wrong_gradient": program_of(
        "def program(a):\n    r = torch.asinh(a)\n    return r\n", [], calls=tuple(_GRADIENT)
    ),
    "uneven_gradient": program_of(
        "def program(a):\n    r = torch.sinh(a)\n    return r\n", [], calls=tuple(_GRADIENT)
    ),
    "drawing_gradient": program_of(
        "def program(a):\n    r = torch.acosh(a)\n    return r\n",
        [],
        calls=(Call(args=[tensor_spec(3, fill=_ABOVE_ONE, requires_grad=True)], backward=True),),
    ),
    "small_error": program_of(
        "def program(a):\n    r = torch.expm1(a)\n    return r\n",
        [tensor_spec(5, fill={"kind": "uniform", "low": 0.001, "high": 0.002, "seed": 1})],
    ),
    "crashes": program_of("def program(a):\n    r = torch.erfinv(a)\n    return r\n", [tensor_spec(3)]),
}  # fmt: skip


def _in_new_interpreter(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = folder / "repro.py"
    path.write_text(script)
    root = str(Path(fuzz.__file__).parent.parent)  # for the planted backend alone
    environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, cwd=folder)


def test_the_script_runs_in_an_interpreter_of_its_own(tmp_path: Path) -> None:
    subject = resolve("fuzz.tests.planted_bugs:integer_value")
    script = repro_script(CASES["integer_value"], subject, judge_here(CASES["integer_value"], subject))
    ended = _in_new_interpreter(script, tmp_path)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert ended.stdout.endswith("DIFFERENT\n")


@pytest.mark.parametrize("name", CASES)
def test_the_script_exits_with_1_while_the_bug_is_live(name: str, tmp_path: Path) -> None:
    subject = resolve(f"fuzz.tests.planted_bugs:{name}")
    with TrialProcess() as trials:
        verdict = trials.judge(CASES[name], subject)
    assert verdict.status.is_finding
    script = repro_script(CASES[name], subject, verdict)
    assert "oracle" not in script
    ended = run_forked(script, tmp_path)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert f"# {subject.name}: {verdict.status.value}" in script
    if name in (
        "lost_write",
        "wrong_gradient",
        "uneven_gradient",
        "drawing_gradient",
        "small_error",
    ):  # the same script on a backend without a bug
        right = script.replace(f"backend=fuzz.tests.planted_bugs.{name}", 'backend="eager"')
        ended = run_forked(right, tmp_path)
        assert ended.returncode == 0, ended.stdout + ended.stderr


_OWN_BACKEND = """
def backend(gm, example_inputs):
    return gm.forward
"""
# What capture sees differs from what eager does, whatever the backend.
_CAPTURED = program_of(
    "def program(a):\n    v = torch.sin(a)\n    r = v + int(torch.compiler.is_compiling())\n    return r\n",
    [tensor_spec(3, fill={"kind": "choice", "values": [0.5, -0.5, 1.5, -1.5], "seed": 3})],
)


def _without_our_code(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The script as somebody runs it who has torch alone."""
    path = folder / "repro.py"
    path.write_text(script)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-I", "-W", "ignore", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, cwd=folder)


def test_a_finding_of_capture_needs_no_backend_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"users_own_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(_OWN_BACKEND)
    monkeypatch.chdir(tmp_path)
    subject = resolve(f"{name}:backend")
    with TrialProcess() as trials:
        symptom = symptom_of(trials.judge(_CAPTURED, subject))
    payload = {
        "program": _CAPTURED.to_json(), "subject": subject.to_json(), "symptom": symptom.to_json(), "budget_s": 20,
        "culprit": False,
    }  # fmt: skip
    found = reduce_finding(payload, lambda stage: None)
    assert (found["rung"], found["reproduced"]) == ("dynamo", True)
    script = found["script"]
    assert name not in script
    assert "backend='eager'" in script
    assert script.startswith(f"# dynamo: {symptom.status}: ")
    (tmp_path / "elsewhere").mkdir()
    ended = _without_our_code(script, tmp_path / "elsewhere")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "call 0: value of output" in ended.stdout
    assert ended.stdout.endswith("DIFFERENT\n")
    assert "import" not in found["short_script"].replace("import torch\n", "")
    short = run_forked(found["short_script"], tmp_path / "elsewhere")
    assert short.returncode == 1, short.stdout + short.stderr
    assert "assert_close(compiled, eager" in found["short_script"]
    assert len(found["short_script"].splitlines()) <= 15
    # what is shown beside it is what the script runs
    for line in found["inputs"][0][:-1]:
        assert line in script


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("dynamo", "backend='eager'"),
        ("aot_eager", "backend='aot_eager'"),
        ("aot_eager_decomp_partition[dynamic=true]", "backend='aot_eager_decomp_partition', dynamic=True"),
        ("inductor", "backend='inductor'"),
    ],
)
def test_the_script_compiles_as_the_rung_does(name: str, text: str) -> None:
    script = repro_script(CASES["integer_value"], resolve(name), Verdict(status=Status.FAIL_ACCURACY, symptom="x"))
    assert f"return torch.compile(target, {text})" in script


def test_a_large_argument_of_the_script_is_that_of_the_finding(tmp_path: Path) -> None:
    """The bug shows at one value of a thousand: other random numbers would not have it."""
    spec = tensor_spec(2000, dtype="int64", fill={"kind": "integers", "low": 0, "high": 1000, "seed": 8})
    others = torch.randint(0, 1000, (2000,), generator=torch.Generator().manual_seed(0))
    value = next(value for value in decode(spec, seed=0).tolist() if value not in others)
    program = program_of(
        f"def program(a):\n    r = torch.where(a == {value}, int(torch.compiler.is_compiling()), 0)\n    return r\n",
        [spec],
    )
    subject = resolve("dynamo")
    with TrialProcess() as trials:
        verdict = trials.judge(program, subject)
    assert verdict.status is Status.FAIL_ACCURACY
    ended = run_forked(repro_script(program, subject, verdict), tmp_path)
    assert ended.returncode == 1, ended.stdout + ended.stderr


def test_modules_globals_and_plans_are_in_the_script(tmp_path: Path) -> None:
    program = FuzzProgram(
        arguments=("a",),
        statements=program_of("def program(a):\n    r = torch.bitwise_xor(a, LIMIT)\n    return r\n", []).statements,
        result=program_of("def program(a):\n    return [a]\n", []).result,
        definitions=(Definition(name="LIMIT", text="LIMIT = 3"),),
        state=(StateEntry(name="self.w", text="self.w = torch.nn.Parameter(torch.ones(2))"),),
        calls=(
            Call(args=[tensor_spec(2, dtype="int64")], training=False),
            Call(
                args=[tensor_spec(2, dtype="int64")], before="LIMIT = 4\ntarget.w = torch.nn.Parameter(torch.zeros(2))"
            ),
        ),
        config={"torch._dynamo.config.recompile_limit": 5},
        dynamic=False,
    )
    subject = resolve("dynamo")
    verdict = judge_here(program, subject)
    ended = run_forked(repro_script(program, subject, replace(verdict, status=Status.FAIL_ACCURACY)), tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr


_STOCK = "torch.compile(target, backend='eager')"


def test_tensors_in_a_list_of_a_module_are_seen(tmp_path: Path) -> None:
    program = FuzzProgram(
        arguments=("a",),
        statements=program_of("def program(a):\n    r = torch.mul(a, len(self.kept))\n    return r\n", []).statements,
        result=program_of("def program(r):\n    return r\n", []).result,
        state=(StateEntry(name="self.kept", text="self.kept = [torch.nn.Parameter(torch.ones(2))]"),),
        calls=(Call(args=[tensor_spec(2, requires_grad=True)], backward=True),),
    )
    subject = resolve("dynamo")
    script = repro_script(
        program, subject, Verdict(status=Status.FAIL_GRAD, symptom="grad of module.kept[0] is torch.Tensor")
    )
    assert run_forked(script, tmp_path).returncode == 0
    ended = run_forked(script.replace(_STOCK, "lambda a: target(a) + 0 * target.kept[0]"), tmp_path)
    assert ended.returncode == 1
    assert "gradient of state ['kept'][0]" in ended.stdout


def test_what_a_call_leaves_in_the_module_is_seen(tmp_path: Path) -> None:
    program = FuzzProgram(
        arguments=("a",),
        statements=program_of("def program(a):\n    r = torch.mul(a, self.count)\n    return r\n", []).statements,
        result=program_of("def program(r):\n    return r\n", []).result,
        state=(StateEntry(name="self.count", text="self.count = 2"),),
        calls=(Call(args=[tensor_spec(2)]),),
    )
    verdict = Verdict(status=Status.FAIL_STATE, symptom="module.last")
    script = repro_script(program, resolve("dynamo"), verdict)
    keeps = "lambda a: (setattr(target, 'last', a * NUMBER), target(a))[1]"
    script = script.replace("run(lambda target: target)", f"run(lambda target: {keeps.replace('NUMBER', '2')})")
    assert run_forked(script.replace(_STOCK, keeps.replace("NUMBER", "2")), tmp_path).returncode == 0
    ended = run_forked(script.replace(_STOCK, keeps.replace("NUMBER", "3")), tmp_path)
    assert ended.returncode == 1
    assert "value of state ['last']" in ended.stdout


def test_whether_an_empty_tensor_is_the_argument_is_seen(tmp_path: Path) -> None:
    program = program_of("def program(a):\n    return a\n", [tensor_spec(0)])
    script = repro_script(program, resolve("dynamo"), Verdict(status=Status.FAIL_ALIAS, symptom="output"))
    assert run_forked(script, tmp_path).returncode == 0
    assert run_forked(script.replace(_STOCK, "lambda a: a.clone()"), tmp_path).returncode == 1


def test_where_a_view_begins_in_the_memory_that_it_shares_is_seen(tmp_path: Path) -> None:
    program = program_of("def program(a):\n    r = a[2:]\n    return r\n", [tensor_spec(6)])
    script = repro_script(
        program, resolve("dynamo"), Verdict(status=Status.FAIL_ALIAS, symptom="output.storage_offset")
    )
    assert run_forked(script, tmp_path).returncode == 0
    ended = run_forked(script.replace(_STOCK, "lambda a: a[1:5]"), tmp_path)
    assert ended.returncode == 1
    assert "aliases" in ended.stdout


@pytest.mark.parametrize("lazy", ["neg", "conj"])
def test_lazy_bits_of_arguments_are_in_the_script(lazy: str) -> None:
    spec = tensor_spec(2, 3, dtype="complex64", stride=[1, 2], **{lazy: True})
    program = program_of("def program(a):\n    r = torch.neg(a)\n    return r\n", [spec])
    script = repro_script(program, resolve("inductor"), Verdict(status=Status.FAIL_ACCURACY))
    names: dict[str, Any] = {}
    exec(script.partition("CALLS =")[0], names)
    (made,), _ = names["inputs_0"]()
    (expected,), _ = instantiate(to_program(program, name="lazy")).inputs(0)
    assert (made.is_neg(), made.is_conj(), made.stride()) == (lazy == "neg", lazy == "conj", (1, 2))
    torch.testing.assert_close(made, expected, rtol=0, atol=0)


def test_a_subject_that_torch_does_not_have_is_refused() -> None:
    program = CASES["integer_value"]
    with pytest.raises(UsageError, match="first wrong rung"):
        repro_script(program, resolve("refimpl.aot"), Verdict(status=Status.FAIL_ACCURACY))
