"""Closes calls with preserved signatures: no values pass in or out except the signature's inputs and outputs.

Counterpart: torch/export/unflatten.py _ModuleFrame.copy_sym_call_function
Differs: a size is read from any available tensor that has it; only else it is computed again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from refimpl._torch import SYMBOLIC_TYPES
from refimpl.errors import UnsupportedByRefimpl
from refimpl.export.graph_signature import ConstantArgument
from refimpl.export.unflattening.calls import Call
from refimpl.export.unflattening.flow import owners
from refimpl.trace.eager_facts import returned_operand
from refimpl.trace.metadata import copied_meta

_READS_DATA = ("item", "_local_scalar_dense")


class Closing:
    """Computes symbolic numbers again inside closed calls, where they would pass a closed call's boundary."""

    def __init__(self, root: Call, graph: fx.Graph, state: set[fx.Node]) -> None:
        self._root = root
        self._graph = graph
        self._state = state
        self._owners = owners(root)
        self._by_name = {node.name: node for node in graph.nodes}
        self._made: dict[tuple[fx.Node, Call], fx.Node] = {}

    def close(self) -> None:
        """Change the graph and the items of calls. Raises UnsupportedByRefimpl if a tensor passes a boundary."""
        for node in list(self._owners):
            self._use_argument_outside(node)
        if not any(call.signature is not None for call in self._root.calls()):
            return
        for node in list(self._root.nodes()):
            self._take_own_size(node)
        self._pull_updates()
        for node in list(self._root.nodes()):
            user = self._owners[node]
            for needed in list(node.all_input_nodes):
                if self._blocking(needed, user) is not None:
                    node.replace_input_with(needed, self._available(needed, user, node))
        for call in self._root.calls():
            self._close_arguments(call)
            self._close_results(call)
        output = self._graph.output_node()
        for needed in list(output.all_input_nodes):
            if self._blocking(needed, self._root) is not None:
                output.replace_input_with(needed, self._available(needed, self._root, output))

    def _use_argument_outside(self, node: fx.Node) -> None:
        """Let users outside a call read its argument in place of `node`, if `node` is this argument itself (`x.add_(1)`), and the
        call has other results or its signature does not return it."""
        source = _returned_argument(node)
        while source is not None and (earlier := _returned_argument(source)) is not None:
            source = earlier
        owner = self._owners[node]
        if source is None or self._owners.get(source, self._root) is owner:
            return
        users = [user for user in node.users if not self._is_in(user, owner)]
        if not users or any(node.name in _returned(call) for call in owner.chain()):
            return
        is_needed = source not in self._state and owner.signature is None
        if is_needed and not any(each is not node and self._is_result(each, owner) for each in owner.nodes()):
            return
        for user in users:
            user.replace_input_with(node, source)

    def _is_in(self, node: fx.Node, call: Call) -> bool:
        return call in self._owners.get(node, self._root).chain()

    def _is_result(self, node: fx.Node, call: Call) -> bool:
        return any(not self._is_in(user, call) for user in node.users)

    def _pull_updates(self) -> None:
        """Move updates of buffers from the end of the graph into the closed call that computes them, if no later node reads the
        buffer."""
        places = {node: index for index, node in enumerate(self._root.nodes())}
        for node in [item for item in self._root.items if isinstance(item, fx.Node)]:
            if node.target is not torch.ops.aten.copy_.default or "nn_module_stack" in node.meta:
                continue
            target, value = (_undetached(arg) for arg in node.args)
            call = None if value is None or target not in self._state else self._closed_around(value)
            if call is None or value is None or target is None or self._blocking(value, self._root) is None:
                continue
            last = max(places[inner] for inner in call.nodes() if inner in places)
            readers = [each for arg in (target, *target.users) for each in arg.users if each in places]
            if any(places[each] > last and each not in (node, *node.all_input_nodes) for each in readers):
                continue
            for each in (*node.all_input_nodes, node):
                if self._owners.get(each) is self._root and each not in self._state:
                    self._root.items.remove(each)
                    call.items.append(each)
                    self._owners[each] = call
            after = max((inner for inner in call.nodes() if inner is not node), key=lambda inner: places[inner])
            after.append(node)
            for each in reversed([each for each in node.all_input_nodes if self._owners.get(each) is call]):
                if _undetached(each) is not each:
                    after.append(each)

    def _closed_around(self, node: fx.Node) -> Call | None:
        calls = [call for call in self._owners.get(node, self._root).chain() if call.signature is not None]
        return calls[0] if calls else None

    def _take_own_size(self, node: fx.Node) -> None:
        """Read a size from a tensor that the call has, if its own tensor is outside the boundary."""
        if not isinstance(node.meta.get("val"), SYMBOLIC_TYPES):
            return
        user = self._owners[node]
        for needed in list(node.all_input_nodes):
            blocking = self._blocking(needed, user)
            if blocking is not None and isinstance(needed.meta.get("val"), torch.Tensor):
                made = self._size_of_tensor(node, user, blocking, node)
                if made is not None:
                    node.replace_all_uses_with(made)
                    user.items.remove(node)
                    self._graph.erase_node(node)
                    del self._owners[node]
                return

    def _close_arguments(self, call: Call) -> None:
        """Compute a number that is an argument of the call before the call, if its node is inside."""
        assert call.parent is not None
        for arg in call.signature.inputs if call.signature is not None else ():
            node = self._by_name.get(arg.name)
            if node is None or isinstance(arg, ConstantArgument) or node in self._state:
                continue
            if self._is_in(node, call) or self._blocking(node, call.parent) is not None:
                call.arguments[arg.name] = self._available(node, call.parent, next(call.nodes()))

    def _close_results(self, call: Call) -> None:
        """Compute a number that the call returns inside the call, if its node is outside."""
        for arg in call.signature.outputs if call.signature is not None else ():
            node = self._by_name.get(arg.name)
            if isinstance(arg, ConstantArgument) or node is None:
                continue
            if self._blocking(node, call) is not None:
                call.results[arg.name] = self._available(node, call, list(call.nodes())[-1].next)

    def _blocking(self, node: fx.Node, user: Call) -> Call | None:
        """The closed call whose boundary the value would pass on its way to the user; None if there is none."""
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

    def _available(self, node: fx.Node, user: Call, before: fx.Node) -> fx.Node:
        """A node with the same value that the user can read without passing a boundary."""
        while user.signature is None and user.parent is not None:
            user = user.parent
        if (node, user) in self._made:
            return self._made[node, user]
        blocking = self._blocking(node, user)
        if blocking is None:
            return node
        if not isinstance(node.meta.get("val"), SYMBOLIC_TYPES):
            raise _blocked(node, blocking)
        made = self._size_of_tensor(node, user, blocking, before)
        if made is None:
            if getattr(getattr(node.target, "_schema", None), "name", "").split("::")[-1] in _READS_DATA:
                raise _blocked(node, blocking)
            copies = {needed: self._available(needed, user, before) for needed in node.all_input_nodes}
            with self._graph.inserting_before(before):
                made = self._graph.node_copy(node, lambda needed: copies[needed])
            self._place(made, user, before)
        self._made[node, user] = made
        return made

    def _size_of_tensor(self, node: fx.Node, user: Call, blocking: Call, before: fx.Node) -> fx.Node | None:
        """The number as a size of an input or output of the closed calls involved; None if no such tensor has it."""
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
                    made.meta = copied_meta(node, "val", "stack_trace")
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


