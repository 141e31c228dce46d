"""The rungs of the reference implementation: what they compile, and what the judge says of them.

`test_subjects_run.py` compares their values, gradients, mutation and random numbers with eager.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from oracle.case import CaseOptions, EagerState, judge_subject
from oracle.program import Call, Program
from oracle.program.build import instantiate
from oracle.subjects import refimpl as subjects
from oracle.subjects.base import Subject
from oracle.tests.subject_programs import Module, compiled_by, subject_of
from oracle.verdict import Status

COMPILED = ("refimpl.joint", "refimpl.partitioned", "refimpl.aot")
RUNGS = ("refimpl.functionalized", *COMPILED)
CAPTURED = ("refimpl.capture", "refimpl.full")


@pytest.mark.parametrize("name", COMPILED)
def test_it_counts_its_graphs_and_compiles_again_for_another_shape(name: str) -> None:
    subject = subject_of(name)
    run = compiled_by(subject, torch.sin, torch.ones(3))
    for size in (3, 3, 4):
        run(torch.ones(size))
    assert subject.counters().graphs == 2
    subject.reset()
    assert subject.counters().graphs == 0


@pytest.mark.parametrize("name", COMPILED)
def test_dynamic_sizes_are_compiled_once(name: str) -> None:
    subject = subject_of(name)
    run = compiled_by(subject, lambda x: x * 2, torch.ones(3), dynamic=True)
    for size in (3, 4, 5):
        assert torch.equal(run(torch.ones(size)), torch.full((size,), 2.0))
    assert subject.counters().graphs == 1


MUTATION = Program(
    name="t",
    calls=(Call(backward=True),),
    source="""
import torch
def inputs(call):
    return (torch.arange(1.0, 5.0).requires_grad_(),), {}
def derive(leaf):
    base = leaf * 2
    return (base[:3], base[1:]), {}
def program(a, b):
    c = a.sum() * 2
    b.mul_(3)
    return a * c, b
""",
)


def verdict_of(program: Program, subject: Subject) -> Any:
    eager = EagerState(make=lambda: instantiate(program))
    return judge_subject(eager=eager, subject=subject, options=CaseOptions()).verdict


@pytest.mark.parametrize("name", RUNGS)
def test_the_judge_agrees_on_mutation_of_overlapping_views_with_gradients(name: str) -> None:
    verdict = verdict_of(MUTATION, subject_of(name))
    assert verdict.status is Status.PASS, verdict.symptom
    assert verdict.compared.tensors > 4


def test_the_judge_sees_a_mutation_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_epilogue(target, **options: Any):
        return lambda *args: target(*(arg.clone() for arg in args))

    monkeypatch.setattr(subjects, "compile_aot", without_epilogue)
    assert verdict_of(MUTATION, subject_of("refimpl.aot")).status.is_silent


def test_the_functional_graph_is_traced_at_every_call() -> None:
    subject = subject_of("refimpl.functionalized")
    run = compiled_by(subject, torch.sin, torch.ones(3))
    for expected in (1, 2):
        run(torch.ones(3))
        assert subject.counters().graphs == expected


@pytest.mark.parametrize("name", CAPTURED)
def test_capture_trains_a_module_of_several_sizes(name: str) -> None:
    torch.manual_seed(0)
    module = Module()
    expected_module = copy.deepcopy(module)
    subject = subject_of(name)
    run = compiled_by(subject, module, torch.ones(5, 3))
    for size in (5, 6, 7, 9):
        x = torch.randn(size, 3)
        for outputs in (run(x, power=2.0), expected_module(x, power=2.0)):
            (outputs[0].sum() + outputs[1]).backward()
        for ours, theirs in zip(module.parameters(), expected_module.parameters(), strict=True):
            assert torch.allclose(ours.grad, theirs.grad, atol=1e-5)  # pyright: ignore[reportArgumentType]
        for ours, theirs in zip(module.buffers(), expected_module.buffers(), strict=True):
            assert torch.equal(ours, theirs)
    assert subject.counters().graph_breaks == 0
    assert subject.counters().graphs == 2  # of one size, and of all others


@pytest.mark.parametrize("name", CAPTURED)
def test_the_judge_agrees_with_capture(name: str) -> None:
    verdict = verdict_of(MUTATION, subject_of(name))
    assert verdict.status is Status.PASS, verdict.symptom


def test_every_kind_of_partition_has_a_subject() -> None:
    assert set(subjects.PARTITIONS) == set(COMPILED)
    assert len(set(subjects.PARTITIONS.values())) == len(subjects.PARTITIONS)


# Without gradients: export is given copies of its inputs, and they are leaves, which must not be written to.
PLAIN_MUTATION = Program(
    name="t",
    calls=(Call(),),
    source="""
import torch
def inputs(call):
    return (torch.arange(1.0, 5.0), torch.ones(4)), {}
def program(a, b):
    c = a.sum() * 2
    b.mul_(3)
    return a * c + b, b * 2
""",
)
EXPORTED = ("refimpl.export", "refimpl.export[strict=false]")


@pytest.mark.parametrize("name", EXPORTED)
def test_export_trains_a_module_of_several_sizes(name: str) -> None:
    torch.manual_seed(0)
    module = Module()
    expected_module = copy.deepcopy(module)
    subject = subject_of(name)
    run = compiled_by(subject, module, torch.ones(5, 3), dynamic=True)
    for size in (5, 6, 9):
        x = torch.randn(size, 3)
        for outputs in (run(x, power=2.0), expected_module(x, power=2.0)):
            (outputs[0].sum() + outputs[1]).backward()
    assert subject.counters().graphs == 1
    assert torch.equal(module.seen, expected_module.seen)
    for (label, actual), expected in zip(module.named_parameters(), expected_module.parameters(), strict=True):
        assert torch.allclose(actual.grad, expected.grad, atol=1e-5), label  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [*EXPORTED, "refimpl.export[decomposed=functional]", "refimpl.export[decomposed=all]"])
def test_the_judge_passes_an_exported_mutation(name: str) -> None:
    verdict = verdict_of(PLAIN_MUTATION, subject_of(name))
    assert verdict.status is Status.PASS, verdict.symptom
    assert verdict.compared.tensors > 2


def test_the_judge_sees_an_export_that_loses_a_mutation(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lossy:
        def __init__(self, module: torch.nn.Module, args: Any, kwargs: Any, **options: Any) -> None:
            self._module = module

        def module(self) -> Any:
            inner = self._module

            class Cloning(torch.nn.Module):
                def forward(self, *args: Any) -> Any:
                    return inner(*(arg.clone() for arg in args))

            return Cloning()

    monkeypatch.setattr(subjects, "export", Lossy)
    assert verdict_of(PLAIN_MUTATION, subject_of("refimpl.export")).status.is_silent
