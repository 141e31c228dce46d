"""Unflattens an exported program: makes a tree of modules like the one that was exported.

Counterpart: torch/export/unflatten.py
Differs: constants are copies too, and tensors that share memory do so in the copy. A module that is called several times has
one state and one or more graphs; the state dict is the original's. Modules are called by the name that their caller used; the
nodes of a module that is no submodule of its caller are in the caller's graph.
"""

from __future__ import annotations

import copy
import inspect
import types
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import fx

from refimpl._torch import is_fx_tracing, pytree, set_bits
from refimpl.errors import UnsupportedByRefimpl
from refimpl.export.errors import InputMismatch
from refimpl.export.graph_signature import InputKind
from refimpl.export.input_contract import InputContract
from refimpl.export.unflattening.calls import Call, call_tree
from refimpl.export.unflattening.flow import Flows, is_state, state_names
from refimpl.export.unflattening.graphs import CallGraph, GraphWriter, form
from refimpl.export.unflattening.modules import (
    FlatArgsAdapter,
    InterpreterModule,
    InterpreterModuleDispatcher,
    PrintableModule,
    SameStateModule,
    compiled,
    share_state,
)
from refimpl.export.unflattening.signatures import Closing
from refimpl.export.unlift import Program as CallableProgram
from refimpl.export.unlift import placed, unlifted_graph, with_keys_in_order

__all__ = ["FlatArgsAdapter", "InterpreterModule", "InterpreterModuleDispatcher", "UnflattenedModule", "unflatten"]


class Program(CallableProgram, Protocol):
    """The part of ExportedProgram that this module uses."""

    @property
    def range_constraints(self) -> Mapping[Any, Any]: ...
    def input_contract(self) -> InputContract: ...


def unflatten(module: Program, flat_args_adapter: FlatArgsAdapter | None = None) -> UnflattenedModule:
    """A module with the submodules of the exported one, and a copy of the program's state.

    It has parameters, buffers and constants of its own, so that a run that writes to a buffer changes no other module.

    module: an ExportedProgram. Submodules named in `preserve_module_call_signature` keep their signatures, so that other modules
        can replace them; other submodules take and return the flat values that the graphs need.
    flat_args_adapter: converts inputs in other containers to those that the program was exported with.

    Raises UnsupportedByRefimpl if a preserved submodule shares a tensor with its caller that is no argument or result, and if it
    is no submodule of its caller.
    """
    return UnflattenedModule(module, flat_args_adapter)


