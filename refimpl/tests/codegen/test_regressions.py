"""Programs that random search found compiled kernels to be wrong on, or to fail on: each gives what eager gives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

import refimpl
from refimpl.backends.triton import triton
from refimpl.codegen.compile import compile_graph
from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.codegen.schedule import GUESSED_SIZE, guess
from refimpl.pipeline import compile_aot
from refimpl.symbolic.functions import FloorDiv
from refimpl.tests.codegen.checks import check, compiled_with_graphs
from refimpl.trace.decompositions.device_numerics import following_kernels_of


def _compiled(function: Callable[..., Any], *, dynamic: bool = False) -> Callable[..., Any]:
    return compiled_with_graphs(function, dynamic=dynamic)[0]


def _check(function: Callable[..., Any], *arguments: Any, dynamic: bool = False) -> None:
    """Equal in every bit, with the same strides; gradients of the sums of what has some."""
    results = [pytree.tree_leaves(call(*arguments)) for call in (function, _compiled(function, dynamic=dynamic))]
    for eager, ours in zip(results[0], results[1], strict=True):
        torch.testing.assert_close(ours, eager, rtol=0, atol=0, equal_nan=True)
        assert ours.stride() == eager.stride()
        if eager.is_floating_point():
            assert torch.equal(ours.signbit()[~eager.isnan()], eager.signbit()[~eager.isnan()])
    leaves = [a for a in arguments if isinstance(a, torch.Tensor) and a.requires_grad]
    if leaves:
        totals = [torch.stack([r.sum() for r in each if r.requires_grad]).sum() for each in results]
        gradients = [torch.autograd.grad(total, leaves) for total in totals]
        for eager, ours in zip(*gradients, strict=True):
            torch.testing.assert_close(ours, eager, rtol=0, atol=0)
            assert ours.stride() == eager.stride()


def test_a_remainder_by_a_tiny_number_is_exact() -> None:
    x, tiny = torch.arange(9.0), torch.tensor([1e-45])
    _check(lambda x, y: (x % y, x.fmod(y)), x, tiny)
    _check(lambda x, y: (x % y, x.fmod(y)), x.double(), tiny.double() * 1e-300)


def test_a_factor_of_an_addend_is_not_rounded_by_itself() -> None:
    x = torch.full((9,), torch.finfo(torch.float32).max)
    _check(lambda x: (torch.sub(x, x, alpha=2), torch.add(-x, x, alpha=2), torch.sub(x, 1, alpha=0)), x)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_result_that_repeats_its_elements_holds_each_once(*, dynamic: bool) -> None:
    def function(x: torch.Tensor) -> Any:
        return (-x).expand(2, 3, -1), x.sum().expand(2), (x + 1).t().unsqueeze(1).expand(-1, 4, -1)

    _check(function, torch.arange(6.0).view(2, 3)[:1], dynamic=dynamic)
    x = torch.arange(3.0).requires_grad_()
    ours = torch.autograd.grad(_compiled(lambda x: (x + 1).sum())(x), x)[0]
    assert ours.stride() == torch.autograd.grad((x + 1).sum(), x)[0].stride() == (0,)


def test_complex_numbers_are_left_to_the_operators() -> None:
    z = torch.tensor([0j, 1 + 2j])
    _check(lambda z: (z != 0, torch.all(z), z == z.conj()), z)


def test_sizes_are_known_from_tensors_that_only_calls_look_into() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.interpolate(x, scale_factor=1.5)

    _check(function, torch._neg_view(torch.arange(6.0).view(1, 2, 3)), dynamic=True)


def test_a_write_to_elements_that_share_memory_is_eager_s() -> None:
    shared = torch.arange(40.0).as_strided((2, 32), (1, 1))
    source = torch.arange(8.0).view(2, 4)
    _check(lambda x, y: x.slice_scatter(y, -1, 27, 31), shared, source)
    _check(lambda x, y: x.select_scatter(y[:, 0], 1, 3), shared, source)
    _check(lambda x, y: x.diagonal_scatter(y[:, 0], 3), shared, source)


def test_windows_are_where_the_tensor_of_each_call_begins() -> None:
    def function(x: torch.Tensor) -> Any:
        return x.unfold(0, 2, 1), (x * 2).unfold(-1, 3, 2).sum(-1), x.sum().unfold(0, 1, 1)

    compiled = refimpl.compile(function, backend=triton, dynamic=True)
    for begin in (0, 1, 3):
        x = torch.arange(12.0)[begin : begin + 6]
        ours, eager = compiled(x), function(x)
        for a, b in zip(ours, eager, strict=True):
            assert torch.equal(a, b)
            assert a.stride() == b.stride()
        assert ours[0].data_ptr() == x.data_ptr()


def test_a_step_of_zero_is_the_operator_s_error() -> None:
    with pytest.raises(RuntimeError, match="slice step must be positive"):
        _compiled(lambda x: x.slice_scatter(x, 0, 0, 0, 0))(torch.arange(1.0))


def test_a_place_that_is_read_for_a_tensor_of_one_element_is_a_block_all_the_same() -> None:
    everywhere = torch.arange(3.0)[:1].expand(5)
    _check(lambda x, at: x[at] + 1, everywhere, torch.tensor([[0, 4, 2]]))


def test_operators_that_the_dispatcher_does_not_know_are_called() -> None:
    compiled = refimpl.compile(lambda x, at: torch.take_along_dim(x, at, 0), backend=triton, dynamic=True)
    assert compiled(torch.arange(2)[::2], torch.tensor([0])).tolist() == [0]


def test_memory_that_is_not_filled_has_the_strides_that_were_asked_for() -> None:
    compiled = _compiled(lambda x: torch.empty_strided((2, 3, 5), (2, 0, 1)) * 0 + x, dynamic=False)
    assert compiled(torch.ones(())).shape == (2, 3, 5)
    assert _compiled(lambda: torch.empty_strided((2, 3, 5), (2, 0, 1)))().stride() == (2, 0, 1)


def test_lists_that_share_tensors_are_written_one_after_the_other() -> None:
    def function(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
        torch._foreach_copy_([a, b], [b, c])
        torch._foreach_addcmul_([a, b], [b, a], [c, a])
        return a, b

    numbers = [torch.arange(3.0) + at for at in range(3)]
    expected = function(*[number.clone() for number in numbers])
    for ours, eager in zip(_compiled(function)(*numbers), expected, strict=True):
        assert torch.equal(ours, eager)


def test_a_gradient_has_eager_s_constant() -> None:
    _check(torch.nn.functional.hardsigmoid, torch.arange(-4.0, 4.0, dtype=torch.float64).requires_grad_())


def test_the_weight_of_one_class_is_read_in_the_kernel() -> None:
    weight = torch.rand(3)
    loss = torch.nn.functional.nll_loss
    _check(lambda x, at: loss(x, at, weight), torch.arange(3.0).requires_grad_(), torch.tensor(1))


def test_products_and_embeddings_of_nothing() -> None:
    _check(torch.addbmm, torch.zeros(1, 0), torch.ones(1, 1, 1), torch.ones(1, 1, 0))
    weight = torch.zeros(0, 0, requires_grad=True)
    _check(torch.nn.functional.embedding, torch.zeros(0, dtype=torch.int64), weight)


def test_zeros_have_the_sign_and_results_the_layout_of_eager_s() -> None:
    few = torch.tensor([-0.1, 0.1, float("nan"), -0.0, -3.0, 3.0, 0.0, -0.4])
    _check(torch.nn.functional.softshrink, few)  # too few for eager's loop over vectors, which has another zero
    for weight in (0.25, 1.0):
        _check(lambda x, y, weight=weight: torch.lerp(x, y, weight), torch.rand(3, 2), torch.rand(2, 3).t())


def test_places_in_memory_are_read_of_the_base_of_a_view() -> None:
    _check(lambda x: (x * 3 + 1)[:, 4].as_strided((4, 4), (0, 1)) + 1, torch.rand(7, 7))
    _check(lambda x: (x * 3 + 1).split(4)[1].as_strided((4, 4), (0, 1), 0) + 1, torch.rand(7, 7))
    _check(lambda x: x.diagonal(-1).as_strided((3, 2), (0, 2)) * 2, torch.arange(3.0).view(1, 3))
    _check(lambda x: x.view(0, 5).as_strided((1,), (1,)) * 2, torch.arange(9.0)[2:].as_strided((0, 3), (3, 1)))


def test_a_number_of_groups_divides_sizes_that_are_symbols() -> None:
    compiled = refimpl.compile(
        lambda x, weight: torch.nn.functional.conv2d(x, weight, groups=2),
        backend=functools.partial(triton, options={"contractions": "template"}),
        dynamic=True,
    )
    for channels in (12, 4):
        x, weight = torch.arange(8.0).view(1, 2, 2, 2), torch.arange(2.0 * channels).view(channels, 1, 1, 2)
        assert torch.equal(compiled(x, weight), torch.nn.functional.conv2d(x, weight, groups=2))


def test_numbers_are_copied_as_tensors_are() -> None:
    copied, converted = torch.ops.aten.copy.default, torch.ops.aten._to_copy.default
    _check(
        lambda x: (copied(x, 2.5), copied(x, x.shape[0]), converted(7, dtype=torch.float16), converted(0.1)),
        torch.ones(3),
    )


def test_tensors_on_meta_are_in_no_kernel() -> None:
    x = torch.ones(3)
    on_meta, plus_one = _compiled(lambda x: (x.to("meta").exp().sum(0, keepdim=True), x + 1))(x)
    assert on_meta.device.type == "meta"
    assert on_meta.shape == (1,)
    assert torch.equal(plus_one, x + 1)
    _check(torch.func.jacfwd(lambda x: x.clone().mul_(2).cos()), x)


EVERY_SECOND = slice(None, None, 2)


def test_sizes_that_follow_from_a_size_which_nothing_gives_are_read_where_they_are() -> None:
    """The backward gets the step of the slice and the tangent, not the size of what was sliced."""

    def program(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return x.square()[..., EVERY_SECOND] + bias

    compiled = refimpl.compile(program, backend="triton", dynamic=True)
    for size in (3, 6):
        x, bias = torch.rand(4, size), torch.ones(1, requires_grad=True)
        (gradient,) = torch.autograd.grad(compiled(x, bias).sum(), bias)
        assert gradient.item() == 4 * ((size + 1) // 2)


def test_a_number_of_groups_may_be_a_symbol() -> None:
    conv = torch.nn.Conv2d(3, 6, 2, groups=3)
    compiled = refimpl.compile(lambda x: conv(x), backend="triton", dynamic=True)
    x = torch.rand(3, 2, 2)
    actual, expected = (torch.autograd.grad(call(x).sum(), conv.weight)[0] for call in (compiled, conv))
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("exponent", [0.5, -0.5])
def test_powers_that_eager_takes_as_roots_are_roots(exponent: float, dtype: torch.dtype) -> None:
    special = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), -1.0, 1.0, 4.0], dtype=dtype)
    _check(lambda x: x**exponent, special.repeat(8))


def test_a_tensor_of_a_transform_that_has_ended_is_left_to_eager() -> None:
    def function(x: torch.Tensor) -> Any:
        pulled = torch.func.vjp(lambda x: x.sigmoid() * 2, x)
        return pulled[0], pulled[1](pulled[0])[0] + 1

    x = torch.linspace(-1, 1, 9)
    for ours, eager in zip(refimpl.compile(function, backend=triton)(x), function(x), strict=True):
        torch.testing.assert_close(ours, eager)


class _Flat(torch.autograd.Function):
    """Returns a view. Autograd cannot regenerate it, so that views of it are in the graph."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view(-1)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> torch.Tensor:
        return gradients[0].view(2, 3)


