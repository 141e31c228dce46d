"""Checks that a function given to torch.cond, map, scan or while_loop neither writes to its inputs nor returns views of them.

Counterpart: torch/_dynamo/variables/higher_order_ops.py check_aliasing_and_input_mutation
Differs: reads the traced graph, by the schemas of its operators, so that it also holds in real mode. Two inputs may share memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from refimpl._torch import HigherOrderOperator, OpOverload, pytree, written_arguments
from refimpl.errors import NotFunctional
from refimpl.trace.higher_order.calls import Subgraph
from refimpl.trace.metadata import notes_of

_SELECTING = ("cond", "while_loop")  # their results may be operands of the function that ran
_CHANGE_STORAGE = (
    *(getattr(torch.ops.aten.set_, name) for name in torch.ops.aten.set_.overloads()),
    torch.ops.aten.resize_.default,
    torch.ops.aten.resize_as_.default,
)
_Bases = dict[torch.fx.Node, torch.fx.Node]


def check_functional(operator: str, subgraph: Subgraph) -> None:
    """Raises NotFunctional if the function writes to what it does not make, or if a result is a view of an input or result."""
    graph = subgraph.graph_module.graph
    bases: _Bases = {}
    for write in _writes(graph, bases):
        raise NotFunctional(operator, f"a function that writes to its input or to a captured tensor ({write.base})")
    taken = {node for node in bases if node.op == "placeholder"}
    for leaf in _returned_tensors(graph):
        base = _base_of_result(leaf, bases)
        if base in taken:
            raise NotFunctional(
                operator, f"a function that returns {leaf}, which shares memory with an input or a result"
            )
        taken.add(base)


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A write to an input or a captured tensor. is_of_data: not to its storage, sizes or strides, as `t_` and `set_` do."""

    base: torch.fx.Node
    is_of_data: bool


def writes_of(graph: torch.fx.Graph) -> list[Write]:
    """The writes of a function's operators to its inputs and captured tensors, also through views."""
    return [*_writes(graph, {})]


def returned_bases(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """The nodes whose memory a function's results have."""
    return {_base_of_result(leaf, {}) for leaf in _returned_tensors(graph)}


def is_strided_anew(graph: torch.fx.Graph, base: torch.fx.Node) -> bool:
    """Whether `as_strided` views the memory of this input, by places in its storage."""
    views = graph.find_nodes(op="call_function", target=torch.ops.aten.as_strided.default)
    return any(_base_of_result(view, {}) is base for view in views)


def _writes(graph: torch.fx.Graph, bases: _Bases) -> Iterator[Write]:
    """The writes in order. Fills `bases` with the node whose memory each node has, if it is an input or captured tensor."""
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            bases[node] = node
        elif node.op == "call_function":
            for base in _bases_of_write(node, bases):
                is_of_data = torch.Tag.inplace_view not in node.target.tags and node.target not in _CHANGE_STORAGE
                yield Write(base=base, is_of_data=is_of_data)
            viewed = _viewed(node)
            if viewed in bases:
                bases[node] = bases[viewed]


def _returned_tensors(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    leaves = pytree.tree_leaves(graph.output_node().args[0])
    return [x for x in leaves if isinstance(x, torch.fx.Node) and isinstance(x.meta.get("val"), torch.Tensor)]


def has_hidden_aliases(graph: torch.fx.Graph, root: torch.nn.Module) -> bool:
    """Whether a function of torch.cond or while_loop returns its operand or a view of it, and the graph, or one of those that it
    calls, writes: what is written may be the result as well, which no graph says. Without gradients torch takes such functions.

    root: has the graphs that `graph` calls.
    """
    inner = [(module.graph, module) for module in root.modules() if isinstance(module, torch.fx.GraphModule)]
    graphs = [(graph, root), *inner]
    return any(_gives_operand(*each) for each in graphs) and any(
        isinstance(node.target, OpOverload) and written_arguments(node.target)
        for each, _ in graphs
        for node in each.nodes
    )


def _gives_operand(graph: torch.fx.Graph, root: torch.nn.Module) -> bool:
    """Whether a function that torch.cond or while_loop calls in this graph returns its operand, or a view of it."""
    for node in graph.nodes:
        if getattr(node.target, "__name__", "") not in _SELECTING or not isinstance(node.target, HigherOrderOperator):
            continue
        if notes_of(node).gives_written:
            return True
        for function in node.args:
            if isinstance(function, torch.fx.Node) and function.op == "get_attr":
                inner = getattr(root, str(function.target), None)
                if isinstance(inner, torch.fx.GraphModule) and _returns_operand(inner.graph):
                    return True
    return False


def _returns_operand(graph: torch.fx.Graph) -> bool:
    return any(base.op in ("placeholder", "get_attr") for base in returned_bases(graph))


def _base_of_result(leaf: torch.fx.Node, bases: _Bases) -> torch.fx.Node:
    """The node whose memory a result has; results that are views of one intermediate have one base."""
    if leaf in bases:
        return bases[leaf]
    while (viewed := _viewed(leaf)) is not None:
        leaf = viewed
    return leaf


def _bases_of_write(node: torch.fx.Node, bases: _Bases) -> list[torch.fx.Node]:
    if not isinstance(node.target, OpOverload):
        return []
    found: list[torch.fx.Node] = []
    for position, name in written_arguments(node.target):
        given = node.args[position] if position < len(node.args) else node.kwargs.get(name)
        leaves = pytree.tree_leaves(given)
        found += [bases[leaf] for leaf in leaves if isinstance(leaf, torch.fx.Node) and leaf in bases]
    return found


def _viewed(node: torch.fx.Node) -> torch.fx.Node | None:
    """The argument that the call's result is a view of, or is itself, by the operator's schema; None if it has its own memory."""
    if not isinstance(node.target, OpOverload):
        of = node.args[0] if node.args else None
        is_element = getattr(node.target, "__name__", "") == "getitem"
        return _viewed(of) if is_element and isinstance(of, torch.fx.Node) else None
    schema = node.target._schema
    sets = [each.alias_info for each in schema.returns if each.alias_info is not None]
    for position, argument in enumerate(schema.arguments):
        is_shared = argument.alias_info is not None and any(
            each.before_set & argument.alias_info.before_set for each in sets
        )
        given = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
        if is_shared and isinstance(given, torch.fx.Node):
            return given
    return None
