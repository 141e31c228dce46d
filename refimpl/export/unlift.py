"""Unlifts an exported program: makes a module that is called like the exported one.

Counterpart: torch/export/_unlift.py _unlift_exported_program_lifted_states; torch/_functorch/_aot_autograd/utils.py
  unlift_tokens, as torch/export/_unlift.py uses it
Differs: arguments that were exported by position may be passed by name, as for forward. Those that were exported by name are
passed by name: forward may take them in no other way.
"""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import fx

from refimpl._torch import NodeSource, NodeSourceAction, OpOverload, PyTreeCodeGen, PyTreeInfo, pytree, with_effects
from refimpl.export.errors import StructureMismatch
from refimpl.export.graph_signature import ExportGraphSignature, InputKind, OutputKind
from refimpl.export.input_contract import GuardsFn, InputContract
from refimpl.export.module_call_graph import CallSpec, ModuleCallEntry

_UPDATES = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION, OutputKind.USER_INPUT_MUTATION)
_STATE = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR, InputKind.CUSTOM_OBJ)
GUARDS = "_guards_fn"
"""The submodule that checks inputs, and the node that calls it."""


class Program(Protocol):
    """The part of ExportedProgram that this module uses."""

    @property
    def graph_module(self) -> fx.GraphModule: ...
    @property
    def graph_signature(self) -> ExportGraphSignature: ...
    @property
    def state_dict(self) -> dict[str, torch.Tensor]: ...
    @property
    def constants(self) -> dict[str, Any]: ...
    @property
    def call_spec(self) -> CallSpec: ...
    @property
    def module_call_graph(self) -> list[ModuleCallEntry]: ...


def unlifted_module(program: Program, contract: InputContract | None) -> fx.GraphModule:
    """The module: its state is the program's own tensors, by their full names. `contract` checks the leaves of every call."""
    root = _state_module(program)
    graph = unlifted_graph(program)
    placeholders = graph.find_nodes(op="placeholder")
    if contract is not None and placeholders:
        root.add_module(GUARDS, GuardsFn(contract))
        with graph.inserting_after(placeholders[-1]):
            guards = graph.call_module(GUARDS, tuple(placeholders))
        guards.meta["nn_module_stack"] = _root_stack(graph)
    signature = program.module_call_graph[0].signature
    assert signature is not None
    names = signature.forward_arg_names or []
    graph.set_codegen(PyTreeCodeGen(PyTreeInfo(list(names), signature.in_spec, signature.out_spec)))
    module = fx.GraphModule(root, graph)
    for owner_name, owner in root.named_modules():  # a GraphModule only copies state that nodes read
        _copy_state(owner, _submodule(module, owner_name))
    module.meta.update(program.graph_module.meta)
    module.register_forward_pre_hook(_input_hook(program.call_spec.in_spec, names), with_kwargs=True)
    module.train = types.MethodType(_no_train, module)
    module.eval = types.MethodType(_no_eval, module)
    return module


def _root_stack(graph: fx.Graph) -> dict[str, Any] | None:
    """The module stack of the root: the first entry of the stack of the first call."""
    for node in graph.nodes:
        if node.op == "call_function" and "nn_module_stack" in node.meta:
            key, value = next(iter(node.meta["nn_module_stack"].items()))
            return {key: value}
    return None


def _no_train(self: torch.nn.Module, mode: bool = True) -> Any:
    raise NotImplementedError(
        "Calling train() is not supported yet: an exported program is in the mode it was exported in"
    )


def _no_eval(self: torch.nn.Module) -> Any:
    raise NotImplementedError(
        "Calling eval() is not supported yet: an exported program is in the mode it was exported in"
    )


# ------------------------------------------------------------------------------------------------------------- state


def _state_module(program: Program) -> torch.nn.Module:
    """A tree of modules with the state, and the functions of higher-order operators."""
    root = torch.nn.Module()
    for spec in program.graph_signature.input_specs:
        if spec.kind not in _STATE or spec.target is None:
            continue
        is_absent = spec.persistent is False or spec.kind in (InputKind.CONSTANT_TENSOR, InputKind.CUSTOM_OBJ)
        value = (program.constants if is_absent else program.state_dict)[spec.target]
        _put(root, spec.target, value, spec.kind, is_persistent=spec.persistent is not False)
    for name, value in program.state_dict.items():  # state that the graph does not read
        if not _has(root, name):
            kind = InputKind.PARAMETER if isinstance(value, torch.nn.Parameter) else InputKind.BUFFER
            _put(root, name, value, kind, is_persistent=True)
    for name, child in program.graph_module.named_children():
        if name not in root._modules:
            root.add_module(name, child)
    for node in program.graph_module.graph.find_nodes(op="get_attr"):  # containers of the arguments of a leaf function
        if not hasattr(root, node.target):
            setattr(root, node.target, getattr(program.graph_module, node.target))
    return root


