"""Time of tracing, `make_fx` of refimpl and of torch."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx as torch_make_fx

import refimpl
from benchmarks.harness import Case, Figures, Side, benchmark, stopwatch

MODES = ("real", "fake", "symbolic")
TRACERS: dict[str, Callable[..., Any]] = {"refimpl": refimpl.make_fx, "torch": torch_make_fx}
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


def modules() -> dict[str, tuple[torch.nn.Module, torch.Tensor]]:
    """Name -> module and example input."""
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
    image, sentence = torch.randn(2, 8, 10, 10), torch.randn(2, 6, 32)
    return {
        "residual block": (ResidualBlock(), image),
        "transformer layer": (layer, sentence),
        "12 transformer layers": (encoder, sentence),
    }


def forward_and_backward(module: torch.nn.Module) -> Program:
    """The joint program: loss and gradients of all parameters."""
    parameters = tuple(module.parameters())

    def program(x: torch.Tensor) -> Any:
        loss = module(x).square().mean()
        return loss.detach(), *torch.autograd.grad(loss, parameters)

    return program


@benchmark(repeat=15)
def make_fx() -> Iterator[Case]:
    """Tracing without stack traces; `full`: with stack traces and the printed code, which refimpl prints on demand."""
    for name, (module, x) in modules().items():
        for direction, program in (("forward", module), ("forward + backward", forward_and_backward(module))):
            for mode in MODES:
                for full in ("", ", full"):
                    make = partial(_traced, program, x, mode, is_full=bool(full))
                    yield Case(f"{name}, {direction}, {mode}{full}", make)


def _traced(program: Program, x: torch.Tensor, mode: str, *, is_full: bool) -> dict[str, Side]:
    options = {"tracing_mode": mode, "_allow_non_fake_inputs": True, "record_stack_traces": is_full}

    def trace(side: str, tracer: Callable[..., Any]) -> Figures:
        graph_module = tracer(x)
        assert not is_full or graph_module.code
        return Figures({"nodes": len(graph_module.graph.nodes)} if side == "refimpl" else {})

    return {side: partial(trace, side, make(program, **options)) for side, make in TRACERS.items()}


@benchmark(repeat=1)
def make_fx_growth(longest: int = 10_000) -> Iterator[Case]:
    """Tracing chains of 100 to 10 000 operations: time and peak memory of Python objects, per node, should stay the same."""
    for mode in MODES:
        for length in (100, 1_000, 10_000):
            if length <= longest:
                yield Case(f"{mode}, {length} operations", partial(_traced_chains, length, mode))


def _traced_chains(length: int, mode: str) -> dict[str, Side]:
    x = torch.randn(4, 6)

    def program(x: torch.Tensor) -> torch.Tensor:
        for _ in range(length // 2):
            x = x.view(-1, x.shape[-1]) + 1
        return x

    def trace(side: str, tracer: Callable[..., Any]) -> Figures:
        with stopwatch() as figures:
            nodes = len(tracer(x).graph.nodes)
        tracemalloc.start()
        tracer(x)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        figures |= {f"{side} us/node": figures["wall_s"] * 1e6 / nodes, f"{side} KiB/node": peak / 1024 / nodes}
        return figures

    return {side: partial(trace, side, make(program, tracing_mode=mode)) for side, make in TRACERS.items()}
