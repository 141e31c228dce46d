"""What compiling a model costs, beside torch: `python -m refimpl.benchmarks.codegen_compile_time [--limit N] [--csv FILE]`.

Models of `partition_models`, in training mode, forward and backward, from the call of a module that was never compiled.
source: our capture, gradients, partition, lowering, schedule and printed text of all kernels. cubins: the same kernels compiled
for sm_90, without what is on disk, by ptxas in the end. Inductor: `torch.compile` with a fresh cache; where there
is no GPU its kernels are C++, so that its column is of another compiler than ours: g++ in the place of Triton and ptxas.

Both run the models once. Seconds of the processor, with those of other processes that are waited for, and of the clock on the
wall (`wall`): cubins are compiled by as many processes as there are cores, Inductor's C++ by one. Both peers in turn, medians
over rounds, without what is loaded once. `to source` and `in all` are our time over Inductor's.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import logging
import math
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch.utils import _pytree as pytree

from refimpl.aot.aot_function import aot_module_simplified
from refimpl.backends.partition import partition_for_kernels
from refimpl.benchmarks.partition_models import Model, own_models, transformers_models
from refimpl.capture.captured import CaptureOptions
from refimpl.capture.compile import with_options
from refimpl.codegen.compile import compile_graph
from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.codegen.launch_plan import CompiledGraph
from refimpl.codegen.levels.cubin import CompiledKernel, compile_batch

CAPABILITY = 90


class Seconds(NamedTuple):
    """Of the processor, and of the clock on the wall."""

    processor: float
    wall: float


@dataclass
class Measured:
    """Of one model: seconds by round, of the processor and on the wall, the warming one left out."""

    source: list[Seconds] = field(default_factory=list)
    cubins: list[Seconds] = field(default_factory=list)
    inductor: list[Seconds] = field(default_factory=list)
    graphs: int = 0
    kernels: int = 0
    calls: int = 0


def compiled_graphs(model: Model) -> list[CompiledGraph]:
    """Forward and backward graphs of a model as kernels. The graphs are run as they are: kernels are made and not run."""
    made: list[CompiledGraph] = []

    def compile_one(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        made.append(compile_graph(graph_module, example_inputs))
        return graph_module.forward

    backend = functools.partial(
        aot_module_simplified, fw_compiler=compile_one, decompositions=codegen_decompositions(),
        partition_fn=partition_for_kernels,
    )  # fmt: skip
    _train(with_options(model.module, CaptureOptions(backend=backend)), model.inputs)
    return made


def _train(module: Callable[..., Any], inputs: Sequence[Any]) -> None:
    """Forward and backward."""
    result = module(*inputs)
    leaves = pytree.tree_leaves(dict(result) if isinstance(result, dict) else result)
    torch.stack(
        [leaf.float().sum() for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    ).sum().backward()


def cubin_seconds(graphs: Sequence[CompiledGraph]) -> Seconds:
    """Of compiling all kernels of these. Raises the compiler's error for one that it refuses."""
    launches = [(printed.kernel, printed.default.constants) for graph in graphs for printed in graph.printed]
    kernels = list({(kernel.hash, *constants.items()): (kernel, constants) for kernel, constants in launches}.values())
    with _environment("TORCH_ORACLE_KERNEL_CACHE"):
        started = time.perf_counter()
        compiled = compile_batch(kernels, CAPABILITY)
        wall = time.perf_counter() - started
    total = 0.0
    for result in compiled:
        if not isinstance(result, CompiledKernel):
            raise result
        total += result.seconds
    return Seconds(total, wall)


@contextmanager
def _environment(name: str) -> Iterator[None]:
    """The variable names a folder that is new."""
    before = os.environ.get(name)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[name] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ[name]
            else:
                os.environ[name] = before


def compile_by_inductor(model: Model) -> None:
    """With nothing kept from before, on disk or in memory."""
    fresh: Any = getattr(importlib.import_module("torch._inductor.utils"), "fresh_cache")
    torch.compiler.reset()
    with fresh():
        _train(torch.compile(model.module), model.inputs)


