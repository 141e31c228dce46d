"""Moves regions in which gradients or autocast are switched into graphs of their own, called by an operator.

Counterpart: torch/_export/passes/replace_set_grad_with_hop_pass.py, replace_autocast_with_hop_pass.py
Differs: one pass for both, which builds a new graph; results of a region keep their names. Regions in functions of higher-order
operators are found too, with the grad mode of the call as their outer mode.

Note [Which state is a region]
Nodes in the grad mode that the program is exported in are in no region, and run in the mode of the caller. Gradients and
autocast are independent of each other: an autocast region is the outer one.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from refimpl._torch import enter_autocast, exit_autocast, graph_codegen, set_grad_enabled
from refimpl.export.region_operators import GRADIENTS, wrap_with_autocast, wrap_with_set_grad_enabled
from refimpl.trace.metadata import copied_meta


@dataclass(frozen=True, slots=True)
class Region:
    """A call of a region operator: its leading arguments. `start` tells it from the next region with the same arguments."""

    operator: Any
    settings: tuple[Any, ...]
    start: fx.Node | None = None


def with_regions(graph_module: fx.GraphModule, *, has_gradients: bool) -> fx.GraphModule:
    """The module with regions in place of the calls in its graphs that switch gradients or autocast.

    has_gradients: the outer grad mode. Calls that switch to the current mode are removed as well.
    """
    surroundings = _of_functions(graph_module.graph, has_gradients)
    changed: dict[str, fx.GraphModule] = {}
    for name, child in graph_module.named_children():
        if isinstance(child, fx.GraphModule):
            made = with_regions(child, has_gradients=surroundings.get(name, has_gradients))
            if made is not child:
                changed[name] = made
    switches = _switches(graph_module.graph)
    if not switches and not changed:
        return graph_module
    return folded(graph_module, _regions(graph_module.graph, has_gradients), drop=switches, modules=changed)


def with_noted_regions(graph_module: fx.GraphModule) -> fx.GraphModule:
    """The module with the regions that were noted under `noting_grad_modes`. The notes are removed."""
    regions: dict[fx.Node, tuple[Region, ...]] = {}
    for node in graph_module.graph.nodes:
        custom = node.meta.get("custom")
        if isinstance(custom, dict) and GRADIENTS in custom:
            if node.op == "call_function":
                regions[node] = (Region(wrap_with_set_grad_enabled, (custom[GRADIENTS],)),)
            rest = {key: value for key, value in custom.items() if key != GRADIENTS}
            node.meta = {key: value for key, value in node.meta.items() if key != "custom"}
            if rest:
                node.meta["custom"] = rest
    return folded(graph_module, regions) if regions else graph_module


def _switches(graph: fx.Graph) -> set[fx.Node]:
    return {node for node in graph.nodes if node.target in (set_grad_enabled, enter_autocast, exit_autocast)}


def _of_functions(graph: fx.Graph, has_gradients: bool) -> dict[str, bool]:
    """The grad mode in which each function of a higher-order operator is called, by its name."""
    found: dict[str, bool] = {}
    for node in graph.nodes:
        if node.target is set_grad_enabled:
            has_gradients = node.args[0]
        for inner in node.all_input_nodes:
            if inner.op == "get_attr":
                is_asked = node.target is wrap_with_set_grad_enabled
                found.setdefault(str(inner.target), node.args[0] if is_asked else has_gradients)
    return found


def _regions(graph: fx.Graph, surroundings: bool) -> dict[fx.Node, tuple[Region, ...]]:
    """The regions of every call node, outermost first."""
    found: dict[fx.Node, tuple[Region, ...]] = {}
    casts: list[Region] = []
    has_gradients = surroundings
    for node in graph.nodes:
        if node.target is set_grad_enabled:
            has_gradients = node.args[0]
        elif node.target is enter_autocast:
            casts.append(Region(wrap_with_autocast, node.args, node))
        elif node.target is exit_autocast:
            is_last = bool(casts) and casts[-1].start is node.args[0]
            assert is_last, f"{node.format_node()} leaves a region that is not the last"
            casts.pop()
        elif node.op == "call_function":
            gradients = Region(wrap_with_set_grad_enabled, (has_gradients,))
            found[node] = (*casts, *((gradients,) if has_gradients != surroundings else ()))
    return found


# -------------------------------------------------------------------------------------------------------------- folding


def folded(
    graph_module: fx.GraphModule,
    regions: Mapping[fx.Node, tuple[Region, ...]],
    *,
    drop: Iterable[fx.Node] = (),
    modules: Mapping[str, fx.GraphModule] | None = None,
) -> fx.GraphModule:
    """The module with consecutive nodes of one region in a graph of their own. Other nodes keep their names.

    drop: nodes to leave out. modules: submodules to replace, by name.
    """
    old = graph_module.graph
    state = _FoldingState(graph_module, regions, dict(modules or {}))
    outer = _Level(fx.Graph(), {})
    for node in old.find_nodes(op="placeholder"):
        copy = outer.copies[node] = outer.graph.node_copy(node)
        copy.name = node.name  # fx renames nodes with names of builtins
    left_out = set(drop)
    inner = [node for node in old.nodes if node.op == "call_function" and node not in left_out]
    state.build(inner, 0, outer)
    result = old.output_node()
    outer.graph.output(fx.map_arg(result.args[0], lambda node: state.resolve(node, outer))).meta = dict(result.meta)
    made = fx.GraphModule(state.attributes(outer.graph), outer.graph, type(graph_module).__name__)
    made.meta.update(graph_module.meta)
    made.graph.set_codegen(graph_codegen(old))
    made.recompile()
    made.graph.lint()
    return made


@dataclass(slots=True)
class _Level:
    """A graph that is being built, and its copies of old nodes."""

    graph: fx.Graph
    copies: dict[fx.Node, fx.Node]


@dataclass(slots=True)
class _FoldingState:
    """Builds the graphs of regions. Mutable; one per graph module."""

    source: fx.GraphModule
    regions: Mapping[fx.Node, tuple[Region, ...]]
    modules: dict[str, fx.GraphModule]
    count: int = field(default=0)

    def build(self, nodes: Sequence[fx.Node], depth: int, level: _Level) -> None:
        """Copy nodes; those in a region at this depth become a call of the region operator."""
        for region, group in itertools.groupby(nodes, lambda node: self._region(node, depth)):
            if region is None:
                for node in group:
                    level.copies[node] = level.graph.node_copy(node, lambda used: self.resolve(used, level))
            else:
                self._call(region, list(group), depth, level)

    def _region(self, node: fx.Node, depth: int) -> Region | None:
        found = self.regions.get(node, ())
        return found[depth] if depth < len(found) else None

    def resolve(self, node: fx.Node, level: _Level) -> fx.Node:
        """The copy of a node. A get_attr is copied into every graph that uses it."""
        if node.op == "get_attr" and node not in level.copies:
            level.copies[node] = level.graph.node_copy(node)
        return level.copies[node]

    def _call(self, region: Region, nodes: list[fx.Node], depth: int, level: _Level) -> None:
        inside = set(nodes)
        used = dict.fromkeys(operand for node in nodes for operand in node.all_input_nodes if operand not in inside)
        operands = [node for node in used if node.op != "get_attr"]
        results = [node for node in nodes if any(user not in inside for user in node.users)]
        body = _Level(fx.Graph(), {})
        for node in operands:
            made = body.copies[node] = body.graph.placeholder(node.name)
            made.name = made.target = node.name
            made.meta = copied_meta(node, "val", "tensor_meta")
        self.build(nodes, depth + 1, body)
        body.graph.output(tuple(body.copies[node] for node in results))
        name = self._add(body.graph)
        graph = level.graph
        function = graph.get_attr(name)
        given = tuple(self.resolve(node, level) for node in operands)
        call = graph.call_function(region.operator, (*region.settings, function, *given), name=region.operator.__name__)
        call.meta = {"val": tuple(node.meta.get("val") for node in results)}
        stack = _common_stack(nodes)
        if stack is not None:
            function.meta["nn_module_stack"] = call.meta["nn_module_stack"] = stack
        for index, node in enumerate(results):
            made = level.copies[node] = graph.call_function(operator.getitem, (call, index), name=node.name)
            made.meta = dict(node.meta)

    def _add(self, graph: fx.Graph) -> str:
        name = f"submod_{self.count}"
        while hasattr(self.source, name) or name in self.modules:
            self.count += 1
            name = f"submod_{self.count}"
        self.modules[name] = fx.GraphModule(self.attributes(graph), graph, name)
        return name

    def attributes(self, graph: fx.Graph) -> dict[str, Any]:
        """The attributes that the graph reads."""
        names = [str(node.target) for node in graph.find_nodes(op="get_attr")]
        return {name: self.modules.get(name) or operator.attrgetter(name)(self.source) for name in names}


def _common_stack(nodes: Sequence[fx.Node]) -> dict[str, Any] | None:
    """The common part of the nodes' module stacks."""
    stacks = [list(stack.items()) for node in nodes if (stack := node.meta.get("nn_module_stack"))]
    if not stacks:
        return None
    shared = itertools.takewhile(lambda entries: all(e == entries[0] for e in entries), zip(*stacks, strict=False))
    return dict(entries[0] for entries in shared)
