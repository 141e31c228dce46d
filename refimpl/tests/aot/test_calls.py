"""Compiled ahead of time: what a program captures, asks of autograd, sees of its arguments, and how often it is compiled."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import refimpl
from refimpl._torch import FakeTensorMode
from refimpl.aot_entry_points import aot_function, aot_module_simplified
from refimpl.pipeline import compile_aot
from refimpl.tests.agreement import assert_agrees
from refimpl.tests.corpus.mutation import TWO, number_masked_by_itself


def test_captured_tensor_gets_its_gradient() -> None:
    weight = torch.randn(3, 4, requires_grad=True)

    def program(x: Any, y: Any) -> Any:
        return (x * weight).sin() + y

    x, y = torch.randn(3, 4), torch.randn(3, 4)
    program(x, y).sum().backward()
    expected = weight.grad
    weight.grad = None
    compile_aot(program)(x, y).sum().backward()
    torch.testing.assert_close(weight.grad, expected)


def test_captured_module_gets_its_gradients_and_buffers() -> None:
    def run(compile_it: bool) -> tuple[Any, Any, Any]:
        torch.manual_seed(1)
        norm = torch.nn.BatchNorm1d(4)

        def program(x: Any) -> Any:
            return norm(x).relu()

        fn = compile_aot(program) if compile_it else program
        x = torch.randn(8, 4)
        fn(x)
        fn(x).sum().backward()
        return norm.weight.grad, norm.running_mean, norm.num_batches_tracked

    for expected, actual in zip(run(False), run(True), strict=True):
        torch.testing.assert_close(actual, expected)


def test_captured_tensor_is_written() -> None:
    total = torch.zeros(3)

    def program(x: Any) -> Any:
        total.add_(x)
        return total * 2

    compiled = compile_aot(program)
    compiled(torch.ones(3))
    result = compiled(torch.ones(3))
    assert total.tolist() == [2.0, 2.0, 2.0]
    assert not total.requires_grad
    assert result.tolist() == [4.0, 4.0, 4.0]


def test_captured_tensor_that_is_an_argument_too() -> None:
    shared = torch.ones(3, requires_grad=True)

    def program(x: Any) -> Any:
        return x * shared

    compile_aot(program)(shared).sum().backward()
    assert shared.grad is not None
    assert shared.grad.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("dynamic", [False, True])
def test_module_agrees_with_eager(dynamic: bool) -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.GELU(), torch.nn.Linear(6, 2))
    twin = copy.deepcopy(module)
    compiled = compile_aot(twin, dynamic=dynamic, partition="min_cut")
    for size in (5, 7):
        x = torch.randn(size, 4)
        expected, actual = module(x), compiled(x)
        torch.testing.assert_close(actual, expected)
        expected.square().sum().backward()
        actual.square().sum().backward()
    for (name, a), (_, b) in zip(module.named_parameters(), twin.named_parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, msg=name)
    for (name, a), (_, b) in zip(module.named_buffers(), twin.named_buffers(), strict=True):
        torch.testing.assert_close(b, a, msg=name)


def test_dynamic_compiles_once_for_sizes_that_its_guards_admit() -> None:
    compiled_graphs = []

    def backend(graph_module: Any, example_inputs: Any) -> Any:
        compiled_graphs.append(graph_module)
        return graph_module

    def program(x: Any, n: int) -> Any:
        if x.shape[0] > 10:
            return x * n
        return x.view(-1) + n

    compiled = compile_aot(program, backend=backend, dynamic=True)
    for size, n, count in ((4, 5, 1), (6, 5, 1), (12, 5, 2), (20, 5, 2), (1, 5, 3), (6, 7, 4)):
        x = torch.randn(size, 3)
        torch.testing.assert_close(compiled(x, n), program(x, n))
        assert len(compiled_graphs) == count, f"{len(compiled_graphs)} graphs at {size}, but should be {count}"


def test_gradient_asked_for_inside_of_the_program() -> None:
    def view_of_input(x: Any, y: Any) -> Any:
        v = x.view(-1)
        v.requires_grad_(True)
        return v, x * 2

    def input_itself(x: Any, y: Any) -> Any:
        x.requires_grad_(True)
        return (x * y).sin(), x

    def intermediate(x: Any, y: Any) -> Any:
        z = (x * y).requires_grad_()
        return z, x * 2

    for program in (view_of_input, input_itself, intermediate):
        expected_in, actual_in = [[torch.ones(3, 4), torch.ones(3, 4)] for _ in range(2)]
        expected, actual = program(*expected_in), compile_aot(program)(*actual_in)
        for a, b in zip([*expected, *expected_in], [*actual, *actual_in], strict=True):
            assert (a.requires_grad, a.is_leaf) == (b.requires_grad, b.is_leaf), program.__name__
            torch.testing.assert_close(b, a)
    _, x = compile_aot(input_itself)(torch.ones(3), torch.full((3,), 2.0))
    assert x.is_leaf


def test_gradient_of_an_input_that_the_program_makes_a_leaf() -> None:
    def program(x: Any, y: Any) -> Any:
        x.requires_grad_(True)
        return (x * y).sin()

    gradients = []
    for fn in (program, compile_aot(program)):
        x, y = torch.ones(3), torch.full((3,), 2.0)
        fn(x, y).sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(gradients[1], gradients[0])


def test_gradient_that_the_graph_lacks_is_refused() -> None:
    class Double(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return (x * 2,)

    compiled = aot_module_simplified(Double(), (torch.ones(3),), lambda gm, _: gm)
    with pytest.raises(AssertionError, match="input 0 that does not require grad"):
        compiled(torch.ones(3, requires_grad=True))
    with torch.no_grad():
        assert compiled(torch.ones(3, requires_grad=True))[0].tolist() == [2.0, 2.0, 2.0]


def test_gradient_may_end_at_a_leaf_that_the_program_makes() -> None:
    leaves = []

    def program(x: Any) -> Any:
        leaves.append(x.clone().requires_grad_())
        return leaves[-1] * 2

    compile_aot(program)(torch.ones(3)).sum().backward()
    assert leaves[-1].grad.tolist() == [2.0, 2.0, 2.0]


def test_program_sees_that_two_arguments_are_one() -> None:
    def program(x: Any, y: Any) -> Any:
        assert x is y
        y.resize_(4)
        assert x.shape == y.shape
        return x * 2

    compiled = compile_aot(program)
    x = torch.arange(6.0)
    assert compiled(x, x).tolist() == [0.0, 2.0, 4.0, 6.0]
    assert x.shape == (4,)


def test_duplicates_that_nothing_writes_to_are_placeholders_of_their_own() -> None:
    counts = []

    def compiler(graph_module: Any, example_inputs: Any) -> Any:
        counts.append(len(example_inputs))
        return graph_module

    compiled = aot_function(lambda x, y: x * y, compiler)
    x, y = torch.ones(3), torch.full((3,), 2.0)
    assert compiled(x, x).tolist() == [1.0, 1.0, 1.0]
    assert compiled(x, y).tolist() == [2.0, 2.0, 2.0]
    assert counts == [2]


@pytest.mark.parametrize("partition", ["default", "min_cut"])
def test_graphs_print_with_lines_of_the_program(partition: Any) -> None:
    printed = []

    def backend(graph_module: Any, example_inputs: Any) -> Any:
        printed.append(graph_module.print_readable(print_output=False))
        return graph_module

    def program(x: Any) -> Any:
        x[0].mul_(2)  # a write
        return x.sin()  # a result

    x = torch.ones(3, 4, requires_grad=True)
    compiled = compile_aot(program, backend=backend, partition=partition, record_stack_traces=True)
    compiled(x.clone()).sum().backward()
    forward, backward = printed
    assert "x[0].mul_(2)  # a write" in forward
    assert "return x.sin()  # a result" in forward
    assert "return x.sin()  # a result" in backward, "a backward node has the line of its forward op"


def test_captured_fake_tensor_is_refused() -> None:
    mode = FakeTensorMode()
    captured, argument = mode.from_tensor(torch.ones(3)), mode.from_tensor(torch.ones(3, requires_grad=True))

    class Add(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return (x + captured,)

    with pytest.raises(AssertionError, match="Unexpected fake"):
        aot_module_simplified(Add(), (argument,), lambda gm, _: gm)


def _gradients(fn: Any, make: Callable[[], list[torch.Tensor]], used: int) -> list[Any]:
    leaves = make()
    results = fn(*[leaf * 1 for leaf in leaves])
    try:
        return list(torch.autograd.grad(results[used].sum(), leaves, allow_unused=True))
    except RuntimeError as error:
        return [str(error)[:60]]


def _leaves() -> list[torch.Tensor]:
    return [torch.full((2, 3), 0.5, requires_grad=True), torch.full((2, 3), 2.0, requires_grad=True)]


@pytest.mark.parametrize("used", [0, 1])
def test_gradient_is_none_where_no_used_output_depends_on_the_argument(used: int) -> None:
    def program(x: Any, y: Any) -> Any:
        y.zero_()
        return x * 2, x.sin() + y

    expected, actual = (_gradients(fn, _leaves, used) for fn in (program, compile_aot(program)))
    assert [g is None for g in expected] == [g is None for g in actual]
    for a, b in zip(expected, actual, strict=True):
        if a is not None:
            torch.testing.assert_close(b, a)


@pytest.mark.parametrize("used", [0, 1, 2])
def test_gradient_that_eager_refuses_is_refused_and_others_are_not(used: int) -> None:
    def program(x: Any, y: Any) -> Any:
        kept = x.exp()
        squared = kept * kept
        kept.add_(1)  # what the product has saved
        return x * 3, squared, y.cos()

    expected, actual = (_gradients(fn, _leaves, used) for fn in (program, compile_aot(program)))
    assert len(expected) == len(actual)
    for a, b in zip(expected, actual, strict=True):
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(b, a)
        else:
            assert a == b


def test_results_lie_as_in_eager_mode_whatever_the_backend_returns() -> None:
    def backend(graph_module: Any, example_inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            outs = graph_module(*args)
            return [o.t().contiguous().t() if isinstance(o, torch.Tensor) and o.dim() == 2 else o for o in outs]

        return run

    def program(x: Any, y: Any) -> Any:
        z = x * y
        return x + y, z.view(-1), z.t()

    for requires_grad in (False, True):
        assert_agrees(program, lambda r=requires_grad: TWO(r), backend=backend)


@pytest.mark.parametrize(("first", "second"), [(0.0, -0.0), (1.0, math.nan), (1, True)])
def test_numbers_that_are_equal_and_differ_are_compiled_for_each(first: float, second: float) -> None:
    compiled = compile_aot(lambda x, number: (number, x * number))
    for number in (first, second, first):
        returned, scaled = compiled(torch.ones(2), number)
        assert (type(returned), repr(returned)) == (type(number), repr(number))
        assert repr(scaled) == repr(torch.ones(2) * number)


def test_a_number_that_comes_again_is_not_compiled_again() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, examples: Any) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    compiled = compile_aot(lambda x, number: x * number, backend=keep)
    for number in (math.nan, -math.nan, float("nan"), complex(1.0, 0.0), complex(1.0, -0.0), complex(1.0, 0.0)):
        compiled(torch.ones(2), number)
    assert len(graphs) == 3


@pytest.mark.parametrize("partition", ["default", "min_cut"])
@pytest.mark.parametrize("write", [lambda y: y.view(2, -1)[:, 1:].neg_(), lambda y: y.unfold(0, 2, 3).neg_()])
def test_sizes_of_the_forward_are_not_read_from_incoming_gradients(write: Any, partition: Any) -> None:
    """A tangent is as long as the result: twice as long as the argument, which no tensor is before the result is made."""

    def program(x: Any) -> Any:
        y = torch.cat([x, x])
        write(y)
        return y

    def make() -> Any:
        x = torch.arange(1.0, 5.0, requires_grad=True)
        return [x], [x]

    assert_agrees(program, make, dynamic=True, partition=partition)


def test_one_program_serves_both_values_of_a_scalar_mask() -> None:
    compiled = compile_aot(number_masked_by_itself)
    for x in (torch.ones(3), -torch.ones(3)):
        assert torch.equal(compiled(x), number_masked_by_itself(x))


def test_a_number_is_written_by_a_scalar_mask() -> None:
    def program(x: torch.Tensor) -> None:
        x[x.clone() > 0] = -1

    compiled = compile_aot(program)
    for value, expected in ((2.0, -1.0), (-3.0, -3.0)):
        x = torch.tensor(value)
        compiled(x)
        assert x.item() == expected


def test_a_bool_that_decides_is_still_refused() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if (x.sum() > 0).item() else x

    with pytest.raises(RuntimeError, match="data-dependent"):
        compile_aot(program)(torch.ones(2))


@pytest.mark.parametrize("front_end", [refimpl.compile, torch.compile], ids=["refimpl", "torch"])
def test_nodes_of_a_captured_graph_keep_their_lines(front_end: Callable[..., Any]) -> None:
    """Nodes of the backward graph have the line of the forward node whose gradient they compute."""
    lines: dict[str, str] = {}

    def compiler(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        for node in graph_module.graph.find_nodes(op="call_function", target=torch.ops.aten.cos.default):
            lines["backward" if node.meta.get("autograd_backward") else "forward"] = node.stack_trace or ""
        return graph_module.forward

    def backend(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return aot_module_simplified(graph_module, example_inputs, fw_compiler=compiler)

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.cos() * 2
        return y.sin()

    front_end(program, backend=backend)(torch.ones(3, requires_grad=True)).sum().backward()
    assert "y = x.cos() * 2" in lines["forward"]
    assert "return y.sin()" in lines["backward"]


@pytest.mark.parametrize("made", [lambda: torch.tensor([1, 2]), lambda: torch.zeros(2), lambda: torch.tensor(1.0) + 1])
def test_constants_under_a_default_device_without_data(made: Callable[[], torch.Tensor]) -> None:
    """Their graph has a constant that no operator reads."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return made(), x + 1

    for compiled in (compile_aot(program), refimpl.compile(program, backend="aot_eager")):
        with torch.device("meta"):
            constant, result = compiled(torch.ones(2, device="cpu"))
        assert (constant.device.type, constant.dtype, constant.shape) == ("meta", made().dtype, made().shape)
        assert result.tolist() == [2, 2]


