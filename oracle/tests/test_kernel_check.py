"""`torch-oracle kernel`: planted bugs are found and named, right kernels raise no alarm, bad input is named."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from oracle.cli import run
from oracle.errors import UsageError
from oracle.kernels import commands, session
from oracle.kernels.commands import LevelReport, _run_level
from oracle.kernels.guards import GuardState, guarding, never_written
from oracle.kernels.input_specs import DrawnTensor, build, draw, parse_inputs, simpler
from oracle.kernels.target import load_function

FILES = Path(__file__).parent / "kernel_files"
needs_triton = pytest.mark.skipif(
    find_spec("triton") is None, reason="Triton is an extra: pip install 'torch-oracle[triton]'"
)


def _checked(file: str, launcher: str, reference: str, inputs: str = "", **options: Any) -> LevelReport:
    return _checked_files(f"{file}:{launcher}", f"{file}:{reference}", inputs, **options)


def _checked_files(
    launcher: str, reference: str, inputs: str, *, count: int, level: str = "emulator", seed: int = 0
) -> LevelReport:
    request = {
        "launcher": str(FILES / launcher), "reference": str(FILES / reference), "inputs": inputs, "level": level, "seed": seed,
        "seconds": 0,
    }  # fmt: skip
    return (_run_level if level != "emulator" else _run_here)(request, range(count))


def _run_here(request: Mapping[str, Any], cases: Sequence[int]) -> LevelReport:
    """As `_run_level`, in this process: a process for each request takes seconds."""
    lines: list[Mapping[str, Any]] = []
    threads = torch.get_num_threads()
    try:
        session.run({**request, "cases": list(cases)}, lines.append)
    finally:
        torch.set_num_threads(threads)
    findings = [(line["finding"], line["number"], line["case"]) for line in lines if "finding" in line]
    last = lines[-1]
    return LevelReport(level=request["level"], findings=findings, tally=last["summary"], reasons=last["reasons"])


@pytest.fixture
def commands_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands judge cases in this process."""
    monkeypatch.setattr(commands, "_run_level", _run_here)


RIGHT = [
    ("add", "add_eager", ""),
    ("softmax", "softmax_eager", "x: f32|f16|bf16[M, N]"),
    ("rms_norm", "rms_norm_eager", "x: dtype[M, N], w: dtype[N], eps: 1e-5"),
    ("gather_rows", "gather_rows_eager", "t: f32|i32[M, D], index: i64[K] < M"),
    ("scale_", "scale_eager_", "x: f32[M, N], s: float"),
    ("matmul", "matmul_eager", "a: f32[M, K], b: f32[K, N]"),
]


@pytest.mark.parametrize(("launcher", "reference", "inputs"), RIGHT, ids=[row[0] for row in RIGHT])
def test_right_kernels_raise_no_alarm(launcher: str, reference: str, inputs: str) -> None:
    report = _checked("right.py", launcher, reference, inputs, count=25)
    assert report.findings == []
    assert report.tally["passed"] >= 10


@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "reference", "inputs"), RIGHT, ids=[row[0] for row in RIGHT])
def test_right_kernels_raise_no_alarm_over_many_inputs(launcher: str, reference: str, inputs: str) -> None:
    report = _checked("right.py", launcher, reference, inputs, count=200, seed=1)
    assert report.findings == []
    assert report.tally["passed"] >= 80


PLANTED = [
    ("missing_mask", "identity", "", "out_of_bounds", r"a store of o[1] by program (0, 0, 0), lane (1,)"),
    ("wrong_stride", "relu", "", "wrong_values", "1 of 2 elements are wrong"),
    ("unwritten_tail", "relu", "", "unwritten", "output[0] was never written"),
    ("race", "total", "", "race", "o[0]"),
    ("narrow_accumulation", "row_sum", "x: bf16[4, 700]", "wrong_values", "output["),
    ("wrong_special_value", "relu", "", "wrong_values", "is 0, but should be nan"),
    ("reads_too_far", "differences", "", "out_of_bounds", "a load of x[1] by program (0, 0, 0), lane (0,)"),
    ("no_power_of_two", "identity", "", "would_not_compile", "its size, 3, must be a power of two"),
]


