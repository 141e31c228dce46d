"""Contracts of export about graphs of torch's functions, and of what nodes of parameters say (rows EX-15, 17, 38, 40)."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

from refimpl.capture.public.errors import Unsupported, UserError, UserErrorType
from refimpl.errors import UnsupportedByRefimpl
from refimpl.export import Dim, export
from refimpl.tests.export.modules import EverythingModule, Normalised
from refimpl.upstream.torch_ir_export import _export_to_torch_ir, note_values_of_attributes

X = torch.arange(12.0).reshape(4, 3)


def test_the_graph_has_torch_s_functions() -> None:
    module = Normalised().eval()
    graph_module = _export_to_torch_ir(module, (X,))
    targets = [node.target for node in graph_module.graph.nodes if node.op.startswith("call")]
    assert targets == [torch.nn.functional.linear, torch.nn.functional.batch_norm, torch.relu]
    assert torch.equal(graph_module(X), module(X))


def test_state_has_the_module_s_names() -> None:
    """EX-15"""
    module = Normalised()
    graph_module = _export_to_torch_ir(module, (X,))
    read = [str(node.target) for node in graph_module.graph.find_nodes(op="get_attr")]
    assert sorted(read) == sorted(module.state_dict())
    state = graph_module.state_dict(keep_vars=True)
    assert sorted(state) == sorted(read)
    assert all(state[name] is value for name, value in module.state_dict(keep_vars=True).items())
    assert {name for name, _ in graph_module.named_buffers()} == {name for name, _ in module.named_buffers()}
    others = _export_to_torch_ir(module, (X,), restore_fqn=False)
    assert not {str(node.target) for node in others.graph.find_nodes(op="get_attr")} & set(read)


def test_buffers_outside_of_state_dicts_stay_outside() -> None:
    graph_module = _export_to_torch_ir(EverythingModule(), (X, 2))
    buffers = {name for name, _ in graph_module.named_buffers()}
    assert {"scale", "bias"} <= buffers
    assert "scale" in graph_module.state_dict()
    assert "bias" not in graph_module.state_dict()
    assert torch.equal(graph_module(X, 2)["y"].isnan(), torch.zeros(4, 4, dtype=torch.bool))


def test_functions_are_captured_too() -> None:
    graph_module = _export_to_torch_ir(lambda x, y: {"sum": x.sin() + y}, (X,), {"y": X + 1})
    assert torch.equal(graph_module(X, y=X)["sum"], X.sin() + X)


def test_sizes_vary_that_are_said_to() -> None:
    module = Normalised().eval()
    graph_module = _export_to_torch_ir(module, (X,), dynamic_shapes=({0: Dim("n")},))
    assert torch.equal(graph_module(torch.ones(7, 3)), module(torch.ones(7, 3)))
    placeholder = next(iter(graph_module.graph.nodes))
    assert [isinstance(size, torch.SymInt) for size in placeholder.meta["val"].shape] == [True, False]


def test_what_does_not_make_sense_is_refused() -> None:
    with pytest.raises(UserError, match="to be a tuple of example positional inputs, got <class 'list'>") as found:
        _export_to_torch_ir(Normalised(), [X])  # type: ignore[arg-type]
    assert found.value.error_type is UserErrorType.INVALID_INPUT
    with pytest.raises(UnsupportedByRefimpl, match="preserve_module_call_signature"):
        _export_to_torch_ir(Normalised(), (X,), preserve_module_call_signature=("norm",))
    with pytest.raises((UserError, Unsupported)):
        _export_to_torch_ir(lambda x: x if x.sum() > 0 else -x, (X,))


def test_parameters_are_those_of_upstream() -> None:
    names = list(inspect.signature(_export_to_torch_ir).parameters)
    assert names[:4] == ["f", "args", "kwargs", "dynamic_shapes"]
    assert names[4:] == [
        "preserve_module_call_signature", "disable_constraint_solver", "prefer_deferred_runtime_asserts_over_guards",
        "restore_fqn", "_log_export_usage", "same_signature",
    ]  # fmt: skip


@pytest.mark.parametrize("strict", [False, True])
def test_attributes_that_a_pass_adds_have_values(strict: bool) -> None:
    """EX-40"""
    module = Normalised().eval()
    graph_module = _export_to_torch_ir(module, (X,))
    graph_module.register_parameter("factor", nn.Parameter(torch.full((4,), 2.0)))
    output = graph_module.graph.output_node()
    (result,) = output.args[0]  # type: ignore[misc]
    with graph_module.graph.inserting_before(output):
        factor = graph_module.graph.get_attr("factor")
        output.args = ([graph_module.graph.call_function(torch.mul, (result, factor))],)
    graph_module.recompile()
    note_values_of_attributes(graph_module)
    assert factor.meta["val"].fake_mode is next(iter(graph_module.graph.nodes)).meta["val"].fake_mode
    assert tuple(factor.meta["val"].shape) == (4,)
    program = export(graph_module, (X,), strict=strict)
    assert set(program.graph_signature.parameters) == {"factor", *dict(module.named_parameters())}
    assert torch.equal(program.module()(X), module(X) * 2)


def test_attributes_without_any_fake_have_no_value() -> None:
    graph = torch.fx.Graph()
    graph.output(graph.get_attr("weight"))
    graph_module = torch.fx.GraphModule(nn.Linear(2, 2), graph)
    with pytest.raises(AssertionError, match=r"no node of the graph module has a fake tensor\n +seen: \['weight'\]"):
        note_values_of_attributes(graph_module)


@pytest.mark.parametrize("strict", [False, True])
def test_placeholders_of_state_say_what_uses_them(strict: bool) -> None:
    """EX-38"""
    program = export(Normalised(), (X,), strict=strict)
    nodes = {node.name: node for node in program.graph.nodes}
    key = "source_fn_stack" if strict else "torch_fn"
    for name, user in (("p_linear_weight", "linear"), ("b_norm_running_mean", "batch_norm")):
        assert nodes[name].meta[key] == nodes[user].meta[key]
        assert not {"nn_module_stack", "stack_trace"} & set(nodes[name].meta)
    assert key not in nodes["x"].meta