def _seconds(work: Callable[[], Any]) -> tuple[Seconds, Any]:
    """What it took, with the processes that it has waited for."""
    gc.collect()
    gc.disable()  # a full collection hits either
    try:
        before, started = os.times(), time.perf_counter()
        result = work()
        after, ended = os.times(), time.perf_counter()
    finally:
        gc.enable()
    return Seconds(sum(after[:4]) - sum(before[:4]), ended - started), result


def measure(maker: Callable[[], Model], rounds: int, *, has_cubins: bool, has_inductor: bool) -> Measured:
    """Compile a model in both ways, by turns."""
    measured = Measured()
    for _ in range(rounds):
        torch.manual_seed(0)
        seconds, graphs = _seconds(lambda: compiled_graphs(_training(maker())))
        measured.source.append(seconds)
        measured.graphs = len(graphs)
        measured.kernels = sum(len(graph.kernels) for graph in graphs)
        measured.calls = sum(graph.fallbacks.total() for graph in graphs)
        if has_cubins:
            measured.cubins.append(cubin_seconds(graphs))
        if has_inductor:
            measured.inductor.append(_seconds(lambda: compile_by_inductor(_training(maker())))[0])
    return measured


def _training(model: Model) -> Model:
    return Model(model.module.train(), model.inputs)


def row_of(name: str, measured: Measured) -> dict[str, Any]:
    """A line of the table; a number that was not measured is left out."""
    source, cubins, inductor = (_medians(found) for found in (measured.source, measured.cubins, measured.inductor))
    return {
        "model": name, "graphs": measured.graphs, "kernels": measured.kernels, "calls": measured.calls,
        "source_s": round(source.processor, 2), "cubins_s": round(cubins.processor, 2),
        "inductor_cpp_s": round(inductor.processor, 2),
        "source_ratio": round(source.processor / inductor.processor, 3),
        "total_ratio": round((source.processor + cubins.processor) / inductor.processor, 3),
        "source_wall_s": round(source.wall, 2), "cubins_wall_s": round(cubins.wall, 2),
        "inductor_cpp_wall_s": round(inductor.wall, 2),
        "total_wall_ratio": round((source.wall + cubins.wall) / inductor.wall, 3),
        "rounds": len(measured.source),
    }  # fmt: skip


def _medians(found: Sequence[Seconds]) -> Seconds:
    if not found:
        return Seconds(math.nan, math.nan)
    return Seconds(*(statistics.median(times) for times in zip(*found, strict=True)))


def geometric_mean(ratios: Sequence[float]) -> float:
    """Of positive numbers."""
    return math.exp(statistics.fmean(map(math.log, ratios)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `python -m`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--own", action="store_true", help="without transformers' architectures")
    parser.add_argument("--only", default="", help="models whose names contain this")
    parser.add_argument("--limit", type=int, help="so many models")
    parser.add_argument("--time", type=float, default=math.inf, help="seconds after which no other model is begun")
    parser.add_argument("--no-cubins", action="store_true")
    parser.add_argument("--no-inductor", action="store_true")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args(arguments)
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # processes that it does not wait for would not be counted
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    makers = own_models() if options.own else {**own_models(), **transformers_models()}
    names = [name for name in makers if options.only in name][: options.limit]
    peers = {"has_cubins": not options.no_cubins, "has_inductor": not options.no_inductor}
    started = time.monotonic()
    measure(own_models()["mlp relu"], 1, **peers)  # what is loaded once
    rows: list[dict[str, Any]] = []
    for name in names:
        if time.monotonic() - started > options.time:
            print(f"{len(names) - len(rows)} models were not begun", flush=True)
            break
        rows.append(row_of(name, measure(makers[name], options.rounds, **peers)))
        print("  ".join(f"{key}={value}" for key, value in rows[-1].items()), flush=True)
        if options.csv is not None:
            pd.DataFrame(rows).to_csv(options.csv, index=False)
    if peers["has_inductor"]:
        for column, label in (
            ("source_ratio", "to source"),
            ("total_ratio", "in all"),
            ("total_wall_ratio", "in all, wall"),
        ):
            ratios = [row[column] for row in rows if not math.isnan(row[column])]
            if ratios:
                print(
                    f"{label}: {geometric_mean(ratios):.2f} of Inductor's time, {max(ratios):.2f} at most, {len(ratios)} models"
                )


if __name__ == "__main__":
    main()