@pytest.mark.parametrize(("launcher", "reference", "inputs", "kind", "text"), PLANTED, ids=[row[0] for row in PLANTED])
def test_planted_bugs_are_found_and_named(launcher: str, reference: str, inputs: str, kind: str, text: str) -> None:
    report = _checked("planted.py", launcher, reference, inputs, count=12)
    found = {finding["kind"]: finding["text"] for finding, _, _ in report.findings}
    assert kind in found
    assert text in found[kind]


@needs_triton
@pytest.mark.parametrize(
    ("launcher", "reference", "inputs", "kind"),
    [
        ("missing_mask", "identity", "x: f32[N]", "out_of_bounds"),
        ("wrong_stride", "relu", "x: f32[M, N]", "wrong_values"),
    ],
)
def test_planted_bugs_are_found_in_the_interpreter(launcher: str, reference: str, inputs: str, kind: str) -> None:
    report = _checked("planted.py", launcher, reference, inputs, count=8, level="interpreter")
    assert kind in {finding["kind"] for finding, _, _ in report.findings}


@needs_triton
def test_right_kernels_raise_no_alarm_in_the_interpreter() -> None:
    report = _checked("right.py", "softmax", "softmax_eager", "x: f32|f16|bf16[8, N]", count=6, level="interpreter")
    assert report.findings == []
    assert report.tally["passed"] == 6


@pytest.mark.usefixtures("commands_run_here")
def test_the_report_says_how_to_see_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    target = [f"{FILES / 'planted.py'}:missing_mask", "--reference", f"{FILES / 'planted.py'}:identity"]
    assert run(["kernel", *target, "--count", "3", "--seed", "4"]) == 1
    shown = capsys.readouterr().out
    assert "again: --level emulator --seed 4 --only 0" in shown
    assert run(["kernel", *target, "--only", "0", "--seed", "4", "--json"]) == 1
    (report,) = json.loads(capsys.readouterr().out)
    assert report["findings"][0]["kind"] == "out_of_bounds"
    assert report["tally"]["found"] == 1


def test_inputs_may_come_from_a_function_and_dynamo_is_not_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    planted = FILES / "planted.py"
    code = run(
        [
            "kernel",
            f"{planted}:without_dynamo",
            "--reference",
            f"{planted}:relu",
            "--inputs",
            f"{planted}:inputs",
            "--count",
            "4",
        ]
    )
    assert (code, "4 cases" in capsys.readouterr().out) == (0, True)


def test_a_launcher_in_a_package_has_relative_imports(tmp_path: Path) -> None:
    package = tmp_path / "kernels_of_a_package"
    package.mkdir()
    (package / "sizes.py").write_text("BLOCK = 64\n")
    (package / "norm.py").write_text("from .sizes import BLOCK\n\n\ndef launcher(x):\n    return BLOCK\n")
    assert load_function(f"{package}/norm.py:launcher", "--reference", emulated=False)(None) == 64


BAD = [
    (["planted.py:nix", "planted.py:relu"], "planted.py defines no 'nix'"),
    (["planted.py:identty", "planted.py:relu"], "did you mean identity?"),
    (["nowhere.py:f", "planted.py:relu"], "no file"),
    (["planted.py", "planted.py:relu"], "expected: FILE.py:NAME"),
    (["planted.py:NOT_A_FUNCTION", "planted.py:relu"], "a int"),
    (["planted.py:_copy_kernel", "planted.py:relu"], "a @triton.jit kernel"),
    (["planted.py:nothing", "planted.py:identity"], "launched no kernel"),
    (["right.py:add", "planted.py:identity"], "too many positional arguments"),
    (["planted.py:missing_mask", "planted.py:identity", "x: f31[M]"], "dtype 'f31' of x"),
    (["planted.py:missing_mask", "planted.py:identity", "x"], "NAME: DTYPE[SIZES]"),
    (["planted.py:missing_mask", "planted.py:identity", "x: i64[K] < M"], "x < M"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[" ".join(row[0]) for row in BAD])
def test_bad_input_is_named(arguments: list[str], message: str) -> None:
    launcher, reference, inputs = (*arguments, "")[:3]
    with pytest.raises(UsageError) as error:
        _checked_files(launcher, reference, inputs, count=2)
    assert message in str(error.value).replace("\n", " ").replace("  ", " ")


def test_files_of_one_name_in_two_folders_are_two_modules(tmp_path: Path) -> None:
    found = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "softmax.py").write_text("def launch(x): return x\n")
        found.append(load_function(f"{tmp_path / folder / 'softmax.py'}:launch", "FILE.py:LAUNCHER", emulated=False))
    assert [vars(sys.modules[function.__module__])["launch"] for function in found] == found


