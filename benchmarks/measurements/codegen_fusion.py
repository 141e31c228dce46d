"""Kernels and bytes beside Inductor's Triton, without a GPU: `python -m benchmarks.measurements.codegen_fusion [--csv FILE]`.

Programs of `codegen_speed` in its sizes, with fake tensors: as they are without gradients, forward and backward; models of
`benchmarks.models` forward and backward. Both compilers make code for an H100 that is not there (`on_gpu`); nothing is compiled.

kernels: launches; calls: of operators' own kernels, all
products and convolutions among them; mb: what kernels read and write, each element once for a kernel, without
what is done by calls. Ours are as `CompiledGraph.movement` has them, Inductor's as its own `kernel_num_gb`, which counts what is
written over an input once more. Ratios are ours over Inductor's: below 1 we move less.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from benchmarks.cases.codegen_speed import ON_GPU, Program, Sizes, model_programs, programs
from benchmarks.harness import geometric_mean
from benchmarks.measurements.frame import options_of, shown
from benchmarks.on_gpu import InductorGraph, graph_on_gpu, inductor_graphs
from refimpl._torch import FakeTensorMode
from refimpl.backends.partition import partition_for_kernels
from refimpl.codegen.compile import compile_graph
from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.codegen.launch_plan import CompiledGraph
from refimpl.codegen.loop_ir import Extern
from refimpl.codegen.options import CodegenOptions
from refimpl.pipeline import compile_aot
from refimpl.trace.decompositions.device_numerics import following_kernels_of

OPTIONS = CodegenOptions(contractions="extern", random="philox")
MEGABYTE = 1e6
LEAST = 4096
"""Bytes that are added to both sides of a ratio: graphs of which nothing is moved have one, too."""


class Parametrised(nn.Module):
    """A function of tensors, as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> tuple[torch.Tensor, ...]:
        return _tensors(self.function(*inputs))


def _tensors(result: Any) -> tuple[torch.Tensor, ...]:
    leaves = pytree.tree_leaves(dict(result) if isinstance(result, dict) else result)
    return tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))


def flat(program: Program, *, has_gradients: bool) -> tuple[Callable[..., Any], list[Any]]:
    """A function of parameters, buffers and inputs, and these."""
    module = Parametrised(program.function)
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    state = {**parameters, **buffers}

    def leaves(values: Iterable[torch.Tensor], *, is_variable: bool) -> list[torch.Tensor]:
        return [_leaf(value, is_variable=is_variable) for value in values]

    values = [
        *leaves(parameters.values(), is_variable=has_gradients), *leaves(buffers.values(), is_variable=False),
        *leaves(program.inputs, is_variable=has_gradients),
    ]  # fmt: skip

    def function(*values: Any) -> tuple[torch.Tensor, ...]:
        inputs = values[len(state) :]
        return torch.func.functional_call(module, dict(zip(state, values, strict=False)), inputs)

    return function, values


def _leaf(value: torch.Tensor, *, is_variable: bool) -> torch.Tensor:
    """What a program is given; what is on no device becomes a tensor of the CPU, a fake one in a mode of those."""
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype) if value.is_meta else value.detach()
    return made.requires_grad_(is_variable and made.is_floating_point())


def run_with_gradients(function: Callable[..., Any], values: Sequence[Any]) -> None:
    """Forward, and backward where results have one."""
    outputs = [output for output in function(*values) if output.requires_grad]
    if outputs:
        inputs = [value for value in values if isinstance(value, torch.Tensor) and value.requires_grad]
        torch.autograd.grad(outputs, inputs, [torch.ones_like(out) for out in outputs], allow_unused=True)


def our_graphs(program: Program, *, has_gradients: bool) -> list[CompiledGraph]:
    """The graphs that refimpl compiles for a program: one, or a forward and a backward graph."""
    made: list[CompiledGraph] = []

    def backend(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        made.append(compile_graph(graph_on_gpu(graph_module), example_inputs, options=OPTIONS))
        return graph_module

    function, values = flat(program, has_gradients=has_gradients)
    compiled = compile_aot(
        function,
        backend=backend,
        partition=functools.partial(partition_for_kernels, options=OPTIONS),
        decompositions=codegen_decompositions(),
    )
    with following_kernels_of("cuda"):
        run_with_gradients(compiled, values)
    return made


def their_graphs(program: Program, *, has_gradients: bool) -> list[InductorGraph]:
    """The same by Inductor."""
    function, values = flat(program, has_gradients=has_gradients)

    def run(backend: Callable[..., Any]) -> None:
        compile_by_torch: Any = torch.compile
        run_with_gradients(compile_by_torch(function, backend=backend, dynamic=False), values)

    return inductor_graphs(run)


def our_bytes(graph: CompiledGraph) -> list[int]:
    """That kernels move."""
    assert graph.movement is not None
    pairs = zip(graph.movement.entries, graph.movement.parts(), strict=True)
    return [int(str(part.moved)) for entry, part in pairs if not isinstance(entry, Extern)]


def row_of(program: str, direction: str, ours: CompiledGraph, theirs: InductorGraph) -> dict[str, Any]:
    """A line of the table."""
    mine, others = our_bytes(ours), list(theirs.kernels)
    return {
        "program": program, "direction": direction,
        "kernels": len(mine), "inductor_kernels": len(others),
        "calls": ours.fallbacks.total(), "inductor_calls": len(theirs.calls),
        "mb": round(sum(mine) / MEGABYTE, 3), "inductor_mb": round(sum(others) / MEGABYTE, 3),
        "kernels_ratio": round((len(mine) + 1) / (len(others) + 1), 3),
        "mb_ratio": round((sum(mine) + LEAST) / (sum(others) + LEAST), 3),
    }  # fmt: skip


def rows_of(name: str, make: Callable[[], Program], *, is_fake: bool) -> list[dict[str, Any]]:
    """The rows of one program: with gradients, and with fake tensors also without. Raises ValueError if the two compilers make
    different numbers of graphs.
    """
    found = []
    for has_gradients in (False, True) if is_fake else (True,):
        torch.manual_seed(0)
        program = make()
        with FakeTensorMode() if is_fake else contextlib.nullcontext():
            ours = our_graphs(program, has_gradients=has_gradients)
            theirs = their_graphs(program, has_gradients=has_gradients)
        directions = ("forward", "backward")[: len(ours)] if has_gradients else ("inference",)
        if len(ours) != len(theirs):
            raise ValueError(f"{name}: {len(ours)} graphs of ours, {len(theirs)} of Inductor")
        for at, direction in enumerate(directions):
            found.append(row_of(name, direction, ours[at], theirs[at]))
    return found


def measure(sizes: Sizes, only: str, *, has_models: bool) -> Iterator[dict[str, Any]]:
    """All rows whose programs' names contain `only`; models are in eval mode, without random numbers."""
    for name, make in programs(sizes, "meta", torch.float32).items():
        if only in name and "backward" not in name:
            yield from rows_of(name, make, is_fake=True)
    for name, make in model_programs("cpu").items() if has_models else ():
        if only in name:
            yield from rows_of(name, make, is_fake=False)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print rows, and means of the ratios."""
    parser = options_of(__doc__, only=True)
    parser.add_argument("--no-models", action="store_true")
    options = parser.parse_args(arguments)
    table = shown(measure(ON_GPU, options.only, has_models=not options.no_models), options.csv)
    for column in ("kernels_ratio", "mb_ratio"):
        values = list(table[column])
        print(f"{column}: {geometric_mean(values):.3f} geometric mean, {max(values):.3f} at most, {len(values)} graphs")


if __name__ == "__main__":
    main()
