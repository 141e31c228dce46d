"""Which nodes of a backward return zeros if their inputs are zeros, so that zeros may replace a missing tangent.

Counterpart: none; torch's aot_autograd replaces a missing tangent by zeros even where the backward of a custom
torch.autograd.Function then adds something to them
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import torch

from refimpl._torch import FakeTensor, OpOverload, without_fake_mode
from refimpl.errors import UnsupportedByRefimpl
from refimpl.functionalize.schemas import facts_of
from refimpl.trace.eager_facts import gives_zeros
from refimpl.trace.recording_mode import paused_recordings


def zeros_of_zeros(
    last: torch.fx.Node, sources: Collection[torch.fx.Node], constants: torch.nn.Module
) -> set[torch.fx.Node]:
    """The sources, and the nodes after `last` that are certainly zeros if the sources are, and all other values are finite."""
    found, node = set(sources), last.next
    while node.op != "root":
        is_zeros = node.op == "call_function" and _is_zeros(node, found)
        if is_zeros or (node.op == "get_attr" and _is_constant_zeros(getattr(constants, str(node.target), None))):
            found.add(node)
        elif found.intersection(_written(node)):
            found.clear()  # views of what is written would have to go as well
        node = node.next
    return found


def _written(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The operands that a call changes in place."""
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return []
    schema = node.target._schema.arguments
    written = [argument.name for argument in schema if argument.alias_info is not None and argument.alias_info.is_write]
    given = {**dict(zip((argument.name for argument in schema), node.args, strict=False)), **node.kwargs}
    found: list[torch.fx.Node] = []
    torch.fx.map_arg([given.get(name) for name in written], found.append)
    return found


def _is_constant_zeros(value: object) -> bool:
    if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor) or value.layout is not torch.strided:
        return False
    with without_fake_mode(), paused_recordings():
        return not bool(value.any())


def refuse_zeros(adding: Collection[frozenset[int]], absent: Collection[int]) -> None:
    """Raises UnsupportedByRefimpl if zeros may not replace the tangents at `absent`.

    They may not where autograd would call a custom backward for these tangents alone that may return something else than zeros.
    adding: ProgramAnalysis.adding.
    """
    if any(one.issubset(absent) for one in adding):
        raise UnsupportedByRefimpl(
            seen="a torch.autograd.Function whose results get no gradient and whose backward may return other values than zeros "
            "for zeros, in a graph whose backward cannot be divided: it has wrapper subclasses, symbolic sizes of another "
            "tool, or ordered effects",
            supported="such functions in graphs of plain tensors, and backwards that multiply the gradient they get",
            do="use all results of the graph in the loss",
        )


def refuse_missing_tangents(backward_writes: Collection[int]) -> None:
    """Raises UnsupportedByRefimpl if the backward writes to inputs: with a missing tangent, eager may leave out some writes."""
    if backward_writes:
        raise UnsupportedByRefimpl(
            seen="a backward that writes to an input, called for some of the results only",
            supported="such a backward called for all results of the graph",
            do="use all results of the graph in the loss",
        )


def is_made_as_zeros(node: torch.fx.Node) -> bool:
    name = _name(node)
    return name in ("zeros", "zeros_like", "new_zeros") or (name in ("full", "full_like") and bool(node.args[1] == 0))


def _is_zeros(node: torch.fx.Node, zeros: Collection[torch.fx.Node]) -> bool:
    if node.target is operator.getitem:
        return node.args[0] in zeros
    if is_made_as_zeros(node):
        return True
    ids: set[int] = set()

    def value_of(operand: torch.fx.Node) -> Any:
        value = operand.meta.get("val")
        if operand in zeros:
            ids.add(id(value))
        return value

    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), value_of)
    return gives_zeros(node.target, args, kwargs, ids)


def _name(node: torch.fx.Node) -> str:
    """The operator's name without namespace, overload and the underscore of in-place operators."""
    return "" if node.op != "call_function" else facts_of(node.target).name.removeprefix("aten::").removesuffix("_")
