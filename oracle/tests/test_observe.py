"""Observation sees everything eager does: values, metadata, mutation, aliases, gradients, state, exceptions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from oracle.observe import observe
from oracle.observe.outcome import CallObservation, Leaf, Raised, Returned, TensorFacts
from oracle.program import Call, Program
from oracle.program.build import ProgramLoadError, instantiate


def run(source: str, *calls: Call, is_module: bool = False, seed: int = 0) -> Returned:
    program = Program(
        name="t", source="import torch\n" + source, calls=calls or (Call(),), is_module=is_module, seed=seed
    )
    outcome = observe(instantiate(program))
    assert isinstance(outcome, Returned), outcome
    return outcome


def leaf(call: CallObservation, path: str) -> Any:
    every = [*call.outputs, *call.inputs_after, *call.gradients, *call.module_state]
    (found,) = [leaf for leaf in every if leaf.path == path]
    return found.value


def facts(leaf: Leaf) -> TensorFacts:
    assert leaf.facts is not None
    return leaf.facts


def test_a_mutated_input_is_seen_and_the_next_run_starts_fresh() -> None:
    source = "x = torch.zeros(2)\ndef inputs(call): return (x,), {}\ndef program(x): return x.add_(1)\n"
    for _ in range(2):
        (call,) = run(source).calls
        assert torch.equal(leaf(call, "args[0]"), torch.ones(2))


def test_observed_tensors_do_not_change_when_a_later_call_mutates() -> None:
    source = "buffer = torch.zeros(1)\ndef program(): return buffer.add_(1)\n"
    first, second = run(source, Call(), Call()).calls
    assert leaf(first, "output") == 1
    assert leaf(second, "output") == 2


def test_outputs_that_alias_inputs_and_each_other_are_grouped() -> None:
    source = "def inputs(call): return (torch.ones(4),), {}\ndef program(x): return x[1:], x + 1, x\n"
    (call,) = run(source).calls
    assert call.aliases.storages == (("args[0]", "output[0]", "output[2]"),)
    assert call.aliases.objects == (("args[0]", "output[2]"),)


def test_strides_and_flags_are_those_of_the_result_not_of_the_copy() -> None:
    source = "def inputs(call): return (torch.ones(2, 3),), {}\ndef program(x): return x.t(), x[:1].expand(5, 3)\n"
    (call,) = run(source).calls
    assert [facts(output).stride for output in call.outputs] == [(1, 3), (0, 1)]


def test_gradients_of_inputs_and_parameters_are_seen_and_missing_ones_are_none() -> None:
    source = (
        "class program(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.used, self.unused = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))\n"
        "    def forward(self, x): return x * self.used\n"
        "def inputs(call): return (torch.ones(2, requires_grad=True),), {}\n"
    )
    (call,) = run(source, Call(backward=True), is_module=True).calls
    found = {gradient.path: gradient.value for gradient in call.gradients}
    assert set(found) == {"grad of args[0]", "grad of module.used", "grad of module.unused"}
    assert found["grad of module.unused"] is None
    assert torch.equal(found["grad of args[0]"], found["grad of module.used"])


def test_one_result_returned_twice_has_the_gradient_of_two_equal_results() -> None:
    """Otherwise a subject that returns one object for two would show other gradients, and not that objects differ."""
    inputs = "def inputs(call): return (torch.arange(4.0).requires_grad_(),), {}\n"
    gradients = []
    for body in ("    y = x * 2\n    return y, y, x * 3\n", "    return x * 2, x * 2, x * 3\n"):
        (call,) = run(inputs + "def program(x):\n" + body, Call(backward=True)).calls
        gradients.append(leaf(call, "grad of args[0]"))
        assert gradients[-1].unique().numel() > 1
    assert torch.equal(*gradients)


def test_derived_arguments_have_a_history_and_the_inputs_have_the_gradients() -> None:
    source = """
def inputs(call):
    return (torch.arange(4.0).requires_grad_(),), {}
def derive(leaf):
    base = leaf * 2
    return (base[:2], base), {}
def program(part, base):
    assert part._base is base and not base.is_leaf
    part.mul_(5)
    return base * 1
