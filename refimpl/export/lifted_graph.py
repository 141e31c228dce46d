"""Lifts parameters, buffers and constants of a traced graph to inputs, and makes the signature.

Counterpart: torch/_export/passes/lift_constants_pass.py; _convert_to_export_graph_signature and _make_argument_spec of
torch/export/_trace.py
Differs: the graph is built again with placeholders that have their final names, so that no node has to be renamed. A parameter
that the program reads in another way than by its attribute (from a list, say) is still that parameter and no constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from refimpl._torch import is_opaque_object
from refimpl.capture.entry_points.export_signature import INPUT_CONSTANT_TYPES
from refimpl.export.constants import class_name, constant_attributes, identity
from refimpl.export.graph_signature import (
    ArgumentSpec,
    ConstantArgument,
    CustomObjArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)
from refimpl.export.module_call_graph import ModuleCallSignature
from refimpl.export.module_stacks import normalise_module_stacks
from refimpl.export.placeholder_names import TakenNames, name_of_input, name_of_state
from refimpl.export.regions import with_regions
from refimpl.export.traced_program import FakeProgram, TracedProgram

_SYMBOLIC: dict[type, Any] = {
    torch.SymInt: SymIntArgument,
    torch.SymFloat: SymFloatArgument,
    torch.SymBool: SymBoolArgument,
}


@dataclass(frozen=True, kw_only=True)
class LiftedProgram:
    """The lifted graph and its signature. `constants` are by name, and include non-persistent buffers."""

    graph_module: fx.GraphModule
    signature: ExportGraphSignature
    constants: Mapping[str, Any]
    calls: Mapping[str, ModuleCallSignature]
    """Signatures of submodule calls that the caller wants to preserve, by name."""


@dataclass(slots=True)
class _Input:
    """A placeholder to be made: its kind, its target, and the nodes of the traced graph that it replaces."""

    kind: InputKind
    name: str
    nodes: list[fx.Node]
    target: str | None = None
    persistent: bool | None = None
    value: Any = None  # the value of a constant
    requires_grad: bool = False


def lifted(program: FakeProgram, traced: TracedProgram) -> LiftedProgram:
    """Lift state to inputs. The inputs are (parameters, buffers, constants, user inputs)."""
    old = traced.graph_module.graph
    placeholders = list(old.find_nodes(op="placeholder"))
    state, users = _state_inputs(program, placeholders), _user_inputs(program, placeholders)
    constants = _constant_inputs(program, traced.graph_module, state)
    inputs = [*state, *constants, *users]
    _choose_names(inputs, users)
    graph, signature, copies = _rebuilt(old, inputs)
    graph_module = fx.GraphModule(traced.graph_module, graph)
    normalise_module_stacks(graph_module, type(program.root))
    graph_module = with_regions(graph_module, has_gradients=torch.is_grad_enabled())
    return LiftedProgram(
        graph_module=graph_module,
        signature=signature,
        constants=_constant_values(program.root, state, constants),
        calls={name: call.signature(copies, argument_of) for name, call in traced.calls.items()},
    )


def non_persistent_buffers(root: torch.nn.Module) -> set[str]:
    """Full names of non-persistent buffers."""
    return {
        f"{path}.{name}" if path else name
        for path, module in root.named_modules(remove_duplicate=False)
        for name in module._non_persistent_buffers_set
    }


def _state_inputs(program: FakeProgram, placeholders: list[fx.Node]) -> list[_Input]:
    absent = non_persistent_buffers(program.root)
    inputs: list[_Input] = []
    root = program.root
    given = {**dict(root.named_parameters(remove_duplicate=False)), **dict(root.named_buffers(remove_duplicate=False))}
    for kind, state in ((InputKind.PARAMETER, program.parameters), (InputKind.BUFFER, program.buffers)):
        for name in state:
            persistent = name not in absent if kind is InputKind.BUFFER else None
            made = _Input(kind, name_of_state(kind, name), [placeholders[len(inputs)]], name, persistent)
            made.requires_grad = given[name].requires_grad  # the fake may have been written to
            inputs.append(made)
    return inputs


def _user_inputs(program: FakeProgram, placeholders: list[fx.Node]) -> list[_Input]:
    first = len(program.parameters) + len(program.buffers)
    return [
        _Input(
            InputKind.USER_INPUT,
            name_of_input(leaf.words),
            [node],
            requires_grad=isinstance(leaf.value, torch.Tensor) and leaf.value.requires_grad,
        )
        for leaf, node in zip(program.leaves, placeholders[first:], strict=True)
    ]


def _constant_inputs(program: FakeProgram, module: fx.GraphModule, state: list[_Input]) -> list[_Input]:
    """Inputs for the attributes that the graph reads, except functions of higher-order operators."""
    named = constant_attributes(program.root)
    known: dict[Any, _Input] = {
        id(program.root.get_parameter(i.target)): i for i in state if i.kind is InputKind.PARAMETER and i.target
    }
    known |= {id(program.root.get_buffer(i.target)): i for i in state if i.kind is InputKind.BUFFER and i.target}
    constants: dict[Any, _Input] = {}
    number = 0
    for node in module.graph.find_nodes(op="get_attr"):
        value = _attribute(module, str(node.target))
        if not isinstance(value, torch.Tensor) and not is_opaque_object(value):
            continue
        key = identity(value)
        if key in known:
            known[key].nodes.append(node)
            continue
        kind = InputKind.CONSTANT_TENSOR if isinstance(value, torch.Tensor) else InputKind.CUSTOM_OBJ
        names = named.get(key, (value, []))[1]
        if not names:
            names = [f"lifted_{'tensor' if kind is InputKind.CONSTANT_TENSOR else 'custom'}_{number}"]
            number += 1
        known[key] = constants[key] = _Input(
            kind,
            name_of_state(kind, names[0]),
            [node],
            names[0],
            value=named.get(key, (value, []))[0],
            requires_grad=isinstance(value, torch.Tensor) and value.requires_grad,
        )
    return list(constants.values())


def _attribute(module: torch.nn.Module, path: str) -> Any:
    owner, _, name = path.rpartition(".")
    return getattr(module.get_submodule(owner), name)


def _constant_values(root: torch.nn.Module, state: list[_Input], constants: list[_Input]) -> dict[str, Any]:
    """Values of constants and non-persistent buffers, by all their names in the module."""
    values: dict[str, Any] = {i.target: root.get_buffer(i.target) for i in state if i.persistent is False and i.target}
    named = constant_attributes(root)
    for constant in constants:
        assert constant.target is not None
        _, names = named.get(identity(constant.value), (None, [constant.target]))
        values.update(dict.fromkeys(names, constant.value))
    return values


def _choose_names(inputs: list[_Input], users: list[_Input]) -> None:
    """Make names unique. User inputs are first, and so keep their names."""
    taken = TakenNames()
    for wanted in (*users, *(i for i in inputs if i.kind is not InputKind.USER_INPUT)):
        wanted.name = taken.unique(wanted.name)


def _rebuilt(old: fx.Graph, inputs: list[_Input]) -> tuple[fx.Graph, ExportGraphSignature, dict[fx.Node, fx.Node]]:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    input_specs: list[InputSpec] = []
    for each in inputs:
        node = graph.placeholder(each.name)
        node.name = node.target = each.name  # fx renames nodes with names of builtins, such as `input`
        node.meta = dict(each.nodes[0].meta)
        if each.requires_grad:  # the values in a trace's meta are detached
            node.meta["val"] = node.meta["val"].detach().requires_grad_()
        copies.update(dict.fromkeys(each.nodes, node))
        arg = argument_of(node)
        input_specs.append(InputSpec(each.kind, arg, each.target, each.persistent))
    for node in old.nodes:
        if node not in copies and node.op != "output":
            copies[node] = graph.node_copy(node, lambda inner: copies[inner])
    returned = old.output_node().args[0]
    output = graph.output(fx.map_arg(returned, lambda inner: copies[inner]))
    output.meta = dict(old.output_node().meta)
    specs = [OutputSpec(OutputKind.USER_OUTPUT, argument_of(value), None) for value in output.args[0]]  # type: ignore[union-attr]
    return graph, ExportGraphSignature(input_specs, specs), copies


def argument_of(value: Any) -> ArgumentSpec:
    """The ArgumentSpec of a node or of a constant output. AssertionError for a node without `val`, or of an unknown kind."""
    if not isinstance(value, fx.Node):
        return ConstantArgument(name="", value=_constant(value, "the results"))
    assert "val" in value.meta, (
        f"{value} has no 'val' in its meta\n  expected: the fake value that every traced node has"
    )
    seen = value.meta["val"]
    if isinstance(seen, torch.Tensor):
        return TensorArgument(name=value.name)
    for kind, made in _SYMBOLIC.items():
        if isinstance(seen, kind):
            return made(name=value.name)
    if is_opaque_object(seen):
        return CustomObjArgument(name=value.name, class_fqn=class_name(seen))
    return ConstantArgument(name=value.name, value=_constant(seen, str(value)))


def _constant(value: Any, where: str) -> Any:
    assert isinstance(value, INPUT_CONSTANT_TYPES), (
        f"Encountered an unsupported object of type {type(value)} in {where}\n  expected: a tensor, a number or a constant"
    )
    return value
