"""Assignments to buffers (`self.b = self.b + 1`) become writes at the end of the graph; readers of the old value get copies.

Counterpart: torch/_export/non_strict_utils.py and make_fx's handling of assigned attributes in torch/export/_trace.py
Differs: upstream writes too, but then earlier reads have the new values, or autograd raises an error.

Note [What an assignment leaves alone]
After `self.b = self.b + 1` the old tensor keeps its values for all that still refer to it: results of forward, views, saved
tensors, another buffer. A write to the buffer would change them, so they get a copy. A plain counter needs none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from refimpl._torch import OpOverload, storage_key
from refimpl.capture.public.errors import UserError, UserErrorType
from refimpl.trace.metadata import copied_meta

_COPY = torch.ops.aten.copy_.default


def write_assigned(
    values: Mapping[str, torch.Tensor], assigned: Mapping[str, torch.Tensor], results: Sequence[Any]
) -> list[Any]:
    """Copy the assigned values into the buffers. Returns the results: an assigned value is replaced by its buffer, a tensor that
    shares memory with an old buffer by a copy. Raises UserError for a value of another shape or dtype than the buffer."""
    known = {
        name: value for name, value in assigned.items() if name in values
    }  # other buffers are made and dropped by forward
    for name, value in known.items():
        _check(name, value, values[name])
    old = {storage_key(values[name]) for name in known if _has_storage(values[name])}
    new = {id(value) for value in known.values()}
    kept = [_copied_if_sharing(result, old) if id(result) not in new else result for result in results]
    given = {name: _copied_if_sharing(value, old) for name, value in known.items()}
    written: dict[int, torch.Tensor] = {}
    for name, value in known.items():
        values[name].copy_(given[name])
        written.setdefault(id(value), values[name])
    return [written.get(id(result), result) for result in kept]


def _copied_if_sharing(value: Any, memory: set[Any]) -> Any:
    shares = isinstance(value, torch.Tensor) and _has_storage(value) and storage_key(value) in memory
    return value.clone() if shares else value


def _has_storage(value: torch.Tensor) -> bool:
    return value.layout is torch.strided and not value.is_nested


def _check(name: str, value: Any, buffer: torch.Tensor) -> None:
    fits = isinstance(value, torch.Tensor) and (value.shape, value.dtype) == (buffer.shape, buffer.dtype)
    if not fits:
        raise UserError(
            UserErrorType.ANTI_PATTERN,
            f"forward assigns {_described(value)} to the buffer {name!r}, which is {_described(buffer)}\n"
            "  expected: a tensor of the same shape and dtype\n  what to do: assign it to an attribute that is no buffer",
        )


def _described(value: Any) -> str:
    return f"a {value.dtype} of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)


def read_copies_of(graph: fx.Graph, buffers: Iterable[fx.Node]) -> None:
    """Let a graph that writes to the buffers at its end read a copy of a buffer, where a read is a view or saved for backward."""
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for buffer in buffers:
        same = _written_in_place(buffer)
        nodes = list(graph.nodes)
        last = next(n for n in reversed(nodes) if n.target is _COPY and n.args[0] in same)
        before = [node for node in nodes[: nodes.index(last)] if not same.isdisjoint(node.all_input_nodes)]
        if not any(map(_may_keep_inputs, before)):
            continue
        with graph.inserting_before(first):
            copy = graph.call_function(torch.ops.aten.clone.default, (buffer,))
        copy.meta = copied_meta(buffer, "val", "tensor_meta")
        for node in before:
            node.replace_input_with(buffer, copy)
        last.args = (buffer, *last.args[1:])


def _written_in_place(buffer: fx.Node) -> set[fx.Node]:
    """The buffer and the results of in-place ops on it, which are the same tensor."""
    same = {buffer}
    for node in buffer.graph.nodes:
        target = node.target
        if isinstance(target, OpOverload) and target._schema.is_mutable and node.args and node.args[0] in same:
            same.add(node)
    return same


def _may_keep_inputs(node: fx.Node) -> bool:
    """Whether the node may save its inputs for backward, or may be a view of them."""
    if not isinstance(node.target, OpOverload):
        return True
    if getattr(node.meta.get("tensor_meta"), "requires_grad", True):
        return True
    return any(argument.alias_info is not None for argument in node.target._schema.arguments)
