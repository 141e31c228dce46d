"""What kernels of models take of a GPU: `python -m refimpl.benchmarks.codegen_registers [--match TEXT] [--csv FILE]`.

The models of partition_models, in training, every kernel in its default configuration compiled for sm_80 and sm_90, neither of
which has to be there. A row for each graph and capability: kernels, those that spill, and the most of what ptxas says of one:
registers and bytes spilled of a thread, bytes of shared memory of a program; `worst` is what the kernel with most spills, or else
most registers, is made of. Matrix products, convolutions and random numbers are kernels of our own.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch.utils import _pytree as pytree

from refimpl.aot.aot_function import aot_module_simplified
from refimpl.aot.partition import min_cut_rematerialization_partition
from refimpl.benchmarks.codegen_models import OPTIONS
from refimpl.benchmarks.partition_models import Model, TensorOutputs, own_models, transformers_models
from refimpl.codegen.compile import compile_graph
from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.codegen.launch_plan import CompiledGraph
from refimpl.codegen.levels.cubin import CompiledKernel, compile_batch

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


def row_of(model: str, graph: str, compiled: CompiledGraph, capability: int) -> RegistersRow:
    """The most of all kernels of a graph. Raises the compiler's error for one that it refuses."""
    launches = [(printed.kernel, printed.default.constants) for printed in compiled.printed]
    made: list[CompiledKernel] = []
    for result in compile_batch(launches, capability, has_aligned_tensors=True):
        if not isinstance(result, CompiledKernel):
            raise result
        made.append(result)
    worst = max(range(len(made)), key=lambda at: (made[at].spills, made[at].registers), default=None)
    return RegistersRow(
        model=model,
        graph=graph,
        capability=capability,
        kernels=len(made),
        spilling=sum(kernel.spills > 0 for kernel in made),
        registers=max((kernel.registers for kernel in made), default=0),
        spills=max((kernel.spills for kernel in made), default=0),
        shared_memory=max((kernel.shared_memory for kernel in made), default=0),
        worst="" if worst is None else " ".join(compiled.printed[worst].origins),
    )


def measure(name: str, make: Callable[[], Model]) -> list[RegistersRow]:
    """The rows of a model. No kernel is run: the graphs run as they are."""
    torch.manual_seed(0)
    model = make()
    rows: list[RegistersRow] = []

    def looks(graph: str) -> Callable[..., Any]:
        def look(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
            compiled = compile_graph(graph_module, example_inputs, options=OPTIONS)
            rows.extend(row_of(name, graph, compiled, capability) for capability in CAPABILITIES)
            return graph_module

        return look

    called = aot_module_simplified(
        TensorOutputs(model.module.train()), model.inputs, fw_compiler=looks("forward"), bw_compiler=looks("backward"),
        partition_fn=min_cut_rematerialization_partition, decompositions=codegen_decompositions(),
    )  # fmt: skip
    outputs = [output for output in pytree.tree_leaves(called(*model.inputs)) if output.requires_grad]
    torch.stack([output.float().sum() for output in outputs]).sum().backward()
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each graph and capability."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--match", default="", help="only models whose name contains this")
    parser.add_argument("--csv", type=Path, help="written after each model")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    rows: list[RegistersRow] = []
    for name, make in {**own_models(), **transformers_models()}.items():
        if options.match not in name:
            continue
        made = measure(name, make)
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
