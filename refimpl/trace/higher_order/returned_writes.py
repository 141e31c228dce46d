"""Makes functions of torch.cond and while_loop that write to their operands functional: they return the new values.

A function writes to a copy, which is a further result. The trace of the program records a `copy_` after the call, so that what
reads writes in a graph (aliases, mutated inputs, functionalization) finds this one as any other.

    torch.cond(pred, lambda: count.add_(1) * 2, lambda: count * 3)

becomes two results of the operator, of which the second is copied to `count`. An example is the counter of a BatchNorm in a
branch. Torch accepts such functions where gradients are off.

Counterpart: do_auto_functionalize_v2 of cond and while_loop in torch/_higher_order_ops/auto_functionalize.py
Differs: the operator itself returns the values; upstream wraps its call in another operator, and keeps the writes in the graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from refimpl._torch import pytree
from refimpl.trace.higher_order.calls import HigherOrderCall, Recorded, Subgraph, strides_in_order_of
from refimpl.trace.higher_order.functional_checks import is_strided_anew, returned_bases, writes_of
from refimpl.trace.layouts import is_same_shape
from refimpl.trace.metadata import describe
from refimpl.trace.read_after_write import share_memory

Node = torch.fx.Node
_aten = torch.ops.aten


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """An operand that functions write to, and the operands which share memory with it (itself included), by their places."""

    place: int
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnedWrites:
    """Writes of a call's functions that are results of the call now; `places` are those of the operands that have them."""

    call: HigherOrderCall
    places: tuple[int, ...] = ()
    values: tuple[Any, ...] = ()
    gives_written: bool = False

    @classmethod
    def of_branches(
        cls, call: HigherOrderCall, branches: Sequence[Subgraph], operands: Sequence[Any]
    ) -> ReturnedWrites:
        """Rewrite the branches of torch.cond, if they write to operands and the trace wants such writes as results."""
        written = _written_operands(branches, operands) if are_writes_returned(call) else None
        if not written:
            return cls(call=call)
        gives_written = _gives_written(branches, written)
        for branch in branches:
            _replace_written(call, branch, written, operands, returns=True)
        places = tuple(each.place for each in written)
        values = tuple(operands[place] for place in places)
        return cls(call=call, places=places, values=values, gives_written=gives_written)

    @classmethod
    def of_loop(
        cls, call: HigherOrderCall, cond: Subgraph, body: Subgraph, carried: Sequence[Any], additional: Sequence[Any]
    ) -> ReturnedWrites:
        """The same for a while_loop, which carries what its body writes to. See functional_loop for other writes."""
        operands = (*carried, *additional)
        written = _written_operands([body], operands) if are_writes_returned(call) else None
        is_carried = any(place < len(carried) for each in written or () for place in each.members)
        if not written or is_carried or writes_of(cond.graph_module.graph):
            return cls(call=call)
        gives_written = _gives_written([body], written)
        places = tuple(each.place for each in written)
        for subgraph in (cond, body):
            _replace_written(call, subgraph, written, operands, returns=subgraph is body)
            rest = [place for place in range(len(carried), len(operands)) if place not in places]
            _reorder(subgraph, [*range(len(carried)), *places, *rest])
        values = tuple(operands[place] for place in places)
        return cls(call=call, places=places, values=values, gives_written=gives_written)

    def without(self, additional: Sequence[Any], first: int) -> tuple[Any, ...]:
        """The additional operands, of which the first has the place `first`, without those that a loop carries now."""
        return tuple(value for place, value in enumerate(additional, first) if place not in self.places)

    def recorded(self, recorded: Recorded) -> Recorded:
        """The call with the new values as further results, from which the trace records the writes."""
        if not self.places:
            return recorded
        leaves, spec = pytree.tree_flatten(recorded.result)
        result = (*leaves, *self.call.fresh(self.values))

        def seen_of(results: tuple[Any, ...]) -> Any:
            for operand, value in zip(self.values, results[len(leaves) :], strict=True):
                self.call.recording.record_write(operand, value)
            return pytree.tree_unflatten(list(results[: len(leaves)]), spec)

        return replace(recorded, result=result, seen_of=seen_of, gives_written=self.gives_written)


def are_writes_returned(call: HigherOrderCall) -> bool:
    """Whether the trace wants writes of functions as results."""
    return call.recording.options.returns_writes and call.fake_mode is not None


def _written_operands(subgraphs: Sequence[Subgraph], values: Sequence[Any]) -> list[_Written] | None:
    """The operands that the functions write to, each with memory of its own; None if one cannot become a result.

    values: the operands, in the order of the placeholders.
    """
    places: set[int] = set()
    for subgraph in subgraphs:
        placeholders = subgraph.graph_module.graph.find_nodes(op="placeholder")
        if len(placeholders) != len(values):
            return None
        writes = writes_of(subgraph.graph_module.graph)
        if not all(write.is_of_data and write.base in placeholders for write in writes):
            return None
        places.update(placeholders.index(write.base) for write in writes)
    found: list[_Written] = []
    for group in _groups(sorted(places), values):
        covering = next((place for place in group if _covers(values[place], [values[each] for each in group])), None)
        if covering is None or any(_is_strided_anew(subgraph, group) for subgraph in subgraphs):
            return None
        found.append(_Written(place=covering, members=group))
    return found


def _is_strided_anew(subgraph: Subgraph, places: Sequence[int]) -> bool:
    graph = subgraph.graph_module.graph
    placeholders = graph.find_nodes(op="placeholder")
    return any(is_strided_anew(graph, placeholders[place]) for place in places)