@pytest.mark.parametrize("dynamic", [False, True])
def test_views_in_a_graph_share_memory_with_inputs_and_other_results(*, dynamic: bool) -> None:
    def function(x: torch.Tensor) -> Any:
        y = x + 1
        flat = _Flat.apply(x)
        return flat[1], flat.chunk(2)[1], flat.view(3, 2).t().unsqueeze(0), y, _Flat.apply(y).view(3, 2)[1]

    x = torch.rand(2, 3, requires_grad=True)
    for results in (function(x), _compiled(function, dynamic=dynamic)(x)):
        y = results[3]
        assert [r.data_ptr() - x.data_ptr() for r in results[:3]] == [4, 12, 0]
        assert results[4].data_ptr() - y.data_ptr() == 8
    _check(function, x, dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [False, True])
def test_views_of_what_is_no_result_share_its_memory(*, dynamic: bool) -> None:
    def function(x: torch.Tensor) -> Any:
        y = x * 2 + 1
        return y.ravel(), _Flat.apply(y), _Flat.apply(y.sin())

    x = torch.rand(2, 3, requires_grad=True)
    ours = _compiled(function, dynamic=dynamic)(x)
    assert ours[0].data_ptr() == ours[1].data_ptr() != ours[2].data_ptr()
    _check(function, x, dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [False, True])