@pytest.mark.usefixtures("commands_run_here")
def test_bad_input_ends_the_command_with_two(capsys: pytest.CaptureFixture[str]) -> None:
    planted = FILES / "planted.py"
    assert run(["kernel", f"{planted}:refuses_everything", "--reference", f"{planted}:identity", "--count", "2"]) == 2
    assert "no case could be judged: NotImplementedError: not today" in capsys.readouterr().err
    assert run(["kernel", f"{planted}:race", "--reference", f"{planted}:total", "--level", "tpu"]) == 2
    assert "--level 'tpu'" in capsys.readouterr().err


def test_a_level_without_its_device_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    right = FILES / "right.py"
    assert run(["kernel", f"{right}:add", "--reference", f"{right}:add_eager", "--level", "gpu"]) == 2
    assert "no CUDA device" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------------------- parts


def test_drawn_arguments_are_made_again_from_their_seed() -> None:
    specs = parse_inputs("x: f32|bf16[M, N], w: dtype[N]!, i: i64[K] < M, e: 0.5, n: int 2..3, s: float")
    cases = [draw(specs, random.Random(5), largest=4096) for _ in range(2)]
    assert str(cases[0]) == str(cases[1])
    x, w, i, e, n, _ = (build(argument) for argument in cases[0].arguments)
    again = build(cases[1].arguments[0])
    torch.testing.assert_close(x, again, rtol=0, atol=0, equal_nan=True)
    assert (x.shape[1], w.is_contiguous(), e) == (w.shape[0], True, 0.5)
    assert n in (2, 3)
    assert ((i >= 0) & (i < max(1, x.shape[0]))).all()


def test_strides_dtypes_and_special_values_are_drawn() -> None:
    specs = parse_inputs("x: float32|f16|bfloat16[M, N]")
    drawn = [draw(specs, random.Random(i), largest=4096).arguments[0] for i in range(200)]
    tensors = [argument for argument in drawn if isinstance(argument, DrawnTensor)]
    assert {argument.dtype for argument in tensors} == {"f32", "f16", "bf16"}
    assert sum(not build(argument).is_contiguous() for argument in tensors) > 30
    assert sum(bool(build(argument).isnan().any()) for argument in tensors) > 5
    assert all(build(argument).numel() <= 4096 for argument in tensors)


def test_simpler_cases_keep_what_belongs_together() -> None:
    specs = parse_inputs("x: f32[M, N], w: f32[N]")
    case = draw(specs, random.Random(2), largest=4096)
    for small in simpler(case, specs):
        x, w = (build(argument) for argument in small.arguments)
        assert x.shape[1] == w.shape[0]


def test_guard_zones_see_writes_on_either_side() -> None:
    state = GuardState(which=0)
    x = state.place_copy("x", torch.arange(6.0).reshape(2, 3))
    assert state.zones[0].first_change(0) is None
    whole = state.zones[0].whole
    whole[state.zones[0].before + 7] = 1.0
    assert state.zones[0].first_change(0) == 7
    assert x.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


def test_guard_zones_are_around_what_a_compiled_function_allocates() -> None:
    def fill(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x).fill_(2) + x

    state = GuardState(which=0)
    with guarding(state):
        out = torch.compile(fill, backend="eager")(torch.ones(3))
    assert out.tolist() == [3.0, 3.0, 3.0]
    assert sum("empty_like" in zone.name for zone in state.zones) == 1


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool]
)
def test_what_was_not_written_shows_under_two_patterns(dtype: torch.dtype) -> None:
    outputs: list[Any] = []
    for which in (0, 1):
        with guarding(GuardState(which=which)):
            out = torch.empty(4, dtype=dtype)
            out[:3] = torch.tensor([1, 0, 1]).to(dtype)
            outputs.append(out)
    assert never_written(*outputs).tolist() == [False, False, False, True]
