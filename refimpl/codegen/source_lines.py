"""The user's source lines behind a compiled graph; comments of the launch plan and error messages show them.

Counterpart: torch/_inductor/utils.py get_kernel_metadata
Differs: shows lines in place of node names. There are none unless the graph's nodes have stack traces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from refimpl.codegen.tensors import Computed

# The most lines per kernel: a chain of pointwise operators may come from a page of source.
MOST_LINES = 12


def line_of(node: torch.fx.Node) -> str | None:
    """The innermost frame of the node's stack trace, with its line of code. None if the node has no stack trace."""
    lines = [line.strip() for line in str(node.meta.get("stack_trace") or "").splitlines()]
    places = [at for at, line in enumerate(lines) if line.startswith("File ")]
    return ": ".join(lines[places[-1] : places[-1] + 2]) if places else None


def lines_behind(graph: torch.fx.Graph, values: Mapping[torch.fx.Node, Any]) -> dict[str, tuple[str, ...]]:
    """For each node by name, its own line and those of inputs that are computed in the same kernel."""
    behind: dict[str, tuple[str, ...]] = {}
    for node in graph.nodes:
        computed = [source for source in node.all_input_nodes if isinstance(values.get(source), Computed)]
        own = line_of(node)
        lines = [*(line for source in computed for line in behind[source.name]), *([] if own is None else [own])]
        behind[node.name] = first_lines(lines)
    return behind


def first_lines(lines: Iterable[str]) -> tuple[str, ...]:
    """Removes duplicates and limits the number of lines."""
    return tuple(dict.fromkeys(lines))[:MOST_LINES]
