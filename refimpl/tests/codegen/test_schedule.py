"""Choices of speed change no results: configurations of blocks, tiles, split reductions, widths of indices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest
import sympy
import torch
import torch.nn.functional as F

from refimpl._torch import FakeTensorMode
from refimpl.codegen.compile import compile_graph
from refimpl.codegen.configurations import persistent_configurations, pointwise_configurations
from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.codegen.kernel import Level
from refimpl.codegen.launch_plan import CompiledGraph
from refimpl.codegen.levels.cubin import CompiledKernel, compile_batch
from refimpl.codegen.levels.emulated import EmulatorLevel
from refimpl.codegen.levels.interpreter import InterpreterLevel
from refimpl.codegen.loop_ir import Buffer
from refimpl.codegen.lowering.graph import LoweredGraph, lower_graph
from refimpl.codegen.options import CodegenOptions
from refimpl.codegen.printing import values
from refimpl.codegen.printing.kernels import PrintedKernel, print_kernel
from refimpl.codegen.scalars import Scalar, walk
from refimpl.codegen.schedule import ScheduledKernel, schedule
from refimpl.codegen.sizes import SizeFacts
from refimpl.codegen.tensors import Stored
from refimpl.pipeline import compile_aot
from refimpl.symbolic.ranges import Range
from refimpl.tests.codegen.checks import compiled_with_graphs, numbers


def _lowered(function: Callable[..., Any], *arguments: torch.Tensor, dynamic: bool = False) -> LoweredGraph:
    made: list[LoweredGraph] = []

    def backend(graph_module: torch.fx.GraphModule, example_inputs: Any) -> Any:
        made.append(lower_graph(graph_module, options=CodegenOptions(strict=True)))
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


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "pointwise": (lambda x, y: F.gelu(x) + y, ((40, 70), (70,))),
    "softmax": (lambda x: x.softmax(-1), ((33, 100),)),
    "long rows": (lambda x: (x.softmax(-1), x.argmax(-1)), ((3, 5000),)),
    "columns": (lambda x: (x.sum(0), x.argmin(0)), ((3000, 37),)),
    "whole blocks": (lambda x: x.exp() * 2, ((64, 1024),)),
    "transposed": (lambda x, y: x.t() + y, ((96, 200), (200, 96))),
    "batches transposed": (lambda x: (x.permute(0, 2, 1) * 2).contiguous(), ((3, 80, 70),)),
    "sum of all": (lambda x: (x.sum(), x.amax()), ((700, 300),)),
    "rows and columns": (lambda x: (x.sum(1), x.amax(0), x.argmin(1), (x > 1).any(0)), ((1000, 90),)),
    "a few rows and columns": (
        lambda x, y: (x.argmax(1), (x.exp() * y).sum(0), (x - x.mean(1, keepdim=True))),
        ((30, 70), (70,)),
    ),
}


@pytest.mark.fractional
@pytest.mark.parametrize("dynamic", [False, True], ids=["", "dynamic"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_configuration_gives_the_same(name: str, dynamic: bool) -> None:
    function, shapes = PROGRAMS[name]
    inputs = tuple(numbers(*shape, seed=at) for at, shape in enumerate(shapes))
    graph = _lowered(function, *inputs, dynamic=dynamic)
    printed, buffers = _printed(graph)
    expected = _run(graph, printed, buffers, inputs, lambda one: 0)
    most = max(len(one.configurations) for one in printed)
    assert most > 1
    for number in range(1, most):
        actual = _run(graph, printed, buffers, inputs, lambda one, number=number: number % len(one.configurations))
        for buffer, tensor in expected.items():
            torch.testing.assert_close(actual[buffer], tensor, rtol=1e-5, atol=1e-4)


# Triton's interpreter combines elements of a reduction one by one: fewer of them, which are split over programs all the same.
FOR_INTERPRETER = {"columns": ((1000, 37),), "sum of all": ((200, 300),), "rows and columns": ((400, 90),)}


@pytest.mark.parametrize("name", PROGRAMS)
def test_emulator_and_interpreter_agree(name: str) -> None:
    function, shapes = PROGRAMS[name]
    shapes = FOR_INTERPRETER.get(name, shapes)
    inputs = tuple(numbers(*shape, seed=at) for at, shape in enumerate(shapes))
    graph = _lowered(function, *inputs)
    printed, buffers = _printed(graph)
    assert name not in FOR_INTERPRETER or len(printed) == 2  # one of the parts, one of what they give
    expected = _run(graph, printed, buffers, inputs, lambda one: 0)
    actual = _run(graph, printed, buffers, inputs, lambda one: 0, InterpreterLevel())
    for buffer, tensor in expected.items():
        torch.testing.assert_close(actual[buffer], tensor, rtol=1e-5, atol=1e-4)


def _compiles(capability: int, *, every: bool) -> None:
    kernels = []
    for function, shapes in PROGRAMS.values():
        for dynamic in (False, True):
            printed, _ = _printed(_lowered(function, *(numbers(*shape) for shape in shapes), dynamic=dynamic))
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


@pytest.mark.parametrize(("points", "block"), [(100, 128), (1 << 12, 256), (1 << 17, 512), (1 << 20, 1024)])
def test_few_points_are_spread_over_more_programs(points: int, block: int) -> None:
    assert pointwise_configurations(points)[0].constants == {"XBLOCK": block}


@pytest.mark.parametrize(("rows", "block"), [(4, 4), (128, 8), (2048, 8), (4096, 16), (1 << 20, 32)])
def test_few_rows_are_spread_over_more_programs(rows: int, block: int) -> None:
    across, along = (
        persistent_configurations(rows, 64, is_kept_innermost=is_innermost)[0].constants["XBLOCK"]
        for is_innermost in (True, False)
    )
    assert along == block
    assert across == min(rows, max(block, 16))  # neighbours in memory stay in one block


def test_configurations_that_leave_points_without_a_mask_are_not_allowed() -> None:
    inputs = (numbers(3, 1024),)
    (printed,), _ = _printed(_lowered(lambda x: x * 2, *inputs))
    blocks = [dict(made.blocks)["XBLOCK"] for made in printed.configurations]
    assert "xmask" not in printed.kernel.source
    assert blocks == [256, 512, 1024]  # 2048 would go beyond 3072 points


def _compiled(
    function: Callable[..., Any], *arguments: torch.Tensor, dynamic: bool = False
) -> tuple[Any, list[CompiledGraph]]:
    compiled, graphs = compiled_with_graphs(function, dynamic=dynamic, strict=True)
    return compiled(*arguments), graphs


def _rounded(*shape: int) -> torch.Tensor:
    return (numbers(*shape) * 3).round()


ROWS_AND_COLUMNS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], int]] = {
    "columns of what rows give": (
        lambda x, y: (x.softmax(1), (x.softmax(1) * y).sum(0)), ((3000, 50), (3000, 50)), 2,
    ),
    "rows that are no whole blocks": (lambda x: ((x.exp() + 1).sum(0), x.amin(0), x.sum(1)), ((30, 70),), 2),
    "rows after columns": (lambda x: (x.sum(0), x.sum(1), x * x.amax(1, keepdim=True)), ((3000, 50),), 2),
    "of three dimensions": (lambda x: (x.sum((0, 1)), x.mean(2)), ((7, 300, 40, 1),), 2),
    "what columns give is read again": (lambda x: ((x - x.mean(0)).sum(0), x.sum(1)), ((3000, 50),), 4),
    "columns of another length": (lambda x: (x.sum((0, 2)), x.sum(1)), ((300, 20, 30),), 2),
    "rows that are too long": (lambda x: (x.sum(0), x.sum(1)), ((300, 5000),), 2),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS_AND_COLUMNS)
def test_rows_and_columns_of_one_input_are_reduced_in_one_kernel(name: str) -> None:
    function, shapes, launches = ROWS_AND_COLUMNS[name]
    inputs = tuple(numbers(*shape, seed=at) for at, shape in enumerate(shapes))
    actual, graphs = _compiled(function, *inputs)
    torch.testing.assert_close(actual, function(*inputs), rtol=1e-5, atol=1e-3)
    assert len(graphs[0].printed) == launches, graphs[0].source


def test_small_kernels_that_share_nothing_are_one_launch() -> None:
    inputs = numbers(40, 50), numbers(40, 50, seed=1)
    actual, graphs = _compiled(lambda x, y: (x.sum(1), y.amax(1)), *inputs)
    torch.testing.assert_close(actual, (inputs[0].sum(1), inputs[1].amax(1)))
    assert len(graphs[0].printed) == 1


LONG: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "sum of all": (lambda x: x.sum(), numbers(400, 300)),
    "a prime number of values": (lambda x: (x.sum(), x.amin(), x.square().mean()), numbers(65537)),
    "variance": (lambda x: torch.var_mean(x), numbers(400, 300) + 100),
    "tall columns": (lambda x: (x.sum(0), x.amax(0)), numbers(40000, 3)),
    "outer and inner": (lambda x: x.sum((0, 2)), numbers(9, 4, 9000)),
    "first of equal places": (lambda x: (x.argmax(), x.argmin(0), x.max(0)), _rounded(40000, 2)),
    "place of a NaN": (
        lambda x: x.argmax(),
        torch.where(torch.arange(70000) % 30011 == 30010, float("nan"), numbers(70000)),
    ),
    "all minus infinity": (lambda x: x.argmax(0), torch.full((70001, 1), float("-inf"))),
    "integers": (lambda x: (x.sum(), x.amax(), x.argmin()), (numbers(60000) * 99).to(torch.int32)),
    "whether any and all": (lambda x: ((x > 4).any(), (x > -9).all()), numbers(60000)),
    "half": (lambda x: (x.sum(), x.mean()), numbers(60000).half()),
    "softmax of one row": (lambda x: x.softmax(-1), numbers(1, 50000)),
}


@pytest.mark.fractional
@pytest.mark.parametrize("dynamic", [False, True], ids=["", "dynamic"])
@pytest.mark.parametrize("name", LONG)
def test_long_reductions_are_split_and_give_what_eager_gives(name: str, dynamic: bool) -> None:
    function, x = LONG[name]
    expected, (actual, graphs) = function(x), _compiled(function, x, dynamic=dynamic)
    assert len(graphs[0].kernels) > 1
    rtol = 2**-10 if x.dtype == torch.half else 1e-5
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=1e-4, equal_nan=True)
    again, _ = _compiled(function, x, dynamic=dynamic)
    torch.testing.assert_close(again, actual, rtol=0, atol=0, equal_nan=True)


def test_a_split_sum_is_no_less_exact_than_eager() -> None:
    x = numbers(1 << 20).abs() + 1000
    actual, _ = _compiled(lambda x: x.sum(), x)
    exact = x.double().sum()
    assert abs(actual.double() - exact) <= abs(x.sum().double() - exact) + exact * 2**-24


def test_a_split_reduction_for_one_size_holds_for_others() -> None:
    def function(x: torch.Tensor) -> Any:
        return x.sum(), x.amax(), x.argmin()

    compiled, made = compiled_with_graphs(function, dynamic=True, strict=True)
    for size in (50000, 2, 3, 25, 49999, 123457):
        x = _rounded(size)
        torch.testing.assert_close(compiled(x), function(x), rtol=1e-5, atol=1e-3)
    assert len(made) == 1


def _index_types(printed: PrintedKernel) -> set[str]:
    return {"int64" if "program_id(0).to(tl.int64)" in printed.kernel.source else "int32"} | {
        parameter.type for parameter in printed.kernel.arguments if not parameter.is_pointer
    }


@pytest.mark.parametrize(("upper", "expected"), [(46338, {"int32", "i32"}), (46341, {"int64", "i64"})])
def test_places_are_int32_where_ranges_of_sizes_prove_it(upper: int, expected: set[str]) -> None:
    graph = _lowered(lambda x, b: (x + b) * 2, numbers(30, 30), numbers(30), dynamic=True)
    needed = {value.buffer.name for value in graph.outputs if isinstance(value, Stored)}
    (entry,) = schedule(graph.steps, needed)
    assert isinstance(entry, ScheduledKernel)
    buffers = {value.name: value for value in graph.inputs if isinstance(value, Buffer)}
    buffers |= {nest.target.name: nest.target for nest in entry.group.nests}
    facts = SizeFacts({symbol: Range(2, upper) for symbol in graph.facts.ranges})  # 46341 ** 2 is more than 2 ** 31
    assert _index_types(print_kernel("kernel_0", entry, buffers, facts)) == expected
    assert "int64" in _index_types(print_kernel("kernel_0", entry, buffers))  # nothing is known


@pytest.mark.parametrize(("size", "expected"), [(2**31 - 9000, "int32"), (2**31, "int64")])
def test_places_of_a_known_size_are_int64_from_the_one_that_int32_has_not(size: int, expected: str) -> None:
    with FakeTensorMode():
        x = torch.empty(size, dtype=torch.int8)
    (printed,), _ = _printed(_lowered(lambda x: x + 1, x))
    assert _index_types(printed) == {expected}


def test_numbers_that_no_int32_has_are_computed_in_int64() -> None:
    actual, graphs = _compiled(
        lambda x: x + torch.arange(3_000_000_000, 3_000_000_050), torch.zeros(50, dtype=torch.int64)
    )
    assert torch.equal(actual, torch.arange(3_000_000_000, 3_000_000_050))
    assert ".to(tl.int64) * XBLOCK" in graphs[0].kernels[0].source


@pytest.mark.parametrize("rows", [3, 1100], ids=["in one block", "in a loop"])
def test_places_beyond_int32_are_reached(rows: int) -> None:
    stride = 2**31 // (rows - 1) + 64
    memory = torch.empty(stride * (rows - 1) + 2, dtype=torch.int8)  # pages that are not touched take no memory
    x = memory.as_strided((rows, 2), (stride, 1))
    values = torch.arange(2 * rows).view(rows, 2) % 5
    x.copy_(values)
    actual, graphs = _compiled(lambda x: (x + 1, x.sum(0)), x)
    torch.testing.assert_close(actual, (x + 1, x.sum(0)))
    assert all("tl.int64" in kernel.source for kernel in graphs[0].kernels)


def test_the_values_of_a_large_kernel_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of one of many parts is a choice among as many values, each of them below the next."""
    looked_at: list[Scalar] = []

    def counted(*roots: Scalar, known: Collection[int] = ()) -> Iterator[Scalar]:
        for part in walk(*roots, known=known):
            looked_at.append(part)
            yield part

    monkeypatch.setattr(values, "walk", counted)

    def steps(count: int) -> int:
        looked_at.clear()
        x = torch.arange(float(count), requires_grad=True)
        compiled = compile_aot(
            lambda x: x.unbind(0)[1] * 2, backend=compile_graph, decompositions=codegen_decompositions()
        )
        assert torch.autograd.grad(compiled(x), x)[0].tolist() == [0.0, 2.0, *[0.0] * (count - 2)]
        return len(looked_at)

    assert 0 < steps(200) < 2.5 * steps(100)
