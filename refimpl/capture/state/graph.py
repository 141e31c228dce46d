"""The graph of a segment: nodes for calls of torch functions, named as upstream names them.

Counterpart: torch/_dynamo/output_graph.py OutputGraph, SubgraphTracer
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import fx

from refimpl._torch import SYMBOLIC_TYPES, LazyGraphModule, printed_rightly, upstream_shape_error
from refimpl.backend_registry import CapturedGraph
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards.sources import Source, placeholder_name
from refimpl.capture.public.fake_values import set_example_value
from refimpl.trace.metadata import note, notes_of

_NOT_FOUND = upstream_shape_error("PendingUnbackedSymbolNotFound")


class Notes(Protocol):
    """Notes the program's position for each node, and writes it into the nodes at the end."""

    body_names: set[str]

    def note(self, node: fx.Node) -> None: ...

    def name_of_input(self, source: Source) -> str: ...

    def describe(self, graph: fx.Graph) -> None: ...


class SegmentGraph:
    """A graph under construction."""

    def __init__(self, notes: Notes) -> None:
        self.graph = fx.Graph()
        self.notes = notes
        self.attributes = torch.nn.Module()  # the graphs of functions given to higher-order operators, by name
        self.regions: dict[Any, tuple[str, fx.GraphModule]] = {}  # graphs of nested compile regions, by their content
        self.region_calls: dict[Any, list[Any]] = {}  # those that were captured, by the region's code
        self._targets = set[str]()
        self.sources: list[Source] = []  # of the inputs, in order
        self.examples: list[Any] = []  # the inputs' values during capture
        self._names: list[str] = []
        self.fake_inputs: Callable[[Sequence[Source], Sequence[Any]], list[Any] | None] = lambda sources, examples: None
        self._last_input: fx.Node | None = None
        self.sets_state = False
        self._setters: list[fx.Node] = []
        self.has_effects = False  # whether it writes to a tensor or has another effect that must not happen twice

    def input(self, source: Source, fake: Any, real: Any) -> fx.Node:
        """A placeholder. Placeholders come first in the graph, in order of first use."""
        place = self.graph._root if self._last_input is None else self._last_input
        with self.graph.inserting_after(place):
            target = self._unused(placeholder_name(self.notes.name_of_input(source)))
            node = self.graph.create_node("placeholder", target, name=target.lower().rstrip("_") + "_")
        set_example_value(node, fake)
        note(node, source=source)
        self.examples.append(real)
        self._names.append(node.name)
        self._last_input = node
        self.sources.append(source)
        return node

    def _unused(self, name: str) -> str:
        """The name, with a number if another input has it: it becomes a variable of the graph's code."""
        found, count = name, 0
        while found in self._targets:
            count += 1
            found = f"{name}{count}_"
        self._targets.add(found)
        return found

    def call(self, kind: str, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], value: Any) -> fx.Node:
        """A node for a call that returned `value` on fakes. Raises GraphBreak if the call made an unbacked symbol that is not
        in `value`.
        """
        node = self.graph.create_node(kind, printed_rightly(target, args), tuple(args), dict(kwargs))
        try:
            set_example_value(node, value)
        except _NOT_FOUND as error:
            self.graph.erase_node(node)
            raise GraphBreak("data_dependent_read", what=getattr(target, "__name__", str(target))) from error
        self.notes.note(node)
        return node

    def set_state(self, setter: Any, *state: Any, **named: Any) -> fx.Node:
        """A node that changes a mode of torch. A graph of such nodes alone is not compiled."""
        node = self.graph.create_node("call_function", setter, state, named)
        self._setters.append(node)
        self.sets_state = True
        return node

    def attach(self, prefix: str, body: fx.GraphModule) -> fx.Node:
        """A node for the graph of a higher-order operator's function, which becomes an attribute of the graph module."""
        name = self._free_name(prefix, self.notes.body_names)
        self.notes.body_names.add(name)
        self.attributes.add_module(name, body)
        return self.attribute(name)

    def attribute(self, name: str) -> fx.Node:
        """A node for an attribute of the graph module, at the line of the program that runs now."""
        node = self.graph.get_attr(name)
        self.notes.note(node)
        return node

    def attach_class(self, class_: type) -> fx.Node:
        """A node for a class, which becomes an attribute of the graph module: the code of a graph has no name for it."""
        return self.attach_object(class_.__name__, class_)

    def attach_object(self, prefix: str, found: Any) -> fx.Node:
        """A node for another object that the code of a graph has no name for."""
        name = self._free_name(prefix)
        setattr(self.attributes, name, found)
        return self.graph.get_attr(name)

    def _free_name(self, prefix: str, others: Collection[str] = ()) -> str:
        """The first name with a number that neither an attribute of this graph has nor one of the others."""
        names = map(f"{prefix}_{{}}".format, itertools.count())
        return next(name for name in names if not hasattr(self.attributes, name) and name not in others)

    def part(self, node: fx.Node, index: int, value: Any) -> fx.Node:
        """A node for an element of another node's output."""
        return self.call("call_function", operator.getitem, (node, index), {}, value)

    def local(self, node: fx.Node) -> fx.Node:
        """The node, for use in this graph."""
        assert node.graph is self.graph, "a node of a body is used outside of it"
        return node

    def finish(self, outputs: Sequence[fx.Node], *, is_followed: bool) -> fx.GraphModule | None:
        """The graph module, with the outputs as one flat tuple; None where there is nothing to compute.

        Numbers, parts and inputs that no node uses are removed: guards hold what the program learned from them.
        is_followed: whether the program goes on after the graph.
        """
        self.graph.output(tuple(outputs))
        self.drop_unused()
        unused_inputs = {node.name: node for node in self.graph.nodes if node.op == "placeholder" and not node.users}
        for node in unused_inputs.values():
            self.graph.erase_node(node)
        self._forget({*unused_inputs})
        calls = sum(node.op.startswith("call") for node in self.graph.nodes)
        if calls == len(self._setters):
            return None
        self.notes.describe(self.graph)
        module = LazyGraphModule(self.attributes, self.graph)
        nest_sources(module)
        fakes = self.fake_inputs(self.sources, self.examples)
        module.meta["captured"] = CapturedGraph(fake_inputs=fakes, is_followed=is_followed)
        return module

    def install(
        self, is_free: Callable[[Source], bool], outputs: Sequence[fx.Node]
    ) -> list[tuple[Source, torch.Tensor]]:
        """Makes input tensors with such sources, unless they are outputs, attributes of the graph module. Returns them with their
        sources.
        """
        found = []
        for node in [*self.graph.find_nodes(op="placeholder")]:
            source = notes_of(node).source
            tensor = self.examples[self._names.index(node.name)]
            if source is None or not is_free(source) or not isinstance(tensor, torch.Tensor) or node in outputs:
                continue
            name = self._free_name(node.name)
            if isinstance(tensor, torch.nn.Parameter):
                self.attributes.register_parameter(name, tensor)
            else:
                self.attributes.register_buffer(name, tensor)
            with self.graph.inserting_before(next(each for each in self.graph.nodes if each.op != "placeholder")):
                made = self.graph.get_attr(name)
            made.meta = dict(node.meta)
            node.replace_all_uses_with(made)
            self.graph.erase_node(node)
            self._forget({node.name})
            found.append((source, tensor))
        return found

    def inputs_given(self, outputs: Sequence[fx.Node]) -> Callable[..., tuple[Any, ...]]:
        """A function that selects the outputs from the inputs, for a segment without a graph. (An array shares memory with its
        input.)
        """
        places = [self.sources.index(notes_of(node).source) for node in outputs]
        return lambda *inputs: tuple(inputs[place] for place in places)

    def drop_unused(self) -> None:
        """Removes unused nodes for numbers and elements."""
        for node in reversed(self.graph.nodes):
            if node.users or node.op in ("output", "placeholder"):
                continue
            if node.target is operator.getitem or isinstance(node.meta.get("example_value"), SYMBOLIC_TYPES):
                self.graph.erase_node(node)

    def _forget(self, unused: set[str]) -> None:
        kept = [index for index, name in enumerate(self._names) if name not in unused]
        self.sources = [self.sources[index] for index in kept]
        self.examples = [self.examples[index] for index in kept]
        self._names = [self._names[index] for index in kept]


def nest_sources(module: fx.GraphModule) -> None:
    """Begin `source_fn_stack` of nodes in the graph of a higher-order operator's function with that of the operator's node."""
    around: dict[fx.GraphModule, list[Any]] = {}
    for node in module.graph.nodes:
        for body in node.all_input_nodes if "source_fn_stack" in node.meta else ():
            found = getattr(module, str(body.target), None) if body.op == "get_attr" else None
            if isinstance(found, fx.GraphModule):
                around.setdefault(found, node.meta["source_fn_stack"])
    for body, stack in around.items():
        for node in body.graph.nodes:
            if "source_fn_stack" in node.meta:
                node.meta["source_fn_stack"] = [*stack, *node.meta["source_fn_stack"]]
        nest_sources(body)
