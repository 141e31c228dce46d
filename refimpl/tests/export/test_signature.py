"""Inputs and outputs of exported programs: their number, order and names."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.passes.infra.pass_base import PassResult

from refimpl.export import (
    ConstantArgument,
    ExportedProgram,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
    export,
)
from refimpl.tests.export.forms import STRICT
from refimpl.tests.export.modules import Containers, EverythingModule, Tied


def _everything(*, strict: bool) -> tuple[EverythingModule, ExportedProgram]:
    module = EverythingModule()
    return module, export(module, (torch.randn(2, 3), 3), {"mask": torch.ones(4)}, strict=strict)


@STRICT
def test_inputs_are_parameters_buffers_constants_and_the_user_s(strict: bool) -> None:
    _, program = _everything(strict=strict)
    assert [str(spec) for spec in program.graph_signature.input_specs] == [
        "p_linear_weight: PARAMETER target='linear.weight'",
        "p_linear_bias: PARAMETER target='linear.bias'",
        "b_scale: BUFFER target='scale' persistent=True",
        "b_bias: BUFFER target='bias' persistent=False",
        "c_constant: CONSTANT_TENSOR target='constant'",
        "c_lifted_tensor_0: CONSTANT_TENSOR target='lifted_tensor_0'",
        "x: USER_INPUT",
        "factor: USER_INPUT",
        "mask: USER_INPUT",
    ]
    placeholders = [node.name for node in program.graph.find_nodes(op="placeholder")]
    assert placeholders == [spec.arg.name for spec in program.graph_signature.input_specs]


@STRICT
def test_numbers_are_constants_with_their_values(strict: bool) -> None:
    _, program = _everything(strict=strict)
    signature = program.graph_signature
    assert signature.user_inputs == ("x", 3, "mask")
    assert signature.input_specs[7].arg == ConstantArgument(name="factor", value=3)
    assert [spec.arg for spec in signature.output_specs[1:]] == [ConstantArgument("", 3), ConstantArgument("", None)]
    assert next(n for n in program.graph.find_nodes(op="placeholder") if n.name == "factor").meta["val"] == 3


@STRICT
def test_state_and_constants_are_the_module_s_own_tensors(strict: bool) -> None:
    module, program = _everything(strict=strict)
    assert program.state_dict.keys() == module.state_dict().keys()
    assert program.state_dict["linear.weight"] is module.linear.weight
    assert program.constants["constant"] is module.constant
    assert program.constants["bias"] is module.bias
    assert dict(program.named_parameters())["linear.bias"] is module.linear.bias
    assert [name for name, _ in program.named_buffers()] == ["scale", "bias"]


@STRICT
def test_a_tensor_under_two_names_is_two_inputs_and_one_tensor(strict: bool) -> None:
    module = Tied()
    program = export(module, (torch.randn(2, 3),), strict=strict)
    assert list(program.graph_signature.parameters) == [
        "first.weight",
        "first.bias",
        "second.weight",
        "second.bias",
    ]
    runnable = program.module()
    weights = [runnable.get_parameter(f"{name}.weight") for name in ("first", "second")]
    assert weights[0] is weights[1] is module.first.weight
    x = torch.randn(4, 3)[:2]
    torch.testing.assert_close(runnable(x), module(x))


@STRICT
def test_a_constant_under_two_names_is_in_the_table_twice(strict: bool) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = torch.ones(3)
            self.other = self.one

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.one * self.other

    module = Twice()
    program = export(module, (torch.randn(3),), strict=strict)
    assert list(program.graph_signature.lifted_tensor_constants) == ["one"]
    assert program.constants == {"one": module.one, "other": module.one}


@STRICT
def test_placeholders_of_nested_arguments_are_named_by_their_places(strict: bool) -> None:
    t = torch.ones(2)
    program = export(Containers(), ((t, [t + 1]), t + 2, t + 3), {"last": t + 4, "deep": {"k": t + 5}}, strict=strict)
    assert list(program.graph_signature.user_inputs) == ["pair_0", "pair_1_0", "rest_0", "rest_1", "last", "deep_k"]
    signature = program.module_call_graph[0].signature
    assert signature is not None
    assert signature.forward_arg_names == ["pair", "rest_0", "rest_1", "last", "deep"]


def test_names_of_builtins_and_of_state_do_not_collide() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(2))
            self.register_buffer("add", torch.ones(2))

        def forward(self, input: torch.Tensor, p_w: torch.Tensor, add: torch.Tensor) -> torch.Tensor:
            return input + p_w * self.w + self.get_buffer("add") + add

    t = torch.ones(2)
    program = export(Named(), (t, t * 2, t * 3))
    placeholders = [node.name for node in program.graph.find_nodes(op="placeholder")]
    assert placeholders == ["p_w_1", "b_add", "input", "p_w", "add"]
    assert [node.name for node in program.graph.nodes if node.op == "call_function"][1:] == ["add_1", "add_2", "add_3"]
    torch.testing.assert_close(program.module()(t, t * 2, t * 3), t * 7)


def test_a_parameter_found_in_a_list_is_that_parameter() -> None:
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(2))
            self.held = [self.w]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.held[0]

    module = Listed()
    program = export(module, (torch.ones(2),))
    assert list(program.graph_signature.lifted_tensor_constants) == []
    program.module()(torch.full((2,), 3.0)).sum().backward()
    assert module.w.grad is not None
    assert module.w.grad.tolist() == [3.0, 3.0]


def test_a_buffer_spec_says_whether_it_persists() -> None:
    with pytest.raises(AssertionError, match="persistent"):
        InputSpec(InputKind.BUFFER, TensorArgument("b"), "b")


def test_a_spec_refuses_what_is_no_argument() -> None:
    with pytest.raises(AssertionError, match="TensorArgument"):
        OutputSpec(OutputKind.USER_OUTPUT, "y", None)  # type: ignore[arg-type]


def test_a_signature_follows_a_renamed_node() -> None:
    signature = ExportGraphSignature(
        [InputSpec(InputKind.USER_INPUT, TensorArgument("x"), None)],
        [OutputSpec(OutputKind.USER_INPUT_MUTATION, TensorArgument("mul"), "x")],
    )
    signature.replace_all_uses("mul", "mul_7")
    signature.replace_all_uses("x", "z")
    assert signature.user_inputs_to_mutate == {"mul_7": "z"}
    assert signature.user_inputs == ("z",)


def test_a_signature_follows_passes_over_the_graph() -> None:
    class Counting(nn.Module):
        count: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(2))

        def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
            self.count.add_(x)
            x.mul_(n)
            return self.count + x

    def as_copies(module: torch.fx.GraphModule) -> PassResult:
        made = torch.fx.Transformer(module).transform()
        for node, old in zip(made.graph.nodes, module.graph.nodes, strict=True):
            node.meta = dict(old.meta)
            node.name = f"{old.name}_new"
        made.recompile()
        return PassResult(made, modified=True)

    program = export(Counting(), (torch.ones(2), 3)).run_decompositions()
    changed = program._transform_do_not_use(as_copies, lambda module: module.recompile() and None)
    assert all(node.name.endswith("_new") for node in changed.graph.nodes)
    assert set(changed.graph_signature.user_inputs_to_mutate.values()) == {"x_new"}
    x, count = torch.ones(2), program.constants.get("count", program.state_dict["count"])
    assert changed.module()(x, 3).tolist() == [4.0, 4.0]
    assert (x.tolist(), count.tolist()) == ([3.0, 3.0], [1.0, 1.0])


def test_a_joint_signature_has_gradients_and_the_loss() -> None:
    signature = ExportGraphSignature(
        [InputSpec(InputKind.PARAMETER, TensorArgument("p_w"), "w")],
        [
            OutputSpec(OutputKind.LOSS_OUTPUT, TensorArgument("loss"), None),
            OutputSpec(OutputKind.GRADIENT_TO_PARAMETER, TensorArgument("mul"), "w"),
        ],
    )
    backward = signature.backward_signature
    assert backward is not None
    assert (backward.loss_output, backward.gradients_to_parameters) == ("loss", {"mul": "w"})


def test_a_program_that_is_exported_again_tells_the_modules_it_was_made_of() -> None:
    program = export(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()), (torch.ones(1, 2),))
    again = export(program.module(), (torch.ones(1, 2),))
    stacks = [
        [node.meta["nn_module_stack"] for node in each.graph.nodes if node.op == "call_function"]
        for each in (program, again)
    ]
    assert stacks[0] == stacks[1]
    assert stacks[0][0]["L__self__"] == ("", "torch.nn.modules.container.Sequential")


def test_a_program_that_is_exported_again_asserts_each_condition_once() -> None:
    class Bounded(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            n: Any = x.item()
            torch._check(n >= 4)
            torch._check(n <= 7)
            return torch.ones(n)

    program = export(Bounded(), (torch.tensor(6),))
    again = export(program.module(), (torch.tensor(6),))
    counts = [
        len(each.graph.find_nodes(op="call_function", target=torch.ops.aten._assert_scalar.default))
        for each in (program, again)
    ]
    assert counts == [2, 2]
    with pytest.raises(RuntimeError, match="Runtime assertion failed"):
        again.module()(torch.tensor(8))


@pytest.mark.parametrize("is_persistent", [True, False])
def test_a_buffer_under_two_names_is_updated_once(is_persistent: bool) -> None:
    class Counter(nn.Module):
        count: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()), persistent=is_persistent)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            return x * self.count

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = self.second = Counter()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x)) + self.first.count

    module = Both()
    program = export(module, (torch.ones(2),)).run_decompositions()
    assert list(program.graph_signature.buffers) == ["first.count", "second.count"]
    assert list(program.graph_signature.buffers_to_mutate.values()) == ["first.count"]
    assert program.module()(torch.ones(2)).tolist() == [4.0, 4.0]
    assert module.second.count == 2
