"""Choices of speed change no results: configurations of blocks, tiles, split reductions, widths of indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
import torch.nn.functional as F

from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.codegen.kernel import Level
from refimpl.codegen.levels.cubin import CompiledKernel, compile_batch
from refimpl.codegen.levels.emulator import EmulatorLevel
from refimpl.codegen.levels.interpreter import InterpreterLevel
from refimpl.codegen.loop_ir import Buffer
from refimpl.codegen.lowering.graph import LoweredGraph, lower_graph
from refimpl.codegen.printing.kernels import PrintedKernel, print_kernel
from refimpl.codegen.schedule import ScheduledKernel, schedule
from refimpl.codegen.tensors import Stored
from refimpl.pipeline import compile_aot


def _lowered(function: Callable[..., Any], *arguments: torch.Tensor, dynamic: bool = False) -> LoweredGraph:
    made: list[LoweredGraph] = []

    def backend(graph_module: torch.fx.GraphModule, example_inputs: Any) -> Any:
        made.append(lower_graph(graph_module, strict=True))
        return graph_module

    compile_aot(function, backend=backend, decompositions=codegen_decompositions(), dynamic=dynamic)(*arguments)
    return made[0]


def _printed(graph: LoweredGraph) -> tuple[list[PrintedKernel], dict[str, Buffer]]:
    needed = {value.buffer.name for value in graph.outputs if isinstance(value, Stored)}
    buffers = {value.name: value for value in graph.inputs if isinstance(value, Buffer)}
    entries = [entry for entry in schedule(graph.steps, needed) if isinstance(entry, ScheduledKernel)]
    for entry in entries:
        buffers |= {nest.target.name: nest.target for nest in entry.group.nests}
    return [print_kernel(f"kernel_{at}", entry, buffers) for at, entry in enumerate(entries)], buffers


def _numbers(values: tuple[sympy.Expr, ...], sizes: dict[sympy.Symbol, int]) -> tuple[int, ...]:
    return tuple(int(str(sympy.sympify(value).xreplace(sizes))) for value in values)


def _run(
    graph: LoweredGraph,
    printed: list[PrintedKernel],
    buffers: dict[str, Buffer],
    inputs: tuple[torch.Tensor, ...],
    choice: Callable[[PrintedKernel], int],
    level: Level | None = None,
) -> dict[str, torch.Tensor]:
    """All buffers, after kernels with the configurations that `choice` gives the numbers of."""
    names = [value.name for value in graph.inputs if isinstance(value, Buffer)]
    tensors = dict(zip(names, inputs, strict=True))
    sizes: dict[Any, int] = {}
    for name, tensor in tensors.items():
        sizes |= dict(zip(buffers[name].shape, tensor.shape, strict=True))
    level = EmulatorLevel(asserts=True) if level is None else level
    for one in printed:
        for name in one.written:
            buffer = buffers[name]
            tensors[name] = torch.empty_strided(
                _numbers(buffer.shape, sizes), _numbers(buffer.strides, sizes), dtype=buffer.dtype
            )
        configuration = one.configurations[choice(one)]
        arguments = [
            tensors[value] if isinstance(value, str) else _numbers((value,), sizes)[0] for value in one.arguments
        ]
        grid = _numbers(one.grid_for(configuration), sizes)
        level.launch(one.kernel_for(configuration), grid, arguments, configuration.constants)
    return tensors


def _x(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "pointwise": (lambda x, y: F.gelu(x) + y, ((40, 70), (70,))),
    "softmax": (lambda x: x.softmax(-1), ((33, 100),)),
    "long rows": (lambda x: (x.softmax(-1), x.argmax(-1)), ((3, 5000),)),
    "columns": (lambda x: (x.sum(0), x.argmin(0)), ((3000, 37),)),
    "whole blocks": (lambda x: x.exp() * 2, ((64, 1024),)),
    "transposed": (lambda x, y: x.t() + y, ((96, 200), (200, 96))),
    "batches transposed": (lambda x: (x.permute(0, 2, 1) * 2).contiguous(), ((3, 80, 70),)),
    "sum of all": (lambda x: (x.sum(), x.amax()), ((700, 300),)),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["", "dynamic"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_configuration_gives_the_same(name: str, dynamic: bool) -> None:
    function, shapes = PROGRAMS[name]
    inputs = tuple(_x(*shape, seed=at) for at, shape in enumerate(shapes))
    graph = _lowered(function, *inputs, dynamic=dynamic)
    printed, buffers = _printed(graph)
    expected = _run(graph, printed, buffers, inputs, lambda one: 0)
    most = max(len(one.configurations) for one in printed)
    assert most > 1
    for number in range(1, most):
        actual = _run(graph, printed, buffers, inputs, lambda one, number=number: number % len(one.configurations))
        for buffer, tensor in expected.items():
            torch.testing.assert_close(actual[buffer], tensor, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", PROGRAMS)
def test_emulator_and_interpreter_agree(name: str) -> None:
    function, shapes = PROGRAMS[name]
    inputs = tuple(_x(*shape, seed=at) for at, shape in enumerate(shapes))
    graph = _lowered(function, *inputs)
    printed, buffers = _printed(graph)
    expected = _run(graph, printed, buffers, inputs, lambda one: 0)
    actual = _run(graph, printed, buffers, inputs, lambda one: 0, InterpreterLevel())
    for buffer, tensor in expected.items():
        torch.testing.assert_close(actual[buffer], tensor, rtol=1e-5, atol=1e-4)


def _compiles(capability: int, *, every: bool) -> None:
    kernels = []
    for function, shapes in PROGRAMS.values():
        for dynamic in (False, True):
            printed, _ = _printed(_lowered(function, *(_x(*shape) for shape in shapes), dynamic=dynamic))
            for one in printed:
                chosen = one.configurations if every else one.configurations[:1]
                kernels += [(one.kernel_for(made), made.constants) for made in chosen]
    for (kernel, constants), result in zip(kernels, compile_batch(kernels, capability), strict=True):
        assert isinstance(result, CompiledKernel), (kernel.source, constants, result)
        assert result.spills <= 64, (kernel.source, constants)


def test_kernels_are_compiled_for_a_gpu() -> None:
    _compiles(90, every=False)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
def test_kernels_are_compiled_for_gpus_in_every_configuration(capability: int) -> None:
    _compiles(capability, every=True)


def test_configurations_that_leave_points_without_a_mask_are_not_allowed() -> None:
    inputs = (_x(3, 1024),)
    (printed,), _ = _printed(_lowered(lambda x: x * 2, *inputs))
    blocks = [dict(made.blocks)["XBLOCK"] for made in printed.configurations]
    assert "xmask" not in printed.kernel.source
    assert blocks == [1024, 256, 512]  # 2048 would go beyond 3072 points
