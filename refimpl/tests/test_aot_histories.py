"""Results that share memory and have histories of their own, and arguments that share memory of which one is conjugated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from refimpl.tests.agreement import assert_agrees

Program = Callable[..., Any]


def detached_and_written(a: Tensor) -> Any:
    v = a.detach()
    v.mul_(a)
    return v


def detached_and_written_beside_a_view(a: Tensor) -> Any:
    v = a[1:].detach()
    v.add_(a[:1])
    return a[0], v


def detached_and_written_intermediate(a: Tensor) -> Any:
    b = a * 2
    v = b.detach()
    v.add_(a)
    return b, v


def squeezed_with_a_view(a: Tensor) -> Any:
    b = a.unsqueeze(0) * 1.5
    b.squeeze_(0)
    return b, b.ravel()


def two_views_of_what_was_unsqueezed(a: Tensor) -> Any:
    b = a.sin()
    b.unsqueeze_(0)
    return b.diagonal(0), b.swapaxes(0, 1)


def data_beside_a_view(a: Tensor) -> Any:
    b = a * 3
    return b.data, b.diagonal(1)


def view_of_a_reshaped_copy(a: Tensor) -> Any:
    b = a.t().reshape(-1, 2)
    return b.clamp_(-2, 2), b[1:]


HISTORIES: list[Program] = [
    detached_and_written,
    detached_and_written_beside_a_view,
    detached_and_written_intermediate,
    squeezed_with_a_view,
    two_views_of_what_was_unsqueezed,
    data_beside_a_view,
    view_of_a_reshaped_copy,
]


@pytest.mark.parametrize("program", HISTORIES, ids=lambda program: program.__name__)
def test_every_result_has_its_own_history(program: Program) -> None:
    def make() -> Any:
        source = torch.randn(4, 4, requires_grad=True)
        return [source], [source * 1]

    assert_agrees(program, make)


# ---------------------------------------------------------------------------------------------------------- conjugated


def conjugated_is_squared(a: Tensor, b: Tensor) -> Any:
    b.square_()
    return a.expand_as(a)


def plain_is_written(a: Tensor, b: Tensor) -> Any:
    a.neg_()
    return b * a, a.conj()


def one_is_copied_to_the_other(a: Tensor, b: Tensor) -> Any:
    v = a.flatten()
    b.copy_(a)
    v.neg_()
    return v


def imaginary_part_is_filled(a: Tensor, b: Tensor) -> Any:
    b.add_(b.clone())
    v = a.conj().imag[..., :-1]
    v.fill_(0.5)
    return v * 2


def parts_of_the_conjugated(a: Tensor, b: Tensor) -> Any:
    b.add_(a)
    return b.real, b.imag * 2


def by_place(a: Tensor, b: Tensor) -> Any:
    a.add_(b)
    return b.as_strided((2, 2), (1, 2), 1)


CONJUGATED: list[Program] = [
    conjugated_is_squared,
    plain_is_written,
    one_is_copied_to_the_other,
    imaginary_part_is_filled,
    parts_of_the_conjugated,
    by_place,
]


@pytest.mark.parametrize("is_first", [False, True], ids=["last", "first"])
@pytest.mark.parametrize("has_gradient", [False, True], ids=["plain", "gradient"])
@pytest.mark.parametrize("program", CONJUGATED, ids=lambda program: program.__name__)
def test_a_conjugated_argument_shares_memory(program: Program, has_gradient: bool, is_first: bool) -> None:
    def run(*arguments: Tensor) -> Any:
        return program(*(reversed(arguments) if is_first else arguments))

    def make() -> Any:
        source = torch.randn(2, 3, dtype=torch.complex64, requires_grad=has_gradient)
        memory = source * 1
        return [source], [memory.conj(), memory] if is_first else [memory, memory.conj()]

    assert_agrees(run, make)


def test_the_negated_part_of_an_argument_shares_memory() -> None:
    def program(a: Tensor, b: Tensor) -> Any:
        b.mul_(2)
        return a * 1, b[1:]

    def make() -> Any:
        source = torch.randn(2, 3, dtype=torch.complex64, requires_grad=True)
        memory = source * 1
        return [source], [memory, memory.conj().imag]

    assert_agrees(program, make)
