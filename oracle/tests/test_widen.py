"""The wide run computes what the program means, in float64, and says when it cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from oracle.program.inputs import clone_tree
from oracle.reruns.widen import (
    CannotWiden,
    Widened,
    draws_by_dtype,
    narrow_dtype,
    only_dtype,
    widen_module,
    widen_tree,
)

NARROW = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16, torch.float32]


@pytest.mark.parametrize("dtype", NARROW)
def test_narrow_floats_become_float64_with_the_same_numbers(dtype: torch.dtype) -> None:
    tensor = torch.tensor([0.1, -2.0, 0.0]).to(dtype)
    wide = widen_tree(tensor)
    assert wide.dtype is torch.float64
    assert wide.equal(tensor.double())


@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64])
def test_complex_numbers_become_complex128(dtype: torch.dtype) -> None:
    assert widen_tree(torch.ones(2, dtype=torch.complex64).to(dtype)).dtype is torch.complex128


def test_other_tensors_and_numbers_are_kept() -> None:
    value = [
        torch.arange(3),
        torch.ones(2, dtype=torch.bool),
        torch.ones(2, dtype=torch.float64),
        0.1,
        torch.float16,
        "x",
    ]
    wide = widen_tree(value)
    assert all(a is b for a, b in zip(wide, value, strict=True))


def test_strides_aliases_and_gradients_are_kept() -> None:
    base = torch.randn(4, 6)
    leaf = torch.randn(3, requires_grad=True)
    parameter = torch.nn.Parameter(torch.randn(2))
    view, whole, first, second, wide_parameter = widen_tree([base[1:, ::2].t(), base, leaf, leaf, parameter])
    assert (view.stride(), view.storage_offset()) == ((2, 6), 6)
    whole.zero_()
    assert view.abs().sum() == 0
    assert base.abs().sum() > 0
    assert first is second
    assert first.requires_grad
    assert first.is_leaf
    assert type(wide_parameter) is torch.nn.Parameter


def test_sparse_tensors_are_widened_and_quantised_ones_kept() -> None:
    assert widen_tree(torch.eye(3).to_sparse()).dtype is torch.float64
    quantised = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8)
    assert widen_tree(quantised) is quantised


@pytest.mark.parametrize("order", [lambda a, b: [a, b], lambda a, b: [b, a]])
def test_one_storage_seen_as_two_float_dtypes_cannot_be_widened(order: Callable[..., Any]) -> None:
    base = torch.ones(4)
    with pytest.raises(CannotWiden, match="share one storage"):
        widen_tree(order(base, base.view(torch.float16)))


def test_one_storage_seen_as_floats_and_integers_cannot_be_widened() -> None:
    base = torch.ones(4)
    with pytest.raises(CannotWiden, match="share one storage"):
        widen_tree([base, base.view(torch.int32)])


def test_a_module_is_widened_in_place_with_its_ties() -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(3, 3)
            self.second = torch.nn.Linear(3, 3)
            self.second.weight = self.first.weight
            self.norm = torch.nn.BatchNorm1d(3)
            self.scales = [torch.ones(3)]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.second(self.first(x))) * self.scales[0]

    module = Tied()
    weight = module.first.weight
    assert widen_module(module) is module
    assert module.first.weight is weight is module.second.weight
    assert {tensor.dtype for tensor in [*module.parameters(), *module.scales]} == {torch.float64}
    assert module.norm.running_mean is not None
    assert module.norm.running_mean.dtype is torch.float64
    assert module.norm.num_batches_tracked is not None
    assert module.norm.num_batches_tracked.dtype is torch.int64
    assert module(torch.randn(4, 3, dtype=torch.float64)).dtype is torch.float64


@pytest.mark.parametrize("module", [torch.nn.LSTM(3, 4), torch.nn.MultiheadAttention(4, 2), torch.nn.GroupNorm(2, 4)])
def test_library_modules_run_wide(module: torch.nn.Module) -> None:
    widen_module(module)
    x = torch.ones(2, 2, 3 if isinstance(module, torch.nn.LSTM) else 4, dtype=torch.float64)
    with Widened() as mode:
        result = module(x, x, x) if isinstance(module, torch.nn.MultiheadAttention) else None
        result = result or module(
            x.transpose(1, 2) if isinstance(module, torch.nn.GroupNorm) and x.shape[1] != 4 else x
        )
    tensor = result[0] if isinstance(result, tuple) else result
    assert tensor.dtype is torch.float64
    assert not mode.meaning_changed


CASTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "float": lambda x: x.float(),
    "half": lambda x: x.half(),
    "bfloat16": lambda x: x.bfloat16(),
    "to dtype": lambda x: x.to(torch.bfloat16),
    "to keyword": lambda x: x.to(dtype=torch.float16),
    "to device and dtype": lambda x: x.to("cpu", torch.float16),
    "to tensor": lambda x: x.to(torch.ones(1, dtype=torch.float16)),
    "type": lambda x: x.type(torch.float16),
    "type text": lambda x: x.type("torch.HalfTensor"),
    "type class": lambda x: x.type(torch.FloatTensor),  # pyright: ignore
    "type_as": lambda x: x.type_as(torch.ones(1, dtype=torch.bfloat16)),
    "sum": lambda x: torch.sum(x, 0, dtype=torch.bfloat16),
    "softmax": lambda x: F.softmax(x, -1, dtype=torch.float32),
    "aten": lambda x: torch.ops.aten._to_copy.default(x, dtype=torch.float16),
    "new": lambda x: x.new_zeros(2, dtype=torch.float16),
    "zeros": lambda x: torch.zeros(2, dtype=torch.float32),
    "zeros by default": lambda x: torch.zeros(2),
    "zeros of the default": lambda x: torch.zeros(2, dtype=torch.get_default_dtype()),
    "tensor": lambda x: torch.tensor([1.5]),
    "tensor dtype": lambda x: torch.tensor([1.5], dtype=torch.float32),
    "arange": lambda x: torch.arange(3.0),
    "like": lambda x: torch.ones_like(x, dtype=torch.float16),
    "promotion": lambda x: x * torch.ones(2, dtype=torch.promote_types(torch.float16, torch.float32)),
    "complex": lambda x: x.cfloat().real,  # pyright: ignore
    "int and back": lambda x: x.long().float(),
}


@pytest.mark.parametrize("name", CASTS)
def test_named_dtypes_do_not_narrow(name: str) -> None:
    with Widened() as mode:
        result = CASTS[name](torch.full((2,), 1 / 3, dtype=torch.float64))
    assert result.dtype is torch.float64
    assert not mode.meaning_changed
    assert torch.zeros(1).dtype is torch.float32


def test_a_cast_keeps_all_digits() -> None:
    x = torch.full((2,), 1 / 3, dtype=torch.float64)
    with Widened():
        assert (x.half().float() == x).all()


def test_integer_casts_are_kept() -> None:
    with Widened():
        assert torch.ones(2).to(torch.int32).dtype is torch.int32
        assert torch.ones(2).long().dtype is torch.int64


def test_autocast_has_no_effect() -> None:
    a = torch.randn(8, 8, dtype=torch.float64)
    with Widened(), torch.autocast("cpu", dtype=torch.bfloat16):
        result = F.linear(a, a).softmax(-1)
    assert result.equal(F.linear(a, a).softmax(-1))


def test_gradients_are_wide() -> None:
    x = widen_tree(torch.randn(4, requires_grad=True))
    with Widened():
        (x.half().float().sin() * 2).sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach().cos(), rtol=1e-15, atol=0)


MEANING: dict[str, Callable[[torch.Tensor], Any]] = {
    "view(dtype)": lambda x: x.view(torch.int32),
    "element_size": lambda x: x.element_size(),
    "itemsize": lambda x: x.itemsize,
    "nbytes": lambda x: x.nbytes,
    "nextafter": lambda x: torch.nextafter(x, x + 1),
    "matrix_rank": lambda x: torch.linalg.matrix_rank(x),
    "storage": lambda x: x.untyped_storage().nbytes(),
    "rms_norm": lambda x: F.rms_norm(x, (2,)),
    "nan_to_num": lambda x: torch.nan_to_num(x),
    "rand_like": lambda x: torch.rand_like(x),
    "fractional max pool": lambda x: F.fractional_max_pool2d(x.expand(1, 1, 2, 2), 1, (1, 1)),
    "normal_": lambda x: x.normal_(),
    "normal of tensors": lambda x: torch.normal(x, x.abs()),
    "default dtype": lambda x: torch.set_default_dtype(torch.float32),
}


@pytest.mark.parametrize("name", MEANING)
def test_where_the_dtype_is_the_meaning_it_is_noted(name: str) -> None:
    with Widened() as mode:
        result = MEANING[name](torch.ones(2, 2, dtype=torch.float64))
    assert mode.reason if mode.meaning_changed else result in mode.unknown
    assert torch.get_default_dtype() is torch.float32


BITS: dict[str, Callable[[torch.Tensor], Any]] = {
    "used": lambda x: x.view(torch.int64) + 1,
    "written with": lambda x: torch.zeros(2, 2).add_(x.view(torch.int64)),
    "put into": lambda x: torch.stack([x, x.view(torch.int64).double()]),
    "viewed after a write": lambda x: torch.zeros(2, 2).copy_(x.view(torch.int64))[0],
}


@pytest.mark.parametrize("name", BITS)
def test_what_is_computed_from_bits_is_unknown_and_nothing_else(name: str) -> None:
    x = torch.ones(2, 2, dtype=torch.float64)
    with Widened() as mode:
        before = x * 2
        unknown = BITS[name](x)
        after = before + x
    assert not mode.meaning_changed
    assert unknown in mode.unknown
    assert not any(tensor in mode.unknown for tensor in (x, before, after))


LOST: dict[str, Callable[[torch.Tensor], Any]] = {
    "branch": lambda x: 1 if (x.view(torch.int64) > 3).any() else 2,
    "item": lambda x: x.view(torch.int64)[0, 0].item(),
    "shape": lambda x: x.view(torch.uint8).shape,
    "write to the bits": lambda x: x.view(torch.int64).add_(1),
    "gradient": lambda x: torch.nextafter(x, x).double() * torch.ones(1, requires_grad=True),
}


@pytest.mark.parametrize("name", LOST)
def test_where_the_course_may_depend_on_bits_all_is_lost(name: str) -> None:
    with Widened() as mode:
        LOST[name](torch.ones(2, 2, dtype=torch.float64))
    assert mode.meaning_changed


def test_with_the_narrow_dtype_known_more_can_be_said() -> None:
    tiny = torch.full((2, 2), 1e-5, dtype=torch.float64)
    with Widened(narrow=torch.float32) as mode:
        norm = F.rms_norm(tiny, (2,))
        numbers = torch.nan_to_num(torch.tensor([float("inf"), float("nan"), -float("inf")]))
    assert not mode.meaning_changed
    torch.testing.assert_close(norm.float(), F.rms_norm(tiny.float(), (2,)))
    assert numbers.tolist() == [torch.finfo(torch.float32).max, 0.0, torch.finfo(torch.float32).min]


DRAWS: dict[str, Callable[[], torch.Tensor]] = {
    "rand": lambda: torch.rand(20),
    "randn in bfloat16": lambda: torch.randn(20, dtype=torch.bfloat16),
    "randn_like": lambda: torch.randn_like(torch.ones(20)),
    "normal_": lambda: torch.ones(20).normal_(),
    "uniform_": lambda: torch.ones(20).uniform_(2, 3),
    "exponential_": lambda: torch.ones(20).exponential_(),
    "cauchy_": lambda: torch.ones(20).cauchy_(),
    "log_normal_": lambda: torch.ones(20).log_normal_(),
    "geometric_": lambda: torch.ones(20).geometric_(0.5),
    "normal": lambda: torch.normal(0.0, 1.0, (20,)),
    "dropout": lambda: F.dropout(torch.ones(50)),
    "bernoulli": lambda: torch.bernoulli(torch.full((20,), 0.5)),
    "bernoulli_": lambda: torch.ones(20).bernoulli_(0.5),
    "multinomial": lambda: torch.multinomial(torch.full((20,), 0.5), 5),
    "randint": lambda: torch.randint(0, 9, (20,)),
    "randperm": lambda: torch.randperm(20),
    "linear layer": lambda: torch.nn.Linear(4, 4).weight.detach(),
    "truncated normal": lambda: torch.nn.init.trunc_normal_(torch.ones(20)),
}
COMPUTED = {
    "truncated normal"
}  # by torch 2.11: the inverse error function of uniform numbers, which is wider in float64


@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_are_those_of_the_narrow_program(name: str) -> None:
    torch.manual_seed(0)
    narrow = DRAWS[name]()
    state = torch.get_rng_state()
    torch.manual_seed(0)
    with Widened(narrow=torch.float32) as mode:
        wide = DRAWS[name]()
    assert wide.dtype in (torch.float64, torch.int64)
    if name in COMPUTED:
        torch.testing.assert_close(wide.float(), narrow)
    else:
        assert wide.double().equal(narrow.double())
    assert torch.get_rng_state().equal(state)
    assert not mode.meaning_changed


BY_DTYPE = (
    "rand_like",
    "randn_like",
    "normal_",
    "uniform_",
    "exponential_",
    "cauchy_",
    "log_normal_",
    "geometric_",
    "bernoulli",
)
NOT_BY_DTYPE = (
    "dropout_",
    "alpha_dropout_",
    "bernoulli_",
    "randint_like",
    "rrelu_",
    "multinomial",
    "poisson",
    "relu_",
    "fill_",
)


def test_kernels_tell_which_functions_draw_by_the_dtype() -> None:
    assert all(map(draws_by_dtype, BY_DTYPE))
    assert not any(map(draws_by_dtype, NOT_BY_DTYPE))


def test_a_draw_that_depends_on_an_input_keeps_its_zero_gradient() -> None:
    probabilities = torch.full((5,), 0.5, dtype=torch.float64, requires_grad=True)
    with Widened(narrow=torch.float32):
        torch.bernoulli(probabilities).sum().backward()
    assert probabilities.grad is not None
    assert probabilities.grad.tolist() == [0.0] * 5


def test_everything_is_restored_after_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), Widened():
        raise ZeroDivisionError
    assert torch.get_default_dtype() is torch.float32
    assert torch.ones(1).half().dtype is torch.float16


def test_numbers_are_rounded_to_the_only_dtype_there_is() -> None:
    single, double = torch.ones(1), torch.ones(1, dtype=torch.float64)
    assert only_dtype([single, torch.arange(2), single]) is torch.float32
    for several in ([single, single.half()], [single, double], [double], [torch.arange(2)]):
        assert only_dtype(several) is None


def test_narrow_dtype_is_the_only_one() -> None:
    half, single = torch.ones(1, dtype=torch.float16), torch.ones(1)
    assert narrow_dtype([half, {"x": half}, torch.arange(2)]) is torch.float16
    assert narrow_dtype([half, single]) is None
    assert narrow_dtype([torch.arange(2), 1.0]) is torch.float32


def test_copies_made_within_are_right() -> None:
    base = torch.randn(6, 6)
    with Widened() as mode:
        copied = clone_tree([base.t(), base[1:, ::2]])
        wide = widen_tree([base.t(), base[1:, ::2]])
    assert not mode.meaning_changed
    assert copied[1].equal(base[1:, ::2])
    assert wide[1].equal(base[1:, ::2].double())


def test_equal_numbers_are_told_by_what_the_program_could_hold() -> None:
    x = torch.tensor([1.0, 0.7, 0.3, -0.3, -0.7, 1e-9], dtype=torch.float64)
    sums = torch.stack([x[1:3].sum(), x[0], 1 + x[5]])  # 1, 1 and what only float64 holds
    for ask in (torch.unique, torch.Tensor.unique, torch.unique_consecutive):
        with Widened(rounded=torch.float32):
            assert ask(sums).tolist() == [1.0]
        with Widened():
            assert ask(sums).numel() > 1
        with Widened(rounded=torch.float32):
            assert ask(x.double() * 0 + sums[2]).numel() == 1
            assert ask(torch.cat([sums, sums.double()])).numel() > 1, "the program has float64 itself"


def test_the_wide_result_is_nearer_the_truth_than_the_narrow_one() -> None:
    x = torch.randn(10_000)
    exact = x.double().exp().sum()
    with Widened():
        wide = widen_tree(clone_tree(x)).exp().sum()
    assert abs(wide - exact) <= 1e-8
    assert abs(x.half().exp().sum() - exact) > 1e-3


def test_methods_named_after_a_dtype_convert_to_the_wider_one() -> None:
    narrow, complex_ones = torch.ones(1, dtype=torch.bfloat16), torch.ones(1, dtype=torch.complex64)
    with Widened():
        made = [narrow.float(), narrow.half(), narrow.bfloat16(), narrow.double()]
        made_complex = [getattr(complex_ones, name)() for name in ("cfloat", "chalf", "cdouble")]
    assert {x.dtype for x in made} == {torch.float64}
    assert {x.dtype for x in made_complex} == {torch.complex128}
