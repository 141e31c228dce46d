"""The culprit: which part of torch's compiler a symptom goes away without."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch._inductor import compile_fx
from torch._inductor import config as inductor_config

from oracle.case import CaseOptions, CaseResult, EagerState, judge_subject
from oracle.errors import UsageError
from oracle.localisation import culprit as culprit_module
from oracle.localisation.culprit import Culprit, Trial, find_culprit
from oracle.localisation.parts import Part, parse_part, recording, without
from oracle.program import Call, Program
from oracle.program.build import Instance, instantiate
from oracle.subjects.registry import load, resolve
from oracle.symptom import Symptom, symptom_of
from oracle.verdict import Status, Verdict

_WRONG = Symptom(status="fail_accuracy", kind="output: number")


def _program(body: str, *shapes: tuple[int, ...], config: dict[str, Any] | None = None) -> Callable[[], Instance]:
    names = [f"a{number}" for number in range(len(shapes))]
    source = f"import torch\n\ndef program({', '.join(names)}):\n{textwrap.indent(body, '    ')}\n"
    args = [{"$": "tensor", "shape": list(shape), "dtype": "float32"} for shape in shapes]
    program = Program(name="case", source=source, calls=(Call(args=args),), config=config or {})
    return lambda: instantiate(program)


def _symptom(make: Callable[[], Instance], subject: str) -> Symptom:
    state = EagerState(make=make)
    return symptom_of(judge_subject(eager=state, subject=load(resolve(subject)), options=CaseOptions()).verdict)


def _culprit(make: Callable[[], Instance], subject: str) -> Culprit:
    return find_culprit(make, load(resolve(subject)), _symptom(make, subject))


def test_the_culprit_of_a_refusal_is_where_it_was_raised() -> None:
    make = _program("w = a0.unfold(0, 2, 1)\nw[:1] = 1\nreturn w", (4,))
    if _symptom(make, "aot_eager").status != Status.FAIL_TO_RUN.value:
        pytest.skip("this torch accepts a write through overlapping windows")
    assert _culprit(make, "aot_eager").text.startswith("raised in: torch/")


def test_a_planted_decomposition_is_the_culprit(monkeypatch: pytest.MonkeyPatch) -> None:
    table = dict(compile_fx.select_decomp_table())
    table[torch.ops.aten.hypot.default] = lambda a, b: (a * a + b * b).sqrt() + 1
    monkeypatch.setattr(compile_fx, "select_decomp_table", lambda: table)
    found = _culprit(_program("return torch.hypot(a0.exp(), a0).sinc()", (4,)), "aot_eager_decomp_partition")
    assert found.text == "decomposition: aten.hypot"
    assert found.trials[-1].outcome in ("right", "wrong")
    assert any(trial.parts == ("decomposition: aten.hypot",) and trial.outcome == "right" for trial in found.trials)
    assert Culprit.from_json(found.to_json()) == found


def test_two_decompositions_that_are_wrong_together_are_named_both(monkeypatch: pytest.MonkeyPatch) -> None:
    table = dict(compile_fx.select_decomp_table())
    table[torch.ops.aten.hypot.default] = lambda a, b: (a * a + b * b).sqrt() + 1
    table[torch.ops.aten.sinc.default] = lambda a: a + 3
    monkeypatch.setattr(compile_fx, "select_decomp_table", lambda: table)
    make = _program("return torch.hypot(a0, a0.exp()) + torch.sinc(a0) + torch.frac(a0)", (4,))
    found = _culprit(make, "aot_eager_decomp_partition")
    assert found.text == "decomposition: aten.hypot, aten.sinc"
    assert len(found.parts) == 2


def test_what_no_decomposition_causes_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def wrong_however(**given: Any) -> CaseResult:
        asked.append(given)
        return CaseResult(verdict=Verdict(status=Status.FAIL_ACCURACY, symptom="output: number differs"))

    monkeypatch.setattr(culprit_module, "judge_subject", wrong_however)
    symptom = symptom_of(Verdict(status=Status.FAIL_ACCURACY, symptom="output: number differs"))
    make = _program("return torch.frac(a0).sinc().nan_to_num()", (4,))
    found = find_culprit(make, load(resolve("aot_eager_decomp_partition")), symptom)
    assert found.text == ""
    assert found.is_finished
    assert len(asked) == 1


def test_an_option_that_the_user_gave_is_the_culprit(monkeypatch: pytest.MonkeyPatch) -> None:
    _judge_as(monkeypatch, lambda spec, program: "options.cpp.simdlen" in spec.options)
    found = find_culprit(_program("return a0", (4,)), load(resolve("inductor[options.cpp.simdlen=1]")), _WRONG)
    assert found.text == "option: options.cpp.simdlen=1"
    _judge_as(monkeypatch, lambda spec, program: bool(program.config))
    config = {"torch._functorch.config.activation_memory_budget": 0.1}
    found = find_culprit(_program("return a0", (4,), config=config), load(resolve("aot_eager")), _WRONG)
    assert found.text == "option: torch._functorch.config.activation_memory_budget=0.1"


def test_a_budget_that_is_used_up_gives_no_culprit(monkeypatch: pytest.MonkeyPatch) -> None:
    make = _program("return torch.frac(a0)", (4,))
    found = find_culprit(make, load(resolve("aot_eager_decomp_partition")), _WRONG, cpu_budget_s=-1.0)
    assert found == Culprit(is_finished=False)


def _judge_as(monkeypatch: pytest.MonkeyPatch, is_wrong: Callable[[Any, Program], bool]) -> None:
    """Replace the judge: wrong numbers by this rule, else right."""

    def judged(*, eager: EagerState, subject: Any, options: Any) -> CaseResult:
        wrong = is_wrong(subject.spec, eager.make().program)
        status = Status.FAIL_ACCURACY if wrong else Status.PASS
        symptom = "call 0: output is 3, but should be 4 (1 of 1 elements differ)" if wrong else ""
        return CaseResult(verdict=Verdict(status=status, symptom=symptom))

    monkeypatch.setattr(culprit_module, "judge_subject", judged)


# ------------------------------------------------------------------------------------------- the search over sets of parts


def _searching(monkeypatch: pytest.MonkeyPatch, outcome: Callable[[set[str]], str]) -> tuple[Any, list[set[str]]]:
    asked: list[set[str]] = []
    search = culprit_module._Search(_program("return a0", (4,)), load(resolve("inductor")), _WRONG, float("inf"))

    def tried(parts: Sequence[Part]) -> str:
        asked.append({part.name for part in parts})
        return outcome(asked[-1])

    monkeypatch.setattr(search, "without", tried)
    return search, asked


_PARTS = [Part(kind="lowering", name=name) for name in "abcdefgh"]


@pytest.mark.parametrize("wrong", [{"a"}, {"h"}, {"d"}, {"a", "h"}, {"c", "d", "e"}])
def test_a_smallest_set_of_parts_is_found_in_few_trials(monkeypatch: pytest.MonkeyPatch, wrong: set[str]) -> None:
    search, asked = _searching(monkeypatch, lambda off: "right" if wrong <= off else "wrong")
    assert {part.name for part in search.smallest_cure(_PARTS)} == wrong
    assert len(asked) <= 16


def test_of_several_cures_the_last_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    search, _ = _searching(monkeypatch, lambda off: "right" if off & {"b", "f"} else "wrong")
    assert [part.name for part in search.smallest_cure(_PARTS)] == ["f"]


def test_parts_that_the_compiler_cannot_do_without_are_tried_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    search, asked = _searching(
        monkeypatch, lambda off: "crash: " if len(off) > 2 else "right" if "c" in off else "wrong"
    )
    assert [part.name for part in search.smallest_cure(_PARTS)] == ["c"]
    assert len(asked) == 1 + 6
    search, _ = _searching(monkeypatch, lambda off: "crash: ")
    assert search.smallest_cure(_PARTS) == ()


def test_a_wrong_fusion_is_not_blamed_on_a_lowering_that_prevents_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lowerings = [Part(kind="lowering", name=name) for name in ("aten.mul.Tensor", "aten.add.Tensor")]
    for is_fusion in (True, False):
        search, _ = _searching(
            monkeypatch,
            lambda off, is_fusion=is_fusion: (
                "right"
                if "aten.add.Tensor" in off or "fusion" in off or (is_fusion and "aten.mul.Tensor" in off)
                else "wrong"
            ),
        )
        assert search._of_code(lowerings).text == ("codegen: fusion" if is_fusion else "lowering: aten.add")


# --------------------------------------------------------------------------------------------------------------- parts


def test_a_part_is_written_as_it_is_read() -> None:
    for text in ("lowering: aten.argmin", "pass: remove_noop_ops", "codegen: vector code", "decomposition: aten.hypot"):
        assert str(parse_part(text)) == text
    assert str(Part(kind="lowering", name="aten.argmin.default")) == "lowering: aten.argmin"
    for wrong in ("lowering", "lowering:", "scheduler: x", "codegen: vectors", ""):
        with pytest.raises(UsageError, match="KIND:NAME"):
            parse_part(wrong)


@contextmanager
def _log1p_is_wrong() -> Iterator[None]:
    with inductor_config.patch({"cpp.inject_log1p_bug_TESTING_ONLY": "accuracy"}):
        yield


@pytest.mark.slow
def test_a_lowering_falls_back_by_its_name() -> None:
    make = _program("return torch.log1p(a0.abs()).sin()", (40,))
    with _log1p_is_wrong(), recording() as seen:
        assert _symptom(make, "inductor") == _WRONG
        assert "lowering: aten.log1p" in map(str, seen.lowerings())
        with without([parse_part("lowering: aten.log1p")]):
            assert _symptom(make, "inductor").status == "pass"
        with without([parse_part("lowering: aten.sin")]):
            assert _symptom(make, "inductor") == _WRONG


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "culprit"),
    [
        ("return a0.t().contiguous().argmin()", "lowering: aten.argmin"),
        ("r = torch.slice_scatter(a0, a1)\na0.zero_()\nreturn r", "pass: reinplace_inplaceable_ops"),
    ],
)
def test_the_culprit_in_inductor(body: str, culprit: str) -> None:
    make = _program(body, (5, 7), (5, 7))
    assert _symptom(make, "inductor") == _WRONG, "fixed in this torch: choose another program"
    found = _culprit(make, "inductor")
    assert found.text == culprit
    assert any(trial.outcome == "wrong" for trial in found.trials)
    assert isinstance(found.trials[0], Trial)