def _has(root: torch.nn.Module, name: str) -> bool:
    path, _, last = name.rpartition(".")
    owner = root
    for part in path.split(".") if path else ():
        owner = owner._modules.get(part)
        if owner is None:
            return False
    return hasattr(owner, last)


def _put(root: torch.nn.Module, name: str, value: Any, kind: InputKind, *, is_persistent: bool) -> None:
    path, _, last = name.rpartition(".")
    owner = root
    for part in path.split(".") if path else ():
        if part not in owner._modules:
            owner.add_module(part, torch.nn.Module())
        owner = getattr(owner, part)
    if kind is InputKind.PARAMETER and isinstance(value, torch.nn.Parameter):
        owner.register_parameter(last, value)
    elif isinstance(value, torch.Tensor):
        if kind is InputKind.CONSTANT_TENSOR and value.requires_grad:  # what trains the module must not reach it
            value = value.detach()
        # fx would make an attribute of a graph a persistent buffer
        owner.register_buffer(last, value, persistent=is_persistent and kind is not InputKind.CONSTANT_TENSOR)
    else:
        setattr(owner, last, value)


def _submodule(root: torch.nn.Module, path: str) -> torch.nn.Module:
    for part in path.split(".") if path else ():
        if part not in root._modules:
            root.add_module(part, torch.nn.Module())
        root = getattr(root, part)
    return root


def _copy_state(source: torch.nn.Module, target: torch.nn.Module) -> None:
    if source is target or isinstance(source, fx.GraphModule):
        return
    for name, parameter in source._parameters.items():
        target._parameters[name] = parameter
    for name, buffer in source._buffers.items():
        target._parameters.pop(name, None)  # fx copies a constant that is a parameter as one
        target.register_buffer(name, buffer, persistent=name not in source._non_persistent_buffers_set)


# ------------------------------------------------------------------------------------------------------------- graph


def unlifted_graph(program: Program) -> fx.Graph:
    """The graph without lifted inputs: it reads state from attributes and writes updates. Tokens are removed."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    by_target: dict[str, fx.Node] = {}
    old = program.graph_module.graph
    given = {name for name, spec in specs.items() if spec.kind is InputKind.USER_INPUT}
    for node in old.nodes:
        if node.op == "placeholder" and specs[node.name].kind is InputKind.USER_INPUT:
            copies[node] = by_target[node.name] = graph.node_copy(node)
            copies[node].name = node.name
        elif node.op == "placeholder" and specs[node.name].kind is InputKind.TOKEN:
            copies[node] = made_token(graph, node)
        elif node.op == "placeholder":
            target = specs[node.name].target
            assert target is not None
            copies[node] = by_target[target] = graph.get_attr(target)
            copies[node].meta = dict(node.meta)
            if copies[node].name in given:
                copies[node].name = node.name
        elif node.op != "output":
            copies[node] = graph.node_copy(node, lambda inner: copies[inner])
            run_in_order(copies[node])
            if node.target is torch.ops.aten.copy.default:
                _make_differentiable(copies[node])
            elif node.target in _STATISTICS:
                _copy_statistics(copies[node])
    returned = fx.map_arg(old.output_node().args[0], lambda inner: copies[inner])
    outputs = []
    written: dict[
        fx.Node, fx.Node
    ] = {}  # the new value of an input or of state: as an output, it is the tensor written to
    for value, spec in zip(returned, program.graph_signature.output_specs, strict=True):  # type: ignore[arg-type]
        if spec.kind in _UPDATES:
            assert spec.target is not None
            _write(graph, by_target[spec.target], value)
            written[value] = by_target[spec.target]
        elif spec.kind in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT):
            outputs.append(written.get(value, value))
    last = graph.output(tuple(outputs))
    last.meta = dict(old.output_node().meta)
    for node, copied in (*copies.items(), (old.output_node(), last)):
        copied.meta["from_node"] = [_source(node, copied)]
    return graph


def _source(node: fx.Node, copied: fx.Node) -> NodeSource:
    """The record of where a node of the module is from: a node that replaces an input with state, or the output, else a copy."""
    copy = NodeSource(node, "ExportedProgram.module()", NodeSourceAction.CREATE)
    if copied.op not in ("get_attr", "output"):
        return copy
    replaced = NodeSource(
        node, "ExportedProgram.module().unlift()", [NodeSourceAction.CREATE, NodeSourceAction.REPLACE]
    )
    replaced.from_node = [copy]
    return replaced


def _make_differentiable(copy: fx.Node) -> None:
    """Replace the functional `copy`, which has no derivative, by expand_as and _to_copy."""
    source, value = copy.args[1], copy.meta["val"]
    assert isinstance(source, fx.Node)
    given, graph = source.meta["val"], copy.graph
    with graph.inserting_before(copy):
        if given.shape != value.shape:
            source = graph.call_function(torch.ops.aten.expand_as.default, (source, copy.args[0]))
    copy.target, copy.args = torch.ops.aten._to_copy.default, (source,)
    copy.kwargs = {"dtype": value.dtype, "device": value.device}


# Positions of the running statistics among the arguments of functional batch norms. Backward saves them, and the update at the
# end of the graph would change saved tensors; so the op gets copies.
_STATISTICS = {
    torch.ops.aten._native_batch_norm_legit_functional.default: (3, 4),
    torch.ops.aten._batch_norm_with_update_functional.default: (3, 4),
}


def _copy_statistics(node: fx.Node) -> None:
    args = list(node.args)
    with node.graph.inserting_before(node):
        for place in _STATISTICS[node.target]:  # type: ignore[index]
            args[place] = node.graph.call_function(torch.ops.aten.clone.default, (args[place],))
    node.args = tuple(args)


def _write(graph: fx.Graph, target: fx.Node, value: fx.Node) -> None:
    made = value.meta.get("tensor_meta")
    if made is not None and not made.requires_grad:
        # The program wrote a value without gradient. So must this write: autograd refuses in-place ops on leaves.
        value = graph.call_function(torch.ops.aten.detach.default, (value,))
        target = graph.call_function(torch.ops.aten.detach.default, (target,))
    graph.call_function(torch.ops.aten.copy_.default, (target, value))


# ------------------------------------------------------------------------------------------------------------ inputs

Hook = Callable[[torch.nn.Module, tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]


def _input_hook(in_spec: pytree.TreeSpec, names: Sequence[str]) -> Hook:
    """A forward pre-hook that orders arguments as the graph has them, and checks containers."""

    def hook(
        module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return arranged(args, kwargs, in_spec, names)

    return hook


def arranged(
    args: tuple[Any, ...], kwargs: dict[str, Any], in_spec: pytree.TreeSpec, names: Sequence[str]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call as the program was exported with them. Raises StructureMismatch if they do not fit."""
    positional, keyword = in_spec.children()
    args, kwargs = placed(args, kwargs, positional.num_children, names, list(keyword.context or ()))
    received = pytree.tree_structure((args, kwargs))
    return (args, kwargs) if received == in_spec else with_keys_in_order((args, kwargs), received, in_spec)


