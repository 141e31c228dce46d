"""Compiled ahead of time, a program does what it does in eager mode: values, gradients, mutation, aliases."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from refimpl._torch import FakeTensorMode
from refimpl.aot.aot_function import aot_function, aot_module_simplified
from refimpl.pipeline import compile_aot
from refimpl.tests.agreement import assert_agrees


def _two(requires_grad: bool = True) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    torch.manual_seed(0)
    x = torch.randn(3, 4, requires_grad=requires_grad)
    y = torch.randn(3, 4, requires_grad=requires_grad)
    return [x, y], [x.add(1), y.add(1)]


def _one_view() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    torch.manual_seed(0)
    base = torch.randn(4, 4, requires_grad=True)
    whole = base.add(1)
    return [base], [whole[1:3], torch.ones(2, 4)]


def _overlapping(requires_grad: bool = True) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    torch.manual_seed(0)
    base = torch.randn(12, requires_grad=requires_grad)
    whole = base.add(1)
    return [base], [whole[:8], whole[4:]]


def _disjoint() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    torch.manual_seed(0)
    base = torch.randn(12, requires_grad=True)
    whole = base.add(1)
    return [base], [whole[:6], whole[6:]]


def _base_and_view() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    torch.manual_seed(0)
    base = torch.randn(3, 4, requires_grad=True)
    whole = base.add(1)
    return [base], [whole.t()[:3], whole]


def _same_twice() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    torch.manual_seed(0)
    base = torch.randn(4, 4, requires_grad=True)
    whole = base.add(1)
    return [base], [whole, whole]


def _detached_alias() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    torch.manual_seed(0)
    base = torch.randn(4, 4, requires_grad=True)
    whole = base.add(1)
    return [base], [whole, whole.detach()]


def in_place(x: Any, y: Any) -> Any:
    x.mul_(2)
    return x * y


def in_place_on_view(x: Any, y: Any) -> Any:
    x[0].add_(y[0])
    return x.sin(), y


def view_then_write(x: Any, y: Any) -> Any:
    v = x.view(-1)
    x.add_(1)
    return v * 2, v, y.t()


def siblings(x: Any, y: Any) -> Any:
    z = x * y
    return z.view(-1), z.t(), z[0]


def base_and_views(x: Any, y: Any) -> Any:
    z = x * y
    return z.view(-1), z, z.detach()


def unbound(x: Any, y: Any) -> Any:
    z = x * y
    a, b, c = z.unbind()
    return a, b * 2, c, y.split(2, 1)


def metadata(x: Any, y: Any) -> Any:
    x.t_()
    y.unsqueeze_(0)
    return x * 2


def metadata_and_data(x: Any, y: Any) -> Any:
    x.t_()
    x.mul_(3)
    return x + 1, x, y


def under_no_grad(x: Any, y: Any) -> Any:
    with torch.no_grad():
        x.mul_(2)
        v = x.view(-1)
    return x * y, v


def through_detach(x: Any, y: Any) -> Any:
    z = x * y
    x.detach().add_(1)
    return z + 1, x.detach()


def through_data(x: Any, y: Any) -> Any:
    x.data.add_(1)
    return y * 2


def copy_into(x: Any, y: Any) -> Any:
    x.copy_(y)
    return x, y + 1


def same_result_twice(x: Any, y: Any) -> Any:
    z = x * y
    return z, z, x, {"a": y, "b": [z, 3, None]}


def saved_then_written(x: Any, y: Any) -> Any:
    z = x.exp()
    z.mul_(2)
    return z + y


def inner_gradient(x: Any, y: Any) -> Any:
    with torch.enable_grad():
        a = x.detach().clone().requires_grad_()
        (g,) = torch.autograd.grad((a * 3).sin().sum(), a)
    return g * y


def integers_and_floats(x: Any, y: Any) -> Any:
    return x.argmax(0), (x > 0), x * y, x.shape[0]


def fill_and_zero(x: Any, y: Any) -> Any:
    x[:, 1:3].zero_()
    x[:, ::2].fill_(5)
    return x * y


def write_other_dtype(x: Any, y: Any) -> Any:
    z = torch.zeros(3, 4, dtype=torch.float64)
    z.add_(x)
    return z, y


def foreach(x: Any, y: Any) -> Any:
    torch._foreach_add_([x, y], 2.0)
    return x * y


def returns_copy_source(x: Any, y: Any) -> Any:
    y.mul_(x)
    x.add_(y)
    return ()


def expanded(x: Any, y: Any) -> Any:
    z = (x * y).sum(0)
    return z.expand(5, 4), z


def complex_views(x: Any, y: Any) -> Any:
    z = torch.complex(x, y)
    torch.view_as_real(z)[..., 0].mul_(2)
    return z.abs(), z.real, z.imag


def nothing_with_gradient(x: Any, y: Any) -> Any:
    return x.detach() * 2, y.detach()


def random_numbers(x: Any, y: Any) -> Any:
    return torch.nn.functional.dropout(x, 0.5) * y + torch.rand_like(y)


def random_in_place(x: Any, y: Any) -> Any:
    z = x.clone()
    z.uniform_()
    return z * y


def out_argument(x: Any, y: Any) -> Any:
    z = torch.empty(3, 4)
    torch.mul(x.detach(), 2, out=z)
    return z * y


PROGRAMS = [
    in_place, in_place_on_view, view_then_write, siblings, base_and_views, unbound, metadata, metadata_and_data, under_no_grad,
    through_detach, through_data, copy_into, same_result_twice, saved_then_written, inner_gradient, integers_and_floats,
    fill_and_zero, write_other_dtype, foreach, returns_copy_source, expanded, complex_views, nothing_with_gradient,
    random_numbers, random_in_place, out_argument,
]  # fmt: skip
OPTIONS = [
    {"partition": "default"},
    {"partition": "min_cut"},
    {"partition": None},
    {"partition": "default", "dynamic": True},
    {"partition": "min_cut", "functionalization": "scatter"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(f"{k}={v}" for k, v in o.items()))
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_program_agrees_with_eager(program: Callable[..., Any], options: dict[str, Any]) -> None:
    assert_agrees(program, _two, **options)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_program_without_gradients_agrees_with_eager(program: Callable[..., Any]) -> None:
    assert_agrees(program, lambda: _two(requires_grad=False), partition="min_cut")


def write_first(x: Any, y: Any) -> Any:
    x.mul_(2)
    return x.sum() + y.sum() * 3


def write_both(x: Any, y: Any) -> Any:
    x.add_(1)
    y.mul_(2)
    return x.sin().sum() + y.cos().sum(), y.view(-1)


def write_second_return_first(x: Any, y: Any) -> Any:
    y.mul_(3)
    return x, x[0], y + 1


def transpose_first(x: Any, y: Any) -> Any:
    x.t_()
    return x.sum() + y.sum()


ALIASED = [
    _overlapping,
    lambda: _overlapping(False),
    _disjoint,
    _base_and_view,
    _same_twice,
    _detached_alias,
    _one_view,
]
ALIASED_IDS = ["overlapping", "overlapping_no_grad", "disjoint", "base_and_view", "same_twice", "detached", "one_view"]


@pytest.mark.parametrize("make", ALIASED, ids=ALIASED_IDS)
@pytest.mark.parametrize("program", [write_first, write_both, write_second_return_first], ids=lambda p: p.__name__)
@pytest.mark.parametrize("partition", ["default", "min_cut"])
def test_aliased_arguments_agree_with_eager(program: Any, make: Any, partition: str) -> None:
    assert_agrees(program, make, partition=partition)


@pytest.mark.parametrize("make", [_same_twice, _base_and_view], ids=["same_twice", "base_and_view"])
def test_metadata_of_aliased_arguments(make: Any) -> None:
    assert_agrees(transpose_first, make)


@pytest.mark.parametrize("program", [in_place, view_then_write, siblings], ids=lambda p: p.__name__)
def test_second_call_agrees_with_eager(program: Any) -> None:
    assert_agrees(program, _two, calls=2)


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


def test_gradient_that_ends_inside_of_the_program_is_refused() -> None:
    def program(x: Any) -> Any:
        return x.clone().requires_grad_() * 2

    with pytest.raises(NotImplementedError, match="a leaf"):
        compile_aot(program)(torch.ones(3))


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


def _expanded() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    base = torch.arange(6.0)
    return [base], [base.add(1).expand(2, 6), torch.ones(6)]


def _windows() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    base = torch.arange(6.0)
    return [base], [base.as_strided((3, 4), (1, 1)), torch.ones(3, 4)]


def fill(x: Any, y: Any) -> Any:
    x.fill_(3)
    return x * y


@pytest.mark.parametrize("make", [_expanded, _windows], ids=["expanded", "windows"])
def test_argument_whose_elements_share_memory_is_written(make: Any) -> None:
    assert_agrees(fill, make)


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
        assert_agrees(program, lambda r=requires_grad: _two(r), backend=backend)


def assigns_data_of_argument(x: Any, y: Any) -> Any:
    x.data = y.detach() * 2
    return x + 1


def assigns_data_of_intermediate(x: Any, y: Any) -> Any:
    z = x * y
    z.data = x.detach()[0]
    return z * 2, y


def assigns_data_of_another(x: Any, y: Any) -> Any:
    z = y.detach().clone()
    z.data = x.detach()
    z.add_(1)
    return z, y * 2


@pytest.mark.parametrize(
    "program",
    [assigns_data_of_argument, assigns_data_of_intermediate, assigns_data_of_another],
    ids=lambda p: p.__name__,
)
def test_data_is_assigned(program: Any) -> None:
    assert_agrees(program, lambda: _two(requires_grad=False))


def random_on_transposed(x: Any, y: Any) -> Any:
    x.t().uniform_()
    z = (x * y).t().contiguous().t()
    z.add_(1).normal_()
    z[:, 1:].t().bernoulli_(0.5)
    return x * 2, z


def test_random_numbers_are_drawn_in_the_order_of_memory() -> None:
    assert_agrees(random_on_transposed, lambda: _two(requires_grad=False))


def detaches_argument(x: Any, y: Any) -> Any:
    x.mul_(2)
    x.detach_()
    return x + 1, x * y


def only_detaches(x: Any, y: Any) -> Any:
    x.detach_()
    return x * y


@pytest.mark.parametrize("program", [detaches_argument, only_detaches], ids=lambda p: p.__name__)
def test_argument_that_is_detached_in_place(program: Any) -> None:
    assert_agrees(program, _two)


def foreach_copies_what_it_has_written(x: Any, y: Any) -> Any:
    a, b = x * 2, y * 3
    torch._foreach_copy_([a, b], [b, a])
    return a, b


def test_foreach_reads_what_it_has_written() -> None:
    assert_agrees(foreach_copies_what_it_has_written, lambda: _two(requires_grad=False))
