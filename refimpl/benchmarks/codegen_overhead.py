"""What launching costs beside the kernels: `python -m refimpl.benchmarks.codegen_overhead [--launches N] [--rounds N]`.

A graph of many kernels on small tensors, on a level that runs nothing, so that all the time there is goes into the launch plan:
checks of inputs, sizes, allocations and calls. Beside it the least that any wrapper does: the same allocations and empty calls,
written by hand. `device` binds kernels as on a GPU, up to the call of what Triton has compiled, which is left out. Microseconds
for each launch, medians of rounds by turns; the difference of two lengths leaves out what a call costs once.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from refimpl.codegen.compile import compile_graph
from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.codegen.kernel import Kernel, Launcher
from refimpl.codegen.launch_plan import CompiledGraph
from refimpl.codegen.levels.device import DeviceLevel
from refimpl.codegen.options import CodegenOptions
from refimpl.pipeline import compile_aot


class NothingLevel:
    """Runs nothing: what comes out is what was in memory."""

    def launch(
        self, kernel: Kernel, grid: tuple[int, ...], arguments: Sequence[Any], constants: Mapping[str, Any]
    ) -> None:
        """See Level."""

    def bind(self, kernel: Kernel, constants: Mapping[str, Any]) -> Launcher:
        """What launches nothing."""
        return _nothing


def _nothing(grid: tuple[int, ...], arguments: Sequence[Any]) -> None:
    pass


class _Compiled:
    """In the place of what Triton has compiled."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self._run

    def _run(self, *arguments: Any) -> None:
        pass


class UncompiledDeviceLevel(DeviceLevel):
    """A GPU's level up to the compiled kernel, where there need be no GPU."""

    def __init__(self) -> None:
        self.fp_fusion = False
        self._compiled: dict[Any, Any] = {}

    def _compile(self, kernel: Kernel, constants: Mapping[str, Any], aligned: Sequence[int]) -> Any:
        return _Compiled()

    def _check_device(self, kernel: Kernel, arguments: Sequence[Any]) -> None:
        pass


def graph_of(launches: int, level: Any, *, reuse: bool = True) -> CompiledGraph:
    """A graph of as many kernels, each of which reads the one before it in another order."""
    made: list[CompiledGraph] = []

    def backend(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledGraph:
        options = CodegenOptions(reuse_buffers=reuse)
        made.append(compile_graph(graph_module, example_inputs, level=level, options=options))
        return made[-1]

    def function(x: torch.Tensor) -> torch.Tensor:
        for at in range(launches):
            x = x.sum(at % 2, keepdim=True) + x
            x = x.t().contiguous()
        return x

    compile_aot(function, backend=backend, decompositions=codegen_decompositions())(torch.ones(8, 8))
    return made[-1]


def by_hand(launches: int) -> Callable[..., Any]:
    """Allocations and empty calls, and nothing else."""

    def call(*inputs: Any) -> Any:
        (x,) = inputs
        for _ in range(launches):
            y = torch.empty_strided((8, 8), (8, 1), dtype=torch.float32, device=_CPU)
            _nothing((1,), (x, y))
            x = y
        return (x,)

    return call


_CPU = torch.device("cpu")


def microseconds(calls: Mapping[str, Callable[..., Any]], rounds: int, repeats: int) -> dict[str, float]:
    """Medians of one call of each."""
    x = torch.ones(8, 8)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            started = time.perf_counter()
            for _ in range(repeats):
                call(x)
            times[name].append((time.perf_counter() - started) * 1e6 / repeats)
    return {name: statistics.median(values) for name, values in times.items()}


def overheads(launches: int, rounds: int, repeats: int = 50) -> dict[str, float]:
    """Microseconds for each launch, by what launches."""
    calls: dict[str, Callable[..., Any]] = {}
    counts: dict[str, int] = {}
    for length in (launches, 3 * launches):
        graphs = {
            "nothing": graph_of(length, NothingLevel()),
            "nothing, no reuse": graph_of(length, NothingLevel(), reuse=False),
            "device": graph_of(length, UncompiledDeviceLevel()),
        }
        for name, graph in graphs.items():
            calls[f"{name} {length}"] = graph.call
            counts[f"{name} {length}"] = len(graph.printed)
        calls[f"by hand {length}"] = by_hand(length)
        counts[f"by hand {length}"] = length
    times = microseconds(calls, rounds, repeats)
    found: dict[str, float] = {}
    for name in ("by hand", "nothing, no reuse", "nothing", "device"):
        short, long = f"{name} {launches}", f"{name} {3 * launches}"
        found[name] = (times[long] - times[short]) / (counts[long] - counts[short])
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `python -m`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=21)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for name, value in overheads(options.launches, options.rounds).items():
        print(f"{name:20} {value:6.2f} us for each launch", flush=True)


if __name__ == "__main__":
    main()
