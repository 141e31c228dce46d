"""What forward assigns to buffers is written to them at the end; what was read of them before is then kept apart.

Counterpart: torch/_export/non_strict_utils.py and make_fx's handling of assigned attributes in torch/export/_trace.py
Differs: upstream writes as well, and what was read before has the new values then, or is refused by autograd.

Note [What an assignment leaves alone]
After `self.b = self.b + 1` the tensor that was the buffer has its values still, for those who hold it: what forward returns,
views, the backward of what was computed of it, another buffer. A write at the end reaches all of these. So they have a copy,
where there are such: a counter that is only counted up has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from refimpl._torch import OpOverload, storage_key
from refimpl.capture.public.errors import UserError, UserErrorType

_COPY = torch.ops.aten.copy_.default


def write_assigned(
    values: Mapping[str, torch.Tensor], assigned: Mapping[str, torch.Tensor], results: Sequence[Any]
) -> list[Any]:
    """Copies what was assigned to buffers into them. Gives the results, where that is the buffer, and what shares memory with the
    buffer as it was is a copy. Raises UserError for what does not fit the buffer."""
    known = {name: value for name, value in assigned.items() if name in values}  # others are gone again with forward
    for name, value in known.items():
        _check(name, value, values[name])
    old = {storage_key(values[name]) for name in known if _has_storage(values[name])}
    new = {id(value) for value in known.values()}
    kept = [_apart(result, old) if id(result) not in new else result for result in results]
    given = {name: _apart(value, old) for name, value in known.items()}
    written: dict[int, torch.Tensor] = {}
    for name, value in known.items():
        values[name].copy_(given[name])
        written.setdefault(id(value), values[name])
    return [written.get(id(result), result) for result in kept]


def _apart(value: Any, memory: set[Any]) -> Any:
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
            "  expected: a tensor of the same shape and dtype\n  what to do: keep such values in something that is no buffer",
        )


def _described(value: Any) -> str:
    return f"a {value.dtype} of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)


def read_apart(graph: fx.Graph, buffers: Iterable[fx.Node]) -> None:
    """Changes a graph that writes to the buffers at its end: where what it reads of one is kept for a backward, or is a view, it
    is read of a copy."""
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for buffer in buffers:
        same = _written_in_place(buffer)
        nodes = list(graph.nodes)
        last = next(n for n in reversed(nodes) if n.target is _COPY and n.args[0] in same)
        before = [node for node in nodes[: nodes.index(last)] if not same.isdisjoint(node.all_input_nodes)]
        if not any(map(_keeps, before)):
            continue
        with graph.inserting_before(first):
            copy = graph.call_function(torch.ops.aten.clone.default, (buffer,))
        copy.meta = {key: buffer.meta[key] for key in ("val", "tensor_meta") if key in buffer.meta}
        for node in before:
            node.replace_input_with(buffer, copy)
        last.args = (buffer, *last.args[1:])


def _written_in_place(buffer: fx.Node) -> set[fx.Node]:
    """The buffer, and what operators give that have written to it: the same tensor."""
    same = {buffer}
    for node in buffer.graph.nodes:
        target = node.target
        if isinstance(target, OpOverload) and target._schema.is_mutable and node.args and node.args[0] in same:
            same.add(node)
    return same


def _keeps(node: fx.Node) -> bool:
    """Whether it holds on to what it is given: for its backward, or because it is a view or may be one."""
    if not isinstance(node.target, OpOverload):
        return True
    if getattr(node.meta.get("tensor_meta"), "requires_grad", True):
        return True
    return any(argument.alias_info is not None for argument in node.target._schema.arguments)
