"""The wrong step of torch's compiler is found: planted wrong passes, decompositions, a partitioner and a lowering.

Most tests leave out code generation: the graphs after the last pass run in eager, so no C++ is compiled.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo.backends.debugging as debugging
import torch._inductor.compile_fx as compile_fx_module
import torch._inductor.config as inductor_config
import torch._inductor.lowering as inductor_lowering
from torch._inductor.virtualized import V
from torch.fx import Graph, GraphModule, Interpreter

from oracle.configure import configured
from oracle.errors import UsageError
from oracle.localisation.steps import passes
from oracle.localisation.steps.graph_runs import JointGraph
from oracle.localisation.steps.judging import GraphJudge
from oracle.localisation.steps.passes import Step, StepReport, first_wrong_step
from oracle.localisation.steps.recorder import GENERATED
from oracle.program import Call, Program
from oracle.program.build import instantiate
from oracle.subjects.registry import resolve
from oracle.verdict import Status, Verdict

aten = torch.ops.aten
FORWARD, TRAINING = (Call(),), (Call(backward=True),)
TWO = "def inputs(call): return (torch.randn(3, 4), torch.randn(3, 4)), {}\n"
LEAF = "def inputs(call): return (torch.randn(3, 4, requires_grad=True),), {}\n"
ADDED = TWO + "def program(x, y): return x * 2, x + y\n"
SINE = LEAF + "def program(x): return x.sin()\n"


def program_of(source: str, calls: tuple[Call, ...] = FORWARD, **fields: Any) -> Program:
    return Program(name="t", source="import torch\n" + source, calls=calls, **fields)


def report_on(
    source: str, calls: tuple[Call, ...] = FORWARD, *, subject: str = "inductor", call: int | None = None, **fields: Any
) -> StepReport:
    program = program_of(source, calls, **fields)
    return first_wrong_step(lambda: instantiate(program), resolve(subject), call=call)


def wrong_step(*args: Any, **kwargs: Any) -> Step:
    report = report_on(*args, **kwargs)
    assert report.wrong is not None, report
    return report.wrong


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor with all its passes, whose final graphs run in eager."""
    original = compile_fx_module.compile_fx

    def compile_fx(model: Any, inputs: Any, **options: Any) -> Any:
        return original(model, inputs, **{**options, "inner_compile": run_in_eager})

    monkeypatch.setattr(compile_fx_module, "compile_fx", compile_fx)


def run_in_eager(module: GraphModule, example_inputs: Any, *, is_inference: bool = False, **_: Any) -> Any:
    compile_fx_module.view_to_reshape(module)
    with torch.no_grad():
        fake_mode = compile_fx_module.fake_tensor_prop(module, example_inputs)
    with V.set_fake_mode(fake_mode):
        compile_fx_module._recursive_post_grad_passes(module, is_inference=is_inference)

    def call(args: list[Any]) -> Any:
        return Interpreter(module).run(*args)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def replacing(target: Any, other: Any) -> Callable[[Graph], None]:
    """A pass that calls another function in place of one."""

    def wrong_pass(graph: Graph) -> None:
        for node in graph.nodes:
            if node.target is target:
                node.target = other

    return wrong_pass


# ------------------------------------------------------------------------------------------------------------- passes


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize(
    ("hook", "target", "other", "name", "direction"),
    [
        ("pre_grad_custom_pass", operator.add, operator.sub, "pre_grad: pre_grad_custom_pass", "captured"),
        ("joint_custom_pre_pass", aten.add.Tensor, aten.sub.Tensor, "joint: joint_custom_pre_pass", "inference"),
        ("post_grad_custom_post_pass", aten.add.Tensor, aten.sub.Tensor, "post_grad: post_grad_custom_post_pass", "inference"),
    ],
)  # fmt: skip
def test_a_wrong_pass_is_named(hook: str, target: Any, other: Any, name: str, direction: str) -> None:
    with inductor_config.patch({hook: replacing(target, other)}):
        report = report_on(ADDED)
    wrong = report.wrong
    assert wrong is not None
    assert (wrong.name, wrong.direction, wrong.graph, wrong.is_changed) == (name, direction, 0, True)
    assert wrong.difference.startswith("output[1][")
    added = "add removed, sub added" if hook.startswith("pre") else "aten.add.Tensor removed, aten.sub.Tensor added"
    assert wrong.where == added
    at = report.steps.index(wrong)
    assert not any(step.difference for step in report.steps[:at])  # steps before it are right
    assert report.steps[-1].difference  # and the compiled code is wrong
    assert sum(not step.is_changed for step in report.steps) > 5  # steps that change nothing are listed too


@pytest.mark.usefixtures("uncompiled")
def test_a_pass_that_spoils_the_gradient_is_found_in_the_joint_graph() -> None:
    with inductor_config.patch(joint_custom_pre_pass=replacing(aten.cos.default, aten.sin.default)):
        wrong = wrong_step(SINE, TRAINING)
    assert (wrong.name, wrong.direction) == ("joint: joint_custom_pre_pass", "joint")
    assert wrong.difference.startswith("grad of args[0]")


