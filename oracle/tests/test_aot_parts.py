"""Parts of AOT autograd: what its analysis says of aliases, views replayed for results, how writes and views are rewritten."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._functorch import aot_autograd, partitioners
from torch._functorch._aot_autograd import runtime_wrappers
from torch._functorch._aot_autograd.schemas import OutputType

from oracle.case import CaseOptions, EagerState, judge_subject
from oracle.localisation import culprit as culprit_module
from oracle.localisation.aot_parts import ALIASES, ANALYSIS
from oracle.localisation.culprit import IN_EAGER, Culprit, find_culprit
from oracle.localisation.parts import Part, SeenInFront, parse_part, recording_front, without
from oracle.localisation.report import Localisation
from oracle.program import Call, Program
from oracle.program.build import Instance, instantiate
from oracle.subjects.registry import load, resolve
from oracle.symptom import Symptom, symptom_of
from oracle.verdict import Status, Verdict

_FIXED = "fixed in this torch: choose another program"


def _program(body: str, *shapes: tuple[int, ...], grad: bool = False) -> Callable[[], Instance]:
    """A program of tensors a0, a1 ...; with `grad` they require grad, and are no leaves, so that they can be written."""
    names = [f"a{number}" for number in range(len(shapes))]
    source = f"import torch\n\ndef program({', '.join(names)}):\n{textwrap.indent(body, '    ')}\n"
    if grad:
        source += (
            f"\ndef derive({', '.join(names)}):\n    return ({', '.join(f'{name} * 1' for name in names)},), {{}}\n"
        )
    args = [{"$": "tensor", "shape": list(shape), "dtype": "float32", "requires_grad": grad} for shape in shapes]
    program = Program(name="case", source=source, calls=(Call(args=args, backward=grad),))
    return lambda: instantiate(program)


def _judged(make: Callable[[], Instance], subject: str) -> Verdict:
    return judge_subject(eager=EagerState(make=make), subject=load(resolve(subject)), options=CaseOptions()).verdict


def _culprit(make: Callable[[], Instance], subject: str = "aot_eager") -> Culprit:
    verdict = _judged(make, subject)
    assert verdict.status.is_finding, _FIXED
    return find_culprit(make, load(resolve(subject)), symptom_of(verdict))


# ---------------------------------------------------------------------------------------------------------------- analysis


def _analysis_says(monkeypatch: pytest.MonkeyPatch, changed: Callable[[Any], Any]) -> None:
    """Let the analysis say something else of each result."""
    original = aot_autograd.run_functionalized_fw_and_collect_metadata

    def prepared(*args: Any, **options: Any) -> Callable[..., Any]:
        def analysed(*given: Any) -> Any:
            metadata = original(*args, **options)(*given)
            return replace(metadata, output_info=[changed(info) for info in metadata.output_info])

        return analysed

    monkeypatch.setattr(aot_autograd, "run_functionalized_fw_and_collect_metadata", prepared)


def _own_memory(info: Any) -> Any:
    if info.output_type is not OutputType.alias_of_input:
        return info
    return replace(info, output_type=OutputType.non_alias, base_idx=None, view_meta_sequence=None)


def test_a_false_statement_about_the_memory_of_a_result_is_the_culprit(monkeypatch: pytest.MonkeyPatch) -> None:
    _analysis_says(monkeypatch, _own_memory)
    found = _culprit(_program("a0.add_(1)\nreturn a1.exp(), a0.view(-1)", (2, 3), (4,)))
    part = parse_part("analysis: aliases of results")
    assert (found.text, found.parts) == (str(part), (part,))
    assert found.detail == "not seen of the graph: result 1 shares memory with argument 0"
    assert found.trials[-1].outcome == "right"
    assert Culprit.from_json(found.to_json()) == found


def test_results_that_share_memory_and_one_of_them_has_no_gradient() -> None:
    make = _program("b = -a0\nreturn b.detach(), b.view(4)", (2, 2), grad=True)
    found = _culprit(make, "aot_eager_decomp_partition")
    assert found.text == "analysis: aliases of results"
    assert found.detail == "not seen of the graph: result 0 shares memory with result 1"


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ("b = a0[1:]\nreturn b, a1.exp(), b.neg_()", "result 2 is result 0"),
        ("row = a0.select(0, 0)\nreturn row.contiguous(), row", "result 1 is result 0"),
    ],
)
def test_results_that_are_no_longer_one_object(body: str, detail: str) -> None:
    found = _culprit(_program(body, (3, 3), (3,)))
    assert (found.text, found.detail) == ("analysis: results that are one object", f"not seen of the graph: {detail}")


def test_a_kernel_in_python_that_is_traced_in_place_of_the_one_that_eager_uses() -> None:
    found = _culprit(_program("return torch.dropout(a0, 0.5, False), a0.exp()", (4,)))
    assert found.text == "python kernel: aten.dropout"
    assert found.trials[-1].outcome == "right"
    kernels = dict(torch.ops.aten.dropout.default.py_kernels)
    with without(found.parts) as absent:
        assert absent() == [*found.parts]  # nothing is traced yet
        torch.compile(lambda a: torch.dropout(a, 0.5, False), backend="aot_eager")(torch.ones(3))
        assert absent() == []
    assert torch.ops.aten.dropout.default.py_kernels == kernels


def test_a_tangent_that_is_copied_into_memory_whose_elements_overlap() -> None:
    found = _culprit(_program("return a0.clone().unfold(0, 2, 1)", (4,), grad=True))
    assert found.text == "capture: strides of tangents"
    assert found.trials[-1].outcome == "right"


def test_a_gradient_that_is_zeros_since_a_result_of_its_graph_is_not_used() -> None:
    # A break, after which c has no use that is differentiated.
    body = "b, c = a0 * 2, a1 * 2\ntorch.equal(c, c)\nreturn b"
    found = _culprit(_program(body, (2,), (2,), grad=True))
    assert found.text == "runtime: zeros for missing tangents"
    assert (found.trials[-1].parts, found.trials[-1].outcome) == ((IN_EAGER,), "wrong")
    report = Localisation(
        program="case", subject="aot_eager", verdict=Verdict(status=Status.FAIL_GRAD), shown=1, runs=1, seconds=1.0,
        first_wrong="aot_eager", culprit=found,
    )  # fmt: skip
    assert f"{IN_EAGER}  wrong" in report.text()  # without options, since `check` cannot repeat it


_RIGHT = [
    "a0.add_(1)\nreturn a0.view(-1), a0",
    "b = a0 * 2\nreturn b, b.t(), b[0]",
    "b = a0.t()\nb.mul_(3)\nreturn b, a0.sum(), a1.unsqueeze(0)",
    "b = (a0 + a1).t()\nb[0].zero_()\nc = b.expand(2, 3, 3)\nreturn c.sum(0), b.chunk(3)[1]",
    "b, c = a0.split([1, 2])\nb.copy_(c[:1])\nreturn b, c",
    "torch._foreach_mul_([a0, a1], 2.0)\nreturn torch.add(a0, a1, out=torch.empty(3, 3))",
]


@pytest.mark.fractional
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("body", _RIGHT)
def test_a_right_program_is_not_wrong_without_a_part(body: str, grad: bool) -> None:
    make = _program(body, (3, 3), (3, 3), grad=grad)
    if _judged(make, "eager").status is Status.EAGER_FAIL_TO_RUN:
        pytest.skip("autograd refuses the write")
    with recording_front() as seen:
        assert _judged(make, "aot_eager").status is Status.PASS
    assert seen.not_seen.texts[ALIASES] == {}
    assert seen.functionalized
    texts = [
        *(f"analysis: {name}" for name in ANALYSIS),
        "capture: common subexpressions",
        "capture: views replayed for results",
    ]
    for part in (*map(parse_part, texts), *(Part(kind="functionalization", name=name) for name in seen.functionalized)):
        with without([part]) as absent:
            verdict = _judged(make, "aot_eager")
        # Functionalization refuses some writes through `as_strided`, and says so.
        is_refused = part.kind == "functionalization" and "as_strided" in verdict.symptom
        assert verdict.status is (Status.FAIL_TO_RUN if is_refused else Status.PASS), f"{part}: {verdict.symptom}"
        assert absent() == []


# ------------------------------------------------------------------------------------------------------- functionalization


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("b = a0.t() * 2\nb.masked_fill_(a0.t() > 0, 0.5)\nreturn b.exp_(), a0.cos()", "aten.masked_fill_"),  # strides
        ("b = (a0 / 0).broadcast_to(1, 3, 3)\nb.neg_()\nreturn b", "aten.expand"),  # inf - inf
        ("torch._foreach_add_([a0, a1], [a1, a0])\nreturn a0 - a1", "aten._foreach_add_"),  # reads all, then writes
    ],
)
def test_a_write_or_a_view_that_is_rewritten_wrongly_is_the_culprit(body: str, name: str) -> None:
    found = _culprit(_program(body, (3, 3), (3, 3)))
    assert found.text == f"functionalization: {name}"
    assert any(trial.parts == (found.text,) and trial.outcome == "right" for trial in found.trials)


def test_of_two_views_that_each_hide_the_symptom_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    symptom = Symptom(status="fail_accuracy", kind="output: number")
    seen = SeenInFront(calls={}, functionalized={"aten.t.default": None, "aten.view.default": None})
    for is_one in (True, False):
        search = culprit_module._Search(_program("return a0", (4,)), load(resolve("aot_eager")), symptom, float("inf"))

        def tried(parts: Sequence[Part], *, is_one: bool = is_one) -> str:
            names = {part.name for part in parts}
            return "right" if "aten.t.default" in names or (not is_one and names) else "wrong"

        monkeypatch.setattr(culprit_module._Search, "without", lambda self, parts, tried=tried: tried(parts))
        assert search._functionalization(seen).text == ("functionalization: aten.t" if is_one else "")


def test_a_write_that_is_not_there_is_told() -> None:
    parts = [parse_part("functionalization: aten.exp_"), parse_part("functionalization: aten.sinh_")]
    with without(parts) as absent:
        assert _judged(_program("return a0.exp_()", (3,)), "aot_eager").status is Status.PASS
        assert list(map(str, absent())) == ["functionalization: aten.sinh_"]


# -------------------------------------------------------------------------------------------------------- the whole program


def test_wrong_merging_of_equal_computations_is_the_culprit(monkeypatch: pytest.MonkeyPatch) -> None:
    original = partitioners.fx_graph_cse

    def wrong(graph: torch.fx.Graph) -> torch.fx.Graph:
        merged = original(graph)
        for node in merged.nodes:
            if node.target is torch.ops.aten.sin.default:
                node.target = torch.ops.aten.cos.default
        return merged

    monkeypatch.setattr(partitioners, "fx_graph_cse", wrong)
    found = _culprit(_program("return a0.sin() * a0.sinh()", (4,), grad=True))
    assert found.text == "capture: common subexpressions"


def test_a_view_that_is_replayed_wrongly_for_a_result_is_the_culprit(monkeypatch: pytest.MonkeyPatch) -> None:
    original = runtime_wrappers.gen_alias_from_base

    def wrong(base: Any, target: Any, grad: bool, views: Any = None, *, replay_views: bool) -> Any:
        made = original(base, target, grad, views, replay_views=replay_views)
        return made.clone() if replay_views else made

    monkeypatch.setattr(runtime_wrappers, "gen_alias_from_base", wrong)
    assert _culprit(_program("a0.add_(1)\nreturn a0.view(-1)", (2, 3))).text == "capture: views replayed for results"
