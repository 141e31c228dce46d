"""How long tracing takes, refimpl beside torch: `python -m refimpl.benchmarks.make_fx [repeats]`.

Both trace the same program on the same inputs in turn, so that what else the machine does hits both; medians in
milliseconds, and torch's time over refimpl's.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx as torch_make_fx

import refimpl


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


def forward_and_backward(module: torch.nn.Module) -> Callable[..., Any]:
    """The joint program: loss and gradients of all parameters."""
    parameters = tuple(module.parameters())

    def program(x: torch.Tensor) -> Any:
        loss = module(x).square().mean()
        return loss.detach(), *torch.autograd.grad(loss, parameters)

    return program


def main(repeats: int) -> None:
    """Prints one line per program and mode."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    block = ResidualBlock()
    encoder = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    programs = {
        "residual block, forward": (block, torch.randn(2, 8, 8, 8)),
        "residual block, forward + backward": (forward_and_backward(block), torch.randn(2, 8, 8, 8)),
        "transformer layer, forward": (encoder, torch.randn(2, 6, 32)),
        "transformer layer, forward + backward": (forward_and_backward(encoder), torch.randn(2, 6, 32)),
    }
    print(f"{'program':40} {'mode':5} {'nodes':>5} {'refimpl ms':>10} {'torch ms':>9} {'torch/refimpl':>13}")
    for name, (program, x) in programs.items():
        for mode in ("real", "fake"):
            tracers = {
                "refimpl": refimpl.make_fx(program, tracing_mode=mode, _allow_non_fake_inputs=True),
                "torch": torch_make_fx(program, tracing_mode=mode, _allow_non_fake_inputs=True),
            }
            seconds: dict[str, list[float]] = {key: [] for key in tracers}
            nodes = 0
            for repeat in range(repeats + 1):
                for key, tracer in tracers.items():
                    started = time.perf_counter()
                    graph_module = tracer(x)
                    if repeat:  # the first warms caches of kernels and decompositions
                        seconds[key].append(time.perf_counter() - started)
                    nodes = len(graph_module.graph.nodes)
            ours, theirs = (statistics.median(seconds[key]) * 1e3 for key in ("refimpl", "torch"))
            print(f"{name:40} {mode:5} {nodes:5} {ours:10.1f} {theirs:9.1f} {theirs / ours:13.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
