"""Inputs and outputs of every call: values of other calls, and state of other modules.

Counterpart: torch/export/unflatten.py _ModuleFrame.add_placeholder, add_to_consts_map
Differs: computed for all calls before any graph is made. A module reads state with several names by the name inside the module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from refimpl.export.graph_signature import InputKind, InputSpec
from refimpl.export.unflattening.calls import Call


@dataclass(frozen=True, slots=True, kw_only=True)
class StateName:
    """A tensor or object of the program's state, with all its names. A generated name is no attribute of the user's module."""

    value: Any
    names: Sequence[str]
    is_generated: bool

    def within(self, path: str) -> str | None:
        """The name in the module at the path, if it has one there."""
        if not path:
            return self.names[0]
        prefix = f"{path}."
        return next((name[len(prefix) :] for name in self.names if name.startswith(prefix)), None)


def state_names(
    specs: Sequence[InputSpec], state_dict: Mapping[str, Any], constants: Mapping[str, Any]
) -> dict[str, StateName]:
    """The state by target."""
    values = {**state_dict, **constants}
    names: dict[int, list[str]] = {}
    for name, value in values.items():
        names.setdefault(id(value), []).append(name)
    found: dict[str, StateName] = {}
    for spec in specs:
        if spec.target is None or spec.kind in (InputKind.USER_INPUT, InputKind.TOKEN):
            continue
        value = values[spec.target]
        others = [name for name in names[id(value)] if name != spec.target]
        is_constant = spec.kind in (InputKind.CONSTANT_TENSOR, InputKind.CUSTOM_OBJ)
        is_generated = is_constant and spec.target.startswith("lifted_")
        found[spec.target] = StateName(value=value, names=(spec.target, *others), is_generated=is_generated)
    return found


@dataclass(slots=True)
class Flow:
    """Inputs, outputs and state of one call, in order of their first use; `outputs` in the order of the graph."""

    inputs: dict[fx.Node, None] = field(default_factory=dict)
    outputs: dict[fx.Node, None] = field(default_factory=dict)
    state: dict[fx.Node, str] = field(default_factory=dict)
    """State that is read from the module itself, by its name there."""
    shared: dict[str, Any] = field(default_factory=dict)
    """State of other modules that becomes an attribute of this one, since the inputs of its signature are fixed."""


class Flows:
    """The flows of all calls of a tree."""

    def __init__(self, root: Call, graph: fx.Graph, state: Mapping[str, StateName]) -> None:
        self._root = root
        self._state = state
        self.owners = owners(root)
        self.by_name = {node.name: node for node in graph.nodes}
        self._flows: dict[Call, Flow] = {call: Flow() for call in (root, *root.calls())}
        order = {node: index for index, node in enumerate(root.nodes())}
        for node in root.nodes():
            for needed in node.all_input_nodes:
                self._use(needed, self.owners[node])
        for needed in graph.output_node().all_input_nodes:
            self._use(needed, root)
        for call in root.calls():
            if call.signature is not None:
                self._use_signature(call)
        for flow in self._flows.values():
            flow.outputs = dict.fromkeys(sorted(flow.outputs, key=lambda node: order[node]))

    def of(self, call: Call) -> Flow:
        """The flow of the call."""
        return self._flows[call]

    def _use(self, node: fx.Node, user: Call) -> None:
        """Note that a call uses a value: as an input of all calls between, or an output of those that compute it."""
        if is_state(node, self._state):
            owner = self._owner_of_state(node, user)
        else:
            owner = self.owners.get(node, self._root)
        around = set(owner.chain())
        for call in user.chain():
            if call in around:
                meeting = call
                break
            self._flows[call].inputs[node] = None
        else:
            raise AssertionError(f"{node} is used outside of the program")
        for call in owner.chain():
            if call is meeting:
                break
            self._flows[call].outputs[node] = None

    def _owner_of_state(self, node: fx.Node, user: Call) -> Call:
        """The innermost call, from the user outwards, whose module has the state or gets it as an attribute."""
        state = self._state[str(node.target)]
        for call in user.chain():
            flow = self._flows[call]
            if node in flow.state or node.name in _arguments(call):
                return call
            name = None if state.is_generated else state.within(call.path)
            if name is None and (call.signature is not None or state.is_generated or call.parent is None):
                name = str(node.target) if state.is_generated else f"_shared_{node.target}".replace(".", "_")
                flow.shared[name] = state.value
            if name is not None:
                flow.state[node] = name
                return call
        raise AssertionError(f"no module has {node.target!r}")

    def _use_signature(self, call: Call) -> None:
        """Use all inputs and outputs of a preserved signature, whether other nodes use them or not."""
        assert call.signature is not None
        assert call.parent is not None
        args = [arg for arg in call.signature.inputs if arg.name in self.by_name]
        given = [call.arguments.get(arg.name) or self.by_name[arg.name] for arg in args]
        for node in given:
            self._use(node, call.parent)
        for arg in call.signature.outputs:
            node = call.results.get(arg.name) or self.by_name.get(arg.name)
            if node is not None and node not in given:
                self._use(node, call)


def _arguments(call: Call) -> set[str]:
    return {arg.name for arg in call.signature.inputs} if call.signature is not None else set()


def owners(root: Call) -> dict[fx.Node, Call]:
    """The call of every node."""
    found: dict[fx.Node, Call] = {}
    for call in (root, *root.calls()):
        found.update((item, call) for item in call.items if isinstance(item, fx.Node))
    return found


def is_state(node: fx.Node, state: Mapping[str, StateName]) -> bool:
    """Whether the node reads a parameter, buffer or constant. Other attributes are functions of higher-order operators."""
    return node.op == "get_attr" and str(node.target) in state
