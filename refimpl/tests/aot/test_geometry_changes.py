"""Gradients where a program changes the geometry of a tensor in place, or looks at memory by places: as in eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from refimpl.pipeline import compile_aot
from refimpl.tests.agreement import assert_agrees

Program = Callable[[Tensor], Any]


def view_written_after_its_base_is_transposed(b: Tensor) -> Any:
    v = b[:, :-1]
    b.transpose_(1, 0)
    v.mul_(0.5)
    return v


def base_written_after_it_is_transposed(b: Tensor) -> Any:
    v = b[:, 1:]
    b.t_()
    b.mul_(torch.arange(12.0).view(b.shape))
    return v * 3


def view_of_what_a_part_is_left_of(b: Tensor) -> Any:
    c = b * 2
    v = c[:, -1:]
    c.as_strided_((6,), (2,), 0)
    return v


def expanded_after_its_dimension_is_gone(b: Tensor) -> Any:
    v = b[..., 1:2]
    v.squeeze_()
    w = v.expand_as(v)
    w.tanh_()
    return b * 1


def rank_changed_between_view_and_write(b: Tensor) -> Any:
    v = b.transpose(1, 0)
    b.unsqueeze_(0)
    w = v.expand(-1, -1)
    w.mul_(-1)
    return b * v.t()


def written_by_what_has_the_first_shape(b: Tensor) -> Any:
    c = b.contiguous() * 3
    v = c.view(-1)
    v.unsqueeze_(0)
    v.sub_(b.reshape(1, -1))
    return v


def view_of_a_view_that_is_cut(b: Tensor) -> Any:
    b.cumsum_(0)
    v = b[:, 1:]
    v.swapaxes_(0, 1)
    w = v.select(1, 0)
    b.as_strided_((6,), (1,), b.storage_offset())
    return w


def all_of_it_unsqueezed_and_squeezed(b: Tensor) -> Any:
    v = b.unsqueeze(2)
    b.unsqueeze_(0)
    w = v.flatten()
    b.squeeze_(0)
    w.neg_()
    return v * b.unsqueeze(-1)


def written_by_place(b: Tensor) -> Any:
    v = b.as_strided((2, 2), (1, 1), b.storage_offset() + 1)
    v[0].mul_(2)
    return b * 1


def read_by_place_after_a_write(b: Tensor) -> Any:
    v = b.as_strided((2, 2), (2, 1), b.storage_offset() + 1)
    b.mul_(2)
    return v * b[:2, :2]


PROGRAMS: list[Program] = [
    view_written_after_its_base_is_transposed,
    base_written_after_it_is_transposed,
    view_of_what_a_part_is_left_of,
    expanded_after_its_dimension_is_gone,
    rank_changed_between_view_and_write,
    written_by_what_has_the_first_shape,
    view_of_a_view_that_is_cut,
    all_of_it_unsqueezed_and_squeezed,
    written_by_place,
    read_by_place_after_a_write,
]
PLACES: dict[str, Callable[[Tensor], Tensor]] = {
    "whole": lambda x: x[:3] * 1,
    "part": lambda x: (x * 1)[1:],
    "transposed": lambda x: (x[:3] * 1).T.contiguous().T,
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_gradients_are_those_of_eager_mode(program: Program, place: str) -> None:
    def make() -> Any:
        source = torch.randn(4, 4, requires_grad=True)
        return [source], [PLACES[place](source)]

    assert_agrees(program, make)


def test_what_eager_refuses_of_a_view_is_refused() -> None:
    def program(b: Tensor) -> Any:
        v, _ = b.split(2)
        b.t_()
        v.mul_(2)
        return v

    for run in (program, compile_aot(program)):
        with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
            run(torch.randn(4, 4, requires_grad=True) * 1)


def test_the_geometry_of_a_tensor_from_before_changes_in_inference_mode() -> None:
    def program(b: Tensor) -> Any:
        v = b.unsqueeze(0)
        with torch.inference_mode():
            v.swapaxes_(0, 1)
            w = b[1:]
            w.t_()
        return v, w

    assert_agrees(program, lambda: ([], [torch.arange(6.0).reshape(2, 3)]))
