"""Kernels of models: `python -m benchmarks.measurements.codegen_models [--only TEXT] [--csv FILE]`.

There is a row for the forward and the backward graph of each model of benchmarks.models in training, as the backend `triton` gets
them. Columns: calls of operators in the graph; how many are part of a kernel; kernels; fallbacks, with operators, counts and
reasons. No kernel is run: the graphs run operator by operator. Matrix products, convolutions and random numbers are kernels of
our own, as they can be on a GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from benchmarks.measurements.frame import options_of, shown
from benchmarks.model_graphs import OPTIONS, ModelGraph, graphs_of_models
from refimpl.codegen.compile import compile_graph
from refimpl.codegen.loop_ir import Extern
from refimpl.codegen.lowering.graph import lower_graph
from refimpl.trace.decompositions.device_numerics import following_kernels_of


@dataclass(frozen=True, slots=True)
class GraphRow:
    """One graph of one model."""

    model: str
    graph: str  # "forward" or "backward"
    calls: int
    lowered: int
    kernels: int
    fallbacks: int
    by_operator: str


def row_of(graph: ModelGraph) -> GraphRow:
    """The row of a compiled graph."""
    with following_kernels_of("cuda"):
        lowered = lower_graph(graph.module, options=OPTIONS)
        compiled = compile_graph(graph.module, graph.example_inputs, options=OPTIONS)
    reasons: Counter[tuple[str, str]] = Counter()
    for step in lowered.steps:
        if isinstance(step, Extern) and step.target is not torch.empty_strided:
            reasons[str(step.target), step.reason] += 1
    done, left = compiled.lowered.total(), compiled.fallbacks.total()
    return GraphRow(
        model=graph.model,
        graph=graph.direction,
        calls=done + left,
        lowered=done,
        kernels=len(compiled.kernels),
        fallbacks=left,
        by_operator="; ".join(f"{count} {target} ({reason})" for (target, reason), count in reasons.most_common()),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print rows, and sums by direction."""
    options = options_of(__doc__, only=True).parse_args(arguments)
    table = shown((row_of(graph) for graphs in graphs_of_models(options.only) for graph in graphs), options.csv)
    for graph, part in table.groupby("graph"):
        whole = int((part["fallbacks"] == 0).sum())
        print(f"{graph}: {part['lowered'].sum()} of {part['calls'].sum()} calls, {whole} of {len(part)} graphs whole")


if __name__ == "__main__":
    main()