def _groups(places: Sequence[int], values: Sequence[Any]) -> list[tuple[int, ...]]:
    """The places of operands that share memory with one of those at `places`, once for each part of the memory."""
    groups: list[set[int]] = []
    for place in places:
        group = {i for i, value in enumerate(values) if i == place or do_share(value, values[place])}
        touching = [each for each in groups if each & group]
        groups = [each for each in groups if each not in touching] + [group.union(*touching)]
    return [tuple(sorted(group)) for group in groups]


def do_share(a: Any, b: Any) -> bool:
    """Whether both are tensors, and have a byte in common."""
    return isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and (a is b or share_memory(a, b))


def _covers(whole: torch.Tensor, members: Sequence[torch.Tensor]) -> bool:
    """Whether each member is the tensor itself or, where sizes are known, a view of it as `as_strided` makes them."""
    if whole.layout is not torch.strided:
        return False
    is_dense = is_same_shape(strides_in_order_of(whole, whole.shape), whole.stride())
    # A copy of a tensor that is not dense has other strides.
    return all(
        _is_same(whole, member) or _is_of_other_dtype(whole, member) or (is_dense and _is_within(whole, member))
        for member in members
    )


def _is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and _is_at_same_place(a, b)


def _is_of_other_dtype(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether one is the other as `view(dtype)` makes it, element for element."""
    return a.dtype != b.dtype and a.element_size() == b.element_size() and _is_plain(a) and _is_at_same_place(a, b)


def _is_at_same_place(a: torch.Tensor, b: torch.Tensor) -> bool:
    return _is_plain(b) and all(map(is_same_shape, _place_of(a), _place_of(b)))


def _place_of(tensor: torch.Tensor) -> tuple[Any, Any, Any]:
    return tensor.shape, tensor.stride(), (tensor.storage_offset(),)


def _is_plain(tensor: torch.Tensor) -> bool:
    return not tensor.is_conj() and not tensor.is_neg()


def _is_within(whole: torch.Tensor, member: torch.Tensor) -> bool:
    numbers = [n for tensor in (whole, member) for part in _place_of(tensor) for n in part]
    if whole.dtype != member.dtype or not _is_plain(member) or not all(type(n) is int for n in numbers):
        return False
    begin = member.storage_offset() - whole.storage_offset()
    last = begin + sum((n - 1) * step for n, step in zip(member.shape, member.stride(), strict=True))
    return begin >= 0 and last < whole.numel()


def _replace_written(
    call: HigherOrderCall, subgraph: Subgraph, written: Sequence[_Written], values: Sequence[Any], *, returns: bool
) -> None:
    """Let the function read each written operand, and those that share its memory, as one tensor.

    returns: this is a copy of the operand, which is returned after the function's results, as one flat tuple.
    """
    graph = subgraph.graph_module.graph
    placeholders = graph.find_nodes(op="placeholder")
    before = next(node for node in graph.nodes if node.op != "placeholder")
    copies: list[Node] = []
    for operand in written:
        source = placeholders[operand.place]
        if returns:
            source = _inserted(call, before, _aten.clone.default, source)
            copies.append(source)
        _replace_members(call, before, operand, placeholders, values, source)
    if returns:
        output = graph.output_node()
        output.args = ((*pytree.tree_leaves(output.args[0]), *copies),)
    subgraph.graph_module.recompile()


def _replace_members(
    call: HigherOrderCall, before: Node, operand: _Written, placeholders: Sequence[Node], values: Sequence[Any], by: Node
) -> None:  # fmt: skip
    whole = values[operand.place]
    for place in operand.members:
        given, member = placeholders[place], values[place]
        if given is by or not any(user is not by for user in given.users):
            continue
        new = by
        if _is_of_other_dtype(whole, member):
            new = _inserted(call, before, _aten.view.dtype, by, member.dtype)
        elif not _is_same(whole, member):
            offset = member.storage_offset() - whole.storage_offset()
            new = _inserted(call, before, _aten.as_strided.default, by, [*member.shape], [*member.stride()], offset)
        given.replace_all_uses_with(new, delete_user_cb=lambda user, by=by: user is not by)


def _inserted(call: HigherOrderCall, before: Node, target: Any, source: Node, *args: Any) -> Node:
    graph = before.graph
    with graph.inserting_before(before):
        node = graph.call_function(target, (source, *args))
    assert call.fake_mode is not None
    with call.fake_mode, torch.no_grad():
        describe(node, target(source.meta["val"], *args))
    return node


def _reorder(subgraph: Subgraph, order: Sequence[int]) -> None:
    """Give the graph its placeholders in this order of their places."""
    graph = subgraph.graph_module.graph
    placeholders = graph.find_nodes(op="placeholder")
    with graph.inserting_before(placeholders[0]):
        mark = graph.call_function(len)
    for place in order:
        mark.prepend(placeholders[place])
    graph.erase_node(mark)
    subgraph.graph_module.recompile()


def _gives_written(subgraphs: Sequence[Subgraph], written: Sequence[_Written]) -> bool:
    """Whether a function returns memory of an operand that a function writes to. To be asked before it returns copies."""
    from_memory = {place for operand in written for place in operand.members}
    return any(
        place in from_memory
        for subgraph in subgraphs
        for place, node in enumerate(subgraph.graph_module.graph.find_nodes(op="placeholder"))
        if node in returned_bases(subgraph.graph_module.graph)
    )
