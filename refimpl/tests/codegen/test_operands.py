"""What calls of operators read lies in memory once: no copy of what is there already, nor one for each view of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import refimpl
from refimpl.aot.partition.recomputation import Prices, partition_options
from refimpl.backends.partition import partition_for_kernels
from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.codegen.options import CodegenOptions
from refimpl.pipeline import compile_aot
from refimpl.tests.codegen.checks import compiled_with_graphs, numbers
from refimpl.trace.decompositions.device_numerics import following_kernels_of

CALLS = CodegenOptions(contractions="extern")


def _heads(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A permutation that is undone before it is copied: nothing moves."""
    return x.transpose(0, 1).transpose(0, 1).clone().view(-1, x.shape[-1]) @ w


def _one_of_three(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A part of a tensor, whose rows are taken apart: still memory with strides."""
    part = x.select(1, 1)
    return torch.bmm(part.reshape(part.shape[0], 2, -1), w)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], int]] = {
    "a copy of what is there": (_heads, ((3, 4, 8), (8, 5)), 0),
    "rows in two parts": (_one_of_three, ((6, 3, 8), (6, 4, 5)), 0),
    "a factor and its transpose": (
        lambda x, w: (lambda y: (y @ w, y.t() @ w))(x * 2 + 1),
        ((8, 8), (8, 8)),
        1,
    ),
    "views of one computation": (
        lambda x, w: (lambda y: (y.view(-1, 8) @ w, y.view(-1, 8).t() @ y.view(-1, 8)))(x.sin()),
        ((2, 3, 8), (8, 5)),
        1,
    ),
    "a computation that is a result, too": (
        lambda x, w: (lambda y: (y, y.t() @ w))(x.sin() + x.t()),
        ((8, 8), (8, 5)),
        1,
    ),
    "a copy in another order": (lambda x, w: x.t().contiguous() @ w, ((8, 6), (8, 5)), 1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_operands_are_put_into_memory_once(name: str) -> None:
    function, shapes, kernels = PROGRAMS[name]
    inputs = tuple(numbers(*shape, seed=at) for at, shape in enumerate(shapes))
    compiled, graphs = compiled_with_graphs(function, options=CALLS)
    actual = compiled(*inputs)
    (graph,) = graphs
    torch.testing.assert_close(actual, function(*inputs))
    assert len(graph.printed) == kernels, graph.source


def test_copies_that_are_results_have_memory_of_their_own() -> None:
    x = numbers(6, 6)
    copied, product = compiled_with_graphs(lambda x: (lambda y: (y, y @ x))(x.clone()), options=CALLS)[0](x)
    assert copied.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    torch.testing.assert_close((copied, product), (x, x @ x))


def test_results_of_operators_that_give_their_argument_are_no_input() -> None:
    x = numbers(6, 6)
    result = compiled_with_graphs(lambda x: torch.ops.aten.lift_fresh(x.clone()), options=CALLS)[0](x)
    result.zero_()
    assert x.abs().min() > 0


def _written_by_forward(**prices: float) -> int:
    """Elements of a norm's forward graph that are not its inputs, in results as large as these. As for a GPU: the gradient for a
    CPU reads the input in any case."""
    outputs: list[list[torch.Tensor]] = []

    def backend(graph_module: torch.fx.GraphModule, example_inputs: Any) -> Any:
        items: Any = graph_module.graph.output_node().args[0]
        made = [node for node in items if isinstance(node, torch.fx.Node) and node.op != "placeholder"]
        outputs.append([node.meta["val"] for node in made])
        return graph_module

    x, w = numbers(32, 64).requires_grad_(), numbers(64).requires_grad_()
    with partition_options(prices=Prices(**prices)), following_kernels_of("cuda"):
        compiled = compile_aot(
            lambda x, w: F.layer_norm(x, (64,), w),
            backend=backend,
            partition=partition_for_kernels,
            decompositions=codegen_decompositions(),
        )
        compiled(x, w).sum().backward()
    return sum(value.numel() for value in outputs[0] if value.numel() >= x.numel())


def test_kernels_save_what_is_in_memory_anyway_unless_other_prices_are_asked_for() -> None:
    assert _written_by_forward() == 32 * 64
    assert _written_by_forward(extra_write=0.01) == 2 * 32 * 64


def test_a_result_that_a_call_reads_through_an_unsafe_view_is_stored_once() -> None:
    def repeated(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        copy = x.unsqueeze(1).expand(4, 2, 8, 16).clone(memory_format=torch.contiguous_format)
        return torch.bmm(torch.ops.aten._unsafe_view(copy, (8, 8, 16)), w), copy

    x, w = numbers(4, 8, 16), numbers(8, 16, 4, seed=1)
    compiled, graphs = compiled_with_graphs(repeated, options=CALLS)
    results = compiled(x, w)
    (graph,) = graphs
    torch.testing.assert_close(results, repeated(x, w))
    assert [len(printed.written) for printed in graph.printed] == [1], graph.source


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_what_no_kernel_reads_is_copied_by_calls(dtype: torch.dtype) -> None:
    """For symbolic sizes it is not known whether a repeated tensor has the strides that the call must read."""
    compiled = refimpl.compile(lambda x: F.pixel_unshuffle(x, 2), backend="triton")
    for shape in ((4, 4, 2), (2, 2, 2)):
        x = torch.tensor(1 - 2j, dtype=dtype).expand(shape).requires_grad_()
        y, expected = compiled(x), F.pixel_unshuffle(x, 2)
        torch.testing.assert_close(y, expected, rtol=0, atol=0, check_stride=True)
        of_compiled, of_eager = (torch.autograd.grad(out, x, out.detach())[0] for out in (y, expected))
        torch.testing.assert_close(of_compiled, of_eager, rtol=0, atol=0, check_stride=True)


def test_operands_of_dtypes_that_are_not_promoted_are_left_to_the_operator() -> None:
    x = torch.arange(4).to(torch.float8_e4m3fn)
    with pytest.raises(RuntimeError) as expected:
        torch.mul(x, torch.arange(4.0))
    with pytest.raises(RuntimeError) as actual:
        refimpl.compile(torch.mul, backend="triton")(x, torch.arange(4.0))
    assert str(actual.value) == str(expected.value)


def test_cheap_functions_of_what_is_in_memory_are_computed_again() -> None:
    def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x @ w
        for _ in range(5):
            y = y * 0.5 + 1.0
        return (y.tanh() * y).sum()  # its gradient needs y, which the forward writes nowhere

    saved: list[Any] = []

    def backend(graph_module: torch.fx.GraphModule, example_inputs: Any) -> Any:
        saved.append([node.target for node in graph_module.graph.output_node().all_input_nodes])
        return graph_module

    x, w = numbers(32, 16).requires_grad_(), numbers(16, 32, seed=1).requires_grad_()
    decompositions = codegen_decompositions()
    compiled = compile_aot(chain, backend=backend, partition=partition_for_kernels, decompositions=decompositions)
    compiled(x, w).backward()
    assert torch.ops.aten.mm.default in saved[0]
    assert torch.ops.aten.add.Tensor not in saved[0]