"""
    for call in run(source, Call(backward=True), Call(backward=True)).calls:
        assert leaf(call, "output").tolist() == [0, 10, 4, 6]
        assert [found.path for found in call.inputs_after] == ["inputs[0]", "args[0]", "args[1]"]
        assert [found.path for found in call.gradients] == ["grad of inputs[0]"]
        quarters = leaf(call, "grad of inputs[0]") / torch.tensor([10.0, 10, 2, 2]) * 4
        assert torch.equal(quarters, quarters.round()), "tangents are quarters"
        assert call.aliases.storages == (("args[0]", "args[1]"),)


def test_module_state_globals_closures_and_class_attributes_are_seen() -> None:
    source = (
        "counter = [0]\n"
        "class Config:\n    scale = 1\n"
        "def make():\n    total = 0\n"
        "    def program(x):\n        nonlocal total\n        total += 1; counter[0] += 1; Config.scale += 1\n        return x\n"
        "    return program\n"
        "program = make()\ndef inputs(call): return (torch.ones(1),), {}\n"
    )
    first, second = run(source, Call(), Call()).calls
    for path, before, after in (("closure.total", 1, 2), ("globals.counter[0]", 1, 2), ("globals.Config.scale", 2, 3)):
        assert (leaf(first, path), leaf(second, path)) == (before, after)


def test_what_a_plan_does_before_a_call_happens_on_the_original() -> None:
    source = (
        "class program(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__(); self.scale = 1.0; self.drop = torch.nn.Dropout(0.5)\n"
        "    def forward(self): return torch.ones(3) * self.scale, self.training\n"
    )
    first, second = run(
        source, Call(training=False), Call(before="target.scale = 3.0", training=True), is_module=True
    ).calls
    assert (leaf(first, "output[1]"), leaf(second, "output[1]")) == (False, True)
    assert torch.equal(leaf(second, "output[0]"), torch.full((3,), 3.0))


def test_random_programs_repeat_and_move_the_generator() -> None:
    source = "def program(): return torch.rand(3)\n"
    (one,), (again,), (other,) = (run(source, seed=seed).calls for seed in (1, 1, 2))
    assert torch.equal(leaf(one, "output"), leaf(again, "output"))
    assert not torch.equal(leaf(one, "output"), leaf(other, "output"))
    assert one.rng_digest == again.rng_digest != other.rng_digest


@pytest.mark.parametrize(
    ("body", "type_name", "ancestor"),
    [
        ("raise KeyError('x')", "KeyError", "LookupError"),
        ("return x @ torch.ones(7)", "RuntimeError", "Exception"),
        ("raise SystemExit(3)", "SystemExit", "BaseException"),
    ],
)
def test_whatever_is_raised_is_an_outcome(body: str, type_name: str, ancestor: str) -> None:
    source = f"import torch\ndef inputs(call): return (torch.ones(3),), {{}}\ndef program(x):\n    {body}\n"
    outcome = observe(instantiate(Program(name="t", source=source)))
    assert isinstance(outcome, Raised)
    assert outcome.exception.type_name == type_name
    assert ancestor in outcome.exception.ancestry


def test_calls_before_an_exception_are_kept() -> None:
    source = "def inputs(call): return (call,), {}\ndef program(n):\n    if n: raise ValueError(n)\n    return n\n"
    outcome = observe(instantiate(Program(name="t", source=source, calls=(Call(), Call()))))
    assert isinstance(outcome, Raised)
    assert len(outcome.calls) == 1
    assert outcome.exception.call == 1


@pytest.mark.parametrize("source", ["import no_such_module", "program = 3", "def program(:", "def program(): 1/0\n1/0"])
def test_a_program_that_cannot_be_built_says_so(source: str) -> None:
    with pytest.raises(ProgramLoadError):
        instantiate(Program(name="t", source=source))


def test_inference_mode_and_no_grad_show_in_the_facts() -> None:
    source = "def inputs(call): return (torch.ones(1, requires_grad=True),), {}\ndef program(x): return x * 2\n"
    grad, no_grad, inference = run(source, Call(), Call(grad_mode="no_grad"), Call(grad_mode="inference")).calls
    assert [facts(call.outputs[0]).requires_grad for call in (grad, no_grad, inference)] == [True, False, False]
    assert [facts(call.outputs[0]).is_inference for call in (grad, no_grad, inference)] == [False, False, True]
