"""Compiled programs against eager, with every kernel on three levels: emulated with all checks, interpreted, compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from refimpl.codegen.compile import compile_graph
from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.codegen.kernel import Kernel, Level
from refimpl.codegen.launch_plan import CompiledGraph
from refimpl.codegen.levels.cubin import CompiledKernel, compile_batch
from refimpl.codegen.levels.emulated import EmulatorLevel
from refimpl.codegen.levels.interpreter import InterpreterLevel
from refimpl.codegen.levels.transport import Launch
from refimpl.codegen.options import CodegenOptions
from refimpl.pipeline import compile_aot


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
    """Normal numbers, or integers from -9 to 8."""
    generator = torch.Generator().manual_seed(seed)
    if not dtype.is_floating_point:
        return torch.randint(-9, 9, shape, generator=generator).to(dtype)
    return torch.randn(*shape, generator=generator).to(dtype).requires_grad_(grad)


def compiled_with_graphs(
    function: Callable[..., Any], *, dynamic: bool = False, partition: Any = "min_cut", **options: Any
) -> tuple[Any, list[CompiledGraph]]:
    """The function, by kernels, and a list that takes every graph that is compiled. `options` are those of `compile_graph`."""
    graphs: list[CompiledGraph] = []

    def backend(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledGraph:
        graphs.append(compile_graph(graph_module, example_inputs, **options))
        return graphs[-1]

    decompositions = codegen_decompositions()
    compiled = compile_aot(
        function, backend=backend, partition=partition, decompositions=decompositions, dynamic=dynamic
    )
    return compiled, graphs


class RecordingLevel:
    """The emulator with checks for races, poison and assertions; keeps what it has launched, with the values from before."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.results: list[list[Any]] = []
        self._emulator = EmulatorLevel(races=True, asserts=True)

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, ...],
        arguments: Sequence[torch.Tensor | int | float],
        constants: Mapping[str, Any],
    ) -> None:
        """See Level."""
        self.launches.append(Launch(kernel, grid, _copies(arguments), constants))
        self._emulator.launch(kernel, grid, arguments, constants)
        self.results.append(_copies(arguments))


def _copies(arguments: Sequence[Any]) -> list[Any]:
    """Two arguments that are one tensor, because the one is written over the other, stay one."""
    made: dict[Any, torch.Tensor] = {}
    return [
        made.setdefault((a.data_ptr(), a.dtype, a.shape, a.stride()), a.detach().clone())
        if isinstance(a, torch.Tensor)
        else a
        for a in arguments
    ]


class Compiler:
    """A backend that keeps the graphs it has compiled, and what they launched. The reasons of all fallbacks are kept as well."""

    def __init__(
        self, *, strict: bool = True, options: CodegenOptions | None = None, level: Level | None = None
    ) -> None:
        self.strict = strict
        self.options = options
        self.recorded = RecordingLevel()
        self.level = self.recorded if level is None else level
        self.graphs: list[CompiledGraph] = []

    def __call__(self, graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledGraph:
        self.graphs.append(
            compile_graph(graph_module, example_inputs, level=self.level, strict=self.strict, options=self.options)
        )
        return self.graphs[-1]

    def compile(self, function: Callable[..., Any], *, dynamic: bool = False) -> Any:
        """The function, by kernels, forward and backward."""
        return compile_aot(
            function, backend=self, partition="min_cut", decompositions=codegen_decompositions(), dynamic=dynamic
        )


def check(
    function: Callable[..., Any], *arguments: Any, tolerance: float = 0.0, dynamic: bool = False, strict: bool = True
) -> Compiler:
    """Results and gradients are eager's. A tolerance of 0 asks for the same bits."""
    compiler = Compiler(strict=strict)
    check_agreement(function, compiler.compile(function, dynamic=dynamic), arguments, tolerance)
    return compiler


def check_agreement(function: Any, compiled: Any, arguments: Sequence[Any], tolerance: float = 0.0) -> None:
    """Compare outputs, and the gradients of the sum of their squares."""
    expected, actual = pytree.tree_leaves(function(*arguments)), pytree.tree_leaves(compiled(*arguments))
    assert len(expected) == len(actual)
    for a, b in zip(expected, actual, strict=True):
        torch.testing.assert_close(b, a, rtol=tolerance, atol=tolerance, equal_nan=True)
        assert b.stride() == a.stride()
    wanted = [a for a in arguments if isinstance(a, torch.Tensor) and a.requires_grad]
    if not wanted:
        return
    gradients = []
    for outputs in (expected, actual):
        squares = [output.square().sum() for output in outputs if output.requires_grad]
        gradients.append(torch.autograd.grad(torch.stack(squares).sum(), wanted, allow_unused=True))
    for a, b in zip(*gradients, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(b, a, rtol=tolerance, atol=tolerance, equal_nan=True)


def check_levels(level: RecordingLevel, *, tolerance: float = 0.0) -> None:
    """The interpreter gives what the emulator gave for every launch; every kernel compiles to a cubin."""
    interpreter = InterpreterLevel()
    for launch, results in zip(level.launches, level.results, strict=True):
        arguments = _copies(launch.arguments)
        interpreter.launch(launch.kernel, launch.grid, arguments, launch.constants)
        for emulated, interpreted in zip(results, arguments, strict=True):
            if isinstance(emulated, torch.Tensor):
                torch.testing.assert_close(interpreted, emulated, rtol=tolerance, atol=tolerance, equal_nan=True)
    for compiled in compile_batch([(launch.kernel, launch.constants) for launch in level.launches]):
        assert isinstance(compiled, CompiledKernel), compiled
