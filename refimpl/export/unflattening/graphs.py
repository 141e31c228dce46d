"""Writes the graph of each call: its nodes, with a call_module node for each inner call.

Counterpart: torch/export/unflatten.py _ModuleFrame.run_outer, finalize_outputs, create_placeholder
Differs: of the arguments of a preserved signature only containers are flattened.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from refimpl._torch import pytree
from refimpl.export.graph_signature import ConstantArgument
from refimpl.export.module_call_graph import ModuleCallSignature
from refimpl.export.unflattening.calls import Call
from refimpl.export.unflattening.flow import Flows, StateName, is_state
from refimpl.export.unflattening.modules import flatten_as, unflatten_as


@dataclass(frozen=True, slots=True, kw_only=True)
class CallGraph:
    """A graph, and the attributes it reads besides state and submodules."""

    graph: fx.Graph
    attributes: dict[str, Any] = field(default_factory=dict)
    is_called_by_names: bool = False


# Makes a module from the graph of a call, and returns its name in the calling module.
Placing = Callable[[Call, CallGraph], str]


class GraphWriter:
    """Writes the graphs of a tree of calls. attribute: returns an attribute of the program's graph module by name."""

    def __init__(
        self, flows: Flows, state: Mapping[str, StateName], attribute: Callable[[str], Any], place: Placing
    ) -> None:
        self._flows = flows
        self._state = state
        self._attribute = attribute
        self._place = place

    def root(self, root: Call, placeholders: Sequence[fx.Node], output: fx.Node) -> CallGraph:
        """The graph of the whole program, which takes flat inputs and returns a tuple."""
        writing = _Writing(self, root)
        for node in placeholders:
            writing.take(node)
        writing.write_items()
        writing.graph.output(fx.map_arg(output.args[0], writing.value))
        return CallGraph(graph=writing.graph, attributes=writing.attributes)

    def inner(self, call: Call) -> CallGraph:
        """The graph of an inner call."""
        writing = _Writing(self, call)
        flow = self._flows.of(call)
        if call.signature is not None:
            writing.take_arguments(call.signature)
            writing.write_items()
            writing.return_result(call.signature)
        else:
            for node in flow.inputs:
                writing.take(node)
            writing.write_items()
            values = [writing.value(node) for node in flow.outputs]
            writing.graph.output(values[0] if len(values) == 1 else tuple(values))
        return CallGraph(
            graph=writing.graph, attributes=writing.attributes, is_called_by_names=call.signature is not None
        )


