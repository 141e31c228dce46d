"""Inputs that share memory, and memory of which more is used than the tensor shows: both become views of one flat tensor.

Counterpart: merge_view_inputs (synthetic bases) in torch/_functorch/_aot_autograd/runtime_wrappers.py
Differs: a rewriting of the graph before functionalization: the flat base is an ordinary placeholder, its members ordinary
`as_strided` views, so that nothing after it knows of groups. The base is the stretch of storage that is used, not a tensor that
some input happens to be a view of. Only groups in which a write reaches another member are replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from refimpl.functionalize.aliases import AliasMap

Node = torch.fx.Node
_aten = torch.ops.aten


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasGroup:
    """Placeholders that one flat placeholder stands for.

    `members` are positions among the given placeholders; `position` is the flat one's among the new. It is the stretch of
    `numel` elements of `dtype` from `offset` on of the storage. `value` is the node of what it holds at the end.
    """

    members: tuple[int, ...]
    position: int
    dtype: torch.dtype
    offset: Any
    numel: Any
    value: Node | None = None

    def base(self, inputs: Sequence[Any]) -> torch.Tensor:
        """The flat tensor, a true view of the storage of the members among the given `inputs`."""
        member: torch.Tensor = inputs[self.members[0]].detach()
        first = member.as_strided((1,), (1,), 0) if member.dtype == self.dtype else _storage_as(member, self.dtype)
        return first.as_strided((self.numel,), (1,), self.offset)

    def with_value(self, value: Node) -> AliasGroup:
        """The same with the node of its value."""
        return replace(self, value=value)


def _storage_as(member: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    whole = torch.empty((0,), dtype=dtype, device=member.device)
    return whole.set_(member.untyped_storage(), 0, (1,), (1,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Flattened:
    """The graph to functionalize, in place of the given one: the same one if nothing had to be replaced."""

    graph: torch.fx.Graph
    written: tuple[int, ...]
    groups: tuple[tuple[AliasGroup, Node], ...]


def flattened(graph: torch.fx.Graph, alias_groups: Sequence[Sequence[int]]) -> Flattened:
    """Replace what has to be replaced in a copy of the graph."""
    aliases = AliasMap(graph)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    direct = {i for i, node in enumerate(placeholders) if aliases.writes_to(node)}
    return Flattened(graph=graph, written=tuple(sorted(direct)), groups=())
