"""Overhead of launching kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.harness import Case, Side, benchmark
from refimpl.codegen.kernel import Kernel
from refimpl.codegen.levels.device import DeviceLevel
from refimpl.tests.codegen.launch_graphs import NothingLevel, graph_of, launch_nothing


class _Compiled:
    """A stand-in for Triton's compiled kernel."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self._run

    def _run(self, *arguments: Any) -> None:
        pass


class UncompiledDeviceLevel(DeviceLevel):
    """Prepares launches as for a GPU, but launches nothing: it measures the host's work, and needs no GPU."""

    def __init__(self) -> None:
        self.fp_fusion = False
        self._compiled: dict[Any, Any] = {}

    def _compile(self, kernel: Kernel, constants: Mapping[str, Any], aligned: Sequence[int]) -> Any:
        return _Compiled()

    def _check_device(self, kernel: Kernel, arguments: Sequence[Any]) -> None:
        pass


@benchmark(repeat=21)
def codegen_overhead(launches: int = 20) -> Iterator[Case]:
    """Microseconds per launch of graphs whose kernels do nothing, beside hand-written allocations and empty calls.

    `device` binds kernels as on a GPU, except for the call of Triton's compiled kernel. The difference between two graph lengths
    removes the constant cost of a call.
    """
    ways: dict[str, Callable[[int], tuple[Side, int]]] = {
        "device": lambda length: _graph(length, UncompiledDeviceLevel()),
        "nothing": lambda length: _graph(length, NothingLevel()),
        "nothing, no reuse": lambda length: _graph(length, NothingLevel(), reuse=False),
        "by hand": _by_hand,
    }
    counts: dict[str, int] = {}

    def sides() -> dict[str, Side]:
        made: dict[str, Side] = {}
        for length in (launches, 3 * launches):
            for name, way in ways.items():
                made[f"{name} {length}"], counts[f"{name} {length}"] = way(length)
        return made

    def each_launch(seconds: Mapping[str, Any]) -> dict[str, float]:
        pairs = {name: (f"{name} {launches}", f"{name} {3 * launches}") for name in ways}
        return {
            name: 1e6 * (seconds[long] - seconds[short]) / (counts[long] - counts[short])
            for name, (short, long) in pairs.items()
            if {short, long} <= seconds.keys()
        }

    parts = tuple(f"{name} {length}" for name in ways for length in (launches, 3 * launches))
    yield Case(f"{launches} and {3 * launches} launches", sides, calls=50, derive=each_launch, parts=parts)


def _graph(length: int, level: Any, *, reuse: bool = True) -> tuple[Side, int]:
    """A graph, and the number of its launches."""
    graph = graph_of(length, level, reuse=reuse)
    return partial(graph.call, torch.ones(8, 8)), len(graph.printed)


def _by_hand(length: int) -> tuple[Side, int]:
    cpu, x = torch.device("cpu"), torch.ones(8, 8)

    def call() -> None:
        given = x
        for _ in range(length):
            made = torch.empty_strided((8, 8), (8, 1), dtype=torch.float32, device=cpu)
            launch_nothing((1,), (given, made))
            given = made

    return call, length
