"""What goes into every call and what comes out of it: values of other calls, and state that is no part of its module.

Counterpart: torch/export/unflatten.py _ModuleFrame.add_placeholder, add_to_consts_map
Differs: computed for all calls before a graph is made. State that has several names is read by the one inside of the module that
reads it.
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
    """A tensor or object of the program, and all names it has. A generated name is no attribute of the user's."""

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
    """By target."""
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
    """Of one call. All in the order in which they are needed, `outputs` in the order of the graph."""

    inputs: dict[fx.Node, None] = field(default_factory=dict)
    outputs: dict[fx.Node, None] = field(default_factory=dict)
    state: dict[fx.Node, str] = field(default_factory=dict)
    """What is read of the module itself, and the name it has there."""
    shared: dict[str, Any] = field(default_factory=dict)
    """State of other modules that is an attribute of this one as well: its inputs are those of the original's call."""


class Flows:
    """Of all calls of a tree."""

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
        """Inputs and outputs of the call."""
        return self._flows[call]

    def _use(self, node: fx.Node, user: Call) -> None:
        """The call needs the value."""
        if is_state(node, self._state):
            home = self._home(node, user)
        else:
            home = self.owners.get(node, self._root)
        around = set(home.chain())
        for call in user.chain():
            if call in around:
                meeting = call
                break
            self._flows[call].inputs[node] = None
        else:
            raise AssertionError(f"{node} is used outside of the program")
        for call in home.chain():
            if call is meeting:
                break
            self._flows[call].outputs[node] = None

    def _home(self, node: fx.Node, user: Call) -> Call:
        """The innermost call around the user whose module has the state, or is to have it."""
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
        raise AssertionError(f"{node.target!r} has no home")

    def _use_signature(self, call: Call) -> None:
        """A call that keeps its signature is handed its inputs and returns its outputs, whether they are used or not."""
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
    """The call that every node is in."""
    found: dict[fx.Node, Call] = {}
    for call in (root, *root.calls()):
        found.update((item, call) for item in call.items if isinstance(item, fx.Node))
    return found


def is_state(node: fx.Node, state: Mapping[str, StateName]) -> bool:
    """Whether the node reads a parameter, buffer or constant; other attributes are functions of operators."""
    return node.op == "get_attr" and str(node.target) in state
