"""Calls that keep the signature of the original are closed: they need their inputs, give their outputs, and nothing else.

Counterpart: torch/export/unflatten.py _ModuleFrame.copy_sym_call_function
Differs: a size is read from any tensor at hand that has it, before what computed it is computed again.
"""

from __future__ import annotations

import torch
from torch import fx

from refimpl.errors import UnsupportedByRefimpl
from refimpl.export.unflatten_calls import Call
from refimpl.export.unflatten_flow import owners

_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_READS_DATA = ("item", "_local_scalar_dense")


class Closing:
    """Gives every call numbers of its own in the place of those it must not have."""

    def __init__(self, root: Call, graph: fx.Graph, state: set[fx.Node]) -> None:
        self._root = root
        self._graph = graph
        self._state = state
        self._owners = owners(root)
        self._by_name = {node.name: node for node in graph.nodes}
        self._made: dict[tuple[fx.Node, Call], fx.Node] = {}

    def close(self) -> None:
        """Changes the graph and the items of calls. Raises UnsupportedByRefimpl where a tensor passes a closed border."""
        if not any(call.signature is not None for call in self._root.calls()):
            return
        for node in list(self._root.nodes()):
            user = self._owners[node]
            for needed in list(node.all_input_nodes):
                if self._blocking(needed, user) is not None:
                    node.replace_input_with(needed, self._at_hand(needed, user, node))
        for call in self._root.calls():
            self._close_results(call)
        output = self._graph.output_node()
        for needed in list(output.all_input_nodes):
            if self._blocking(needed, self._root) is not None:
                output.replace_input_with(needed, self._at_hand(needed, self._root, output))

    def _close_results(self, call: Call) -> None:
        """A number that the call returns and that was known before it is its own as well."""
        for arg in call.signature.outputs if call.signature is not None else ():
            node = self._by_name.get(arg.name)
            if node is not None and self._blocking(node, call) is not None:
                call.results[arg.name] = self._at_hand(node, call, list(call.nodes())[-1].next)

    def _blocking(self, node: fx.Node, user: Call) -> Call | None:
        """The call whose signature is in the way of the value, if one is."""
        if node in self._state:
            return None
        owner = self._owners.get(node, self._root)
        around, within = set(owner.chain()), set(user.chain())
        for call in user.chain():
            if call in around:
                break
            if call.signature is not None and node.name not in {arg.name for arg in call.signature.inputs}:
                return call
        for call in owner.chain():
            if call in within:
                break
            if call.signature is not None and node.name not in {arg.name for arg in call.signature.outputs}:
                return call
        return None

    def _at_hand(self, node: fx.Node, user: Call, before: fx.Node) -> fx.Node:
        """A node in the call, or in one around it that has no border between, that has the same value."""
        while user.signature is None and user.parent is not None:
            user = user.parent
        if (node, user) in self._made:
            return self._made[node, user]
        blocking = self._blocking(node, user)
        if blocking is None:
            return node
        if not isinstance(node.meta.get("val"), _NUMBERS):
            raise _blocked(node, blocking)
        made = self._size_of_tensor(node, user, blocking, before)
        if made is None:
            if getattr(getattr(node.target, "_schema", None), "name", "").split("::")[-1] in _READS_DATA:
                raise _blocked(node, blocking)
            copies = {needed: self._at_hand(needed, user, before) for needed in node.all_input_nodes}
            with self._graph.inserting_before(before):
                made = self._graph.node_copy(node, lambda needed: copies[needed])
            self._place(made, user, before)
        self._made[node, user] = made
        return made

    def _size_of_tensor(self, node: fx.Node, user: Call, blocking: Call, before: fx.Node) -> fx.Node | None:
        """The number as a size of an input of a closed call around the user, or of an output of the one in the way."""
        signatures = [call.signature for call in (*user.chain(), blocking) if call.signature is not None]
        args = [arg for signature in signatures for arg in (*signature.inputs, *signature.outputs)]
        for arg in args:
            tensor = self._by_name.get(arg.name)
            value = None if tensor is None else tensor.meta.get("val")
            if tensor is None or not isinstance(value, torch.Tensor) or self._blocking(tensor, user) is not None:
                continue
            if not tensor < before:
                continue
            for dim, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt) and size.node.expr == node.meta["val"].node.expr:
                    with self._graph.inserting_before(before):
                        made = self._graph.call_function(torch.ops.aten.sym_size.int, (tensor, dim))
                    made.meta = {key: node.meta[key] for key in ("val", "stack_trace") if key in node.meta}
                    self._place(made, user, before)
                    return made
        return None

    def _place(self, node: fx.Node, user: Call, before: fx.Node) -> None:
        self._owners[node] = user
        self._by_name[node.name] = node
        inner: fx.Node | Call | None = before
        if before not in user.items:
            inner = next((call for call in self._owners.get(before, self._root).chain() if call.parent is user), None)
        user.items.insert(len(user.items) if inner is None else user.items.index(inner), node)


def _blocked(node: fx.Node, call: Call) -> UnsupportedByRefimpl:
    return UnsupportedByRefimpl(
        seen=f"{node.name!r}, which passes between {call.name!r} and what is around it, and is neither an argument nor a result",
        supported="modules that keep their signature and share nothing else but state",
        do="hand it over as an argument or result, or leave the module out of preserve_module_call_signature",
    )
