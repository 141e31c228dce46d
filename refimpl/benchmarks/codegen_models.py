"""What models become as kernels: `python -m refimpl.benchmarks.codegen_models [--match TEXT] [--csv FILE]`.

The models of partition_models, in training: a row for the forward graph and one for the backward graph of each, as the backend
`triton` gets them. Columns: calls of operators in the graph; how many are part of a kernel; kernels; calls that are left to the
operators' own kernels, and of which operators, how often and why. No kernel is run: the graphs run as they are. Matrix products,
convolutions and random numbers are kernels of our own, as they can be on a GPU.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch

from refimpl.benchmarks.model_graphs import OPTIONS, ModelGraph, graphs_of_models
from refimpl.codegen.compile import compile_graph
from refimpl.codegen.loop_ir import Extern
from refimpl.codegen.lowering.graph import lower_graph
from refimpl.trace.decompositions.followed_kernels import following_kernels_of


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
    """What a graph becomes."""
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


def main() -> None:
    """Print a line for each graph, and which operators are left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--match", default="", help="only models whose name contains this")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    rows: list[GraphRow] = []
    for graphs in graphs_of_models(options.match):
        for row in map(row_of, graphs):
            print(
                f"{row.model:32s} {row.graph:8s} {row.lowered:5d} of {row.calls:5d} in {row.kernels:4d}  {row.by_operator}"
            )
            rows.append(row)
    table = pd.DataFrame(rows)
    for graph, part in table.groupby("graph"):
        whole = int((part["fallbacks"] == 0).sum())
        print(f"{graph}: {part['lowered'].sum()} of {part['calls'].sum()} calls, {whole} of {len(part)} graphs whole")
    if options.csv is not None:
        table.to_csv(options.csv, index=False)


if __name__ == "__main__":
    main()
