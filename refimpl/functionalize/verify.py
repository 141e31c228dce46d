"""Checks of a functionalized graph: no op writes, and no op reads a stale value.

Counterpart: torch/_functorch/_aot_autograd/functional_utils.py assert_functional_graph
Differs: reads are checked too, by counting the writes in the given graph a second time.
"""

from __future__ import annotations

import torch

from refimpl.functionalize.aliases import AliasMap
from refimpl.functionalize.errors import NotFunctional
from refimpl.functionalize.memory import MemoryState
from refimpl.functionalize.schemas import effects_of, is_mutating, nodes_in


def verify_functional(graph: torch.fx.Graph) -> None:
    """Raises NotFunctional if an op of the graph writes to an argument or changes its storage, sizes or strides."""
    for node in graph.nodes:
        if is_mutating(node):
            seen = f"{node.target} writes to its arguments"
            raise NotFunctional(node, seen=seen, expected="only ops that write to no argument")


def verify_reads(given: torch.fx.Graph, memory: MemoryState) -> None:
    """Raises NotFunctional if a node of the new graph reads a value that an earlier write should have replaced."""
    aliases = memory.aliases
    reads: dict[torch.fx.Node, list[tuple[torch.fx.Node, torch.fx.Node]]] = {}
    for reader, read, value in memory.reads:
        reads.setdefault(reader, []).append((read, value))
    counts: dict[torch.fx.Node, int] = {}
    for node in given.nodes:
        written = [] if node.op != "call_function" else _written_bases(node, aliases)
        for read, value in reads.get(node, ()):
            base = aliases.base_of(read)
            if memory.is_outgrown(base):
                continue
            first = counts.get(base, 0)
            # A foreach op reads and writes item by item: a later item may read what an earlier one has written.
            num_own = written.count(base) + 1 if _is_item_by_item(node) else 1
            allowed = range(first, first + num_own)
            tensor = aliases.tensor_of(read)
            found = [version for stamped, version in memory.stamps.get(value, ()) if stamped is tensor]
            if not any(version in allowed for version in found):
                raise NotFunctional(
                    node,
                    seen=f"it reads {value} for {read}, which is its value after {found} writes to {base}",
                    expected=f"the value after {first} writes",
                )
        for base in written:
            counts[base] = counts.get(base, 0) + 1


def _is_item_by_item(node: torch.fx.Node) -> bool:
    return str(getattr(node.target, "_opname", "")).startswith("_foreach")


def _written_bases(node: torch.fx.Node, aliases: AliasMap) -> list[torch.fx.Node]:
    """The base of each tensor that the call writes to, with repetitions."""
    written = (parameter.of(node.args, node.kwargs) for parameter in effects_of(node.target).written)
    return [aliases.base_of(tensor) for given in written for tensor in nodes_in(given)]
