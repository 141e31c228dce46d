"""Parts of torch.export: shared example inputs, constants in place of state, overloads in the graph, the kind of capture."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export.graph_signature import InputKind

from oracle.case import CaseOptions, EagerState, judge_subject
from oracle.localisation.culprit import Culprit, find_culprit
from oracle.localisation.export_parts import EXPORT, SeenInExport, exporting
from oracle.localisation.parts import parse_part, without
from oracle.program import Call, Program
from oracle.program.build import Instance, instantiate
from oracle.subjects.export import Export
from oracle.subjects.registry import load, resolve
from oracle.symptom import symptom_of
from oracle.verdict import Status, Verdict

_FIXED = "fixed in this torch: choose another program"


def _function(body: str, *, grad: bool = False, shared: bool = False) -> Callable[[], Instance]:
    """A function of x and y, which may be one tensor."""
    tensor = f"torch.arange(1.0, 4.0).requires_grad_({grad})"
    inputs = f"    x = {tensor}\n    return (x, {'x' if shared else tensor}), {{}}\n"
    source = f"import torch\n\ndef program(x, y):\n{textwrap.indent(body, '    ')}\n\ndef inputs(call):\n{inputs}"
    program = Program(name="case", source=source, calls=(Call(grad_mode="grad" if grad else "no_grad"),))
    return lambda: instantiate(program)


def _module(forward: str, *, backward: bool = False) -> Callable[[], Instance]:
    """A module with a parameter `weight`, a buffer `scale`, and a list that holds the parameter too."""
    source = textwrap.dedent("""
        import torch

        class Module(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.ones(3))
                self.register_buffer("scale", torch.full((3,), 2.0))
                self.held = [self.weight]

            def forward(self, x):
        BODY

        program = Module

        def inputs(call):
            return (torch.arange(1.0, 4.0),), {}
    """).replace("BODY", textwrap.indent(forward, " " * 8))
    call = Call(backward=backward, grad_mode="grad" if backward else "no_grad")
    program = Program(name="case", source=source, calls=(call,), is_module=True)
    return lambda: instantiate(program)


def _judged(make: Callable[[], Instance], subject: str) -> Verdict:
    return judge_subject(eager=EagerState(make=make), subject=load(resolve(subject)), options=CaseOptions()).verdict


def _culprit(make: Callable[[], Instance], subject: str = "export") -> Culprit:
    verdict = _judged(make, subject)
    assert verdict.status.is_finding, _FIXED
    found = find_culprit(make, load(resolve(subject)), symptom_of(verdict))
    assert not found.parts or found.trials[-1].outcome == "right"
    return found


def _wrong_where(monkeypatch: pytest.MonkeyPatch, is_wrong: Callable[[Any, dict[str, Any]], bool]) -> None:
    """Let the exporter turn sums into differences if this holds for its inputs and options."""
    original = Export.export

    def export(self: Export, module: Any, args: Any, kwargs: Any, **options: Any) -> Any:
        program = original(self, module, args, kwargs, **options)
        for node in program.graph.nodes:
            if node.target is torch.ops.aten.add.Tensor and is_wrong(args, options):
                node.target = torch.ops.aten.sub.Tensor
        program.graph_module.recompile()
        return program

    monkeypatch.setattr(Export, "export", export)


def test_inputs_that_share_memory_are_the_culprit(monkeypatch: pytest.MonkeyPatch) -> None:
    _wrong_where(monkeypatch, lambda args, options: args[0] is args[1])
    assert _culprit(_function("return x + 2 * y", shared=True)).text == "export: example inputs that share memory"


@pytest.mark.parametrize(
    ("subject", "text"), [("export", "capture by Dynamo"), ("export[strict=false]", "capture without Dynamo")]
)
def test_the_kind_of_capture_is_the_culprit(monkeypatch: pytest.MonkeyPatch, subject: str, text: str) -> None:
    is_strict = subject == "export"
    _wrong_where(monkeypatch, lambda args, options: options["strict"] is is_strict)
    assert _culprit(_function("return x + 2 * y"), subject).text == f"export: {text}"


def test_an_exporter_that_is_wrong_however_it_captures_has_no_culprit(monkeypatch: pytest.MonkeyPatch) -> None:
    _wrong_where(monkeypatch, lambda args, options: True)
    found = _culprit(_function("return x + 2 * y", shared=True))
    assert (found.text, found.is_finished) == ("", True)
    assert [trial.outcome for trial in found.trials] == ["wrong"] * len(found.trials)


def test_a_constant_that_is_a_parameter_is_the_culprit() -> None:
    found = _culprit(_module("return x * self.held[0]", backward=True), "export[strict=false]")
    assert (found.text, found.detail) == (
        "export: constants in place of state",
        "lifted_tensor_0 is parameter weight",
    )


def test_a_constant_in_memory_of_its_own_is_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Export.export

    def export(self: Export, *args: Any, **options: Any) -> Any:
        program = original(self, *args, **options)
        for spec in program.graph_signature.input_specs:
            if spec.kind is InputKind.BUFFER:
                spec.kind, spec.target = InputKind.CONSTANT_TENSOR, "frozen"
                program.constants["frozen"] = program.state_dict["scale"] + 1
        return program

    monkeypatch.setattr(Export, "export", export)
    found = _culprit(_module("return x * self.scale"))
    assert found.text == ""
    assert ("export: constants in place of state",) not in [trial.parts for trial in found.trials]


def test_a_guard_on_the_value_of_a_tensor_is_named_though_the_program_has_a_deeper_stack() -> None:
    body = "def deep(n):\n    return deep(n - 1) if n else (x * 2 if int(x.sum().item()) == 1 else y)\nreturn deep(30)"
    found = _culprit(_function(body))
    assert found.text == "raised in: torch/fx/experimental/symbolic_shapes.py, a guard on the value of a tensor"


def test_an_overload_that_does_other_than_the_function_is_the_culprit() -> None:
    found = _culprit(_function("return torch.randint_like(x, 10), x + y", grad=True))
    assert found.text == "overload: aten.randint_like"


@pytest.mark.parametrize(
    "make",
    [
        _function("return x + 2 * y, x.t()", shared=True),
        _function("return (x * y).sum(), x.exp()", grad=True),
        _module("return x * self.weight.sin() + self.scale", backward=True),
        _module("self.scale.add_(1)\nreturn x * self.scale"),
    ],
)
@pytest.mark.parametrize("subject", ["export", "export[strict=false]"])
def test_a_right_program_stays_right_without_the_parts(make: Callable[[], Instance], subject: str) -> None:
    seen = SeenInExport()
    with exporting(seen):
        assert _judged(make, subject).status is Status.PASS
    assert seen.constants == {}
    texts = [*(f"export: {name}" for name in EXPORT), *(f"overload: {name}" for name in seen.operators)]
    for text in texts:
        with without([parse_part(text)]) as absent:
            assert _judged(make, subject).status is Status.PASS, text
            assert absent() == []


def test_an_overload_that_is_not_there_is_told() -> None:
    with without([parse_part("overload: aten.add"), parse_part("overload: aten.sinh")]) as absent:
        assert _judged(_function("return x + y"), "export").status is Status.PASS
        assert list(map(str, absent())) == ["overload: aten.sinh"]
