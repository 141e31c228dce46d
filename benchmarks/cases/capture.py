"""Time of capture, refimpl and torch: the first capture of a model, and calls of captured code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.harness import Case, Figures, Side, benchmark
from benchmarks.models import Model, all_models
from refimpl.capture.captured import CaptureOptions
from refimpl.capture.compile import with_options


class GraphsBuilder:
    """A backend that runs graphs unchanged, and can run all of them again with their example inputs."""

    def __init__(self) -> None:
        self.graphs: list[tuple[Callable[..., Any], list[Any]]] = []

    def __call__(self, graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        run = torch.fx.GraphModule(graph_module, graph_module.graph).forward
        self.graphs.append((run, list(example_inputs)))
        return run

    def run(self) -> None:
        for run, inputs in self.graphs:
            run(*inputs)


def compiled_by(side: str, program: Callable[..., Any], backend: Callable[..., Any]) -> Callable[..., Any]:
    """The program compiled by one side, with nothing captured yet."""
    compile_by_torch: Any = torch.compile
    if side == "refimpl":
        return with_options(program, CaptureOptions(backend=backend))
    return compile_by_torch(program, backend=backend)


@benchmark(repeat=3)
def capture_cold(own: bool = False) -> Iterator[Case]:
    """The first capture of a model after a reset, and its call; processor time, and the number of graphs."""

    def capture(side: str, model: Model) -> Figures:
        graphs: list[torch.fx.GraphModule] = []

        def backend(graph_module: torch.fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
            graphs.append(graph_module)
            return graph_module.forward

        if side == "torch":
            torch.compiler.reset()
        with torch.no_grad():
            compiled_by(side, model.module, backend)(*model.inputs)
        return Figures({f"{side} graphs": len(graphs)})

    def make(maker: Callable[[], Model]) -> dict[str, Side]:
        made = maker()
        model = Model(made.module.eval(), made.inputs)
        return {side: partial(capture, side, model) for side in ("refimpl", "torch")}

    for name, maker in all_models(own=own).items():
        yield Case(name, partial(make, maker), clock="processor")


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


@benchmark(repeat=15)
def capture_call(calls: int = 500) -> Iterator[Case]:
    """A call of captured code; `overhead`: its time beyond the graphs alone, `overheads`: torch's overhead divided by ours."""
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    state = SimpleNamespace(a=1.0, b=2.0, c=3.0, items=[1, 2, 3], inner=SimpleNamespace(d=0.5, e=1.5))
    programs: dict[str, tuple[Callable[..., Any], Any]] = {
        "one segment": (one_segment, (x, y)),
        "three segments": (three_segments, (x, y)),
        "20 guards": (twenty_guards, (x, state)),
        "50 parameters": (FiftyParameters(), (x,)),
    }
    for name, (program, arguments) in programs.items():
        yield Case(name, partial(_calls, program, arguments), calls=calls, derive=_overheads, parts=_PARTS)


_PARTS = ("refimpl's graphs", "torch's graphs")


def _calls(program: Callable[..., Any], arguments: Any) -> dict[str, Side]:
    backends = {"refimpl": GraphsBuilder(), "torch": GraphsBuilder()}

    def call(function: Callable[..., Any]) -> None:
        with torch.no_grad():
            function()

    functions = {side: partial(compiled_by(side, program, backends[side]), *arguments) for side in backends}
    graphs = {f"{side}'s graphs": backend.run for side, backend in backends.items()}
    everything = {**functions, "eager": partial(program, *arguments), **graphs}
    return {side: partial(call, function) for side, function in everything.items()}


def _overheads(seconds: Mapping[str, Any]) -> dict[str, float]:
    if not {"refimpl", "torch", *_PARTS} <= seconds.keys():
        return {}
    ours, theirs = (seconds[side] - seconds[f"{side}'s graphs"] for side in ("refimpl", "torch"))
    return {"overhead us": ours * 1e6, "torch's us": theirs * 1e6, "overheads": theirs / ours}
