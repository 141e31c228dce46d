"""What compiling a model costs, beside torch: `python -m refimpl.benchmarks.codegen_compile_time [--limit N] [--csv FILE]`.

Models of `partition_models`, in training mode, forward and backward, from the call of a module that was never compiled.

source: our capture, gradients, partition, lowering, schedule and printed text of all kernels. cubins: the same kernels compiled
for sm_90, without what is on disk, by ptxas in the end; products: what those of matrix products take of it, for which Inductor
calls libraries; registers, spills (bytes): the most of a thread of any. inductor_cpp: `torch.compile` with a fresh cache, whose
kernels are C++ where there is no GPU: g++ in the place of Triton and ptxas. inductor_triton: its capture, gradients and printed
text for an H100 that is not there (`on_gpu`); inductor_cubins: these kernels compiled for sm_90, in all configurations that
Inductor compiles before the first launch.

Both run the models once. Seconds of the processor, with those of other processes that are waited for, and of the clock on the
wall (`wall`): cubins of ours are compiled by as many processes as there are cores, Inductor's kernels by one. All peers in turn,
medians over rounds, without what is loaded once. `source_ratio` and `total_ratio` are our time over Inductor's with C++,
`triton_ratio` is all of ours over all of Inductor's with Triton.

--resume keeps what the table has, and measures what it has not of the asked --peers. --enough: no other round of a model that
has taken so many seconds of the processor.
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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch.utils import _pytree as pytree

from refimpl.aot.aot_function import aot_module_simplified
from refimpl.backends.partition import partition_for_kernels
from refimpl.benchmarks import on_gpu
from refimpl.benchmarks.partition_models import Model, own_models, transformers_models
from refimpl.capture.captured import CaptureOptions
from refimpl.capture.compile import with_options
from refimpl.codegen.compile import compile_graph
from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.codegen.launch_plan import CompiledGraph
from refimpl.codegen.levels.cubin import CompiledKernel, compile_batch
from refimpl.trace.decompositions.followed_kernels import following_kernels_of

CAPABILITY = 90


class Seconds(NamedTuple):
    """Of the processor, and of the clock on the wall."""

    processor: float
    wall: float


PEERS = ("cubins", "inductor_cpp", "inductor_triton")
"""What may be left out; each has a column `..._s`."""


@dataclass
class Measured:
    """Of one model: seconds by round, of the processor and on the wall, the warming one left out. `kernels`, and those that
    Inductor compiles in Triton, are of different text or configuration."""

    source: list[Seconds] = field(default_factory=list)
    cubins: list[Seconds] = field(default_factory=list)
    products: list[float] = field(default_factory=list)
    inductor_cpp: list[Seconds] = field(default_factory=list)
    inductor_triton: list[Seconds] = field(default_factory=list)
    inductor_cubins: list[Seconds] = field(default_factory=list)
    graphs: int = 0
    kernels: int = 0
    calls: int = 0
    inductor_kernels: int | None = None
    registers: int | None = None
    spills: int | None = None

    @property
    def processor(self) -> float:
        """Seconds that all of it took."""
        return sum(
            one.processor
            for part in (self.source, self.cubins, self.inductor_cpp, self.inductor_triton, self.inductor_cubins)
            for one in part
        )


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


class Cubins(NamedTuple):
    """Of all kernels: seconds, those of the processor for products, how many kernels, and the most registers and bytes spilled
    of a thread of one."""

    all: Seconds
    products: float
    kernels: int
    registers: int
    spills: int


def cubin_seconds(graphs: Sequence[CompiledGraph]) -> Cubins:
    """Of compiling all kernels of these, equal ones once. Raises the compiler's error for one that it refuses."""
    launches = [(printed.kernel, printed.default.constants) for graph in graphs for printed in graph.printed]
    kernels = list({(kernel.hash, *constants.items()): (kernel, constants) for kernel, constants in launches}.values())
    with _environment("TORCH_ORACLE_KERNEL_CACHE"):
        started = time.perf_counter()
        compiled = compile_batch(kernels, CAPABILITY, has_aligned_tensors=True)  # as a GPU's first launch
        wall = time.perf_counter() - started
    total = products = 0.0
    registers = spills = 0
    for (_, constants), result in zip(kernels, compiled, strict=True):
        if not isinstance(result, CompiledKernel):
            raise result
        total += result.seconds
        products += result.seconds if "KBLOCK" in constants else 0.0
        registers, spills = max(registers, result.registers), max(spills, result.spills)
    return Cubins(Seconds(total, wall), products, len(kernels), registers, spills)


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


def graphs_by_inductor(model: Model) -> list[on_gpu.InductorGraph]:
    """As Triton, printed and not compiled."""
    return on_gpu.inductor_graphs(lambda backend: _train(torch.compile(model.module, backend=backend), model.inputs))


def measure(
    maker: Callable[[], Model], rounds: int, peers: Collection[str] = PEERS, *, enough: float = math.inf
) -> Measured:
    """Compile a model in all ways, by turns."""
    measured = Measured()
    for _ in range(rounds):
        torch.manual_seed(0)
        seconds, graphs = _seconds(lambda: compiled_graphs(_training(maker())))
        measured.source.append(seconds)
        measured.graphs = len(graphs)
        measured.kernels = len({kernel.hash for graph in graphs for kernel in graph.kernels})
        measured.calls = sum(graph.fallbacks.total() for graph in graphs)
        if "cubins" in peers:
            cubins = cubin_seconds(graphs)
            measured.cubins.append(cubins.all)
            measured.products.append(cubins.products)
            measured.kernels, measured.registers, measured.spills = cubins.kernels, cubins.registers, cubins.spills
        if "inductor_cpp" in peers:
            measured.inductor_cpp.append(_seconds(lambda: compile_by_inductor(_training(maker())))[0])
        if "inductor_triton" in peers:
            seconds, theirs = _seconds(lambda: graphs_by_inductor(_training(maker())))
            measured.inductor_triton.append(seconds)
            seconds, measured.inductor_kernels = _seconds(functools.partial(on_gpu.compile_kernels, theirs))
            measured.inductor_cubins.append(seconds)
        if measured.processor > enough:
            break
    return measured


