"""Exported programs as subjects: sizes that vary, sizes that must be refused, and what a program is put through."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from oracle.case import CaseOptions, EagerState, judge_subject
from oracle.errors import UsageError
from oracle.program import Call, Program
from oracle.program.build import instantiate
from oracle.subjects.base import CompileRequest, Subject
from oracle.subjects.export import Export
from oracle.subjects.registry import resolve
from oracle.tests.subject_programs import subject_of
from oracle.verdict import Status, Verdict

MODES = ("export", "export[strict=false]", "refimpl.export", "refimpl.export[strict=false]")
THROUGH = (
    "export[through=saved]",
    "export[through=retraced,strict=false]",
    "export[through=unflattened]",
    "export[decomposed=all,strict=false]",
    "export[decomposed=functional,through=saved]",
    "refimpl.export[through=saved]",
    "refimpl.export[through=saved,strict=false]",
    "refimpl.export[through=retraced]",
    "refimpl.export[through=retraced,strict=false]",
    "refimpl.export[through=unflattened]",
    "refimpl.export[through=unflattened,strict=false]",
    "refimpl.export[through=torch]",
    "refimpl.export[through=torch,strict=false]",
    "refimpl.export[decomposed=all,through=torch]",
    "refimpl.export[decomposed=functional,through=saved]",
)


def verdict_of(program: Program, subject: Subject) -> Verdict:
    return judge_subject(
        eager=EagerState(make=lambda: instantiate(program)), subject=subject, options=CaseOptions()
    ).verdict


class Model(nn.Module):
    """Tied weights, a buffer that is updated, keywords."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.again = nn.Linear(3, 3)
        self.again.weight = self.linear.weight
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.add_(x.detach().sum(0))
        y = self.norm(self.again(self.linear(x))) * scale
        return {"y": y, "total": y.sum()}


@pytest.mark.parametrize("name", [name for name in THROUGH if "decomposed" not in name])  # those are for inference
def test_a_program_put_through_something_trains_the_module_it_was_made_of(name: str) -> None:
    torch.manual_seed(0)
    module = Model()
    expected = copy.deepcopy(module)
    subject = subject_of(name)
    x, scale = torch.randn(5, 3), torch.tensor(2.0)
    run = subject.compile(CompileRequest(target=module, args=(x,), kwargs={"scale": scale}))
    for forward in (run, expected):
        for _ in range(2):
            forward(x, scale=scale)["y"].pow(2).sum().backward()
    assert subject.counters().graphs == 1
    assert torch.equal(module.seen, expected.seen)
    for (label, ours), theirs in zip(module.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, msg=lambda text, at=label: f"{at}: {text}")


WRITES = """
import torch
class program(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("b", torch.ones(4))
    def forward(self, x, y):
        self.b.mul_(2)
        y.add_(1)
        return x * self.b, y[1:] + 0, x.sin()
"""
SIZED = Program(
    name="t",
    source=WRITES + "def inputs(call): n = [4, 3, 8][call]; return (torch.randn(n, 4), torch.randn(n, 2)), {}\n",
    calls=(Call(grad_mode="no_grad"),) * 3,
    is_module=True,
    sizes={"x": {"0": ["n", 3, 8]}, "y": {"0": ["n", 3, 8]}},
)


@pytest.mark.parametrize("name", [*MODES, *THROUGH])
def test_one_export_serves_every_size_of_the_range(name: str) -> None:
    subject = subject_of(name)
    verdict = verdict_of(SIZED, subject)
    assert verdict.status is Status.PASS, verdict.symptom
    assert subject.counters().graphs == 1


def sized(last: int) -> Program:
    text = f"def inputs(call): n = [4, {last}][call]; return (torch.randn(n, 4), torch.randn(n, 2)), {{}}\n"
    return Program(
        name="t",
        source=WRITES + text,
        calls=(Call(grad_mode="no_grad"), Call(grad_mode="no_grad", outside=True)),
        is_module=True,
        sizes=SIZED.sizes,
    )


@pytest.mark.fractional
@pytest.mark.parametrize("size", [2, 9])
@pytest.mark.parametrize("name", [*MODES, *THROUGH])
def test_a_size_outside_is_refused_and_that_passes(name: str, size: int) -> None:
    verdict = verdict_of(sized(size), subject_of(name))
    assert verdict.status is Status.PASS, verdict.symptom
    assert any("outside of the sizes, is refused: " in text for text in verdict.explained), verdict.explained
    assert verdict.compared.tensors > 4