def _resized(x: torch.Tensor) -> torch.Tensor:
    return x.resize_(2, 2).mul_(3)


def _transposed(x: torch.Tensor) -> torch.Tensor:
    x.t_()
    return x * 2


def _tangent(x: torch.Tensor) -> torch.Tensor:
    return torch.func.linearize(torch.sin, x)[1](torch.ones_like(x))


WITHOUT_SYMBOLS: dict[str, tuple[Callable[..., torch.Tensor], Callable[[], torch.Tensor]]] = {
    "resize_": (_resized, lambda: torch.arange(12.0).reshape(3, 4)),
    "linearize": (_tangent, lambda: torch.arange(12.0).reshape(3, 4)),
    "a sparse tensor": (lambda x: x * 2, lambda: torch.eye(3).to_sparse()),
    "rows in compressed form": (lambda x: x @ torch.ones(3, 2), lambda: torch.eye(3).to_sparse_csr()),
    "a jagged tensor": (
        lambda x: x * 2,
        lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged),
    ),
    "the shape of a wrapper": (_transposed, lambda: TwoTensor(torch.ones(2, 3), torch.zeros(2, 3))),
}


@pytest.mark.parametrize("name", WITHOUT_SYMBOLS)
def test_what_symbolic_sizes_do_not_serve_is_compiled_for_these_sizes(name: str) -> None:
    program, make = WITHOUT_SYMBOLS[name]

    def seen(function: Callable[..., torch.Tensor]) -> list[Any]:
        argument = make()
        return [[part.to_dense().tolist() for part in parts_of(t)] for t in (function(argument), argument)]

    assert seen(compile_aot(program, dynamic=True)) == seen(program)


