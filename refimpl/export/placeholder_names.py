"""Names of placeholders: arguments of forward by their names, parameters, buffers and constants with a prefix.

Counterpart: torch/_export/utils.py placeholder_naming_pass, placeholder_prefixes
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch import fx

from refimpl._torch import graph_codegen, pytree
from refimpl.export.graph_signature import InputKind

PREFIXES = {
    InputKind.USER_INPUT: "",
    InputKind.PARAMETER: "p_",
    InputKind.BUFFER: "b_",
    InputKind.CONSTANT_TENSOR: "c_",
    InputKind.CUSTOM_OBJ: "obj_",
    InputKind.TOKEN: "token",
}


def name_of_state(kind: InputKind, target: str) -> str:
    """`p_lin_weight` for the parameter `lin.weight`."""
    return PREFIXES[kind] + re.sub(r"[^a-zA-Z0-9]", "_", target).lower()


def name_of_input(words: Iterable[str]) -> str:
    """`d_k_0` for the first entry under the key `k` of the argument `d`."""
    name = re.sub(r"[^a-zA-Z0-9_]", "_", "_".join(words).lower())
    return name if name.isidentifier() else f"_{name}"


class TakenNames:
    """The names in use. Mutable."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def unique(self, name: str) -> str:
        """The name, with a number appended if it is in use."""
        candidate, number = name, 0
        while candidate in self._taken:
            number += 1
            candidate = f"{name}_{number}"
        self._taken.add(candidate)
        return candidate


def name_nested_placeholders(graph_module: fx.GraphModule) -> None:
    """Gives placeholders of nested graphs, such as branches, the names of the operands that the call passes for them."""
    for node in graph_module.graph.nodes:
        places = [place for place, arg in enumerate(node.args) if _graph_of(graph_module, arg) is not None]
        if node.op != "call_function" or not places:
            continue
        operands = pytree.tree_leaves(node.args[places[-1] + 1 :])
        for place in places:
            nested = _graph_of(graph_module, node.args[place])
            assert nested is not None
            placeholders = nested.graph.find_nodes(op="placeholder")
            if len(placeholders) == len(operands):
                _rename(nested, dict(zip(placeholders, operands, strict=True)))
            name_nested_placeholders(nested)


def _graph_of(graph_module: fx.GraphModule, arg: object) -> fx.GraphModule | None:
    if not isinstance(arg, fx.Node) or arg.op != "get_attr":
        return None
    found = getattr(graph_module, str(arg.target), None)
    return found if isinstance(found, fx.GraphModule) else None


def _rename(nested: fx.GraphModule, operands: dict[fx.Node, object]) -> None:
    """Each placeholder gets the name of its operand, with a number where another node has it.

    The nodes move to a new graph: the old one does not know a name that it did not give, and could give it to a node added later.
    """
    taken = TakenNames()
    for node in nested.graph.nodes:
        if node not in operands:
            taken.unique(node.name)
    names = {node: taken.unique(value.name) for node, value in operands.items() if isinstance(value, fx.Node)}
    graph = fx.Graph()
    graph.set_codegen(graph_codegen(nested.graph))
    copies: dict[fx.Node, fx.Node] = {}
    for node in nested.graph.nodes:
        if node in names:
            name = names[node]
            copies[node] = graph.create_node("placeholder", name, node.args, {}, name, node.type)
            copies[node].name = name  # fx renames nodes with names of builtins, such as `input`
            copies[node].meta = {**node.meta}
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            copies[node].name = node.name
    nested.graph = graph