@pytest.mark.parametrize("name", ["dynamo", "eager", "refimpl.aot"])
def test_who_was_told_no_sizes_owes_no_refusal(name: str) -> None:
    verdict = verdict_of(sized(9), subject_of(name))
    assert verdict.status is Status.PASS, verdict.symptom


class Replaced(Export):
    """An exporter whose program is another callable."""

    def __init__(self, change: Callable[[Any, int], Any]) -> None:
        super().__init__(resolve("export[strict=false]"))
        self._change = change

    def export(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], **options: Any) -> Any:
        change, example = self._change, args[0].shape[0]

        class Program:
            def module(self) -> nn.Module:
                class Run(nn.Module):
                    def __init__(self) -> None:
                        super().__init__()
                        self.inner = module

                    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
                        return change(self.inner(x, y), 0 if x.shape[0] == example else x.shape[0])

                return Run()

        return Program()


def _unchanged(result: Any, size: int) -> Any:
    return result


def _wrong_elsewhere(result: Any, size: int) -> Any:
    return (result[0] + bool(size), *result[1:])


def _fails_elsewhere(result: Any, size: int) -> Any:
    if size:
        raise KeyError(size)
    return result


def _guards_all(result: Any, size: int) -> Any:
    raise AssertionError("Guard failed: x.size()[0] == 5")


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        (_unchanged, Status.FAIL_GUARD, "accepted with eager's results, but should be refused"),
        (_wrong_elsewhere, Status.FAIL_GUARD, "accepted and wrong"),
        (_fails_elsewhere, Status.FAIL_EXCEPTION, "outcome is KeyError"),
        (_guards_all, Status.FAIL_TO_RUN, "Guard failed"),
    ],
)
def test_the_judge_sees_a_size_outside_that_is_not_refused_by_a_guard(
    change: Callable[[Any, int], Any], status: Status, words: str
) -> None:
    verdict = verdict_of(sized(9), Replaced(change))
    assert verdict.status is status, verdict.symptom
    assert words in verdict.symptom


def test_a_wrong_answer_inside_is_what_counts_before_a_refusal_outside() -> None:
    def wrong(result: Any, size: int) -> Any:
        if size:
            raise AssertionError("Guard failed: x.size()[0] <= 8")
        return (result[0] + 1, *result[1:])

    assert verdict_of(sized(9), Replaced(wrong)).status is Status.FAIL_ACCURACY


@pytest.mark.parametrize("calls", [(Call(outside=True),), (Call(outside=True), Call())])
def test_a_call_outside_comes_last_and_not_alone(calls: tuple[Call, ...]) -> None:
    with pytest.raises(UsageError, match="outside of the sizes"):
        Program(name="t", source="", calls=calls)


def test_sizes_survive_json() -> None:
    program = sized(9)
    assert Program.from_json(program.to_json()) == program


FUNCTION = Program(
    name="t",
    source="""
import torch
def inputs(call):
    return (torch.ones([4, 6][call], 2), torch.ones([4, 6][call], 1)), {}
def program(x, bias, scale=2):
    return (x * scale + bias).reshape(-1)
""",
    calls=(Call(), Call()),
    sizes={"x": {"0": ["n", 3, 8]}, "bias": {"0": ["n", 3, 8]}},
)
GATHERED = Program(
    name="t",
    source="""
import torch
class program(torch.nn.Module):
    def forward(self, x, **others):
        return x.sum() + others["bias"]
def inputs(call):
    return (torch.ones([4, 6][call], 2),), {"bias": torch.ones([5, 7][call], 1)}
""",
    calls=(Call(), Call()),
    is_module=True,
    sizes={"x": {"0": ["n", 3, 8]}, "bias": {"0": ["m", 3, 8]}},
)


# torch.export refuses sizes of what `**others` takes: "Must provide a tree_name when there might be a mismatch".
@pytest.mark.parametrize(
    ("program", "name"),
    [*((FUNCTION, name) for name in MODES), *((GATHERED, name) for name in MODES if name.startswith("refimpl"))],
)
def test_sizes_are_said_by_the_names_of_parameters(program: Program, name: str) -> None:
    subject = subject_of(name)
    verdict = verdict_of(program, subject)
    assert verdict.status is Status.PASS, verdict.symptom
    assert subject.counters().graphs == 1


def test_what_was_wrong_before_a_refusal_is_said_beside_it() -> None:
    def wrong(result: Any, size: int) -> Any:
        return (result[0] + 1, *result[1:])

    verdict = verdict_of(sized(9), Replaced(wrong))
    assert verdict.status is Status.FAIL_ACCURACY, verdict.symptom
    assert verdict.call == 0
    assert any("outside of the sizes: accepted and wrong" in text for text in verdict.also), verdict.also