def _undetached(value: Any) -> fx.Node | None:
    """The argument of a detach node; other nodes as they are."""
    if isinstance(value, fx.Node) and value.target is torch.ops.aten.detach.default:
        value = value.args[0]
    return value if isinstance(value, fx.Node) else None


def _returned(call: Call) -> set[str]:
    return {arg.name for arg in call.signature.outputs} if call.signature is not None else set()


def _returned_argument(node: fx.Node) -> fx.Node | None:
    """The argument that the op returns as its result, if it does."""
    schema = getattr(node.target, "_schema", None)
    if schema is not None and len(schema.returns) == 1:
        written = schema.returns[0].alias_info
        sets = written.before_set if written is not None and written.is_write else None
        for index, arg in enumerate(schema.arguments):
            if sets is not None and arg.alias_info is not None and arg.alias_info.before_set == sets:
                found = _argument(node, index, None)
                return found if isinstance(found, fx.Node) else None
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    values: dict[fx.Node, Any] = {operand: operand.meta.get("val") for operand in node.all_input_nodes}
    args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
    source = returned_operand(node.target, args, kwargs)
    if source is None or source.device != value.device:  # trial operands are on the CPU
        return None
    return next(operand for operand, known in values.items() if known is source)


def _argument(node: fx.Node, index: int, default: object) -> object:
    schema: Any = getattr(node.target, "_schema")
    return node.args[index] if index < len(node.args) else node.kwargs.get(schema.arguments[index].name, default)


def _blocked(node: fx.Node, call: Call) -> UnsupportedByRefimpl:
    return UnsupportedByRefimpl(
        seen=f"{node.name!r}, which passes the boundary of {call.name!r}, and is neither an argument nor a result",
        supported="modules with preserved signatures that share only state with others",
        do="make it an argument or result, or leave the module out of preserve_module_call_signature",
    )
