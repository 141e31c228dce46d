"""`oracle.localise`: the first wrong rung and the culprit of a function of this process."""

from __future__ import annotations

import os
import re
import time
from typing import Any

import pytest
import torch
from torch._inductor import compile_fx

import oracle
from oracle.errors import UsageError
from oracle.localisation import search
from oracle.program import Call, Program
from oracle.program.build import instantiate
from oracle.subjects.registry import of_callable
from oracle.verdict import Status


def _sinh_is_cosh(graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
    """A backend that computes cosh in place of sinh."""
    for node in graph.graph.nodes:
        if node.target is torch.sinh:
            node.target = torch.cosh
    graph.recompile()
    return graph.forward


def _dies(graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
    os._exit(7)


def _hangs(graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
    time.sleep(600)


def _hyperbolic(x: torch.Tensor) -> torch.Tensor:
    return torch.sinh(x) + 1


def test_a_wrong_backend_is_the_first_wrong_rung() -> None:
    found = oracle.localise(_hyperbolic, torch.randn(8), subject=_sinh_is_cosh)
    assert (found.shown, found.runs) == (3, 3)
    assert found.first_wrong == found.subject
    assert [(row.name, row.is_wrong) for row in found.rungs] == [
        ("dynamo", False), ("aot_eager", False), (found.subject, True), ("refimpl.aot", False), ("refimpl.partitioned", False),
    ]  # fmt: skip
    assert found.second_opinion == "refimpl agrees with eager"
    text = found.text()
    assert "fail_accuracy, 3 of 3 runs" in text
    assert "fail_accuracy  <- first wrong" in text
    assert found.value is not None
    assert (found.value.operator, found.value.line) == ("sinh", "return torch.sinh(x) + 1")
    assert re.search(r"first wrong value:  test_localising\.py:\d+, sinh\n +return torch\.sinh\(x\) \+ 1\n", text)
    assert re.search(r"culprit: +call: sinh\n", text)
    assert found.to_json()["rungs"][2]["verdict"]["status"] == "fail_accuracy"


def _takes_any_index(graph: Any, example_inputs: list[Any]) -> Any:
    return lambda x: (x[:1],)


def test_a_program_that_eager_refuses_has_no_wrong_value() -> None:
    source = "import torch\n\ndef program(x):\n    return x.index_select(0, torch.tensor([5]))\n"
    call = Call(args=[{"$": "tensor", "shape": [3], "dtype": "float32"}])
    program = Program(name="refused", source=source, calls=(call,), expects_raise=True)
    subject = of_callable(_takes_any_index)
    found = search.localise_program(lambda: instantiate(program), subject.spec, given=[subject], runs=1)
    assert (found.verdict.status.value, found.shown, found.value) == ("fail_exception", 1, None)
    assert found.first_wrong == found.subject


def test_only_the_calls_that_show_the_difference_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[tuple[int, bool]] = []
    verdict = search.Questions.verdict

    def asked(questions: search.Questions, *args: Any) -> Any:
        calls = questions.make().program.calls
        plans.append((len(calls), any(call.backward for call in calls)))
        return verdict(questions, *args)

    threads_before = torch.get_num_threads()
    monkeypatch.setattr(search.Questions, "verdict", asked)
    x = torch.randn(8, requires_grad=True)
    found = oracle.localise(_hyperbolic, x, subject=_sinh_is_cosh)
    assert (found.shown, found.runs, found.verdict.status) == (3, 3, Status.FAIL_ACCURACY)
    assert len(plans) == 6  # two more runs, and the other rungs
    assert set(plans) == {(1, False)}
    assert torch.get_num_threads() == threads_before


def test_a_crash_is_localised_too() -> None:
    found = oracle.localise(_hyperbolic, torch.randn(8), subject=_dies, runs=1)
    assert found.verdict.symptom == "the process died of exit code 7"
    assert found.first_wrong == found.subject


def test_a_planted_decomposition_is_named_with_the_option_that_leaves_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    table = dict(compile_fx.select_decomp_table())
    table[torch.ops.aten.sinc.default] = lambda x: x + 1
    monkeypatch.setattr(compile_fx, "select_decomp_table", lambda: table)
    found = oracle.localise(lambda x: torch.sinc(x).exp(), torch.randn(8), subject="aot_eager_decomp_partition", runs=1)
    assert found.culprit.text == "decomposition: aten.sinc"
    assert found.step is not None
    assert found.step.name == "decomposition: aten.sinc.default"
    assert "first wrong step:   graph 0" in found.text()
    assert "--subject aot_eager_decomp_partition --without 'decomposition: aten.sinc'" in found.text()


def test_a_lower_rung_that_the_same_part_makes_wrong_in_another_way_is_the_first() -> None:

    def program(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        b = -a
        return b.detach(), b.view(4)

    a = torch.ones(2, 2, requires_grad=True)
    found = oracle.localise(program, a, subject="inductor", runs=1)
    assert found.verdict.status is Status.FAIL_GRAD, "fixed in this torch: choose another program"
    assert (found.first_wrong, found.shown_by) == ("aot_eager_decomp_partition", "inductor")
    assert found.culprit.text == "analysis: aliases of results"
    text = found.text()
    assert "same part:          inductor differs in another way" in text
    assert "aliases of results (not seen of the graph: result 0 shares memory with result 1)" in text
    assert "--subject inductor --without 'analysis: aliases of results'" in text


def test_a_program_that_agrees_is_said_to_agree() -> None:
    found = oracle.localise(_hyperbolic, torch.randn(8), subject="aot_eager")
    assert found.shown == 0
    assert found.text() == "_hyperbolic on aot_eager: pass, 0 of 3 runs differ from eager\n"
    assert found.rungs == ()


def test_the_arguments_are_checked_as_those_of_check() -> None:
    with pytest.raises(UsageError, match="subject"):
        oracle.localise(_hyperbolic, torch.randn(8), subject="inductr")
    with pytest.raises(UsageError, match="the arguments of one call"):
        oracle.localise(_hyperbolic)


def test_a_backend_that_hangs_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = search.in_child
    monkeypatch.setattr(search, "in_child", lambda work, timeout_s: usual(work, timeout_s=min(timeout_s, 10.0)))
    found = oracle.localise(_hyperbolic, torch.randn(8), subject=_hangs, calls=1)
    assert (found.verdict.status, found.shown, found.runs) == (Status.TIMEOUT, 1, 1)
    assert found.first_wrong == found.subject


def test_a_program_that_is_not_compared_says_why() -> None:
    found = oracle.localise(lambda xs: sum(xs), (x for x in [torch.ones(2)]), subject="aot_eager", calls=1)
    assert found.verdict.symptom
    assert found.verdict.symptom in found.text()


def test_a_question_whose_process_dies_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "first_wrong_value", lambda *args, **options: os._exit(9))
    found = oracle.localise(_hyperbolic, torch.randn(8), subject=_sinh_is_cosh, calls=1, runs=1)
    assert found.value is None
    assert found.unanswered == ("value: the process died of exit code 9",)
    assert "not answered:       value: the process died of exit code 9" in found.text()
