"""Functional tensors: a program runs between enable and disable, and what it did is had as values, or as ops of a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import refimpl
from refimpl.functionalize.errors import (
    CannotFunctionalize,
    FrozenTensor,
    MixedTensors,
    NoSession,
    NotAFunctionalTensor,
    ResizedView,
)
from refimpl.functionalize.functional_tensors import (
    disable_functionalization,
    enable_functionalization,
    freeze_functional_tensor,
    from_functional_tensor,
    is_functional_tensor,
    sync,
    to_functional_tensor,
)
from refimpl.functionalize.schemas import is_mutating

aten = torch.ops.aten


def in_session(function: Callable[..., Any], *, reapply_views: bool = True) -> Callable[..., Any]:
    """The function, with what it writes to its inputs copied into them at the end."""

    def run(*inputs: Tensor) -> Any:
        stand_ins = [to_functional_tensor(x) for x in inputs]
        for x, stand_in in zip(inputs, stand_ins, strict=True):
            stand_in.requires_grad = x.requires_grad
        enable_functionalization(reapply_views=reapply_views)
        try:
            result = function(*stand_ins)
        finally:
            disable_functionalization()
        for x, stand_in in zip(inputs, stand_ins, strict=True):
            sync(stand_in)
            after = from_functional_tensor(stand_in)
            if after is not x and after.shape == x.shape:
                x.copy_(after)
        return pytree.tree_map(from_functional_tensor, result)

    return run


def writes(x: Tensor) -> Any:
    y = x.view(-1)
    z = x.clone()
    x[0].add_(1)
    z.t_()
    z[1].mul_(2)
    return y, z, x.sum(), y[1:3]


@pytest.fixture(autouse=True)
def _no_session_stays_on() -> Iterator[None]:
    yield
    with pytest.raises(NoSession):
        disable_functionalization()


@pytest.mark.parametrize("reapply_views", [True, False])
def test_values_and_inputs_are_those_of_the_program(reapply_views: bool) -> None:
    eager, given = torch.arange(12.0).view(3, 4), torch.arange(12.0).view(3, 4)
    expected = writes(eager)
    actual = in_session(writes, reapply_views=reapply_views)(given)
    for a, e in zip(actual, expected, strict=True):
        assert torch.equal(a, e)
    assert torch.equal(given, eager)


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_the_trace_around_a_session_records_functional_ops(mode: str) -> None:
    gm = refimpl.make_fx(in_session(writes, reapply_views=False), tracing_mode=mode)(torch.arange(12.0).view(3, 4))
    writing = [node.target for node in gm.graph.nodes if is_mutating(node)]
    assert writing == [aten.copy_.default]  # into the input, by the caller
    assert aten.select_scatter.default in [node.target for node in gm.graph.nodes]
    eager, given = torch.ones(3, 4), torch.ones(3, 4)
    for a, e in zip(gm(given), writes(eager), strict=True):
        assert torch.equal(a, e)
    assert torch.equal(given, eager)


def test_an_input_that_is_not_written_stays_the_same_object() -> None:
    x = torch.ones(3)
    stand_in = to_functional_tensor(x)
    enable_functionalization()
    result = stand_in.view(3, 1) * 2
    disable_functionalization()
    assert from_functional_tensor(stand_in) is x
    assert torch.equal(from_functional_tensor(result), torch.full((3, 1), 2.0))


def test_views_of_one_tensor_share_memory_afterwards() -> None:
    def program(x: Tensor) -> Any:
        y, z = x.view(4, 2), x.view(8)
        y.add_(1)
        return y, z

    y, z = in_session(program)(torch.ones(2, 4))
    assert y.untyped_storage().data_ptr() == z.untyped_storage().data_ptr()
    assert torch.equal(z, torch.full((8,), 2.0))


def test_gradients_inside_of_a_session() -> None:
    def program(x: Tensor) -> Any:
        y = x.clone()
        y.view(-1)[1:].mul_(3)
        y.sum().backward()
        return x.grad

    (expected,) = (program(torch.ones(2, 2, requires_grad=True)),)
    assert torch.equal(in_session(program)(torch.ones(2, 2, requires_grad=True)), expected)


def test_random_numbers_are_those_of_the_program() -> None:
    def program(x: Tensor) -> Any:
        return x.uniform_() + torch.rand(4)

    torch.manual_seed(0)
    expected = program(torch.ones(4))
    after = torch.get_rng_state()
    torch.manual_seed(0)
    assert torch.equal(in_session(program)(torch.ones(4)), expected)
    assert torch.equal(torch.get_rng_state(), after)


def test_set_to_the_storage_of_an_input() -> None:
    def program(x: Tensor) -> Any:
        y = torch.ones(2)
        y.set_(x.untyped_storage())
        y.add_(1)
        return y

    x = torch.zeros(3)
    assert torch.equal(in_session(program)(x), torch.ones(3))
    assert torch.equal(x, torch.ones(3))


def test_frozen_tensors_are_not_written() -> None:
    def program(x: Tensor) -> Any:
        y = x.clone()
        row = y[0]
        freeze_functional_tensor(y)
        x.add_(1)
        for tensor in (y, row):
            with pytest.raises(FrozenTensor):
                tensor.add_(1)
        return row

    assert torch.equal(in_session(program)(torch.ones(2, 2)), torch.ones(2))


def test_functional_tensors_are_told_from_plain_tensors() -> None:
    x = torch.ones(2)
    stand_in = to_functional_tensor(x)
    assert is_functional_tensor(stand_in)
    assert not is_functional_tensor(x)
    with pytest.raises(NotAFunctionalTensor):
        from_functional_tensor(x)
    with pytest.raises(MixedTensors):
        x.add_(stand_in)
    with pytest.raises(NoSession):
        freeze_functional_tensor(stand_in)
    stand_in.add_(1)
    assert torch.equal(x, torch.ones(2))


def test_a_program_that_fails_ends_its_session() -> None:
    def program(x: Tensor) -> Any:
        x.add_(1)
        raise KeyError("of the program")

    with pytest.raises(KeyError, match="of the program"):
        in_session(program)(torch.ones(2))


def test_a_view_cannot_grow_in_a_session() -> None:
    with pytest.raises(ResizedView, match="Attempted to resize a view tensor to a larger size"):
        in_session(lambda x: (x + 1).view(-1).resize_(5, 5).fill_(0))(torch.ones(2, 2))


def test_a_view_of_memory_that_was_resized_in_a_session_is_refused() -> None:
    def program(x: Tensor) -> Tensor:
        y = x + 1
        row = y[0]
        y.resize_(5, 5).fill_(0)
        return row * 2

    with pytest.raises(CannotFunctionalize, match="enlarged the memory"):
        in_session(program)(torch.ones(2, 2))
