"""Fake inputs with symbolic sizes keep what a program can see of the real ones."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from refimpl._torch import FakeTensor, storage_key
from refimpl.errors import ForeignFakeInput, UnsupportedByRefimpl
from refimpl.symbolic.dynamic_shapes import ALL_STATIC, DimSpec, InputPolicy
from refimpl.symbolic.fake_inputs import InputFaker, fake_input, symbolic_fake_mode
from refimpl.symbolic.shape_env import ShapeEnv


@pytest.fixture
def faker() -> InputFaker:
    env = ShapeEnv()
    return InputFaker(symbolic_fake_mode(env), env)


def hints(numbers: Any) -> tuple[int, ...]:
    return tuple(n.node.hint if isinstance(n, torch.SymInt) else n for n in numbers)


LAYOUTS: dict[str, tuple[torch.Tensor, str]] = {
    # tensor, and its strides as expressions of its sizes
    "contiguous": (torch.randn(3, 4, 5), "(s1*s2, s2, 1)"),
    "transposed": (torch.randn(4, 5).t(), "(1, s0)"),
    "channels_last": (torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), "(s1*s2*s3, 1, s1*s3, s1)"),
    "expanded": (torch.randn(3, 1).expand(3, 4), "(1, 0)"),
    "scalar": (torch.tensor(1.0), "()"),
    "empty": (torch.randn(0, 4), "(s0, 1)"),
    "ones": (torch.randn(1, 4), "(s0, 1)"),
    "strided": (torch.randn(6, 10)[:, ::3], "(s3, s2)"),
    "broadcast batch": (torch.randn(4, 5).expand(3, 4, 5), "(0, s2, 1)"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_sizes_strides_and_offset_have_the_values_of_the_real_ones(name: str, faker: InputFaker) -> None:
    tensor, strides = LAYOUTS[name]
    fake = faker.tensor(tensor, "x")
    assert isinstance(fake, FakeTensor)
    assert hints(fake.shape) == tuple(tensor.shape)
    assert hints(fake.stride()) == tensor.stride()
    assert hints([fake.storage_offset()]) == (tensor.storage_offset(),)
    assert str(tuple(fake.stride())) == strides
    assert (fake.dtype, fake.device, fake.layout) == (tensor.dtype, tensor.device, tensor.layout)
    assert faker.shape_env.guards == []


def test_an_offset_that_is_not_zero_is_symbolic(faker: InputFaker) -> None:
    fake = faker.tensor(torch.randn(8)[3:], "x")
    assert (str(fake.shape[0]), str(fake.storage_offset())) == ("s0", "s1")


def test_static_dimensions_leave_no_symbols() -> None:
    env = ShapeEnv(assume_static_by_default=True)
    mode = symbolic_fake_mode(env)
    fake = fake_input(torch.randn(6, 10)[2:, ::3], mode, env, "x")
    assert all(type(n) is int for n in (*fake.shape, *fake.stride(), fake.storage_offset()))
    fake = fake_input(torch.randn(6, 10), mode, env, "y", {0: DimSpec.dynamic()})
    assert str(tuple(fake.shape)) == "(s0, 10)"
    fake = fake_input(torch.randn(6, 10), mode, env, "z", InputPolicy({1: DimSpec.unbacked()}))
    assert str(tuple(fake.shape)) == "(6, u0)"


def test_one_tensor_has_one_fake_and_views_of_one_storage_share_it(faker: InputFaker) -> None:
    base = torch.randn(4, 6)
    part, flat = base[1:], base.view(-1)
    fakes = [faker.tensor(t, n) for t, n in ((base, "a"), (part, "b"), (flat, "c"))]
    assert faker.tensor(base, "again") is fakes[0]
    assert len({storage_key(fake) for fake in fakes}) == 1
    assert storage_key(faker.tensor(torch.randn(4, 6), "other")) != storage_key(fakes[0])
    assert [hints(f.shape) for f in fakes] == [(4, 6), (3, 6), (24,)]
    before = fakes[0]._version
    with faker.fake_mode:
        fakes[0].add_(1)
    assert fakes[0]._version == before + 1


def test_a_view_seen_before_its_base_shares_the_storage_too(faker: InputFaker) -> None:
    base = torch.randn(10)
    part = base[5:]
    assert storage_key(faker.tensor(part, "part")) == storage_key(faker.tensor(base, "whole"))


def test_an_environment_does_not_keep_its_inputs_alive() -> None:
    env = ShapeEnv()
    mode = symbolic_fake_mode(env)
    tensor = torch.randn(3, 4)
    fake = fake_input(tensor, mode, env, "x")
    alive = weakref.ref(tensor)
    del tensor
    assert alive() is None
    assert hints(fake.shape) == (3, 4)


def test_autograd_metadata_is_kept(faker: InputFaker) -> None:
    parameter = torch.nn.Parameter(torch.randn(3, 4))
    fake = faker.tensor(parameter, "p")
    assert isinstance(fake, torch.nn.Parameter)
    assert (fake.requires_grad, fake.is_leaf) == (True, True)
    leaf = torch.randn(3, 4, requires_grad=True)
    leaf.sum().backward()
    fake = faker.tensor(leaf, "leaf")
    assert fake.grad is not None
    assert fake.grad.shape == fake.shape
    result = faker.tensor(leaf * 2, "result")
    assert (result.requires_grad, result.is_leaf) == (True, False)
    plain = faker.tensor(torch.randn(3, 4), "plain")
    assert (plain.requires_grad, plain.is_leaf) == (False, True)
    with faker.fake_mode:
        (grad,) = torch.autograd.grad((fake * plain).sum(), fake)
    assert grad.shape == fake.shape


def test_lazy_conjugation_and_negation_are_kept(faker: InputFaker) -> None:
    x = torch.randn(3, dtype=torch.complex64)
    assert faker.tensor(x.conj(), "c").is_conj()
    assert faker.tensor(x.conj().imag, "n").is_neg()
    assert not faker.tensor(x, "x").is_conj()


def test_sparse_tensors_have_plain_sizes(faker: InputFaker) -> None:
    x = torch.randn(3, 4).to_sparse()
    fake = faker.tensor(x, "x")
    assert fake.is_sparse
    assert (fake.sparse_dim(), fake.dense_dim(), fake.is_coalesced()) == (2, 0, x.is_coalesced())
    assert tuple(fake.shape) == (3, 4)
    with pytest.raises(UnsupportedByRefimpl, match="sparse"):
        faker.tensor(torch.randn(3, 4).to_sparse(), "y", {0: DimSpec.dynamic()})


def test_wrapper_subclasses_hold_fakes_of_their_inner_tensors(faker: InputFaker) -> None:
    x = TwoTensor(torch.randn(3, 4), torch.randn(3, 4))
    fake: Any = faker.tensor(x, "x")
    assert type(fake) is TwoTensor
    assert isinstance(fake.a, FakeTensor)
    assert fake.shape == fake.a.shape == fake.b.shape
    assert str(tuple(fake.shape)) == "(s0, s1)"
    with faker.fake_mode:
        assert str(tuple((fake @ fake.t()).shape)) == "(s0, s0)"
    with pytest.raises(UnsupportedByRefimpl, match="dynamic dimension"):
        faker.tensor(TwoTensor(torch.randn(3, 4), torch.randn(3, 4)), "y", {0: DimSpec.dynamic()})


@pytest.mark.filterwarnings("ignore")  # of kinds that torch itself calls experimental
@pytest.mark.parametrize(
    ("make", "seen"),
    [
        (lambda: torch.nested.nested_tensor([torch.randn(2), torch.randn(3)]), "nested"),
        (lambda: torch.quantize_per_tensor(torch.randn(3), 0.1, 0, torch.qint8), "quantized"),
        (lambda: torch.randn(3, 4).to_sparse_csr(), "sparse_csr"),
        (lambda: torch.randn(3).as_subclass(type("Mine", (torch.Tensor,), {})), "Mine"),
    ],
)
def test_an_input_without_a_symbolic_fake_is_refused_by_name(make: Any, seen: str, faker: InputFaker) -> None:
    with pytest.raises(UnsupportedByRefimpl, match=seen) as caught:
        faker.tensor(make(), "weights")
    assert "weights" in str(caught.value)


def test_fakes_of_another_mode_are_refused_and_our_own_kept(faker: InputFaker) -> None:
    fake = faker.tensor(torch.randn(3), "x")
    assert faker.tensor(fake, "x") is fake
    other = ShapeEnv()
    with pytest.raises(ForeignFakeInput, match="another mode"):
        InputFaker(symbolic_fake_mode(other), other).tensor(fake, "x")


def test_static_sizes_are_those_of_the_input_and_no_symbols_of_another_mode(faker: InputFaker) -> None:
    other = ShapeEnv()
    taker = InputFaker(symbolic_fake_mode(other), other, takes_fakes=True)
    real = torch.randn(6, 10)[2:, ::3]
    static = taker.tensor(real, "x", ALL_STATIC)
    assert (static.shape, static.stride(), static.storage_offset()) == (
        real.shape,
        real.stride(),
        real.storage_offset(),
    )
    assert all(type(number) is int for number in (*static.shape, *static.stride(), static.storage_offset()))
    assert not other.promises
    with pytest.raises(ForeignFakeInput, match="symbols of another mode"):
        taker.tensor(faker.tensor(torch.randn(3, 4), "y"), "y", ALL_STATIC)


def test_making_inputs_adds_no_guards_and_no_origins(faker: InputFaker) -> None:
    fake = faker.tensor(torch.randn(6, 10)[2:, ::3], "x")
    assert faker.shape_env.guards == []
    assert all(n.node.origin is None for n in (*fake.shape, *fake.stride()) if isinstance(n, torch.SymInt))
    assert faker.shape_env.records_origins


@pytest.mark.parametrize("shared", [False, True])
def test_asking_an_input_of_gaps_whether_it_is_contiguous_is_a_guard(shared: bool, faker: InputFaker) -> None:
    """The input is a part of a storage that no other input views, or of one that was seen before. Making the fake input must not
    answer the question.
    """
    storage = torch.randn(2000)
    if shared:
        faker.tensor(storage, "whole")
    fake = faker.tensor(storage.as_strided((4, 5, 7), (45, 9, 1)), "x")
    assert faker.shape_env.guards == []
    assert not fake.is_contiguous()
    (rows,) = [symbol for symbol in fake.stride() if isinstance(symbol, torch.SymInt) and symbol.node.hint == 9]
    assert [str(guard.expr) for guard in faker.shape_env.guards] == [f"Ne({rows}, {fake.shape[2]})"]
