"""Checks that a function given to torch.cond, map, scan or while_loop neither writes to its inputs nor returns views of them.

Counterpart: torch/_dynamo/variables/higher_order_ops.py check_aliasing_and_input_mutation
Differs: reads the traced graph, by the schemas of its operators, so that it also holds in real mode. Two inputs may share memory.
"""

from __future__ import annotations

from typing import Any

import torch

from refimpl._torch import HigherOrderOperator, OpOverload, pytree, written_arguments
from refimpl.errors import NotFunctional
from refimpl.trace.higher_order.calls import Subgraph

_SELECTING = ("cond", "while_loop")  # their results may be operands of the function that ran
_Bases = dict[torch.fx.Node, torch.fx.Node]


def check_functional(operator: str, subgraph: Subgraph) -> None:
    """Raises NotFunctional if the function writes to what it does not make, or if a result is a view of an input or result."""
    graph = subgraph.graph_module.graph
    bases: _Bases = {}
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            bases[node] = node
        elif node.op == "call_function":
            written = _base_of_write(node, bases)
            if written is not None:
                raise NotFunctional(
                    operator, f"a function that writes to its input or to a captured tensor ({written})"
                )
            viewed = _viewed(node)
            if viewed in bases:
                bases[node] = bases[viewed]
    returned: Any = graph.output_node().args[0]
    taken = {node for node in bases if node.op == "placeholder"}
    for leaf in pytree.tree_leaves(returned):
        if not isinstance(leaf, torch.fx.Node) or not isinstance(leaf.meta.get("val"), torch.Tensor):
            continue
        base = _base_of_result(leaf, bases)
        if base in taken:
            raise NotFunctional(
                operator, f"a function that returns {leaf}, which shares memory with an input or a result"
            )
        taken.add(base)


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
        for function in node.args:
            if isinstance(function, torch.fx.Node) and function.op == "get_attr":
                inner = getattr(root, str(function.target), None)
                if isinstance(inner, torch.fx.GraphModule) and _returns_operand(inner.graph):
                    return True
    return False


def _returns_operand(graph: torch.fx.Graph) -> bool:
    leaves = [leaf for leaf in pytree.tree_leaves(graph.output_node().args[0]) if isinstance(leaf, torch.fx.Node)]
    return any(
        isinstance(leaf.meta.get("val"), torch.Tensor) and _base_of_result(leaf, {}).op in ("placeholder", "get_attr")
        for leaf in leaves
    )


def _base_of_result(leaf: torch.fx.Node, bases: _Bases) -> torch.fx.Node:
    """The node whose memory a result has; results that are views of one intermediate have one base."""
    if leaf in bases:
        return bases[leaf]
    while (viewed := _viewed(leaf)) is not None:
        leaf = viewed
    return leaf


def _base_of_write(node: torch.fx.Node, bases: _Bases) -> torch.fx.Node | None:
    if not isinstance(node.target, OpOverload):
        return None
    for position, name in written_arguments(node.target):
        given = node.args[position] if position < len(node.args) else node.kwargs.get(name)
        for leaf in pytree.tree_leaves(given):
            if isinstance(leaf, torch.fx.Node) and leaf in bases:
                return bases[leaf]
    return None


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
