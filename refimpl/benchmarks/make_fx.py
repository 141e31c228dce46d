"""How long tracing takes, refimpl beside torch: `python -m refimpl.benchmarks.make_fx [--repeats N] [--growth]`.

Both trace the same program on the same inputs in turn, so that what else the machine does hits both; medians in milliseconds,
and torch's time over refimpl's. Stack traces are off on both sides (the default of both) and on in a second pass, and the second
pass also asks both for the printed code, which refimpl prints only when asked.

`--growth` traces chains of 100, 1 000 and 10 000 operations instead, and prints time and peak memory of Python objects per node.
"""

from __future__ import annotations

import argparse
import statistics
import time
import tracemalloc
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx as torch_make_fx

import refimpl

Mode = Literal["real", "fake", "symbolic"]
MODES: tuple[Mode, ...] = ("real", "fake", "symbolic")
Program = Callable[..., Any]


class ResidualBlock(torch.nn.Module):
    """Two convolutions with batch norm and a skip connection."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList(torch.nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        for conv, norm in zip(self.convs, self.norms, strict=True):
            y = F.relu(norm(conv(y)))
        return x + y


def forward_and_backward(module: torch.nn.Module) -> Program:
    """The joint program: loss and gradients of all parameters."""
    parameters = tuple(module.parameters())

    def program(x: torch.Tensor) -> Any:
        loss = module(x).square().mean()
        return loss.detach(), *torch.autograd.grad(loss, parameters)

    return program


def programs() -> dict[str, tuple[Program, torch.Tensor]]:
    """Name -> program and example input."""
    block = ResidualBlock()
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
    image, sentence = torch.randn(2, 8, 10, 10), torch.randn(2, 6, 32)
    return {
        "residual block, forward": (block, image),
        "residual block, forward + backward": (forward_and_backward(block), image),
        "transformer layer, forward": (layer, sentence),
        "transformer layer, forward + backward": (forward_and_backward(layer), sentence),
        "12 transformer layers, forward": (encoder, sentence),
        "12 transformer layers, forward + backward": (forward_and_backward(encoder), sentence),
    }


def compare(program: Program, x: torch.Tensor, mode: Mode, repeats: int, *, is_full: bool) -> tuple[int, float, float]:
    """Nodes of our graph, and median milliseconds of refimpl and torch. `is_full`: with stack traces and printed code."""
    options: dict[str, Any] = {
        "tracing_mode": mode,
        "_allow_non_fake_inputs": True,
        "record_stack_traces": is_full,
    }
    tracers = {"refimpl": refimpl.make_fx(program, **options), "torch": torch_make_fx(program, **options)}
    milliseconds: dict[str, list[float]] = {key: [] for key in tracers}
    nodes = 0
    for repeat in range(repeats + 1):
        for key, tracer in tracers.items():
            started = time.perf_counter()
            graph_module = tracer(x)
            if is_full:
                assert graph_module.code
            if repeat:  # the first warms caches of kernels and decompositions
                milliseconds[key].append((time.perf_counter() - started) * 1e3)
            if key == "refimpl":
                nodes = len(graph_module.graph.nodes)
    return nodes, statistics.median(milliseconds["refimpl"]), statistics.median(milliseconds["torch"])


def chain(length: int) -> Program:
    """A program of `length` operations, some on sizes."""

    def program(x: torch.Tensor) -> torch.Tensor:
        for _ in range(length // 2):
            x = x.view(-1, x.shape[-1]) + 1
        return x

    return program


def print_comparison(repeats: int, modes: list[Mode]) -> None:
    """One line per program and mode."""
    print(f"{'program':42} {'mode':8} {'nodes':>5} {'refimpl ms':>10} {'torch ms':>9} {'ratio':>6} {'full ratio':>10}")
    for name, (program, x) in programs().items():
        for mode in modes:
            nodes, ours, theirs = compare(program, x, mode, repeats, is_full=False)
            _, ours_full, theirs_full = compare(program, x, mode, max(3, repeats // 2), is_full=True)
            print(
                f"{name:42} {mode:8} {nodes:5} {ours:10.1f} {theirs:9.1f} {theirs / ours:6.2f} {theirs_full / ours_full:10.2f}",
                flush=True,
            )


def print_growth(modes: list[Mode]) -> None:
    """Time and peak memory for three lengths: both per node should stay the same."""
    print(f"{'mode':8} {'tracer':8} {'nodes':>6} {'ms':>9} {'us/node':>8} {'peak KiB/node':>13}")
    for mode in modes:
        for name, make in (("refimpl", refimpl.make_fx), ("torch", torch_make_fx)):
            for length in (100, 1_000, 10_000):
                tracer = make(chain(length), tracing_mode=mode)
                x = torch.randn(4, 6)
                tracer(x)
                started = time.perf_counter()
                nodes = len(tracer(x).graph.nodes)
                seconds = time.perf_counter() - started
                tracemalloc.start()
                tracer(x)
                peak = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
                print(
                    f"{mode:8} {name:8} {nodes:6} {seconds * 1e3:9.1f} {seconds * 1e6 / nodes:8.1f} {peak / 1024 / nodes:13.2f}",
                    flush=True,
                )


def main() -> None:
    """Entry point of `python -m`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--mode", action="append", choices=MODES, help="may be repeated; default: all")
    parser.add_argument("--growth", action="store_true")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    modes = arguments.mode or list(MODES)
    if arguments.growth:
        print_growth(modes)
    else:
        print_comparison(arguments.repeats, modes)


if __name__ == "__main__":
    main()
