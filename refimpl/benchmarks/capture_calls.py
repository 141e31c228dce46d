"""What a call of captured code costs, refimpl beside torch: `python -m refimpl.benchmarks.capture_calls [--calls N]`.

Both run graphs as they are, in turn; medians over rounds of the mean microseconds of a call. The overhead is what a call takes
beyond the graphs alone, run with inputs that are there already; the ratio is torch's overhead over that of refimpl.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from refimpl.capture.captured import CaptureOptions
from refimpl.capture.compile import with_options

_TABLE = {f"k{index}": float(index) for index in range(6)}
_SCALE = 2.0


def one_segment(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x * y + 1


def three_segments(x: torch.Tensor, y: torch.Tensor) -> Any:
    x = x * y
    torch._dynamo.graph_break()
    x = x + y
    torch._dynamo.graph_break()
    return x - 1


def twenty_guards(x: torch.Tensor, state: Any) -> Any:
    scale = state.a + state.b * state.c + len(state.items) + state.items[0] + state.items[1] + state.items[2]
    return x * scale + _TABLE["k1"] + _TABLE["k3"] * _SCALE + state.inner.d + state.inner.e


class FiftyParameters(torch.nn.Module):
    """25 linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(25)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def programs() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Name -> program and arguments."""
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    state = SimpleNamespace(a=1.0, b=2.0, c=3.0, items=[1, 2, 3], inner=SimpleNamespace(d=0.5, e=1.5))
    return {
        "one segment": (one_segment, (x, y)),
        "three segments": (three_segments, (x, y)),
        "20 guards": (twenty_guards, (x, state)),
        "50 parameters": (FiftyParameters(), (x,)),
    }


class Graphs:
    """A backend that runs graphs as they are, and can run all of them again with the inputs they were made for."""

    def __init__(self) -> None:
        self._graphs: list[tuple[Callable[..., Any], list[Any]]] = []

    def __call__(self, graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        run = torch.fx.GraphModule(graph_module, graph_module.graph).forward
        self._graphs.append((run, list(example_inputs)))
        return run

    def run(self, *args: Any) -> None:
        """Whatever the arguments are."""
        for run, inputs in self._graphs:
            run(*inputs)


def call_microseconds(program: Callable[..., Any], args: tuple[Any, ...], calls: int, rounds: int) -> dict[str, float]:
    """Medians over rounds of the mean of `calls` calls: eager, each peer, and the graphs of each alone. Gradients are off."""
    ours, theirs = Graphs(), Graphs()
    torch_compiled: Any = torch.compile(program, backend=theirs)
    peers: dict[str, Callable[..., Any]] = {
        "eager": program,
        "refimpl": with_options(program, CaptureOptions(backend=ours)),
        "torch": torch_compiled,
        "refimpl's graphs": ours.run,
        "torch's graphs": theirs.run,
    }
    times: dict[str, list[float]] = {name: [] for name in peers}
    with torch.no_grad():
        for _ in range(3):
            for peer in peers.values():
                peer(*args)
        for _ in range(rounds):
            for name, peer in peers.items():
                started = time.perf_counter()
                for _ in range(calls):
                    peer(*args)
                times[name].append((time.perf_counter() - started) * 1e6 / calls)
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    """Entry point of `python -m`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print(
        f"{'program':16} {'eager us':>9} {'refimpl us':>10} {'torch us':>9}   overhead: {'refimpl':>8} {'torch':>7}  ratio"
    )
    for name, (program, args) in programs().items():
        found = call_microseconds(program, args, arguments.calls, arguments.rounds)
        ours, theirs = (found[peer] - found[f"{peer}'s graphs"] for peer in ("refimpl", "torch"))
        print(
            f"{name:16} {found['eager']:9.1f} {found['refimpl']:10.1f} {found['torch']:9.1f}   {'':9} {ours:8.1f} {theirs:7.1f}"
            f" {theirs / ours:6.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