class _Writing:
    """Writes one graph. Mutable."""

    def __init__(self, writer: GraphWriter, call: Call) -> None:
        self.graph = fx.Graph()
        self.attributes: dict[str, Any] = dict(writer._flows.of(call).shared)
        self._writer = writer
        self._call = call
        self._values: dict[fx.Node, Any] = {}
        self._num_specs = 0

    def value(self, node: fx.Node) -> Any:
        """The new node for a node of the program."""
        return self._values[node]

    def take(self, node: fx.Node) -> None:
        """Make a placeholder for the value."""
        name = str(node.target) if node.op == "placeholder" else node.name
        made = self.graph.placeholder(name)
        made.meta = _bare(node.meta)
        self._values[node] = made

    # ------------------------------------------------------------------------------------------------------- the body

    def write_items(self) -> None:
        """Write get_attr nodes for state, then nodes and calls in order."""
        for node, name in self._writer._flows.of(self._call).state.items():
            made = self.graph.get_attr(name)
            made.meta = dict(node.meta)
            self._values[node] = made
        for item in self._call.items:
            if isinstance(item, Call):
                self._write_call(item)
            else:
                self._write_node(item)

    def _write_node(self, node: fx.Node) -> None:
        if node.op == "get_attr" and not is_state(node, self._writer._state):
            name = str(node.target)
            self.attributes[name] = self._writer._attribute(name)
        self._values[node] = self.graph.node_copy(node, self.value)

    def _write_call(self, call: Call) -> None:
        name = self._writer._place(call, self._writer.inner(call))
        flow = self._writer._flows.of(call)
        scopes = list(call.chain())[::-1]
        stack = {each.scope.key: (each.path, each.scope.type_name) for each in scopes[:-1]}
        if call.signature is not None:
            self._write_signature_call(call, name, call.signature, stack)
            return
        made = self._call_module(name, tuple(self.value(node) for node in flow.inputs), {})
        made.meta["nn_module_stack"] = stack
        outputs = list(flow.outputs)
        if len(outputs) == 1:
            made.meta["val"] = outputs[0].meta.get("val")
            self._values[outputs[0]] = made
            return
        made.meta["val"] = tuple(node.meta.get("val") for node in outputs)
        for index, node in enumerate(outputs):
            self._values[node] = self._item(made, index)

    def _call_module(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        # In generated code `self` is the module itself.
        own_name = "self_1" if name == "self" else None
        return self.graph.create_node("call_module", name, args, kwargs, own_name)

    # ----------------------------------------------------------------------------------------- calls with a signature

    def take_arguments(self, signature: ModuleCallSignature) -> None:
        """Make placeholders for the original arguments, and flatten them."""
        args, kwargs = _arguments(signature, [self._named(arg) for arg in signature.inputs])
        positions = list(signature.forward_arg_names or [])[: len(args)]
        positions += [f"arg_{index}" for index in range(len(positions), len(args))]
        taken = [(self.graph.placeholder(name), each) for name, each in zip(positions, args, strict=True)]
        taken += [(self.graph.placeholder(name), each) for name, each in kwargs.items()]
        for made, (leaves, spec) in taken:
            for leaf, value in zip(leaves, self._leaves(made, leaves, spec), strict=True):
                if isinstance(leaf, fx.Node):
                    self._values.setdefault(leaf, value)

    def return_result(self, signature: ModuleCallSignature) -> None:
        """Return the result in its original containers."""
        leaves = []
        for arg in signature.outputs:
            own = self._call.results.get(arg.name)
            leaves.append(self._argument(self._named(arg) if own is None else own))
        self.graph.output(self._container(leaves, signature.out_spec))

    def _write_signature_call(
        self, call: Call, name: str, signature: ModuleCallSignature, stack: dict[str, tuple[str, str]]
    ) -> None:
        given = [call.arguments.get(arg.name) or self._named(arg) for arg in signature.inputs]
        args, kwargs = _arguments(signature, [self._argument(each) for each in given])
        made = self._call_module(
            name,
            tuple(self._container(leaves, spec) for leaves, spec in args),
            {key: self._container(leaves, spec) for key, (leaves, spec) in kwargs.items()},
        )
        made.meta["nn_module_stack"] = stack
        outputs = [call.results.get(arg.name) or self._named(arg) for arg in signature.outputs]
        needed = self._writer._flows.of(call).outputs
        for node, value in zip(outputs, self._leaves(made, outputs, signature.out_spec), strict=True):
            if isinstance(node, fx.Node) and node in needed:
                self._values.setdefault(node, value)

    def _named(self, arg: Any) -> Any:
        """The node of an argument, or its constant value. None if the program no longer has the node."""
        if isinstance(arg, ConstantArgument):
            return arg.value
        return self._writer._flows.by_name.get(arg.name)

    def _argument(self, value: Any) -> Any:
        return self._values[value] if isinstance(value, fx.Node) else value

    def _container(self, leaves: Sequence[Any], spec: pytree.TreeSpec) -> Any:
        if spec.is_leaf():
            return leaves[0]
        return self.graph.call_function(unflatten_as, (list(leaves), self._spec(spec)))

    def _leaves(self, value: fx.Node, leaves: Sequence[Any], spec: pytree.TreeSpec) -> list[fx.Node]:
        """New nodes for the leaves of a container. leaves: the program's nodes, or constants, in the same places."""
        seen = [leaf.meta.get("val") if isinstance(leaf, fx.Node) else leaf for leaf in leaves]
        value.meta["val"] = pytree.tree_unflatten(seen, spec)
        if spec.is_leaf():
            return [value]
        if not spec.num_leaves:
            return []
        flat = self.graph.call_function(flatten_as, (value, self._spec(spec)))
        flat.meta["val"] = seen
        return [self._item(flat, index) for index in range(spec.num_leaves)]

    def _spec(self, spec: pytree.TreeSpec) -> fx.Node:
        name = f"_spec_{self._num_specs}"
        self._num_specs += 1
        self.attributes[name] = spec
        return self.graph.get_attr(name)

    def _item(self, node: fx.Node, index: int) -> fx.Node:
        made = self.graph.call_function(operator.getitem, (node, index))
        values = node.meta["val"]
        made.meta["val"] = values[index]
        return made


_Leaves = tuple[list[Any], pytree.TreeSpec]


def _arguments(signature: ModuleCallSignature, leaves: Sequence[Any]) -> tuple[list[_Leaves], dict[str, _Leaves]]:
    """The leaves and the spec of every argument, positional ones and by name."""
    args_spec, kwargs_spec = signature.in_spec.children()
    rest = list(leaves)

    def taken(spec: pytree.TreeSpec) -> _Leaves:
        found = rest[: spec.num_leaves]
        del rest[: spec.num_leaves]
        return found, spec

    keys: list[str] = list(kwargs_spec.context or ())
    args = [taken(spec) for spec in args_spec.children()]
    kwargs = {key: taken(spec) for key, spec in zip(keys, kwargs_spec.children(), strict=True)}
    return args, kwargs


def _bare(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The meta of a placeholder, without module stack and stack trace."""
    return {key: value for key, value in meta.items() if key not in ("nn_module_stack", "stack_trace")}


# ------------------------------------------------------------------------------------------------------------ equality


def form(made: CallGraph) -> Any:
    """A form of the graph that is equal for graphs that differ in the names of nodes only."""
    return _form(made.graph, made.attributes, is_called_by_names=made.is_called_by_names)


def graph_form(module: fx.GraphModule) -> Any:
    """The comparable form of a graph module, including functions of higher-order operators."""
    return _form(module.graph, dict(module.named_children()))


def _form(graph: fx.Graph, attributes: Mapping[str, Any], *, is_called_by_names: bool = False) -> Any:
    numbers = {node: index for index, node in enumerate(graph.nodes)}

    def of(value: Any) -> Any:
        match value:
            case fx.Node():
                return ("node", numbers[value])
            case list() | tuple():
                return ("sequence", [of(each) for each in value])
            case dict():
                return ("dict", [(key, of(each)) for key, each in value.items()])
            case slice():
                return ("slice", of(value.start), of(value.stop), of(value.step))
            case float() | complex():
                return (type(value), repr(value))
            case _:
                return (type(value), value)

    rows = []
    for node in graph.nodes:
        target: Any = node.target
        if node.op == "get_attr" and target in attributes:
            value = attributes[target]
            is_function = isinstance(value, fx.GraphModule)
            target = graph_form(value) if is_function else _of_attribute(value)
        elif node.op == "output" or (node.op == "placeholder" and not is_called_by_names):
            target = None
        rows.append((node.op, target, of(node.args), of(node.kwargs)))
    return rows


def _of_attribute(value: Any) -> Any:
    return ("spec", value) if isinstance(value, pytree.TreeSpec) else ("object", id(value))