@pytest.mark.usefixtures("uncompiled")
def test_a_pass_that_is_wrong_in_the_backward_graph_only() -> None:
    with inductor_config.patch(post_grad_custom_pre_pass=replacing(aten.cos.default, aten.sin.default)):
        wrong = wrong_step(SINE, TRAINING)
    assert (wrong.name, wrong.direction) == ("post_grad: post_grad_custom_pre_pass", "backward")


@pytest.mark.usefixtures("uncompiled")
def test_a_pass_whose_graph_eager_refuses() -> None:
    source = "def inputs(call): return (torch.randn(3), torch.tensor([2, 3])), {}\n"
    source += "def program(x, i): return x.index_select(0, i - 2)\n"
    with inductor_config.patch(post_grad_custom_post_pass=replacing(aten.sub.Tensor, aten.add.Tensor)):
        wrong = wrong_step(source)
    assert wrong.name == "post_grad: post_grad_custom_post_pass"
    assert "aten.index.Tensor refuses its arguments" in wrong.difference


@pytest.mark.parametrize(
    ("error", "is_wrong"), [("oracle.localisation.steps.graph_runs.RefusedError", True), ("NotImplementedError", False)]
)
def test_a_graph_that_eager_cannot_run_says_nothing_unless_an_operator_refuses(error: str, is_wrong: bool) -> None:
    step = Step(graph=0, name="post_grad: p", is_changed=True)
    raised = Verdict(status=Status.FAIL_TO_RUN, symptom=f"call 0: outcome is {error} in call ('no')")
    compared = passes._compared(step, raised, Verdict(status=Status.FAIL_ACCURACY))
    assert (bool(compared.difference), bool(compared.not_run)) == (is_wrong, not is_wrong)


@pytest.mark.usefixtures("uncompiled")
def test_a_pass_that_raises() -> None:
    def raises(graph: Graph) -> None:
        raise ValueError("no such node")

    with inductor_config.patch(joint_custom_pre_pass=raises):
        wrong = wrong_step(ADDED)
    assert wrong.name == "joint: joint_custom_pre_pass"
    assert "no such node" in wrong.difference


@pytest.mark.usefixtures("uncompiled")
def test_a_change_between_two_passes_is_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(module: GraphModule) -> None:
        replacing(aten.add.Tensor, aten.sub.Tensor)(module.graph)
        module.recompile()

    monkeypatch.setattr(compile_fx_module, "view_to_reshape", change)
    assert wrong_step(ADDED).name == "joint: after pass_pattern_1"


@pytest.mark.usefixtures("uncompiled")
def test_the_second_of_two_graphs() -> None:
    source = "def inputs(call): return (torch.randn(3),), {}\ndef program(x):\n    y = x * 2\n"
    source += "    torch._dynamo.graph_break()\n    return y + x\n"
    with inductor_config.patch(post_grad_custom_post_pass=replacing(aten.add.Tensor, aten.sub.Tensor)):
        assert wrong_step(source).graph == 1


@pytest.mark.usefixtures("uncompiled")
def test_only_the_values_of_the_wrong_call_show_it() -> None:
    source = (
        "def inputs(call): return (torch.tensor([1.0 - 2 * call, 2.0]),), {}\ndef program(x): return x.relu() * 2\n"
    )
    with inductor_config.patch(joint_custom_pre_pass=replacing(aten.relu.default, aten.abs.default)):
        assert report_on(source, (Call(), Call()), call=0).wrong is None
        wrong = wrong_step(source, (Call(), Call()), call=1)
    assert wrong.name == "joint: joint_custom_pre_pass"
    assert wrong.difference.startswith("output[0][0] is 2, but should be 0")


@pytest.mark.usefixtures("uncompiled")
def test_values_beside_random_numbers_are_compared_one_by_one() -> None:
    source = LEAF + "def program(x): return torch.nn.functional.dropout(x, 0.5) + x.sin()\n"
    with inductor_config.patch(joint_custom_post_pass=replacing(aten.sin.default, aten.tan.default)):
        wrong = wrong_step(source, TRAINING)
    assert wrong.name == "joint: joint_custom_post_pass"


# ------------------------------------------------------------------------------------- decompositions and partitioner


@pytest.fixture
def decompositions(monkeypatch: pytest.MonkeyPatch) -> dict[Any, Any]:
    """Inductor's table of decompositions, to put wrong ones in."""
    table = dict(compile_fx_module.select_decomp_table())
    monkeypatch.setattr(compile_fx_module, "select_decomp_table", lambda: table)
    return table


DECOMPOSED = "aot_eager_decomp_partition"