def parts_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    if isinstance(tensor, TwoTensor):
        return [tensor.a, tensor.b]
    return list(tensor.unbind()) if tensor.is_nested else [tensor]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("compiler", [compile_aot, functools.partial(refimpl.compile, backend="aot_eager")])
def test_nothing_refers_to_arguments_after_a_call(compiler: Any, *, dynamic: bool) -> None:
    """`swap_tensors` refuses tensors that somebody has weak references to."""
    x, y = torch.ones(2, 3), torch.zeros(3)
    compiled = compiler(lambda t: (t.mul_(2), t.view(-1)), dynamic=dynamic)
    compiled(x)
    torch.utils.swap_tensors(x, y)
    assert x.tolist() == [0] * 3
    assert y.tolist() == [[2] * 3] * 2


class SineOfSum(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return ((x + 1).sin(),)


@pytest.mark.parametrize(("is_graph", "function"), [(True, torch.cos), (False, torch.sin)])
def test_pre_grad_passes_rewrite_graph_modules_only(*, is_graph: bool, function: Callable[..., torch.Tensor]) -> None:
    def sine_to_cosine(graph_module: torch.fx.GraphModule, inputs: Sequence[Any]) -> torch.fx.GraphModule:
        assert inputs[0] is x
        (node,) = graph_module.graph.find_nodes(op="call_method", target="sin")
        node.target = "cos"
        graph_module.recompile()
        return graph_module

    x = torch.randn(3)
    module = torch.fx.symbolic_trace(SineOfSum()) if is_graph else SineOfSum()
    compiled = aot_module_simplified(module, (x,), lambda gm, _: gm, pre_grad_passes=sine_to_cosine)
    torch.testing.assert_close(compiled(x)[0], function(x + 1))
