"""What models become as kernels: `python -m refimpl.benchmarks.codegen_models [--match TEXT] [--csv FILE]`.

The models of partition_models, in training: a row for the forward graph and one for the backward graph of each, as the backend
`triton` gets them. Columns: calls of operators in the graph; how many are part of a kernel; kernels; calls that are left to the
operators' own kernels, and of which operators, how often and why. No kernel is run: the graphs run as they are. Matrix products,
convolutions and random numbers are kernels of our own, as they can be on a GPU.
"""

from __future__ import annotations

import argparse
import functools
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch.utils import _pytree as pytree

from refimpl.aot.aot_function import aot_module_simplified
from refimpl.backends.partition import partition_for_kernels
from refimpl.benchmarks.partition_models import Model, TensorOutputs, own_models, transformers_models
from refimpl.codegen.compile import compile_graph
from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.codegen.loop_ir import Extern
from refimpl.codegen.lowering.graph import lower_graph
from refimpl.codegen.options import CodegenOptions

OPTIONS = CodegenOptions(contractions="template", random="philox")


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


def row_of(model: str, graph: str, graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> GraphRow:
    """What a graph becomes."""
    lowered = lower_graph(graph_module, options=OPTIONS)
    compiled = compile_graph(graph_module, example_inputs, options=OPTIONS)
    reasons: Counter[tuple[str, str]] = Counter()
    for step in lowered.steps:
        if isinstance(step, Extern) and step.target is not torch.empty_strided:
            reasons[str(step.target), step.reason] += 1
    done, left = compiled.lowered.total(), compiled.fallbacks.total()
    return GraphRow(
        model=model,
        graph=graph,
        calls=done + left,
        lowered=done,
        kernels=len(compiled.kernels),
        fallbacks=left,
        by_operator="; ".join(f"{count} {target} ({reason})" for (target, reason), count in reasons.most_common()),
    )


def measure(name: str, make: Callable[[], Model]) -> list[GraphRow]:
    """The rows of a model: forward, then backward."""
    torch.manual_seed(0)
    model = make()
    rows: list[GraphRow] = []

    def looks(graph: str) -> Callable[..., Any]:
        def look(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
            rows.append(row_of(name, graph, graph_module, example_inputs))
            return graph_module

        return look

    compiled = aot_module_simplified(
        TensorOutputs(model.module.train()), model.inputs, fw_compiler=looks("forward"), bw_compiler=looks("backward"),
        partition_fn=functools.partial(partition_for_kernels, options=OPTIONS), decompositions=codegen_decompositions(),
    )  # fmt: skip
    outputs = [output for output in pytree.tree_leaves(compiled(*model.inputs)) if output.requires_grad]
    torch.stack([output.float().sum() for output in outputs]).sum().backward()
    return sorted(rows, key=lambda row: row.graph, reverse=True)


def main() -> None:
    """Print a line for each graph, and which operators are left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--match", default="", help="only models whose name contains this")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    rows: list[GraphRow] = []
    for name, make in {**own_models(), **transformers_models()}.items():
        if options.match in name:
            rows += measure(name, make)
            for row in rows[-2:]:
                print(
                    f"{row.model:32s} {row.graph:8s} {row.lowered:5d} of {row.calls:5d} in {row.kernels:4d}  {row.by_operator}"
                )
    table = pd.DataFrame(rows)
    for graph, part in table.groupby("graph"):
        whole = int((part["fallbacks"] == 0).sum())
        print(f"{graph}: {part['lowered'].sum()} of {part['calls'].sum()} calls, {whole} of {len(part)} graphs whole")
    if options.csv is not None:
        table.to_csv(options.csv, index=False)


if __name__ == "__main__":
    main()
