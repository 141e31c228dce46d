"""Time of AOT autograd and its partitioners, refimpl and torch, with compilers that return the graph unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch._functorch import aot_autograd as _torch_aot
from torch._functorch.partitioners import default_partition as torch_default
from torch._functorch.partitioners import min_cut_rematerialization_partition as torch_min_cut

import refimpl
from benchmarks.cases.capture import FiftyParameters
from benchmarks.cases.tracing import modules
from benchmarks.harness import Case, Figures, Side, benchmark, stopwatch
from benchmarks.models import (
    Graphs,
    JointProgram,
    Model,
    TensorOutputs,
    all_models,
    fresh_copy,
    joint_program,
    run_graphs,
    split,
)
from refimpl.aot.partition import default_partition, min_cut_rematerialization_partition
from refimpl.aot_entry_points import aot_function, aot_module_simplified

# torch's annotations are narrower than what it takes.
torch_aot_function: Callable[..., Any] = getattr(_torch_aot, "aot_function")
torch_aot_module_simplified: Callable[..., Any] = getattr(_torch_aot, "aot_module_simplified")
PARTITIONERS: dict[str, Callable[..., Graphs]] = {
    "refimpl": min_cut_rematerialization_partition,
    "torch": torch_min_cut,
}


def _as_it_is(graph_module: torch.fx.GraphModule, example_inputs: Any) -> torch.fx.GraphModule:
    return graph_module


@benchmark(repeat=9)
def aot_compile() -> Iterator[Case]:
    """Compile time of `aot_module_simplified`, with default and minimum-cut partitions."""
    peers = {"refimpl": aot_module_simplified, "torch": torch_aot_module_simplified}
    partitions = {"default": (default_partition, torch_default), "min_cut": (PARTITIONERS["refimpl"], torch_min_cut)}
    for name, (module, x) in modules().items():
        for partition, functions in partitions.items():
            compiled: dict[str, Side] = {
                side: partial(peer, TensorOutputs(module), (x,), _as_it_is, partition_fn=function)
                for (side, peer), function in zip(peers.items(), functions, strict=True)
            }
            yield Case(f"{name}, {partition}", lambda compiled=compiled: compiled)


def _plain(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x * y


def _mutating(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.mul_(2)
    return x * y


def _aliasing(x: torch.Tensor, y: torch.Tensor) -> Any:
    z = x * y
    return x.view(-1), z.view(-1), z.t()


_GRADIENTS = ("no gradients", "forward", "forward, backward")


@benchmark(repeat=9)
def aot_call(calls: int = 300) -> Iterator[Case]:
    """A call of a compiled function; its time beyond eager is that of the wrappers around the graph."""
    for program in (_plain, _mutating, _aliasing):
        for gradients in _GRADIENTS:
            yield Case(f"{program.__name__[1:]}, {gradients}", partial(_calls, program, gradients), calls=calls)


def _calls(program: Callable[..., Any], gradients: str) -> dict[str, Side]:
    peers = {
        "refimpl": aot_function(program, _as_it_is), "torch": torch_aot_function(program, _as_it_is), "eager": program
    }  # fmt: skip
    return _sides(peers, gradients, 2)


def _sides(peers: dict[str, Callable[..., Any]], gradients: str, count: int) -> dict[str, Side]:
    """Calls of the peers with tensors of their own, so many each, of which the first is no leaf if gradients are asked for."""
    requires_grad = gradients != "no gradients"

    def call(peer: Callable[..., Any], x: torch.Tensor, *others: torch.Tensor) -> None:
        out = peer(x.clone() if requires_grad else x, *others)  # a leaf that requires grad cannot be written
        if gradients == "forward, backward":
            (out if isinstance(out, torch.Tensor) else out[-1]).sum().backward()

    def arguments() -> list[torch.Tensor]:
        return [torch.randn(4, 4, requires_grad=requires_grad) for _ in range(count)]

    return {side: partial(call, peer, *arguments()) for side, peer in peers.items()}


@benchmark(repeat=15)
def checked_call(calls: int = 100) -> Iterator[Case]:
    """A call of `compile` and of `compile_aot` with its guards, beside torch.compile, all with the backend aot_eager."""
    programs: dict[str, Callable[..., Any]] = {
        **{program.__name__[1:]: program for program in (_plain, _mutating, _aliasing)},
        "50 parameters": FiftyParameters(),
    }
    fronts: dict[str, Callable[..., Any]] = {
        "compile": partial(refimpl.compile, backend="aot_eager"), "compile_aot": refimpl.compile_aot
    }  # fmt: skip
    for front, compiler in fronts.items():
        for name, program in programs.items():
            for gradients in _GRADIENTS:
                make = partial(_checked_calls, compiler, program, gradients)
                yield Case(f"{front}, {name}, {gradients}", make, calls=calls, clock="processor")


def _checked_calls(compiler: Callable[..., Any], program: Callable[..., Any], gradients: str) -> dict[str, Side]:
    compile_by_torch: Any = torch.compile
    count = 2
    if isinstance(program, torch.nn.Module):
        program.requires_grad_(gradients != "no gradients")
        count = 1
    peers = {"refimpl": compiler(program), "torch": compile_by_torch(program, backend="aot_eager"), "eager": program}
    return _sides(peers, gradients, count)


@benchmark(repeat=3)
def partition() -> Iterator[Case]:
    """Splitting a joint graph by minimum cut, and printing the code of both graphs."""
    for name, make in all_models().items():
        yield Case(name, partial(_partitions, make), clock="processor")


def _partitions(make: Callable[[], Model]) -> dict[str, Side]:
    program = joint_program(make())

    def run(partitioner: Callable[..., Graphs]) -> Figures:
        joint = fresh_copy(program.graph_module)
        with stopwatch() as figures:
            graphs = split(program, partitioner, joint)
            assert all(graph_module.code for graph_module in graphs)  # refimpl prints its code on demand
        return figures

    return {side: partial(run, partitioner) for side, partitioner in PARTITIONERS.items()}


@benchmark(repeat=5)
def partition_run() -> Iterator[Case]:
    """Running forward and backward graph of either partition, operator by operator."""

    def run(graphs: Graphs, program: JointProgram) -> Figures:
        primals = [primal.clone() for primal in program.primals]
        with stopwatch() as figures:
            run_graphs(graphs, program, primals)
        return figures

    def sides(make: Callable[[], Model]) -> dict[str, Side]:
        program = joint_program(make())
        return {side: partial(run, split(program, function), program) for side, function in PARTITIONERS.items()}

    for name, make in all_models().items():
        yield Case(name, partial(sides, make), clock="processor")