def test_parts_of_what_is_no_result_share_its_memory(*, dynamic: bool) -> None:
    def function(x: torch.Tensor) -> Any:
        return _Flat.apply(x * 2 + 1).tensor_split(2)

    x = torch.rand(2, 3, requires_grad=True)
    ours = _compiled(function, dynamic=dynamic)(x)
    assert ours[1].data_ptr() - ours[0].data_ptr() == 12
    _check(function, x, dynamic=dynamic)


def test_an_offset_that_data_says_is_read_from_the_result() -> None:
    def function(x: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        return torch.narrow(x, 0, start, 2)

    for start in (1, 3):
        _check(function, torch.rand(5, 4), torch.tensor(start))
        _check(lambda x, ends: x.tensor_split(ends, 1), torch.rand(3, 5), torch.tensor([start, 4]))


@pytest.mark.parametrize("function", [torch.ops.aten._softmax_backward_data, torch.ops.aten._log_softmax_backward_data])
def test_the_gradient_of_a_softmax_has_the_dtype_of_what_flows_in(function: Any) -> None:
    x = torch.linspace(-1, 1, 8).view(2, 4)
    for dtype, of_input in ((torch.float16, torch.float32), (torch.float64, torch.float32)):
        y = _compiled(lambda x, of_input=of_input: function(x, x, -1, of_input))(x.to(dtype))
        assert y.dtype == function(x.to(dtype), x.to(dtype), -1, of_input).dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_exponents_are_integers_of_32_bits_and_products_are_rounded_once(dtype: torch.dtype) -> None:
    exponents = torch.cat([torch.arange(-700, 700, 3), torch.tensor([2**63 - 1, -(2**63), 2**31, 2**32 + 5])])
    for number in (-1.7, 1e-40, 3e38, -0.0, float("inf")):
        _check(torch.ldexp, torch.full(exponents.shape, number).to(dtype), exponents)


def test_a_size_that_nothing_gives_follows_from_one_that_is_more() -> None:
    """The backward gets the tangent of what was padded."""
    compiled = refimpl.compile(lambda x: torch.nn.functional.pad(x, (1, 2)), backend="triton", dynamic=True)
    for size in (1, 2, 5):
        x = torch.rand(size, requires_grad=True)
        (gradient,) = torch.autograd.grad(compiled(x).square().sum(), x)
        assert torch.equal(gradient, 2 * x.detach())


def test_gradients_that_are_one_view_are_one_tensor() -> None:
    """Autograd keeps a gradient that nobody else has, and adds to it in place later."""
    parameters = [torch.nn.Parameter(torch.tensor(value)) for value in (2.0, 0.5)]

    def program(angle: torch.Tensor) -> torch.Tensor:
        return torch.polar(torch.ones_like(angle), angle + parameters[0] + parameters[1])

    compiled = refimpl.compile(program, backend="triton")
    for _ in range(2):
        torch.view_as_real(compiled(torch.tensor(0.3))).sum().backward()
    gradients = [parameter.grad for parameter in parameters]
    (expected,) = torch.autograd.grad(torch.view_as_real(program(torch.tensor(0.3))).sum(), parameters[:1])
    for gradient in gradients:
        torch.testing.assert_close(gradient, 2 * expected)


def test_errors_that_fake_kernels_do_not_raise_are_raised_where_nobody_reads_the_result() -> None:
    def source_of_another_size(x: torch.Tensor) -> None:
        x.slice_scatter(x, 0, 0, 0, 1)

    def source_of_another_shape(x: torch.Tensor) -> None:
        x.select_scatter(x, 0, 0)

    def place_beyond_the_end(x: torch.Tensor) -> None:
        x.select_scatter(x[0], 0, 5)

    def values_of_another_number(x: torch.Tensor) -> None:
        x.index_put((torch.tensor([1, 0, 1]),), x)

    programs = (source_of_another_size, source_of_another_shape, place_beyond_the_end, values_of_another_number)
    for function in programs:
        x = torch.ones(2, 3)
        with pytest.raises((RuntimeError, IndexError)) as expected:
            function(x)
        with pytest.raises(expected.type):
            refimpl.compile(function, backend=triton)(x)


def test_gradients_of_maxima_are_where_indices_say() -> None:
    """Any place of the image, where the indices are no forward's; one forward and backward in one graph are kernels."""
    backward = torch.ops.aten.max_pool2d_with_indices_backward

    def function(gradient: torch.Tensor, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return backward(gradient, x, [2, 2], [2, 2], [0, 0], [1, 1], False, indices)

    gradient, x = torch.arange(4.0).view(1, 2, 2), torch.rand(1, 5, 5)
    _check(function, gradient, x, torch.arange(4).view(1, 2, 2))

    def both(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return function(gradient, x, torch.nn.functional.max_pool2d_with_indices(x, (2, 2))[1])

    made: list[Any] = []

    def backend(graph_module: torch.fx.GraphModule, example_inputs: Any) -> Any:
        made.append(compile_graph(graph_module, example_inputs, strict=True))
        return made[-1]

    compiled = compile_aot(both, backend=backend, decompositions=codegen_decompositions())
    assert torch.equal(compiled(gradient, x), both(gradient, x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int64])
def test_a_product_of_addcmul_is_not_rounded_by_itself(dtype: torch.dtype) -> None:
    x, a, b = (torch.arange(-30, 33) * 7919 % 101 / 7 * scale for scale in (3, -1, 1))
    _check(lambda *x: (torch.addcmul(*x), torch.addcmul(*x, value=3)), *(t.to(dtype) for t in (x, a, b)))
    if dtype == torch.float32:
        large = torch.full((9,), 1.9e19)
        _check(torch.addcmul, torch.full((9,), 3e38), -large, large)
        _check(lambda x, a: x.clone().addcmul_(a, a), torch.full((9,), -torch.inf), 9 * large)
        _check(lambda x, a: torch.addcmul(x, a, a, out=x.clone()), torch.full((9,), -torch.inf), 9 * large)


def test_sizes_that_guards_say_are_1_broadcast() -> None:
    """A size that follows from others; what it is expanded to says that it is 1."""

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        smallest = x[..., None, ::3].amin(-3).expand((1, 2, 3))
        return torch.renorm(torch.maximum(smallest, y), p=2, dim=1, maxnorm=1.0)

    compiled = refimpl.compile(function, backend=triton, dynamic=True)
    x, y = torch.arange(2.0).view(1, 2), torch.ones(1, 1)
    assert torch.equal(compiled(x, y), function(x, y))


def test_a_size_that_a_backward_knows_by_a_sum_of_it_alone() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat((x, y)).sum()

    for size in (2, 3):
        _check(function, torch.ones(1, requires_grad=True), torch.ones(1).expand(size).requires_grad_(), dynamic=True)


def test_strides_that_are_symbols_and_overlap_are_kept() -> None:
    def function(x: torch.Tensor, steps: tuple[int, ...]) -> torch.Tensor:
        return x.new_empty_strided((3, 3, 3), steps)

    compiled = refimpl.compile(function, backend=triton, dynamic=True)
    for steps in ((2, 0, 1), (5, 0, 2), (3, 1, 9)):
        assert compiled(torch.ones(2), steps).stride() == steps


def test_sizes_that_are_alike_are_no_division_by_zero_for_a_guess() -> None:
    a, b = sympy.symbols("a b", positive=True, integer=True)
    assert guess(a * b) == GUESSED_SIZE**2
    assert guess(b * FloorDiv(a, FloorDiv(FloorDiv(b + 2, 3), a))) > 0


def test_complex_numbers_are_no_kernels_to_convert() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            x.sum(dtype=torch.float64),
            x.mean((1,), dtype=torch.float32),
            x.prod(0, dtype=torch.float32),
            x.cumsum(1, dtype=torch.float32),
        )

    _check(function, torch.arange(6.0).view(2, 3).to(torch.complex64))


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.bool]
)
def test_the_sign_of_zeros_and_nan(dtype: torch.dtype) -> None:
    numbers = torch.tensor([0.0, -0.0, -1.0, 2.0])
    numbers = (
        numbers.to(dtype)
        if not dtype.is_floating_point
        else torch.cat([numbers, torch.tensor([-torch.nan, torch.nan])]).to(dtype)
    )
    _check(torch.signbit, numbers)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_sum_of_one_negative_zero_is_a_positive_one(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(1), x.mean(1), x.cumsum(1), x.nansum(1), x.sum(0), x.prod(1), x.amax(1), x[0, 0].sum()

    _check(function, torch.full((2, 1), -0.0, dtype=dtype))
    _check(function, torch.full((1, 2), -0.0, dtype=dtype))


LARGEST = torch.finfo(torch.float32).max


def test_variances_are_found_in_float64_as_eager_does_on_a_cpu() -> None:
    x = torch.tensor([[1.5e19, -1.5e19, 1e19, 1e19], [1e-38, 2e-38, 0, 1e-39], [LARGEST, LARGEST, LARGEST, LARGEST]])
    _check(lambda x: (torch.var(x, 1), torch.std(x, 1), *torch.var_mean(x, 1), torch.var(x[:2]), torch.std(x[1])), x)
    _check(lambda x: (torch.var(x), torch.std(x), torch.var(x, 0, correction=0)), x[2:])
    _check(lambda x: (torch.var(x, 1), torch.std(x, 1), *torch.std_mean(x, 1)), x.bfloat16())


STATISTICS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "variances": (lambda x: (torch.var(x, 1), torch.std(x, 0), torch.var(x, correction=0)), (6, 5)),
    "the only deviation": (lambda x: torch.std(x), (6, 5)),
    "variances and means": (lambda x: (*torch.var_mean(x, 1), *torch.std_mean(x, 0)), (6, 5)),
    "batch norm of an image": (lambda x: F.batch_norm(x, None, None, training=True), (4, 3, 5)),
    "batch norm of transposed rows": (lambda x: F.batch_norm(x.transpose(1, 2), None, None, training=True), (4, 5, 3)),
    "layer norm of short rows": (lambda x: F.layer_norm(x, (5,)), (6, 5)),
}


