"""Compares graphs by the aten overloads that their live nodes call, and how often.

Dead code does not count: a tracer may record a call with an unused result, and leave it to `eliminate_dead_code`. Calls that
write to an argument or draw random numbers are always live. Size queries (`aten.sym_size`) and arithmetic on sizes do not count
either: tracers may record sizes differently, and a run at a second size shows whether they are right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload

_LARGEST_INT = 2**63 - 1


def _is_about_sizes(target: Any) -> bool:
    """Whether an op asks for a size, or asserts something about an unbacked one, which has no result and makes no graph wrong."""
    name = target._schema.name if isinstance(target, OpOverload) else ""
    return name.startswith("aten::sym_") or name == "aten::_assert_scalar"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpsDifference:
    """Overload -> how many more calls one graph has than the other."""

    only_ours: Mapping[str, int]
    only_theirs: Mapping[str, int]

    @property
    def is_none(self) -> bool:
        return not self.only_ours and not self.only_theirs

    def describe(self) -> str:
        return f"only ours: {_listed(self.only_ours)}; only torch's: {_listed(self.only_theirs)}"


def compare_ops(ours: torch.fx.GraphModule, theirs: torch.fx.GraphModule) -> OpsDifference:
    """Compare the multisets of aten overloads, including subgraphs of higher-order operators."""
    mine, its = op_counts(ours), op_counts(theirs)
    return OpsDifference(
        only_ours={name: mine[name] - its[name] for name in sorted(mine) if mine[name] > its[name]},
        only_theirs={name: its[name] - mine[name] for name in sorted(its) if its[name] > mine[name]},
    )


def op_counts(module: torch.fx.GraphModule) -> Counter[str]:
    """How often each overload is called by live nodes, here and in subgraphs."""
    counts: Counter[str] = Counter()
    for graph in _graphs(module):
        counts.update(_name_of(node.target) for node in live_nodes(graph) if _is_operator(node))
    return counts


def whole_slices(module: torch.fx.GraphModule) -> int:
    """How many live slices take the whole of a dimension, whatever its size: `x[:]`."""
    return sum(_is_whole_slice(node) for graph in _graphs(module) for node in live_nodes(graph))


def _is_whole_slice(node: torch.fx.Node) -> bool:
    if node.target is not torch.ops.aten.slice.Tensor:
        return False
    named = {"start": None, "end": None, "step": 1, **node.kwargs}
    named.update(zip(("start", "end", "step"), node.args[2:], strict=False))
    return named["start"] in (None, 0) and named["end"] in (None, _LARGEST_INT) and named["step"] == 1


def node_count(module: torch.fx.GraphModule) -> int:
    return sum(len(graph.nodes) for graph in _graphs(module))


def live_nodes(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """The nodes that the output or an effect depends on, in order."""
    live: set[torch.fx.Node] = set()
    for node in reversed(graph.nodes):
        if node in live or node.op == "output" or has_effect(node):
            live.add(node)
            live.update(node.all_input_nodes)
    return [node for node in graph.nodes if node in live]


def has_effect(node: torch.fx.Node) -> bool:
    """Whether a call has a side effect."""
    if node.op != "call_function":
        return False
    target = node.target
    if isinstance(target, HigherOrderOperator):
        return True
    if not isinstance(target, OpOverload):
        return False
    return target._schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags


def _graphs(module: torch.fx.GraphModule) -> Iterator[torch.fx.Graph]:
    for child in module.modules():
        if isinstance(child, torch.fx.GraphModule):
            yield child.graph


def _is_operator(node: torch.fx.Node) -> bool:
    if node.op != "call_function":
        return False
    if isinstance(node.target, HigherOrderOperator):
        return True
    is_about_sizes = _is_about_sizes(node.target)
    return isinstance(node.target, OpOverload) and not is_about_sizes


def _name_of(target: Any) -> str:
    return str(target)


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} x{count}" if count > 1 else name for name, count in counts.items()) or "nothing"
