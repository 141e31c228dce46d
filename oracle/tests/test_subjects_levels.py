"""Levels as options of subjects: where a program's kernels run, what they are compiled for, and what cannot be."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from oracle.case import CaseOptions, EagerState, judge_subject
from oracle.errors import UsageError
from oracle.program import Call, Program
from oracle.program.build import instantiate
from oracle.subjects.registry import check_requirements, load, resolve
from oracle.verdict import Status

needs_triton = pytest.mark.skipif(
    find_spec("triton") is None, reason="Triton is an extra: pip install 'torch-oracle[triton]'"
)

PROGRAM = Program(
    name="norm",
    source="""
import torch
def inputs(call):
    return (torch.arange(12.0).view(3, 4).requires_grad_(),), {}
def program(x):
    return (x.exp() / 1000).softmax(-1).sort(1)[0]
""",
    calls=(Call(backward=True),),
)


def _judged(name: str) -> Any:
    subject = load(resolve(name))
    eager = EagerState(make=lambda: instantiate(PROGRAM))
    return judge_subject(eager=eager, subject=subject, options=CaseOptions())


@pytest.mark.parametrize("name", ["triton[level=emulator]", "refimpl.triton[level=emulator]", "triton"])
def test_a_case_says_how_many_kernels_and_fallbacks_there_were(name: str) -> None:
    result = _judged(name)
    assert result.verdict.status is Status.PASS
    counted = result.measurements
    assert counted.kernels >= 2
    assert counted.fallbacks >= 1
    assert counted.lowered > counted.fallbacks


def test_a_subject_without_kernels_counts_none() -> None:
    assert _judged("refimpl.decomposed").measurements.kernels is None


@needs_triton
@pytest.mark.parametrize("options", ["level=interpreter", "level=emulator,cubin=80+90"])
def test_a_program_passes_on_other_levels(options: str) -> None:
    """The interpreter runs in a process of its own where this one did not start with it."""
    result = _judged(f"triton[{options}]")
    assert result.verdict.status is Status.PASS, result.verdict.symptom


def test_the_interpreter_s_workers_start_as_interpreters() -> None:
    spec = resolve("triton[level=interpreter]")
    assert spec.env == {"TRITON_INTERPRET": "1"}
    assert "triton" in spec.requires
    assert resolve("triton[level=emulator]").env == {}


@pytest.mark.parametrize(
    ("name", "device", "words"),
    [
        ("triton[level=device]", "cpu", "tensors on a GPU"),
        ("refimpl.triton[level=emulator]", "cuda", "tensors on the CPU"),
        ("triton[level=interpreter]", "cuda:1", "tensors on the CPU"),
    ],
)
def test_a_level_that_cannot_take_the_tensors_is_refused(name: str, device: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as raised:
        check_requirements(resolve(name), device=device)
    assert raised.value.exit_code == 2


def test_a_level_in_an_environment_that_contradicts_it_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(UsageError, match="TRITON_INTERPRET=1"):
        check_requirements(resolve("triton[level=device]"), device="cuda")
    file = tmp_path / "subjects.toml"
    file.write_text(
        '[subjects.mine]\nkind = "triton"\noptions = { level = "interpreter" }\nenv = { TRITON_INTERPRET = "0" }\n'
    )
    with pytest.raises(UsageError, match="TRITON_INTERPRET=0"):
        check_requirements(resolve("mine", subjects_file=file))


@needs_triton
def test_an_interpreter_asked_for_after_triton_was_imported_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    __import__("triton.language.standard")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(UsageError, match="after Triton was imported"):
        load(resolve("triton[level=interpreter]"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="no CUDA device"):
        load(resolve("triton[level=device]"))


@pytest.mark.parametrize("text", ["cubin=70", "cubin=80+80", "cubin=80+", "level=gpu", "cubin=true"])
def test_options_are_checked(text: str) -> None:
    with pytest.raises(UsageError, match="what to do"):
        resolve(f"triton[{text}]")