class UnflattenedModule(PrintableModule):
    """Called like the exported module. `graph` takes the leaves of the inputs and calls submodules."""

    def __init__(self, export_module: Program, flat_args_adapter: FlatArgsAdapter | None = None) -> None:
        super().__init__()
        self.graph_signature = export_module.graph_signature
        self.module_call_graph = list(export_module.module_call_graph)
        self.range_constraints = dict(export_module.range_constraints)
        self.meta = dict(export_module.graph_module.meta)
        self.flat_args_adapter = flat_args_adapter
        self.check_input_constraints = True
        self._call_spec = export_module.call_spec
        self._contract = export_module.input_contract()
        self._dispatchers: list[InterpreterModuleDispatcher] = []
        self.graph = fx.Graph()
        _Building(self, export_module).build()
        self.finalize()

    def finalize(self) -> None:
        """Compile `graph`. Call it again after a change of the graph."""
        self._run = types.MethodType(compiled(self.graph), self)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Raises InputMismatch for inputs the program was not exported for."""
        leaves = self.process_forward_inputs(*args, **kwargs)
        for dispatcher in self._dispatchers:
            dispatcher.restart()
        return pytree.tree_unflatten(list(self._run(*leaves)), self._call_spec.out_spec)

    def process_forward_inputs(self, *args: Any, **kwargs: Any) -> list[Any]:
        """The leaves of the inputs, checked and adapted."""
        signature, in_spec = self.module_call_graph[0].signature, self._call_spec.in_spec
        names = (signature.forward_arg_names if signature is not None else None) or []
        num_args = in_spec.children()[0].num_children
        placed_inputs = placed(args, kwargs, num_args, names, list(in_spec.children()[1].context or ()))
        leaves, received = pytree.tree_flatten(placed_inputs)
        if is_fx_tracing():
            return leaves
        if received != in_spec:
            if self.flat_args_adapter is None:
                leaves = pytree.tree_leaves(with_keys_in_order(placed_inputs, received, in_spec))
            else:
                leaves = self._adapted(self.flat_args_adapter, received, leaves)
        if self.check_input_constraints:
            self._contract.check(leaves)
        return leaves

    def _adapted(self, adapter: FlatArgsAdapter, received: pytree.TreeSpec, leaves: list[Any]) -> list[Any]:
        given = {"metadata": self.meta, "obj": self}
        taken = inspect.signature(adapter.adapt).parameters
        options = {name: value for name, value in given.items() if name in taken}
        adapted = list(adapter.adapt(self._call_spec.in_spec, received, leaves, **options))
        if len(adapted) != self._call_spec.in_spec.num_leaves:
            raise InputMismatch(
                seen=f"{type(adapter).__name__} returns {len(adapted)} values",
                expected=f"{self._call_spec.in_spec.num_leaves}, for {self._call_spec.in_spec}",
            )
        return adapted


class _Building:
    """Fills an UnflattenedModule. Mutable.

    Every path first gets a plain module that holds state and children (`_holders`). Modules with graphs share the holder's state.
    """

    def __init__(self, result: UnflattenedModule, program: Program) -> None:
        self._result = result
        self._program = program
        self._graph = unlifted_graph(program)
        signature = program.graph_signature
        self._state = state_names(signature.input_specs, program.state_dict, program.constants)
        self._holders: dict[str, torch.nn.Module] = {"": result}
        self._modules: dict[str, list[tuple[Any, InterpreterModule]]] = {}
        """By path: the modules of its graphs, with the comparable form of each graph."""
        self._kept: dict[str, list[InterpreterModule]] = {}
        """By path of modules that keep their signature: a module for every call."""

    def build(self) -> None:
        """Make state, then graphs and modules, innermost first."""
        self._add_state()
        nodes = [node for node in self._graph.nodes if node.op not in ("placeholder", "output")]
        state_nodes = {node for node in nodes if is_state(node, self._state)}
        names = {spec.target: spec.arg.name for spec in self._program.graph_signature.input_specs}
        for node in state_nodes:  # the names that signatures of calls use
            node.name = names[str(node.target)]
        signatures = {entry.fqn: entry.signature for entry in self._program.module_call_graph if entry.fqn}
        kept = {name: signature for name, signature in signatures.items() if signature is not None}
        root = call_tree([node for node in nodes if node not in state_nodes], _root_type(nodes), kept)
        _check_kept(root)
        Closing(root, self._graph, state_nodes).close()
        writer = GraphWriter(Flows(root, self._graph, self._state), self._state, self._attribute, self._place)
        made = writer.root(root, list(self._graph.find_nodes(op="placeholder")), self._graph.output_node())
        self._result.graph = made.graph
        self._result._ty = root.scope.type_name
        _set_attributes(self._result, made)
        for path, modules in self._kept.items():
            self._dispatch(path, modules)

    # ---------------------------------------------------------------------------------------------------------- state

    def _add_state(self) -> None:
        program = self._program
        specs = {spec.target: spec for spec in program.graph_signature.input_specs if spec.target is not None}
        copied: dict[int, Any] = {}
        for name, value in {**program.state_dict, **program.constants}.items():
            spec = specs.get(name)
            if spec is None:
                is_buffer = isinstance(value, torch.Tensor) and name in program.state_dict
                kind = InputKind.BUFFER if is_buffer else InputKind.CONSTANT_TENSOR
            elif spec.kind is InputKind.USER_INPUT or self._state[name].is_generated:
                continue
            else:
                kind = spec.kind
            if isinstance(value, torch.Tensor):
                value = _copied(value, copied)
            path, _, last = name.rpartition(".")
            holder = self._holder(path)
            if isinstance(value, torch.nn.Parameter) and name in program.state_dict:
                holder.register_parameter(last, value)
            elif kind is InputKind.BUFFER:
                holder.register_buffer(last, value, persistent=spec is None or spec.persistent is not False)
            else:
                setattr(holder, last, value)

    def _holder(self, path: str) -> torch.nn.Module:
        if path not in self._holders:
            owner, _, last = path.rpartition(".")
            self._holders[path] = torch.nn.Module()
            self._holder(owner)._modules[last] = self._holders[path]
        return self._holders[path]

    def _attribute(self, name: str) -> Any:
        return getattr(self._program.graph_module, name)

    # -------------------------------------------------------------------------------------------------------- modules

    def _place(self, call: Call, made: CallGraph) -> str:
        """The name, in the calling module, of the module for a graph: a new one, unless one of this path has an equal graph."""
        holder, known = self._holder(call.path), self._modules.setdefault(call.path, [])
        shape = form(made)
        module = next((module for earlier, module in known if earlier == shape), None)
        name = _within(call.path, call)
        if module is None:
            module = self._new(call, made, holder, is_first=not known)
            known.append((shape, module))
        if call.signature is not None:
            self._kept.setdefault(call.path, []).append(module)
            return name
        return self._name_of(call, module)

    def _new(self, call: Call, made: CallGraph, holder: torch.nn.Module, *, is_first: bool) -> InterpreterModule:
        owner, _, last = call.path.rpartition(".")
        if is_first:
            module = InterpreterModule(made.graph, call.scope.type_name)
            for name, value in holder.__dict__.items():  # constants
                module.__dict__.setdefault(name, value)
            share_state(module, holder)
        else:
            module = SameStateModule(made.graph, self._modules[call.path][0][1])
            last = self._free_name(call)
        _set_attributes(module, made)
        self._holder(owner)._modules[last] = module
        return module

    def _free_name(self, call: Call) -> str:
        owner, _, last = call.path.rpartition(".")
        taken, number = self._holder(owner)._modules, call.scope.number + call.part
        while f"{last}@{number}" in taken:
            number += 1
        return f"{last}@{number}"

    def _name_of(self, call: Call, module: InterpreterModule) -> str:
        owner = self._holder(call.path.rpartition(".")[0])
        last = next(name for name, each in owner._modules.items() if each is module)
        return _within(f"{call.path.rpartition('.')[0]}.{last}".lstrip("."), call)

    def _dispatch(self, path: str, modules: list[InterpreterModule]) -> None:
        """Replace several modules of one path by a dispatcher that calls them in turn."""
        if all(module is modules[0] for module in modules):
            return
        owner, _, last = path.rpartition(".")
        children = self._holder(owner)._modules
        for name in [name for name, child in children.items() if child in modules[1:] and name != last]:
            del children[name]
        dispatcher = InterpreterModuleDispatcher(modules)
        children[last] = dispatcher
        self._result._dispatchers.append(dispatcher)


def _copied(tensor: torch.Tensor, copied: dict[int, Any]) -> torch.Tensor:
    """A copy of a tensor. copied: the memo of `deepcopy`, by which copies share memory as the tensors do."""
    if not tensor.is_leaf:  # a constant with a history, which only the original has
        return tensor
    if not tensor.is_conj() and not tensor.is_neg():
        return copy.deepcopy(tensor, copied)
    plain = tensor.detach()
    set_bits(plain, is_conj=False, is_neg=False)  # deepcopy would compute the values, in other memory
    made = copy.deepcopy(plain, copied)
    set_bits(made, is_conj=tensor.is_conj(), is_neg=tensor.is_neg())
    return made


def _within(path: str, call: Call) -> str:
    """The name of a module in the one that calls it."""
    assert call.parent is not None
    return path.removeprefix(f"{call.parent.path}.") if call.parent.path else path


def _set_attributes(module: torch.nn.Module, made: CallGraph) -> None:
    for name, value in made.attributes.items():
        if isinstance(value, torch.nn.Module):
            module._modules[name] = value
        else:
            module.__dict__[name] = value


def _root_type(nodes: list[fx.Node]) -> str:
    for node in nodes:
        for path, kind in (node.meta.get("nn_module_stack") or {}).values():
            if not path:
                return str(kind)
    return "torch.nn.modules.module.Module"


def _check_kept(root: Call) -> None:
    for call in root.calls():
        if call.signature is not None and call.part:
            raise UnsupportedByRefimpl(
                seen=f"nodes of other modules between those of {call.name!r}, which keeps its signature",
                supported="calls whose nodes are consecutive",
                do="leave it out of preserve_module_call_signature",
            )
