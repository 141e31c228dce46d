"""Time to compile a model for training (forward and backward), beside Inductor, with no caches.

Sides, in CPU seconds:

* source: our capture, gradients, partition, lowering, schedule and printed text of all kernels;
* cubins: the same kernels compiled for sm_90, without what is on disk, by ptxas in the end (`products_s` for matrix products, for
  which Inductor calls libraries), by as many processes as there are cores;
* inductor_cpp: `torch.compile` with a fresh cache, whose kernels are C++ where there is no GPU: g++ in the place of Triton and
  ptxas;
* inductor_triton: its capture, gradients and printed text for an H100 that is not there (`on_gpu`);
* inductor_cubins: these kernels compiled for sm_90, in all configurations that Inductor compiles before the first launch, by one
  process.

Models run once on both sides. `registers` and `spills` (bytes) are the most of a thread of any of our kernels. `source_ratio` and
`total_ratio` are our time over Inductor's with C++, `triton_ratio` is all of ours over all of Inductor's with Triton.
"""

from __future__ import annotations

import functools
import importlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
from torch.utils import _pytree as pytree

from benchmarks import on_gpu
from benchmarks.harness import Case, Figures, Side, benchmark
from benchmarks.models import Model, all_models
from refimpl.aot_entry_points import aot_module_simplified
from refimpl.backends.partition import partition_for_kernels
from refimpl.capture.captured import CaptureOptions
from refimpl.capture.compile import with_options
from refimpl.codegen.compile import compile_graph
from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.codegen.launch_plan import CompiledGraph
from refimpl.codegen.levels.cubin import CompiledKernel, compile_batch
from refimpl.trace.decompositions.device_numerics import following_kernels_of

CAPABILITY = 90
PARTS = ("cubins", "inductor_triton", "inductor_cubins")


@benchmark(repeat=3, warm_up="first")
def compile_time(own: bool = False) -> Iterator[Case]:
    """Compiling models for training, source and kernels, beside Inductor with C++ and with Triton."""
    for name, make in all_models(own=own).items():
        yield Case(name, functools.partial(_sides, make), clock="processor", derive=ratios, parts=PARTS)


def _sides(make: Callable[[], Model]) -> dict[str, Side]:
    ours: list[CompiledGraph] = []
    theirs: list[on_gpu.InductorGraph] = []

    def made() -> Model:
        torch.manual_seed(0)
        model = make()
        return Model(model.module.train(), model.inputs)

    def source() -> Figures:
        ours[:] = compiled_graphs(made())
        kernels = {kernel.hash for graph in ours for kernel in graph.kernels}
        calls = sum(graph.fallbacks.total() for graph in ours)
        return Figures(graphs=len(ours), kernels=len(kernels), calls=calls)

    def inductor_triton() -> None:
        theirs[:] = graphs_by_inductor(made())

    def inductor_cubins() -> Figures:
        return Figures(inductor_kernels=on_gpu.compile_kernels(theirs or graphs_by_inductor(made())))

    return {
        "source": source,
        "cubins": lambda: cubin_figures(ours or compiled_graphs(made())),
        "inductor_cpp": lambda: compile_by_inductor(made()),
        "inductor_triton": inductor_triton,
        "inductor_cubins": inductor_cubins,
    }


def compiled_graphs(model: Model) -> list[CompiledGraph]:
    """Forward and backward graphs of a model as kernels, which are generated and not run."""
    made: list[CompiledGraph] = []

    def compile_one(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        made.append(compile_graph(graph_module, example_inputs))
        return graph_module.forward

    backend = functools.partial(
        aot_module_simplified, fw_compiler=compile_one, decompositions=codegen_decompositions(),
        partition_fn=partition_for_kernels,
    )  # fmt: skip
    with following_kernels_of("cuda"):
        _train(with_options(model.module, CaptureOptions(backend=backend)), model.inputs)
    return made


def _train(module: Callable[..., Any], inputs: Sequence[Any]) -> None:
    """Forward and backward."""
    result = module(*inputs)
    leaves = pytree.tree_leaves(dict(result) if isinstance(result, dict) else result)
    torch.stack(
        [leaf.float().sum() for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    ).sum().backward()


def cubin_figures(graphs: Sequence[CompiledGraph]) -> Figures:
    """Compile all kernels of graphs, equal ones once. Raises the compiler's error if it refuses one."""
    launches = [(printed.kernel, printed.default.constants) for graph in graphs for printed in graph.printed]
    kernels = list({(kernel.hash, *constants.items()): (kernel, constants) for kernel, constants in launches}.values())
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, TORCH_ORACLE_KERNEL_CACHE=folder):
        started = time.perf_counter()
        compiled = compile_batch(kernels, CAPABILITY, has_aligned_tensors=True)  # like the first launch on a GPU
        wall = time.perf_counter() - started
    figures = Figures(processor_s=0.0, wall_s=wall, products_s=0.0, kernels=len(kernels), registers=0, spills=0)
    for (_, constants), result in zip(kernels, compiled, strict=True):
        if not isinstance(result, CompiledKernel):
            raise result
        figures["processor_s"] += result.seconds
        figures["products_s"] += result.seconds if "KBLOCK" in constants else 0.0
        figures["registers"] = max(figures["registers"], result.registers)
        figures["spills"] = max(figures["spills"], result.spills)
    return figures


def compile_by_inductor(model: Model) -> None:
    """Compile with no caches on disk or in memory, in this process, whose time is measured."""
    fresh: Any = getattr(importlib.import_module("torch._inductor.utils"), "fresh_cache")
    config: Any = importlib.import_module("torch._inductor.config")
    torch.compiler.reset()
    with fresh(), config.patch(compile_threads=1):
        _train(torch.compile(model.module), model.inputs)


def graphs_by_inductor(model: Model) -> list[on_gpu.InductorGraph]:
    """Generate Triton code without compiling it."""
    return on_gpu.inductor_graphs(lambda backend: _train(torch.compile(model.module, backend=backend), model.inputs))


def ratios(seconds: Mapping[str, Any]) -> dict[str, float]:
    """Our time divided by Inductor's: below 1 ours is faster."""
    parts = {
        "source_ratio": (("source",), ("inductor_cpp",)),
        "total_ratio": (("source", "cubins"), ("inductor_cpp",)),
        "triton_ratio": (("source", "cubins"), ("inductor_triton", "inductor_cubins")),
    }
    return {
        name: round(sum(seconds[side] for side in ours) / sum(seconds[side] for side in theirs), 3)
        for name, (ours, theirs) in parts.items()
        if {*ours, *theirs} <= seconds.keys()
    }
