"""What kernels of models take of a GPU: `python -m refimpl.benchmarks.codegen_registers [--match TEXT] [--csv FILE]`.

The models of partition_models, in training, every kernel in its default configuration compiled for sm_80 and sm_90, neither of
which has to be there. A row for each graph and capability: kernels, those that spill, and the most of what ptxas says of one:
registers and bytes spilled of a thread, bytes of shared memory of a program; `worst` is what the kernel with most spills, or else
most registers, is made of. Matrix products, convolutions and random numbers are kernels of our own.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from refimpl.benchmarks.model_graphs import OPTIONS, ModelGraph, graphs_of_models
from refimpl.codegen.compile import compile_graph
from refimpl.codegen.launch_plan import CompiledGraph
from refimpl.codegen.levels.cubin import CompiledKernel, compile_batch
from refimpl.trace.decompositions.followed_kernels import following_kernels_of

CAPABILITIES = (80, 90)


@dataclass(frozen=True, slots=True)
class RegistersRow:
    """Of one graph of one model, on one kind of GPU."""

    model: str
    graph: str  # "forward" or "backward"
    capability: int
    kernels: int
    spilling: int
    registers: int
    spills: int
    shared_memory: int
    worst: str


def rows_of(graph: ModelGraph) -> list[RegistersRow]:
    """A row for each capability."""
    with following_kernels_of("cuda"):
        compiled = compile_graph(graph.module, graph.example_inputs, options=OPTIONS)
    return [row_of(graph, compiled, capability) for capability in CAPABILITIES]


def row_of(graph: ModelGraph, compiled: CompiledGraph, capability: int) -> RegistersRow:
    """The most of all kernels of a graph. Raises the compiler's error for one that it refuses."""
    launches = [(printed.kernel, printed.default.constants) for printed in compiled.printed]
    made: list[CompiledKernel] = []
    for result in compile_batch(launches, capability, has_aligned_tensors=True):
        if not isinstance(result, CompiledKernel):
            raise result
        made.append(result)
    worst = max(range(len(made)), key=lambda at: (made[at].spills, made[at].registers), default=None)
    return RegistersRow(
        model=graph.model,
        graph=graph.direction,
        capability=capability,
        kernels=len(made),
        spilling=sum(kernel.spills > 0 for kernel in made),
        registers=max((kernel.registers for kernel in made), default=0),
        spills=max((kernel.spills for kernel in made), default=0),
        shared_memory=max((kernel.shared_memory for kernel in made), default=0),
        worst="" if worst is None else " ".join(compiled.printed[worst].origins),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each graph and capability."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--match", default="", help="only models whose name contains this")
    parser.add_argument("--csv", type=Path, help="written after each model")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    rows: list[RegistersRow] = []
    for graphs in graphs_of_models(options.match):
        made = [row for graph in graphs for row in rows_of(graph)]
        for row in made:
            print(
                f"{row.model:32s} {row.graph:8s} sm_{row.capability} {row.kernels:4d} kernels, {row.spilling:3d} spill,"
                f" {row.registers:3d} registers, {row.spills:5d} B spilled, {row.shared_memory:6d} B shared  {row.worst[:60]}",
                flush=True,
            )
        rows += made
        if options.csv is not None:
            pd.DataFrame(rows).to_csv(options.csv, index=False)
    table = pd.DataFrame(rows)
    for capability, part in table.groupby("capability"):
        spilling, kernels, most = part["spilling"].sum(), part["kernels"].sum(), part["spills"].max()
        print(f"sm_{capability}: {spilling} of {kernels} kernels spill, at most {most} bytes")


if __name__ == "__main__":
    main()