def _training(model: Model) -> Model:
    return Model(model.module.train(), model.inputs)


def row_of(name: str, measured: Measured, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A line of the table; a number that was not measured is left out, or is that of the line that is known."""
    source, cubins, cpp, triton, their_cubins = (
        _medians(found)
        for found in (
            measured.source, measured.cubins, measured.inductor_cpp, measured.inductor_triton, measured.inductor_cubins,
        )
    )  # fmt: skip
    products = statistics.median(measured.products) if measured.products else math.nan
    row = {
        "model": name, "graphs": measured.graphs, "kernels": measured.kernels, "calls": measured.calls,
        "inductor_kernels": measured.inductor_kernels,
        "source_s": round(source.processor, 2), "cubins_s": round(cubins.processor, 2), "products_s": round(products, 2),
        "inductor_cpp_s": round(cpp.processor, 2),
        "inductor_triton_s": round(triton.processor, 2), "inductor_cubins_s": round(their_cubins.processor, 2),
        "source_wall_s": round(source.wall, 2), "cubins_wall_s": round(cubins.wall, 2),
        "inductor_cpp_wall_s": round(cpp.wall, 2),
        "inductor_triton_wall_s": round(triton.wall + their_cubins.wall, 2),
        "registers": measured.registers, "spills": measured.spills, "rounds": len(measured.source),
    }  # fmt: skip
    row.update({column: value for column, value in (known or {}).items() if not pd.isna(value)})
    total, theirs = row["source_s"] + row["cubins_s"], row["inductor_triton_s"] + row["inductor_cubins_s"]
    parts = {
        "source_ratio": (row["source_s"], row["inductor_cpp_s"]),
        "total_ratio": (total, row["inductor_cpp_s"]),
        "triton_ratio": (total, theirs),
        "total_wall_ratio": (row["source_wall_s"] + row["cubins_wall_s"], row["inductor_cpp_wall_s"]),
    }
    return {**row, **{name: round(part / whole, 3) if whole else math.nan for name, (part, whole) in parts.items()}}


def _medians(found: Sequence[Seconds]) -> Seconds:
    if not found:
        return Seconds(math.nan, math.nan)
    return Seconds(*(statistics.median(times) for times in zip(*found, strict=True)))


def geometric_mean(ratios: Sequence[float]) -> float:
    """Of positive numbers."""
    return math.exp(statistics.fmean(map(math.log, ratios)))


def kept_rows(csv: Path | None) -> list[dict[str, Any]]:
    """Of an earlier run."""
    return [] if csv is None or not csv.exists() else pd.read_csv(csv).to_dict("records")


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `python -m`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--enough", type=float, default=math.inf, help="seconds of a model after which no other round is begun"
    )
    parser.add_argument("--own", action="store_true", help="without transformers' architectures")
    parser.add_argument("--only", default="", help="models whose names contain this")
    parser.add_argument("--limit", type=int, help="so many models")
    parser.add_argument("--time", type=float, default=math.inf, help="seconds after which no other model is begun")
    parser.add_argument(
        "--peers", default=",".join(PEERS), help=f"what is measured beside our source: of {', '.join(PEERS)}"
    )
    parser.add_argument("--csv", type=Path, help="written after each model")
    parser.add_argument("--resume", action="store_true", help="go on with the table that is there")
    options = parser.parse_args(arguments)
    peers = [name for name in options.peers.split(",") if name]
    if not set(peers) <= set(PEERS):
        parser.error(f"--peers {options.peers}: expected some of {', '.join(PEERS)}")
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # processes that it does not wait for would not be counted
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    makers = own_models() if options.own else {**own_models(), **transformers_models()}
    rows = {row["model"]: row for row in kept_rows(options.csv)} if options.resume else {}

    def missing(name: str) -> list[str]:
        return (
            peers if name not in rows else [peer for peer in peers if math.isnan(rows[name].get(f"{peer}_s", math.nan))]
        )

    names = [name for name in makers if options.only in name and (name not in rows or missing(name))][: options.limit]
    started = time.monotonic()
    measure(own_models()["mlp relu"], 1, peers)  # what is loaded once
    for at, name in enumerate(names):
        if time.monotonic() - started > options.time:
            print(f"{len(names) - at} models were not begun", flush=True)
            break
        measured = measure(makers[name], options.rounds, missing(name), enough=options.enough)
        rows[name] = row_of(name, measured, rows.get(name))
        print("  ".join(f"{key}={value}" for key, value in rows[name].items()), flush=True)
        if options.csv is not None:
            pd.DataFrame(list(rows.values())).to_csv(options.csv, index=False)
    for column, label in (
        ("source_ratio", "to source, of Inductor's time with C++"),
        ("total_ratio", "in all, of Inductor's time with C++"),
        ("total_wall_ratio", "in all, of Inductor's time with C++, wall"),
        ("triton_ratio", "in all, of Inductor's time with Triton"),
    ):
        ratios = [row[column] for row in rows.values() if row.get(column, math.nan) > 0]
        if ratios:
            print(f"{label}: {geometric_mean(ratios):.2f}, {max(ratios):.2f} at most, {len(ratios)} models")


if __name__ == "__main__":
    main()