@pytest.mark.fractional
@pytest.mark.parametrize("name", STATISTICS)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("on_gpu", [False, True])
def test_statistics_agree_with_eager_in_the_dtype_of_either_device(name: str, *, dynamic: bool, on_gpu: bool) -> None:
    """What is made for a GPU adds up in float32 and nowhere in float64: here it is run on the emulator, forward and backward."""
    function, shape = STATISTICS[name]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with following_kernels_of("cuda" if on_gpu else "cpu"):
        graphs = check(function, x, tolerance=1e-5, dynamic=dynamic, strict=not dynamic).graphs
    is_wide = "float64" in "".join(graph.source for graph in graphs)
    assert not is_wide if on_gpu else is_wide or dynamic


def test_adaptive_windows_of_an_empty_image_are_the_operators() -> None:
    compiled = _compiled(lambda x: torch.nn.functional.adaptive_avg_pool2d(x, (0, 0)))
    for x in (torch.zeros(1, 1, 0, 0), torch.zeros(1, 1, 2, 0)):
        with pytest.raises(RuntimeError, match="non-zero size"):
            compiled(x)


def test_sizes_for_which_eager_mode_raises_are_not_run_with_a_graph_of_others() -> None:
    """This holds even if nothing uses the result, so that no kernel would be launched."""

    def unused(x: torch.Tensor) -> None:
        torch.ops.aten.slice_backward(x, [2, 2], 0, 0, 0, 1)

    def written(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(6).index_put_((torch.tensor([3, 4, 5]),), x)

    def overlaid(x: torch.Tensor) -> torch.Tensor:
        return torch.slice_scatter(x, x, step=2)

    for function, fitting, *others in (
        (overlaid, torch.ones(0), torch.ones(2), torch.ones(3)),
        (written, torch.ones(1), torch.ones(6), torch.ones(4)),
        (unused, torch.ones(1, 2), torch.ones(2, 2), torch.ones(3, 2)),
    ):
        compiled = refimpl.compile(function, backend="triton")
        compiled(fitting)
        for other in others:
            with pytest.raises(RuntimeError, match=r"src|shape mismatch|size of tensor"):
                compiled(other)


def test_what_is_the_same_in_all_rows_is_asked_for_before_the_loop_over_rows() -> None:
    """One kernel carries sums of columns through its rows; what masks rows is made in the loop."""

    def function(x: torch.Tensor, places: torch.Tensor, of_places: torch.Tensor) -> tuple[torch.Tensor, ...]:
        taken = x[:, places[of_places]]
        return taken.sum(0), taken.softmax(-1)

    def padded(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        product = x * torch.nn.functional.pad(y, (3, 2))
        return product.sum(0), product.softmax(-1)

    def agree(function: Callable[..., Any], compiled: Callable[..., Any], *arguments: torch.Tensor) -> None:
        torch.testing.assert_close(compiled(*arguments), function(*arguments))

    x, places, of_places = torch.arange(240.0).sin().reshape(5, 48), torch.tensor([0, -1, 2, 1]), torch.arange(48) % 4
    agree(padded, _compiled(padded), x, torch.arange(43.0).cos())
    compiled = _compiled(function)
    agree(function, compiled, x, places, of_places)
    agree(function, compiled, x, places * 12, of_places - 4)
    for wrong in (places, of_places + 1), (places + 47, of_places), (places - 48, of_places):
        with pytest.raises(IndexError, match="out of bounds"):
            compiled(x, *wrong)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_zero_is_bounded_by_another_with_its_sign_kept(dtype: torch.dtype) -> None:
    """Operands have gaps: eager's vector loops for tensors as bounds take the other zero."""

    def function(*numbers: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, low, high = numbers
        of_tensors = x.clamp(low, high), x.clamp_min(low), x.clamp_max(high), x.maximum(low), x.minimum(high)
        return *of_tensors, x.clamp(0.0, -0.0), x.clamp_min(0.0), x.clamp_max(-0.0), x.relu()

    numbers = torch.cartesian_prod(*[torch.tensor([0.0, -0.0, 1.0, -1.0, torch.nan], dtype=dtype)] * 3)
    _check(function, *numbers.unbind(1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_negation_changes_the_sign_of_nan(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.signbit(x), torch.signbit(-x), torch.signbit(x.neg().neg()), (-x).abs(), torch.signbit((-x).abs())

    signs = torch.tensor([1.0, -1.0] * 2, dtype=dtype)
    _check(function, torch.tensor([0.0, 0.0, torch.nan, torch.nan], dtype=dtype).copysign(signs))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_a_kernel_of_a_loss_asks_for_probabilities_as_eager_does(dtype: torch.dtype, reduction: str) -> None:
    def function(x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
        return torch.nn.functional.binary_cross_entropy(x, target, weight, reduction=reduction)

    x, target = torch.linspace(0, 1, 30).to(dtype).reshape(5, 6), torch.linspace(1, 0, 6, dtype=dtype).expand(5, 6)
    compiled, made = compiled_with_graphs(function)
    for arguments in ((x, target), (x, target, torch.arange(6.0).to(dtype))):
        torch.testing.assert_close(compiled(*arguments), function(*arguments))
    for wrong in ((x + 1, target), (x - 1, target), (x * torch.nan, target), (x, target + 1), (x, target - 1)):
        for call in (function, compiled):
            with pytest.raises(RuntimeError, match=r"between 0 and 1|not in \[0, 1\]"):
                call(*wrong)
    assert made
    assert all(graph.kernels and not graph.fallbacks for graph in made)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_what_is_moved_keeps_the_bits_of_nan(dtype: torch.dtype) -> None:
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        moved = x.roll(1), torch.cat([x, x]), torch.where(x > 0, x, x.flip(0)), x.abs(), x.copysign(x.roll(1))
        return tuple(each.view(bits) for each in moved)

    numbers = torch.tensor([torch.nan, -1.5, 2.0, torch.nan, torch.inf, 0.0] * 10, dtype=dtype)
    _check(function, numbers.copysign(torch.tensor([1.0, -1.0, 1.0, -1.0] * 15, dtype=dtype)))