def test_the_innermost_wrong_decomposition_is_named(decompositions: dict[Any, Any]) -> None:
    decompositions[aten.silu.default] = lambda x: x * aten.hardtanh.default(torch.sigmoid(x), 0.0, 1.0)
    decompositions[aten.hardtanh.default] = lambda x, low, high: x.clamp(low, high) * 2
    source = TWO + "def program(x, y): return torch.nn.functional.silu(x)\n"
    assert wrong_step(source, subject=DECOMPOSED).name == "decomposition: aten.hardtanh.default"


def test_a_decomposition_that_spoils_the_gradient(decompositions: dict[Any, Any]) -> None:
    decompositions[aten.silu_backward.default] = lambda grad, x: grad * torch.sigmoid(x)
    source = LEAF + "def program(x): return torch.nn.functional.silu(x)\n"
    wrong = wrong_step(source, TRAINING, subject=DECOMPOSED)
    assert wrong.name == "decomposition: aten.silu_backward.default"


def test_a_wrong_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    original = debugging.min_cut_rematerialization_partition

    def wrong_partition(*args: Any, **kwargs: Any) -> Any:
        forward, backward = original(*args, **kwargs)
        replacing(aten.cos.default, aten.sin.default)(forward.graph)
        replacing(aten.cos.default, aten.sin.default)(backward.graph)
        return forward, backward

    monkeypatch.setattr(debugging, "min_cut_rematerialization_partition", wrong_partition)
    wrong = wrong_step(SINE, TRAINING, subject=DECOMPOSED)
    assert (wrong.name, wrong.direction) == ("partitioner", "joint")


# ------------------------------------------------------------------------------------------------------ right programs

BATCH_NORM = """
class program(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)
    def forward(self, x):
        return torch.relu(self.norm(x))
def inputs(call): return (torch.randn(5, 4, requires_grad=True),), {}
"""
RIGHT = {
    "matmul, bias, gelu": (LEAF + "def program(x): return torch.nn.functional.gelu(x @ x.t() + x[:, 0])\n", TRAINING, {}),
    "dropout": (LEAF + "def program(x): return torch.nn.functional.dropout(x.sin(), 0.5)\n", TRAINING, {}),
    "batch norm": (BATCH_NORM, TRAINING, {"is_module": True}),
    "argument in place": (TWO + "def program(x, y):\n    x.add_(y)\n    x[1:].mul_(2)\n    return x.sum()\n", FORWARD, {}),
    "views": (LEAF + "def program(x):\n    y = x * 2\n    return y.t(), y[1:], x.view(-1), x\n", TRAINING, {}),
}  # fmt: skip


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("name", RIGHT)
def test_every_step_on_a_right_program_is_right(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, calls, fields = RIGHT[name]
    judged: list[GraphJudge] = []
    monkeypatch.setattr(passes, "GraphJudge", lambda **given: judged.append(GraphJudge(**given)) or judged[-1])
    report = report_on(source, calls, **fields)
    assert report.wrong is None
    assert not any(step.difference for step in report.steps)
    assert judged
    for judge in judged:
        with configured(judge.config):
            wrong = {
                step.name: verdict.symptom
                for step in judge.graph.steps
                if step.is_changed and (verdict := judge.verdict(step.stage)).status.is_finding
            }
        assert wrong == {}


# ---------------------------------------------------------------------------------------------------------- lowering


def test_a_wrong_lowering_is_named_with_its_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(inductor_lowering.lowerings, aten.sin.default, inductor_lowering.lowerings[aten.cos.default])
    wrong = wrong_step(TWO + "def program(x, y): return x + y, (x * y).sin()\n")
    assert (wrong.name, wrong.direction) == (GENERATED, "inference")
    assert wrong.where == "output 1 of the graph, sin = aten.sin.default"


# -------------------------------------------------------------------------------------------------- graphs and misuse


def test_a_subject_of_another_kind_is_refused() -> None:
    with pytest.raises(UsageError, match="inductor or aot_eager_decomp_partition"):
        report_on(ADDED, subject="aot_eager")


def test_a_joint_graph_draws_once_and_mutates_after_its_reads() -> None:
    graph = Graph()
    primal, tangent = graph.placeholder("primals_1"), graph.placeholder("tangents_1")
    noise = graph.call_function(aten.rand_like.default, (primal,))
    output = graph.call_function(aten.mul.Tensor, (primal, noise))
    gradient = graph.call_function(aten.mul.Tensor, (tangent, noise))
    of_primal = graph.call_function(aten.mul.Tensor, (gradient, primal))
    graph.call_function(aten.copy_.default, (primal, output))
    graph.output([output, noise, gradient, of_primal])
    joint = JointGraph(module=GraphModule(torch.nn.Module(), graph), forward_outputs=2)
    given = torch.ones(4)
    run = joint.forward([given])
    assert len(run.outputs) == 2
    assert torch.equal(given, run.outputs[0])  # the argument was changed
    again, with_argument = joint.backward(run, [torch.full((4,), 2.0)])
    assert torch.equal(again, run.outputs[1] * 2)  # the same random numbers
    assert torch.equal(with_argument, again)  # times the argument as it was, ones
