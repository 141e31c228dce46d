"""The culprit: which part of torch's compiler a symptom goes away without."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends import debugging
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable
from torch._functorch import config as functorch_config
from torch._functorch.partitioners import default_partition
from torch._inductor import compile_fx
from torch._inductor import config as inductor_config

from oracle.case import CaseOptions, CaseResult, EagerState, judge_subject
from oracle.errors import UsageError
from oracle.localisation import culprit as culprit_module
from oracle.localisation.aot_parts import ANALYSIS
from oracle.localisation.culprit import Culprit, Trial, find_culprit
from oracle.localisation.export_parts import EXPORT
from oracle.localisation.parts import CAPTURE, CODEGEN, Part, in_torch, parse_part, recording, without
from oracle.program import Call, Program
from oracle.program.build import Instance, instantiate
from oracle.subjects.base import CompileRequest
from oracle.subjects.registry import load, of_callable, resolve
from oracle.subjects.torch_compile import TorchCompile
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


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            [
                "torch/_dynamo/backends/common.py:call",
                "torch/_functorch/aot_autograd.py:f",
                "torch/_functorch/_aot_autograd/schemas.py:g",
            ],
            "raised in: torch/_functorch/_aot_autograd/schemas.py g",
        ),
        (
            ["torch/_inductor/lowering.py:cat", "torch/_inductor/compile_fx.py:h"],
            "raised in: torch/_inductor/lowering.py cat",
        ),
        (["torch/_inductor/compile_fx.py:h"], "raised in: torch/_inductor/compile_fx.py h"),
        (
            ["torch/_dynamo/utils.py:x", "Dynamo failed to run FX node with fake tensors: call_method tanh_(*("],
            "raised in: fake tensors, tanh_",
        ),
        (
            [
                "failed to run FX node with fake tensors: call_function <built-in method gather of type object at 0x7>(*("
            ],
            "raised in: fake tensors, gather",
        ),
        (
            ["failed to run FX node with fake tensors: call_function <function cond at 0x7>("],
            "raised in: fake tensors, cond",
        ),
        (["model.py:forward"], ""),
        (
            ["torch/_tensor.py:backward", "torch/autograd/graph.py:_engine_run_backward"],
            "",
        ),  # the program's own backward
        (
            [
                "torch/autograd/graph.py:_engine_run_backward",
                "torch/_functorch/_aot_autograd/runtime_wrappers.py:backward",
            ],
            "raised in: torch/_functorch/_aot_autograd/runtime_wrappers.py backward",
        ),
    ],
)
def test_what_only_carries_an_error_is_not_where_it_was_raised(lines: list[str], said: str) -> None:
    texts = [re.sub(r"^(\S+\.py):(\w+)$", r'  File "/venv/\1", line 3, in \2', line) for line in lines]
    assert culprit_module._raised_in("\n".join(texts)) == said


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


def test_a_decomposition_that_eager_does_not_call_is_the_culprit(monkeypatch: pytest.MonkeyPatch) -> None:
    table = dict(compile_fx.select_decomp_table())
    functional = torch.ops.aten._native_batch_norm_legit_functional.default
    original = table[functional]

    def wrong(*args: Any) -> Any:
        output, *others = original(*args)
        return output + 1, *others

    table[functional] = wrong
    monkeypatch.setattr(compile_fx, "select_decomp_table", lambda: table)
    body = "return torch.nn.functional.batch_norm(a0, a1.clone(), a2.clone(), training=True)"
    found = _culprit(_program(body, (3, 4), (4,), (4,)), "aot_eager_decomp_partition")
    assert found.text == "decomposition: aten._native_batch_norm_legit_functional"


def test_a_decomposition_is_the_culprit_on_inductor_if_no_pass_and_no_lowering_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    std = torch.ops.aten.std.correction
    assert std in compile_fx.select_decomp_table()
    _judge_as(monkeypatch, lambda spec, program: std in compile_fx.select_decomp_table())
    found = find_culprit(_program("return a0.std() + a0.exp()", (4,)), load(resolve("inductor")), _WRONG)
    assert found.text == "decomposition: aten.std"


def test_what_no_decomposition_causes_is_asked_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert len(asked) == 2  # to see which decompositions are run, and without all that eager calls


def test_an_option_that_the_user_gave_is_the_culprit(monkeypatch: pytest.MonkeyPatch) -> None:
    _judge_as(monkeypatch, lambda spec, program: "options.cpp.simdlen" in spec.options)
    found = find_culprit(_program("return a0", (4,)), load(resolve("inductor[options.cpp.simdlen=1]")), _WRONG)
    assert found.text == "option: options.cpp.simdlen=1"
    _judge_as(monkeypatch, lambda spec, program: bool(program.config))
    config = {"torch._functorch.config.activation_memory_budget": 0.1}
    found = find_culprit(_program("return a0", (4,), config=config), load(resolve("aot_eager")), _WRONG)
    assert found.text == "option: torch._functorch.config.activation_memory_budget=0.1"


@pytest.mark.parametrize(
    ("shows", "text", "outcomes"),
    [("with caches", "codegen: cache of compiled graphs", ["right", "wrong"]), ("never", "", ["right", "right"])],
)
def test_a_program_that_is_right_without_caches_blames_no_part_that_was_left_out(
    shows: str, text: str, outcomes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _judge_as(
        monkeypatch,
        lambda spec, program: shows == "with caches" and functorch_config.enable_autograd_cache,
    )
    with functorch_config.patch(enable_autograd_cache=True):
        found = find_culprit(_program("return torch.frac(a0)", (4,)), load(resolve("inductor")), _WRONG)
    assert found.text == text
    assert [trial.outcome for trial in found.trials] == outcomes
    assert [trial.parts for trial in found.trials] == [("codegen: cache of compiled graphs",), ()]


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


@pytest.mark.parametrize("way", ["fusion", "vector code", "half precision kept in float32"])
@pytest.mark.parametrize("others_cure", [True, False])
def test_wrong_code_is_not_blamed_on_one_of_several_lowerings_that_change_it(
    monkeypatch: pytest.MonkeyPatch, way: str, others_cure: bool
) -> None:
    cures = {"aten.add.Tensor", way, *(["aten.mul.Tensor"] if others_cure else [])}
    search, _ = _searching(monkeypatch, lambda off: "right" if off & cures else "wrong")
    found = search._of_code([Part(kind="lowering", name=name) for name in ("aten.mul.Tensor", "aten.add.Tensor")])
    named = "lowering: aten.add" if way == "fusion" else f"lowering: aten.add, {way}"
    assert found.text == (f"codegen: {way}" if others_cure else named)


@pytest.mark.parametrize("cure", ["half precision kept in float32", "vector code", "threads"])
def test_how_the_code_of_an_operator_is_made_stands_beside_its_lowering(
    monkeypatch: pytest.MonkeyPatch, cure: str
) -> None:
    # Fusion keeps the intermediate in float32, so the program is right without fusion too.
    cures = {"aten.eq.Tensor", cure, "fusion"}
    search, _ = _searching(monkeypatch, lambda off: "right" if off & cures else "wrong")
    found = search._of_code([Part(kind="lowering", name=name) for name in ("aten.mul.Tensor", "aten.eq.Tensor")])
    assert found.text == ("lowering: aten.eq" if cure == "threads" else f"lowering: aten.eq, {cure}")


# ----------------------------------------------------------------------------------------------- Dynamo and AOT autograd


def _calls(source: str, *calls: Call) -> Callable[[], Instance]:
    program = Program(name="case", source=f"import torch\n\n{textwrap.dedent(source)}", calls=calls)
    return lambda: instantiate(program)


def _vector(size: int, **more: Any) -> list[Any]:
    return [{"$": "tensor", "shape": [size], "dtype": "float32", **more}]


def _found(make: Callable[[], Instance], subject: TorchCompile) -> Culprit:
    verdict = judge_subject(eager=EagerState(make=make), subject=subject, options=CaseOptions()).verdict
    return find_culprit(make, subject, symptom_of(verdict))


def test_a_call_that_is_captured_wrongly_is_the_culprit(monkeypatch: pytest.MonkeyPatch) -> None:
    original = TorchInGraphFunctionVariable.call_function

    def wrong(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        result = original(self, tx, args, kwargs)
        return result.call_method(tx, "neg", [], {}) if self.value is torch.hypot else result

    monkeypatch.setattr(TorchInGraphFunctionVariable, "call_function", wrong)
    found = _culprit(_program("b = a0.exp() + 1\nreturn torch.hypot(b, a0).log()", (4,)), "dynamo")
    assert (found.text, found.parts) == ("call: hypot", (Part(kind="call", name="hypot"),))
    assert found.trials[-1].outcome == "wrong"  # with all other calls left out
    names = {name for trial in found.trials for name in trial.parts}
    assert names == {f"call: {name}" for name in ("exp", "hypot", "log")}


@pytest.mark.parametrize(
    ("subject", "status", "name", "is_blamed"),
    [
        ("aot_eager", Status.FAIL_ACCURACY, "exp", True),
        ("aot_eager", Status.FAIL_STRIDE, "exp", True),
        ("aot_eager", Status.FAIL_METADATA, "exp", False),  # perhaps of the gradient mode
        ("aot_eager", Status.FAIL_ACCURACY, "exp_", False),  # perhaps of a write
        ("aot_eager", Status.FAIL_ACCURACY, "__setitem__", False),
        ("a.users:backend", Status.FAIL_ACCURACY, "exp", True),
        ("a.users:backend", Status.FAIL_STRIDE, "exp", False),  # perhaps of how it returns results
    ],
)
def test_the_only_call_is_blamed_for_its_values(subject: str, status: Status, name: str, is_blamed: bool) -> None:
    symptom = Symptom(status=status.value, kind="")
    loaded = of_callable(lambda gm, inputs: gm) if subject == "a.users:backend" else load(resolve(subject))
    search = culprit_module._Search(_program("return a0.exp()", (4,)), loaded, symptom, float("inf"))
    search.without = lambda parts: "right"
    part = Part(kind="call", name=name)
    assert search._call([part]) == ((part,) if is_blamed else ())


def test_a_call_that_a_backend_of_the_user_gets_wrong_is_the_culprit() -> None:
    def backend(gm: Any, example_inputs: Any) -> Any:
        names = {getattr(node.target, "__name__", node.target) for node in gm.graph.nodes}

        def call(*args: Any) -> Any:
            if "sum" in names:
                torch.rand(())  # eager draws nothing
            return gm(*args)

        return call

    subject = of_callable(backend)
    make = _program("x = a0.sin()\ny = x.exp().sum()\nreturn x.cos() * y", (4,))
    symptom = symptom_of(judge_subject(eager=EagerState(make=make), subject=subject, options=CaseOptions()).verdict)
    assert symptom.status == Status.FAIL_RNG.value
    assert find_culprit(make, subject, symptom).text == "call: sum"


def test_calls_that_are_wrong_only_in_one_graph_are_the_culprit(monkeypatch: pytest.MonkeyPatch) -> None:
    original = TorchInGraphFunctionVariable.call_function

    def wrong(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        result = original(self, tx, args, kwargs)
        has_sinh = any(node.target is torch.sinh for node in tx.output.graph.nodes)
        return result.call_method(tx, "neg", [], {}) if self.value is torch.hypot and has_sinh else result

    monkeypatch.setattr(TorchInGraphFunctionVariable, "call_function", wrong)
    found = _culprit(_program("b = torch.cos(a0).exp()\nreturn torch.hypot(torch.sinh(b), a0).log()", (4,)), "dynamo")
    assert found.text == "calls in one graph: sinh, hypot"
    outcomes = {frozenset(trial.parts): trial.outcome for trial in found.trials}
    assert len(outcomes) == len(found.trials)  # no question is asked twice
    others = frozenset(["call: cos", "call: exp", "call: log"])
    assert outcomes[others] == "wrong"
    assert outcomes[others | {"call: sinh"}] == outcomes[others | {"call: hypot"}] == "right"
    # Without any call between the two they are in two graphs, so it is not certain which of the calls are needed.
    body = "b = torch.sinh(a0)\nfor _ in range(2):\n    b = b.exp().cos().atan()\nreturn torch.hypot(b, a0).log()"
    assert _culprit(_program(body, (4,)), "dynamo").text == ""


def test_a_wrong_view_of_a_backend_is_not_blamed_on_how_aot_autograd_rewrites_views() -> None:
    def compiled(gm: Any, example_inputs: Any) -> Any:
        for node in gm.graph.nodes:
            if node.target is torch.ops.aten.select.int:
                node.args = (*node.args[:2], node.args[2] - 1)
        gm.recompile()
        return make_boxed_func(gm.forward)

    subject = of_callable(aot_autograd(fw_compiler=compiled))
    make = _program("return a0[-1] * 2", (4,))
    symptom = symptom_of(judge_subject(eager=EagerState(make=make), subject=subject, options=CaseOptions()).verdict)
    assert symptom.status == Status.FAIL_ACCURACY.value
    assert find_culprit(make, subject, symptom).text == ""  # operators such as `a[-1]` are no calls


def test_code_that_is_used_again_without_a_guard_is_the_culprit(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(self: TorchCompile, request: CompileRequest) -> Callable[..., Any]:
        options: dict[str, Any] = {"guard_filter_fn": lambda guards: [False] * len(guards)}
        return torch.compile(request.target, backend="eager", options=options)

    monkeypatch.setattr(TorchCompile, "compile", compiled)
    source = "FACTOR = 2\n\ndef program(a):\n    return a * FACTOR\n"
    make = _calls(source, Call(args=_vector(4)), Call(args=_vector(4), before="FACTOR = 3"))
    assert _culprit(make, "dynamo").text == "capture: code used again"


def test_a_wrong_graph_for_dynamic_sizes_is_the_culprit() -> None:
    def backend(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        is_dynamic = any(isinstance(value, torch.SymInt) for value in inputs)
        return (lambda *args: [result + 1 for result in module(*args)]) if is_dynamic else module.forward

    make = _calls("def program(a):\n    return a * a.shape[0]\n", Call(args=_vector(4)), Call(args=_vector(5)))
    found = _found(make, TorchCompile(resolve("dynamo"), backend=backend))
    assert found.text == "capture: dynamic sizes"


def test_a_wrong_partition_is_the_culprit(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*args: Any, **kwargs: Any) -> Any:
        forward, backward = default_partition(*args, **kwargs)
        (output,) = (node for node in backward.graph.nodes if node.op == "output")
        with backward.graph.inserting_before(output):
            negated = [node and backward.graph.call_function(torch.neg, (node,)) for node in output.args[0]]
        output.args = (tuple(negated),)
        backward.recompile()
        return forward, backward

    monkeypatch.setattr(debugging, "min_cut_rematerialization_partition", wrong)
    call = Call(args=_vector(4, requires_grad=True), backward=True)
    make = _calls("def program(a):\n    return a.exp() * a.sin()\n", call)
    assert _culprit(make, "aot_eager").text == "capture: recomputation in backward"


# --------------------------------------------------------------------------------------------------------------- parts


def test_a_part_is_written_as_it_is_read() -> None:
    front = ("call: addcdiv", "capture: dynamic sizes", "analysis: aliases of results", "functionalization: aten.add_")
    export = ("export: example inputs that share memory", "overload: aten.add")
    for text in (
        *front,
        *export,
        "lowering: aten.argmin",
        "pass: remove_noop_ops",
        "codegen: vector code",
        "decomposition: aten.hypot",
    ):
        assert str(parse_part(text)) == text
    assert str(Part(kind="lowering", name="aten.argmin.default")) == "lowering: aten.argmin"
    for wrong in (
        "lowering",
        "lowering:",
        "scheduler: x",
        "codegen: vectors",
        "capture: x",
        "analysis: x",
        "export: x",
        "",
    ):
        with pytest.raises(UsageError, match="KIND:NAME"):
            parse_part(wrong)


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ("lowering: aten.argmin", "aten.argmin falls back to eager's kernel"),
        ("pass: remove_noop_ops", 'torch._inductor.config.disabled_passes = "remove_noop_ops"'),
        ("codegen: threads", "torch._inductor.config.cpp.threads = 1"),
        ("call: addcdiv", "graph break at addcdiv"),
        ("capture: code used again", "torch.compiler.reset() before each call"),
        ("option: dynamic", "option: dynamic"),
    ],
)
def test_a_part_is_left_out_by_who_has_only_torch(part: str, said: str) -> None:
    assert in_torch(part) == said


def test_every_part_of_a_whole_program_has_a_setting_of_torch() -> None:
    wholes = {"capture": CAPTURE, "analysis": ANALYSIS, "export": EXPORT, "codegen": tuple(CODEGEN)}
    for text in (f"{kind}: {name}" for kind, names in wholes.items() for name in names):
        assert in_torch(text) not in ("", text)


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
        with without([parse_part("lowering: aten.sin"), parse_part("lowering: aten.sn")]) as absent:
            assert _symptom(make, "inductor") == _WRONG
            assert absent() == [parse_part("lowering: aten.sn")]


def test_parts_that_take_no_part_are_told() -> None:
    parts = [
        parse_part(text) for text in ("call: exp", "call: ecks", "decomposition: aten.addr", "decomposition: aten.adr")
    ]
    with without(parts) as absent:
        assert _symptom(_program("return a0.exp().log()", (4,)), "aot_eager").status == "pass"
        assert [str(part) for part in absent()] == ["call: ecks", "decomposition: aten.adr"]


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
