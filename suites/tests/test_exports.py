"""The exports suite: what it lists, that its sizes are what its calls have, and that the judge passes and fails its programs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from oracle.case import CaseOptions, EagerState, judge_subject
from oracle.errors import UsageError
from oracle.program.build import instantiate
from oracle.subjects.export import Export
from oracle.subjects.registry import load, resolve
from oracle.verdict import Status
from suites.base import Selection, SuiteProgram
from suites.exports.suite import EXAMPLE, INSIDE, LARGEST, OUTSIDE, SMALLEST, VARYING, ExportsSuite
from suites.models.catalog import ARCHITECTURES
from suites.registry import SUITES, load_suite

SUITE = ExportsSuite()
KINDS = {*INSIDE, *OUTSIDE}


def _programs(selection: Selection) -> list[SuiteProgram]:
    return [found for group in SUITE.groups(selection) for found in SUITE.programs(selection, group)]


def test_every_model_has_a_program_of_each_kind_and_names_are_unique() -> None:
    names = [found.program.name for found in _programs(Selection())]
    assert len(names) == len(set(names))
    assert set(names) == {f"{model}/float32/forward/{kind}" for model in ARCHITECTURES for kind in KINDS}


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (Selection(match=("bert",)), ["bert/float32/forward/inside", "bert/float32/forward/above", "bert/float32/forward/below"]),
        (Selection(match=("bert",), tags=("inside",)), ["bert/float32/forward/inside"]),
        (Selection(match=("bert/*/below",)), ["bert/float32/forward/below"]),
        (Selection(match=("gcn", "bert"), tags=("encoder", "inside")), ["bert/float32/forward/inside"]),
        (Selection(match=("mlp/*/inside",), directions=("backward",)), ["mlp/float32/backward/inside"]),
        (Selection(match=("fnet",), dtypes=("bfloat16",)), []),
    ],
)  # fmt: skip
def test_a_selection_lists_what_it_says(selection: Selection, expected: list[str]) -> None:
    assert [found.program.name for found in _programs(selection)] == expected


def test_a_model_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="list exports"):
        next(SUITE.programs(Selection(), "berty"))


@pytest.mark.parametrize("model", ["mlp", "gcn", "dlrm", "lstm-cell-loop"])
def test_calls_have_the_sizes_their_kind_says_and_only_the_last_may_be_outside(model: str) -> None:
    for found in _programs(Selection(match=(model,))):
        program = found.program
        kind = program.name.rpartition("/")[2]
        instance = instantiate(program)
        seen = []
        for number, call in enumerate(program.calls):
            _, kwargs = instance.inputs(number)
            varying = VARYING.get(model) or dict.fromkeys(kwargs, 0)
            assert program.sizes == {name: {str(dim): ["batch", SMALLEST, LARGEST]} for name, dim in varying.items()}
            sizes = {kwargs[name].shape[dim] for name, dim in varying.items()}
            assert len(sizes) == 1, f"{program.name}: {sizes}"
            seen.append(sizes.pop())
            assert call.outside == (not SMALLEST <= seen[-1] <= LARGEST), program.name
        assert tuple(seen) == {**INSIDE, **OUTSIDE}[kind]
        assert seen[0] == EXAMPLE


@pytest.mark.fractional
@pytest.mark.parametrize("subject", SUITES["exports"].default_subjects)
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_an_exported_model_passes(kind: str, subject: str) -> None:
    (found,) = _programs(Selection(match=(f"lenet/*/{kind}",)))
    eager = EagerState(make=lambda: instantiate(found.program))
    verdict = judge_subject(eager=eager, subject=load(resolve(subject)), options=CaseOptions()).verdict
    assert verdict.status is Status.PASS, verdict.symptom


class Specialised(Export):
    """An exporter that keeps the number of rows of the example without saying so."""

    def export(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], **options: Any) -> Any:
        rows = next(iter(kwargs.values())).shape[0]

        class Run(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = module

            def forward(self, **inputs: torch.Tensor) -> Any:
                return torch.zeros(rows, *self.inner(**inputs).shape[1:])

        class Program:
            def module(self) -> torch.nn.Module:
                return Run()

        return Program()


@pytest.mark.parametrize(("kind", "status"), [("inside", Status.FAIL_ACCURACY), ("above", Status.FAIL_ACCURACY)])
def test_an_export_that_is_wrong_is_seen(kind: str, status: Status) -> None:
    (found,) = _programs(Selection(match=(f"mlp/*/{kind}",)))
    eager = EagerState(make=lambda: instantiate(found.program))
    verdict = judge_subject(eager=eager, subject=Specialised(resolve("export")), options=CaseOptions()).verdict
    assert verdict.status is status, verdict.symptom


def test_the_suite_is_registered() -> None:
    assert isinstance(load_suite("exports"), ExportsSuite)
