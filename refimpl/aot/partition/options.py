"""What a partition is asked for, beside what upstream's signature says.

Counterpart: the entries of torch/_functorch/config.py about partitioning (activation_memory_budget, ban_recompute_*)
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from refimpl.aot.partition.rules import Prices
from refimpl.errors import BadParameter

# Where torch.autograd.graph.region_activation_memory_budget leaves its number, in meta["custom"].
_REGION_BUDGET = "_region_activation_memory_budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOptions:
    """memory_budget: 1 recomputes what is nearly free; 0 all that may be recomputed, whatever it costs; between them, bytes saved
    are that share of the way from the least to what 1 saves. `verifies`: whether partitions are verified."""

    memory_budget: float = 1.0
    prices: Prices = field(default_factory=Prices)
    merges_common_subexpressions: bool = True
    verifies: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.memory_budget <= 1:
            raise BadParameter(
                seen=f"memory budget {self.memory_budget}",
                expected="a number from 0 to 1",
            )


_OPTIONS: contextvars.ContextVar[PartitionOptions] = contextvars.ContextVar("partition options")
_DEFAULT = PartitionOptions()


def current_options() -> PartitionOptions:
    """Options of the innermost `partition_options`."""
    return _OPTIONS.get(_DEFAULT)


@contextlib.contextmanager
def partition_options(**changes: Any) -> Iterator[PartitionOptions]:
    """Within it, partitions are made with these fields of PartitionOptions changed."""
    token = _OPTIONS.set(replace(current_options(), **changes))
    try:
        yield _OPTIONS.get()
    finally:
        _OPTIONS.reset(token)


def budget_of_graph(graph: torch.fx.Graph, default: float) -> float:
    """The budget that the program asks for, by its nodes' meta; a graph has one."""
    asked: dict[float, str] = {}
    for node in graph.nodes:
        custom = node.meta.get("custom")
        budget = custom.get(_REGION_BUDGET) if isinstance(custom, dict) else None
        budget = node.meta.get("memory_budget") if budget is None else budget
        if isinstance(budget, float):
            asked.setdefault(budget, node.name)
    if len(asked) > 1:
        raise BadParameter(
            seen=f"conflicting budgets within a single joint graph: {asked}",
            expected="one budget per graph; a graph break separates regions of different budgets",
        )
    return next(iter(asked), default)
