"""Strides of results of elementwise operators over random layouts: worked out, traced and compiled, against eager's."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from refimpl._torch import has_composite_kernel
from refimpl.codegen.compile import compile_graph
from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.pipeline import compile_aot
from refimpl.trace import eager_facts
from refimpl.trace.decompositions import decomposition_table
from refimpl.trace.layouts import elementwise_strides
from refimpl.trace.make_fx import make_fx

aten = torch.ops.aten

_OPERATORS: list[tuple[Any, int, tuple[Any, ...], dict[str, Any]]] = [
    (aten.clamp.Tensor, 2, (), {}),
    (aten.clamp.Tensor, 3, (), {}),
    (aten.copysign.Tensor, 2, (), {}),
    (aten.copysign.Scalar, 1, (2.0,), {}),
    (aten.div.Tensor_mode, 2, (), {"rounding_mode": "floor"}),
    (aten.div.Scalar_mode, 1, (2.0,), {"rounding_mode": "floor"}),
    (aten.floor_divide.default, 2, (), {}),
    (aten.fmax.default, 2, (), {}),
    (aten.fmin.default, 2, (), {}),
    (aten.gcd.default, 2, (), {}),
    (aten.lcm.default, 2, (), {}),
    (aten.heaviside.default, 2, (), {}),
    (aten.hypot.default, 2, (), {}),
    (aten.lerp.Scalar, 2, (0.25,), {}),
    (aten.lerp.Tensor, 3, (), {}),
    (aten.logaddexp.default, 2, (), {}),
    (aten.logaddexp2.default, 2, (), {}),
    (aten.logical_and.default, 2, (), {}),
    (aten.logical_or.default, 2, (), {}),
    (aten.logical_xor.default, 2, (), {}),
    (aten.special_xlog1py.default, 2, (), {}),
    (aten.xlogy.Tensor, 2, (), {}),
    (aten.hardshrink_backward.default, 2, (0.5,), {}),
    (aten.hardswish_backward.default, 2, (), {}),
    (aten.hardtanh_backward.default, 2, (-0.5, 0.5), {}),
    (aten.logit_backward.default, 2, (0.25,), {}),
    (aten.native_dropout_backward.default, 2, (2.0,), {}),
    (aten.softshrink_backward.default, 2, (0.5,), {}),
    (aten.binary_cross_entropy.default, 2, (None, 0), {}),
    (aten.huber_loss.default, 2, (0,), {}),
    (aten.soft_margin_loss.default, 2, (0,), {}),
    (aten.binary_cross_entropy_backward.default, 3, (None, 0), {}),
    (aten.huber_loss_backward.default, 3, (0, 1.0), {}),
    (aten.mse_loss_backward.default, 3, (0,), {}),
    (aten.smooth_l1_loss_backward.default, 3, (0, 1.0), {}),
    (aten.poisson.default, 1, (), {}),
    (aten._standard_gamma.default, 1, (), {}),
    (aten.normal.Tensor_Tensor, 2, (), {}),
    (aten.uniform.default, 1, (), {}),
    (aten.addcmul.default, 3, (), {}),
    (aten.addcdiv.default, 3, (), {}),
    (aten.hardsigmoid_backward.default, 2, (), {}),
    (aten.leaky_relu_backward.default, 2, (0.5, False), {}),
    (aten.softplus_backward.default, 2, (1.0, 20.0), {}),
    (aten.threshold_backward.default, 2, (0.5,), {}),
]
_ON_NUMBERS = [(aten.pow.Scalar, 2), (aten.normal.float_Tensor, 2.0)]
_OF_FLOATS = ("logaddexp", "hypot", "backward", "normal", "poisson", "_standard_gamma", "uniform", "addcdiv")
_OF_INTEGERS = (aten.gcd.default, aten.lcm.default)
_SIZES, _LARGER = (1, 2, 3, 1, 2), (1, 6, 9, 1, 5)
_OF_ONE_SHAPE = (
    aten.binary_cross_entropy.default,
    aten.binary_cross_entropy_backward.default,
    aten.huber_loss.default,
    aten.huber_loss_backward.default,
    aten.mse_loss_backward.default,
    aten.smooth_l1_loss_backward.default,
    aten.soft_margin_loss.default,
)


def _operand(rng: random.Random, shape: list[int], *, is_whole: bool) -> torch.Tensor:
    """Ones in a random order of dimensions, some with gaps or expanded; not whole: some broadcast, some without dimensions."""
    if not is_whole and rng.random() < 0.3:
        shape = [1 if rng.random() < 0.4 else size for size in shape]
        if rng.random() < 0.4:
            shape = shape[rng.randrange(len(shape) + 1) :]
    order = list(range(len(shape)))
    rng.shuffle(order)
    has_gaps = rng.random() < 0.2
    strides, step = [0] * len(shape), 1
    for dim in order:
        strides[dim] = step
        step *= shape[dim] * (2 if has_gaps and rng.random() < 0.5 else 1)
    for dim, size in enumerate(shape):
        if rng.random() < 0.12:
            strides[dim] = 0
        elif size == 1 and rng.random() < 0.3:
            strides[dim] = rng.choice([1, 2, 3, 7])
    return torch.ones(step).as_strided(shape, strides)


def _like(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Ones of the same layout, gaps and all."""
    length = 1 + sum((n - 1) * t for n, t in zip(x.shape, x.stride(), strict=True))
    return torch.ones(length, dtype=dtype).as_strided(x.shape, x.stride())