def with_keys_in_order(
    arguments: tuple[Any, dict[str, Any]], received: pytree.TreeSpec, in_spec: pytree.TreeSpec
) -> tuple[Any, Any]:
    """The arguments with the keys of their dicts in the order of the exported ones. Raises StructureMismatch for containers that
    differ in more than that order."""
    arguments = with_plain_sizes(arguments)
    received = pytree.tree_structure(arguments)
    if received == in_spec:
        return arguments
    try:
        leaves = in_spec.flatten_up_to(arguments)
    except ValueError as error:
        raise StructureMismatch(received, in_spec) from error
    ordered = pytree.tree_unflatten(leaves, in_spec)
    if pytree.tree_structure(ordered) != in_spec or _kinds(received) != _kinds(in_spec):
        raise StructureMismatch(received, in_spec)
    return ordered


def with_plain_sizes(arguments: Any) -> Any:
    """The arguments with a tuple for each torch.Size. Whether a Size is a container to pytree depends on the modules that are
    loaded; where it is one, pytree rebuilds it as a tuple."""
    return pytree.tree_map(lambda leaf: tuple(leaf) if isinstance(leaf, torch.Size) else leaf, arguments)


def _kinds(spec: pytree.TreeSpec) -> Counter[Any]:
    """How many containers of each type there are."""
    if spec.is_leaf():
        return Counter()
    return sum((_kinds(child) for child in spec.children()), Counter([spec.type]))


def placed(
    args: tuple[Any, ...], kwargs: dict[str, Any], num_args: int, names: Sequence[str], keywords: Sequence[str]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments in the order of the exported ones, as far as they are among them. The caller checks that they are all."""
    if len(args) == num_args and list(kwargs) == list(keywords):
        return args, kwargs
    kwargs = dict(kwargs)
    positional = list(args)
    for name in names[len(positional) : num_args]:
        if name not in kwargs:
            break
        positional.append(kwargs.pop(name))
    if set(kwargs) == set(keywords):
        kwargs = {name: kwargs[name] for name in keywords}
    return tuple(positional), kwargs


# A functional program has tokens among its inputs and outputs; its module has none. The module runs its nodes in order, so it
# calls operators with side effects directly, with their gradients.


@fx.has_side_effect
def call_in_order(token: torch.Tensor, operator: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """`with_effects` for graphs that run in order: calls the operator, and returns the token and the results."""
    result = operator(*args, **kwargs)
    has_several = len(operator._schema.returns) > 1 if isinstance(operator, OpOverload) else isinstance(result, tuple)
    return (token, *result) if has_several else (token, result)


def made_token(graph: fx.Graph, like: fx.Node) -> fx.Node:
    """Make a node for the first token."""
    made = graph.call_function(torch.ops.prims._make_token.default, (), name=like.name)
    made.meta = dict(like.meta)
    return made


def run_in_order(node: fx.Node) -> None:
    """Replace the target `with_effects` by `call_in_order`. Other nodes are left unchanged."""
    if node.target is with_effects:
        node.target = call_in_order
