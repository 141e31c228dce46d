"""Registers and shared memory that generated kernels of models need: `python -m benchmarks.measurements.codegen_registers`.

The models of benchmarks.models, in training, every kernel in its default configuration compiled for sm_80 and sm_90, neither of
which has to be there. A row for each graph and capability: kernels, those that spill, and the most of what ptxas says of one:
registers and bytes spilled of a thread, bytes of shared memory of a program; `worst` is what the kernel with most spills, or else
most registers, is made of. Matrix products, convolutions and random numbers are kernels of our own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.measurements.frame import options_of, shown
from benchmarks.model_graphs import OPTIONS, ModelGraph, graphs_of_models
from refimpl.codegen.compile import compile_graph
from refimpl.codegen.launch_plan import CompiledGraph
from refimpl.codegen.levels.cubin import CompiledKernel, compile_batch
from refimpl.trace.decompositions.device_numerics import following_kernels_of

CAPABILITIES = (80, 90)


@dataclass(frozen=True, slots=True)
class RegistersRow:
    """The row of one graph of one model, for one GPU capability."""

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
    """The maxima over all kernels of a graph. Raises the compiler's error if it refuses one."""
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
    """Print rows, and sums by capability."""
    options = options_of(__doc__, only=True).parse_args(arguments)
    graphs = (graph for made in graphs_of_models(options.only) for graph in made)
    table = shown((row for graph in graphs for row in rows_of(graph)), options.csv)
    for capability, part in table.groupby("capability"):
        spilling, kernels, most = part["spilling"].sum(), part["kernels"].sum(), part["spills"].max()
        print(f"sm_{capability}: {spilling} of {kernels} kernels spill, at most {most} bytes")


if __name__ == "__main__":
    main()