def _operands(
    rng: random.Random, count: int, *, is_whole: bool = False, sizes: tuple[int, ...] = _SIZES
) -> list[torch.Tensor]:
    shape = [rng.choice(sizes) for _ in range(rng.randrange(1, 5))]
    return [_operand(rng, shape, is_whole=is_whole) for _ in range(count)]


@pytest.mark.parametrize(
    ("function", "count"),
    [(torch.sin, 1), (torch.add, 2), (torch.atan2, 2), (torch.addcmul, 3)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_operands_decide_as_in_eager(function: Callable[..., torch.Tensor], count: int) -> None:
    rng = random.Random(0)
    for _ in range(1500):
        operands = _operands(rng, count)
        result = function(*operands)
        layouts = [(tuple(x.shape), x.stride()) for x in operands]
        assert elementwise_strides(result.shape, layouts) == result.stride(), layouts


def test_results_without_elements_and_of_channels_last() -> None:
    image = torch.ones(2, 3, 1, 4).to(memory_format=torch.channels_last)
    for x in (image, image[:, :1], image[:0], torch.ones(3, 0, 2).permute(2, 0, 1), torch.ones(1, 3, 1, 1)):
        assert elementwise_strides(x.shape, [(tuple(x.shape), x.stride())] * 2) == (x + x).stride()


def _cases(rng: random.Random, count: int, sizes: tuple[int, ...] = _SIZES) -> Any:
    for operator, arity, rest, kwargs in _OPERATORS:
        for _ in range(count):
            operands = _operands(rng, arity, is_whole=operator in _OF_ONE_SHAPE, sizes=sizes)
            if operator in _OF_INTEGERS:
                operands = [_like(x, torch.int16) for x in operands]
            yield operator, [*operands, *rest], kwargs
    for operator, number in _ON_NUMBERS:
        for _ in range(count):
            yield operator, [number, *_operands(rng, 1)], {}


_OF_HALVES = [
    (aten.add.Tensor, 2),
    (aten.mul.Tensor, 2),
    (aten.div.Tensor, 2),
    (aten.maximum.default, 2),
    (aten.eq.Tensor, 2),
    (aten.clamp_min.Tensor, 2),
    (aten.pow.Tensor_Tensor, 2),
    (aten.sigmoid_backward.default, 2),
    (aten.silu_backward.default, 2),
    (aten.exp.default, 1),
]


def _telling(x: torch.Tensor) -> list[int]:
    return [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size != 1]


@pytest.fixture
def only_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """No trial operand has the sizes of the call."""
    monkeypatch.setattr(eager_facts, "_FEW_ELEMENTS", -1)


@pytest.mark.usefixtures("only_smaller")
def test_smaller_operands_tell_the_order_of_dimensions() -> None:
    asked = 0
    for operator, args, kwargs in _cases(random.Random(1), 60, _LARGER):
        expected = operator(*args, **kwargs)
        found = eager_facts.result_strides(operator, args, kwargs, expected)
        assert found in (None, [expected.stride()]), (
            operator,
            [(x.shape, x.stride()) for x in args if isinstance(x, torch.Tensor)],
        )
        asked += found is not None
    assert asked > 2000


@pytest.mark.usefixtures("only_smaller")
def test_operands_of_several_dtypes_keep_their_word() -> None:
    rng = random.Random(3)
    for operator, args, kwargs in _cases(rng, 60, _LARGER):
        if operator in _OF_ONE_SHAPE or operator in (aten.lerp.Scalar, aten.lerp.Tensor, aten.heaviside.default):
            continue  # of one dtype only
        if any(name in str(operator) for name in _OF_FLOATS):
            continue
        mixed = [_like(a, torch.int64) if isinstance(a, torch.Tensor) and rng.random() < 0.5 else a for a in args]
        expected = operator(*mixed, **kwargs)
        given = [(a.dtype, a.shape, a.stride()) for a in mixed if isinstance(a, torch.Tensor)]
        assert eager_facts.result_strides(operator, mixed, kwargs, expected) in (None, [expected.stride()]), (
            operator,
            given,
        )


@pytest.mark.parametrize(
    "function", [torch.heaviside, torch.logical_and, torch.maximum, torch.floor_divide, torch.fmax, torch.clamp]
)
def test_expanded_integers_keep_their_word(function: Callable[..., torch.Tensor]) -> None:
    compiled = compile_aot(function, backend=compile_graph, decompositions=codegen_decompositions())
    row, column = torch.ones(2, dtype=torch.int64).expand(3, 2), torch.ones(2, 3, dtype=torch.int64).t()
    for x, y in ((row, column), (column, row)):
        assert compiled(x, y).stride() == function(x, y).stride()


def test_repeated_halves_tell_nothing() -> None:
    rng = random.Random(4)
    for operator, arity in _OF_HALVES:
        for _ in range(25):
            tensors = [_like(x, rng.choice([torch.float16, torch.bfloat16])) for x in _operands(rng, arity)]
            graph = make_fx(operator, tracing_mode="fake")(*tensors)
            (returned,) = graph.graph.find_nodes(op="output")[0].args
            expected = _telling(operator(*tensors))
            assert _telling(returned.meta["val"]) == expected, (operator, [(x.shape, x.stride()) for x in tensors])


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
@pytest.mark.parametrize("is_decomposed", [False, True])
def test_traced_results_have_eagers_strides(is_decomposed: bool, mode: str) -> None:
    table = decomposition_table if is_decomposed else {}
    for operator, args, kwargs in _cases(random.Random(2), 6 if mode == "fake" else 3):
        tensors = [a for a in args if isinstance(a, torch.Tensor)]

        def program(
            *given: torch.Tensor, operator: Any = operator, args: Any = args, kwargs: Any = kwargs
        ) -> torch.Tensor:
            rest = iter(given)
            return operator(*[next(rest) if isinstance(a, torch.Tensor) else a for a in args], **kwargs)

        graph = make_fx(program, decomposition_table=table, tracing_mode=mode)(*tensors)
        (returned,) = graph.graph.find_nodes(op="output")[0].args
        expected = _telling(program(*tensors))
        assert _telling(returned.meta["val"]) == expected, (operator, [(x.shape, x.stride()) for x in tensors])
        assert _telling(graph(*tensors)) == expected or not is_decomposed


@pytest.mark.parametrize(
    "function",
    [
        torch.floor_divide,
        torch.logical_xor,
        torch.xlogy,
        torch.special.xlog1py,
        torch.heaviside,
        torch.copysign,
        torch.fmax,
        torch.hypot,
        lambda x, y: torch.nn.functional.soft_margin_loss(x, y, reduction="none"),
        lambda x, y: torch.nn.functional.binary_cross_entropy(x, y, reduction="none"),
        lambda x, y: 2**y,
    ],
)
def test_compiled_results_have_eagers_strides(function: Callable[..., torch.Tensor]) -> None:
    compiled = compile_aot(function, backend=compile_graph, decompositions=codegen_decompositions())
    row, column = torch.rand(2).expand(3, 2), torch.rand(2, 3).t()
    for x, y in ((row, column), (column, row), (column, torch.rand(3, 2))):
        expected = function(x, y)
        result = compiled(x, y)
        torch.testing.assert_close(result, expected)
        assert result.stride() == expected.stride()


def test_integer_exponents_keep_the_layout_of_what_they_scale() -> None:
    if has_composite_kernel(aten.ldexp.Tensor):
        pytest.skip("ldexp is a product in this version of torch")
    rng = random.Random(5)
    compiled = compile_aot(torch.ldexp, backend=compile_graph, decompositions=codegen_decompositions())
    for case in range(300):
        x, other = _operands(rng, 2)
        other = _like(other, torch.int64)
        expected = torch.ldexp(x, other)
        if case < 12:
            assert _telling(compiled(x, other)) == _telling(expected), (x.stride(), other.stride())


def test_powers_of_other_exponents_are_row_major_in_what_ldexp_gives() -> None:
    rng = random.Random(6)
    for _ in range(300):
        x, other = _operands(rng, 2)
        expected = torch.ldexp(x, other)
        traced = make_fx(torch.ldexp, tracing_mode="fake")(x, other)
        value = traced.graph.output_node().all_input_nodes[0].meta["val"]
        assert _telling(value) == _telling(expected), (x.shape, x.stride(), other.shape, other.stride())


_WITH_ONES = [
    ((1, 1, 1, 2), (2, 1, 2, 1)),
    ((1, 2, 1, 1), (7, 1, 5, 9)),
    ((2, 1, 3), (3, 1, 1)),
    ((1, 2), (1, 1)),
    ((2, 1, 2), (1, 9, 2)),
]
_OF_ONES: list[Callable[..., torch.Tensor]] = [
    torch.neg,
    torch.exp,
    torch.relu,
    torch.isnan,
    torch.logical_not,
    torch.nn.functional.elu,
    torch.nn.functional.hardtanh,
    torch.clone,
    torch.zeros_like,
    torch.nan_to_num,
    lambda x: x.flip(0),
    lambda x: x.to(torch.float64),
    lambda x: x.clamp(min=0.5),
    lambda x: x + 1,
    lambda x: 2**x,
    lambda x: x * x[:1],
    lambda x: x < x.half(),
    lambda x: x.masked_fill(x > 0, 1.0),
    lambda x: torch.where(x > 0, x, 0.0),
    lambda x: x.log_softmax(-1),
]


@pytest.mark.parametrize("function", _OF_ONES)
def test_traced_results_have_eagers_strides_along_sizes_of_one_too(function: Callable[..., torch.Tensor]) -> None:
    for shape, strides in _WITH_ONES:
        x = torch.rand(9).as_strided(shape, strides)
        traced = make_fx(function, tracing_mode="fake")(x)
        value = traced.graph.output_node().all_input_nodes[0].meta["val"]
        assert value.stride() == function(x).stride(), (shape, strides)


@pytest.mark.parametrize("function", [torch.conj_physical, torch.neg, torch.sgn, lambda x: x.conj().neg()])
def test_complex_results_have_eagers_strides_along_sizes_of_one_too(function: Callable[..., torch.Tensor]) -> None:
    for shape, strides in _WITH_ONES:
        x = torch.randn(9, dtype=torch.complex64).as_strided(shape, strides)
        traced = make_fx(function, tracing_mode="fake", decomposition_table={})(x)
        value = traced.graph.output_node().all_input_nodes[0].meta["val"]
        assert value.stride() == function(x).stride(), (shape, strides)


def test_a_conjugated_result_along_a_size_of_one_stays_lazy() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.fft.ihfft(x, dim=0).neg_()

    x = torch.arange(2.0).reshape(1, 2)
    found = compile_aot(program, backend=compile_graph, decompositions=codegen_decompositions())(x)
    torch.testing.assert_close(found, program(x))
    assert found.is_conj()


def test_kernels_choose_a_layout_as_eager_does_where_sizes_are_one() -> None:
    def stacked(x: torch.Tensor) -> torch.Tensor:
        y = x.unfold(0, 2, 2).unflatten(-1, (1, 2))
        return torch.stack([torch.neg(y), y], 1)

    x = torch.rand(2, 1)
    compiled = compile_aot(stacked, backend=compile_graph, decompositions=codegen_decompositions())
    torch.testing.assert_close(compiled(x), stacked(x), rtol=0, atol=0, check_stride=True)


def _nothing_dropped_out(x: torch.Tensor) -> torch.Tensor:
    return torch.native_dropout(x, 0.0, True)[0]


@pytest.mark.fractional
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["eager", "triton"])
@pytest.mark.parametrize("function", [torch.nn.functional.logsigmoid, torch.nn.functional.glu, _nothing_dropped_out])
def test_a_program_is_told_how_what_follows_its_operands_or_does_not_lies(
    function: Callable[..., torch.Tensor], backend: str, dynamic: bool
) -> None:
    """log_sigmoid does not, nor the gradient of glu; that of a dropout does."""

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        y = function(x)
        (gradient,) = torch.autograd.grad(y.sin().sum(), x)
        return [z * (2 if z.is_contiguous() else 3) for z in (y.detach(), gradient)]

    for order in ((1, 0, 2, 3), (0, 3, 1, 2)):
        x = torch.rand(4, 6, 2, 8).permute(order).requires_grad_()
        expected, actual = program(x), compile_aot(program, backend=backend, dynamic=dynamic)(x)
        assert [y.stride() for y in actual] == [y.stride() for y in expected]
        torch.testing.assert_close(actual, expected)
