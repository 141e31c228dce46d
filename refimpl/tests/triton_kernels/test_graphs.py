"""Graphs with launches: how a launch looks, exported programs, aliased inputs, and what is refused."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops import triton_kernel_wrap, while_loop

import refimpl
from refimpl.capture.public.errors import Unsupported
from refimpl.errors import UnsupportedByRefimpl
from refimpl.export.archive.errors import ArchiveError
from refimpl.functionalize.errors import CannotFunctionalize

pytest.importorskip("triton")

import triton

from refimpl.tests.triton_kernels import analysed
from refimpl.tests.triton_kernels.programs import Program, arguments, kernels
from refimpl.trace.triton_kernels import is_launch

ROADS: dict[str, Callable[[Program], Program]] = {
    "compile": lambda function: refimpl.compile(function, fullgraph=True, backend="aot_eager"),
    "compile_aot": refimpl.compile_aot,
}


mathematics: Any = analysed.KERNELS["mathematics"]


def launches_in(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    return [node for node in graph.nodes if is_launch(node.target)]


def test_the_schema_says_what_is_written() -> None:
    graph = refimpl.make_fx(lambda x, y: kernels.add(x, y), tracing_mode="symbolic")(*arguments()).graph
    (node,) = launches_in(graph)
    target: Any = node.target
    schema = str(target._schema).partition("(")[2]
    assert schema == "Tensor x_ptr, Tensor y_ptr, Tensor(a2!) out_ptr, SymInt n, *, SymInt[] grid) -> ()"
    assert [str(n) for n in (node.args[3], node.args[0])] == ["sym_size_int", "x_1"]


def test_launches_of_one_kind_have_one_operator() -> None:
    def function(x: Any, y: Any) -> Any:
        first, second = kernels.add(x, y), kernels.add(y, x)
        return first, second, kernels.add(x, y, 8)

    first, second, third = launches_in(refimpl.make_fx(function, tracing_mode="fake")(*arguments()).graph)
    assert first.target is second.target
    assert first.target is not third.target


def test_a_tensor_that_is_given_twice_is_one_operand() -> None:
    def function(x: Any, y: Any) -> Any:
        kernels.add_kernel[(3,)](x, y, x, 20, BLOCK=8)
        return x

    (node,) = launches_in(refimpl.make_fx(function, tracing_mode="fake")(*arguments()).graph)
    assert len(node.args) == 3
    assert torch.equal(refimpl.compile(function, fullgraph=True)(*arguments()), function(*arguments()))


def test_a_compiled_kernel_is_recorded_without_a_gpu() -> None:
    """A JITFunction cannot run here. On a machine with a GPU the same graph runs it."""

    def function(x: Any, out: Any) -> Any:
        mathematics[lambda meta: (meta["n"] // meta["BLOCK"],)](x, x, out, x.numel(), BLOCK=4)
        torch.library.wrap_triton(mathematics)[(1,)](x, x, out, x.numel(), 4)
        return out

    first, second = launches_in(refimpl.make_fx(function, tracing_mode="fake")(*arguments()).graph)
    assert [first.kwargs["grid"], second.kwargs["grid"]] == [[5, 1, 1], [1, 1, 1]]
    captured: list[torch.fx.GraphModule] = []

    def backend(graph: Any, inputs: Any) -> Any:
        captured.append(graph)
        return lambda *args: (args[0],)

    refimpl.compile(function, backend=backend, fullgraph=True)(*arguments())
    assert [node.target for node in launches_in(captured[0].graph)] == [first.target, second.target]
    wrapped = torch.library.wrap_triton(mathematics)

    def through_wrapper(x: Any, out: Any) -> Any:
        wrapped[(2,)](x, x, out, x.numel(), BLOCK=4)
        return out

    refimpl.compile(through_wrapper, backend=backend, fullgraph=True)(*arguments())
    assert [node.kwargs["grid"] for node in launches_in(captured[1].graph)] == [[2, 1, 1]]


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_code_generator_calls_the_kernel(dynamic: bool) -> None:
    def function(x: Any, y: Any) -> Any:
        return (kernels.add(x, y) * 2).sin() + x

    compiled = refimpl.compile(function, fullgraph=True, dynamic=dynamic, backend="triton")
    torch.testing.assert_close(compiled(*arguments()), function(*arguments()))


@pytest.mark.parametrize("road", ROADS)
def test_a_loop_launches_a_kernel(road: str) -> None:
    def function(x: Any, y: Any) -> Any:
        def body(i: Any, v: Any) -> Any:
            return i + 1, kernels.add(v, y)

        return while_loop(lambda i, v: i < 3, body, (torch.tensor(0), x))[1]

    x, y = arguments()
    torch.testing.assert_close(ROADS[road](function)(x, y), x + 3 * y)


class WithBuffer(torch.nn.Module):
    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.ones(20))
        self.linear = torch.nn.Linear(20, 20)

    def forward(self, x: Any) -> Any:
        kernels.scale_kernel[(2,)](self.total, 20, 2.0)
        return kernels.add(self.linear(x), self.total)


def pair_of_modules() -> tuple[WithBuffer, WithBuffer]:
    made, same = WithBuffer(), WithBuffer()
    same.load_state_dict(made.state_dict())
    return made, same


@pytest.mark.parametrize("road", ROADS)
def test_a_kernel_writes_a_buffer(road: str) -> None:
    made, same = pair_of_modules()
    compiled: Any = ROADS[road](made)
    for _ in range(2):
        torch.testing.assert_close(compiled(arguments()[0]), same(arguments()[0]))
    assert torch.equal(made.total, same.total)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("decomposed", [False, True])
def test_exported_programs_launch_kernels(strict: bool, decomposed: bool) -> None:
    made, same = pair_of_modules()
    exported = refimpl.export.export(made, (torch.ones(20),), strict=strict)
    exported = exported.run_decompositions() if decomposed else exported
    assert exported.graph_signature.buffers_to_mutate != {} or not decomposed
    torch.testing.assert_close(exported.module()(arguments()[0]), same(arguments()[0]))


def test_an_exported_program_has_sizes_that_vary() -> None:
    class Added(torch.nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return kernels.add(x, y)

    size = {0: torch.export.Dim("size", min=2)}
    exported = refimpl.export.export(Added(), arguments(), dynamic_shapes=(size, size))
    for count in (20, 7, 33):
        x = torch.arange(float(count))
        assert torch.equal(exported.module()(x, x), 2 * x)


def test_a_launch_is_not_saved() -> None:
    """Its operator belongs to this process: another one may have another operator of that name."""
    exported = refimpl.export.export(WithBuffer(), (torch.ones(20),))
    for program in (exported, exported.run_decompositions()):
        with pytest.raises(ArchiveError, match="launch of a Triton kernel"):
            refimpl.export.save(program, io.BytesIO())


def shifts(a: Any, b: Any) -> Any:
    kernels.shift_kernel[(8,)](a, b, 8, BLOCK=1)
    return a + b


def scales(a: Any, b: Any) -> Any:
    kernels.scale_kernel[(2,)](a, 10, 3.0)
    return a + b.sum()


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("function", [shifts, scales])
def test_two_inputs_share_memory(function: Program, road: str) -> None:
    compiled = ROADS[road](function)
    memory, expected = torch.arange(20.0), torch.arange(20.0)
    result = function(expected[:10], expected[5:15])
    assert torch.equal(compiled(memory[:10], memory[5:15]), result)
    assert torch.equal(memory, expected)


def test_views_of_a_permuted_tensor_that_are_read_and_written_are_refused() -> None:
    def function(x: Any, y: Any) -> Any:
        z = (x.view(4, 5) * 2).t().relu()
        kernels.shift_kernel[(8,)](z, z[:, 1:], 8, BLOCK=1)
        return z + 1

    with pytest.raises(CannotFunctionalize, match="a Triton kernel reads x_ptr in memory that it writes"):
        refimpl.compile_aot(function)(*arguments())


def wrong(*args: Any, grid: Any = (1,), **kwargs: Any) -> Program:
    def function(x: Any, y: Any) -> Any:
        kernels.nothing_kernel[grid](x, *args, **kwargs)
        return x + 1

    return function


@pytest.mark.parametrize(
    ("function", "message", "break_message"),
    [
        (wrong(20, 8, grid=[1]), "grid", "a grid, which has to be a tuple"),
        (wrong(20, 8, grid=(1, 1, 1, 1)), "grid", "a grid, which has to be a tuple"),
        (wrong(object(), 8), "the argument n=object", "not supported as an input|argument n of a Triton kernel"),
    ],
    ids=["list", "four_sizes", "object"],
)
def test_what_a_launch_cannot_have_is_refused(function: Program, message: str, break_message: str) -> None:
    with pytest.raises(UnsupportedByRefimpl, match=message):
        refimpl.compile_aot(function)(*arguments())
    with pytest.raises(Unsupported, match=break_message):
        refimpl.compile(function, fullgraph=True)(*arguments())


@pytest.mark.parametrize(
    "function", [wrong(20, 8, 9, 10), wrong(20), wrong(20, 8, n=3)], ids=["too_many", "missing", "twice"]
)
def test_wrong_arguments_raise_as_in_eager_mode(function: Program) -> None:
    for called in (function, refimpl.compile(function), refimpl.compile_aot(function)):
        with pytest.raises(TypeError):
            called(*arguments())


def test_a_trace_leaves_triton_as_it_was() -> None:
    interpreted = type(kernels.add_kernel)
    before = interpreted.run
    refimpl.make_fx(lambda x, y: kernels.add(x, y))(*arguments())
    refimpl.compile(lambda x, y: kernels.add(x, y), fullgraph=True)(*arguments())
    assert interpreted.run is before
    assert os.environ.get("TRITON_INTERPRET") in (None, "0", "1")


def test_a_launch_that_torch_has_captured_is_one_of_the_kernel() -> None:
    table = triton_kernel_wrap.kernel_side_table
    kernel = table.add_kernel(kernels.add_kernel)
    constants = table.add_constant_args({"BLOCK": 8})

    def function(x: Any, y: Any) -> Any:
        out = torch.empty_like(x)
        given = {"x_ptr": x, "y_ptr": y, "out_ptr": out, "n": 20}
        triton_kernel_wrap.triton_kernel_wrapper_mutation(
            kernel_idx=kernel, constant_args_idx=constants, grid=[(3, 1, 1)], tma_descriptor_metadata={}, kwargs=given
        )
        return out

    def functional(x: Any, y: Any) -> Any:
        return triton_kernel_wrap.triton_kernel_wrapper_functional(
            kernel_idx=kernel, constant_args_idx=constants, grid=[(3, 1, 1)], tma_descriptor_metadata={},
            kwargs={"x_ptr": x, "y_ptr": y, "out_ptr": x, "n": 20}, tensors_to_clone=["out_ptr"],
        )  # fmt: skip

    x, y = arguments()
    graph = refimpl.make_fx(function, tracing_mode="fake")(x, y)
    assert len(launches_in(graph.graph)) == 1
    assert torch.equal(graph(x, y), x + y)
    assert torch.equal(refimpl.compile_aot(function)(x, y), x + y)
    with pytest.raises(UnsupportedByRefimpl, match="that torch has made functional"):
        refimpl.make_fx(functional, tracing_mode="fake")(x, y)


def test_numbers_that_are_read_from_data() -> None:
    def function(x: Any, y: Any) -> Any:
        chosen = x[x > 7]
        out, count = torch.empty_like(chosen), chosen.numel()
        kernels.add_kernel[(triton.cdiv(count, 8),)](chosen, chosen, out, count, BLOCK=8)
        kernels.scale_kernel[(2,)](out, count, y.sum().item())
        return out

    x, y = arguments()
    assert torch.equal(refimpl.compile(function, fullgraph=True, backend="aot_eager")(x, y + 1), function(x, y + 1))


def test_a_launch_goes_across_a_graph_break() -> None:
    def function(x: Any, y: Any) -> Any:
        out, block = torch.empty_like(x), 8
        launch = kernels.add_kernel[lambda meta: (triton.cdiv(meta["n"], block),)]
        refimpl.graph_break()
        launch(x, y, out, 20, BLOCK=block)
        return out

    assert torch.equal(refimpl.compile(function)(*arguments()), function(*arguments()))
