"""Programs that change the geometry of a tensor in place, look at memory by places, or give each result a history of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from refimpl.tests.corpus.program import Inputs, Topic, computed, named, views

TOPIC = Topic("geometry", "aot", ways=("default",))
PLACES = (
    named("whole", views((4, 4), lambda w: w[:3] * 1)),
    named("part", views((4, 4), lambda w: w[1:])),
    named("transposed", views((4, 4), lambda w: (w[:3] * 1).T.contiguous().T)),
)
SQUARE = computed((4, 4))
WIDE = computed((2, 4))
FIVE = computed((5,))


def _overlapping_itself(requires_grad: bool) -> Inputs:
    source = torch.randn(5, requires_grad=requires_grad)
    return Inputs([source], [(source * 1).as_strided((2, 2), (1, 1))])


WITH: dict[str, Any] = {"with_gradients": (True,)}


@TOPIC.program(*PLACES, **WITH)
def view_written_after_its_base_is_transposed(b: Tensor) -> Any:
    v = b[:, :-1]
    b.transpose_(1, 0)
    v.mul_(0.5)
    return v


@TOPIC.program(*PLACES, **WITH)
def base_written_after_it_is_transposed(b: Tensor) -> Any:
    v = b[:, 1:]
    b.t_()
    b.mul_(torch.arange(12.0).view(b.shape))
    return v * 3


@TOPIC.program(*PLACES, **WITH)
def view_of_what_a_part_is_left_of(b: Tensor) -> Any:
    c = b * 2
    v = c[:, -1:]
    c.as_strided_((6,), (2,), 0)
    return v


@TOPIC.program(*PLACES, **WITH)
def expanded_after_its_dimension_is_gone(b: Tensor) -> Any:
    v = b[..., 1:2]
    v.squeeze_()
    w = v.expand_as(v)
    w.tanh_()
    return b * 1


@TOPIC.program(*PLACES, **WITH)
def rank_changed_between_view_and_write(b: Tensor) -> Any:
    v = b.transpose(1, 0)
    b.unsqueeze_(0)
    w = v.expand(-1, -1)
    w.mul_(-1)
    return b * v.t()


@TOPIC.program(*PLACES, **WITH)
def written_by_what_has_the_first_shape(b: Tensor) -> Any:
    c = b.contiguous() * 3
    v = c.view(-1)
    v.unsqueeze_(0)
    v.sub_(b.reshape(1, -1))
    return v


@TOPIC.program(*PLACES, **WITH)
def view_of_a_view_that_is_cut(b: Tensor) -> Any:
    b.cumsum_(0)
    v = b[:, 1:]
    v.swapaxes_(0, 1)
    w = v.select(1, 0)
    b.as_strided_((6,), (1,), b.storage_offset())
    return w


@TOPIC.program(*PLACES, **WITH)
def all_of_it_unsqueezed_and_squeezed(b: Tensor) -> Any:
    v = b.unsqueeze(2)
    b.unsqueeze_(0)
    w = v.flatten()
    b.squeeze_(0)
    w.neg_()
    return v * b.unsqueeze(-1)


@TOPIC.program(*PLACES, **WITH)
def written_by_place(b: Tensor) -> Any:
    v = b.as_strided((2, 2), (1, 1), b.storage_offset() + 1)
    v[0].mul_(2)
    return b * 1


@TOPIC.program(*PLACES, **WITH)
def read_by_place_after_a_write(b: Tensor) -> Any:
    v = b.as_strided((2, 2), (2, 1), b.storage_offset() + 1)
    b.mul_(2)
    return v * b[:2, :2]


@TOPIC.program(WIDE, **WITH)
def viewed_is_transposed(a: Tensor) -> Any:
    v = a.expand_as(a)
    a.swapaxes_(1, 0)
    return v[1:], a * v.clone().t()


@TOPIC.program(WIDE, **WITH)
def viewed_becomes_a_part(a: Tensor) -> Any:
    v = a[:, :-1]
    a.as_strided_((3,), (1,), 0)
    return v * 2


@TOPIC.program(WIDE, **WITH)
def viewed_becomes_a_part_and_is_written(a: Tensor) -> Any:
    v = a.flatten()
    a.as_strided_((3,), (2,), 0)
    a.mul_(3)
    return v.sin(), a


@TOPIC.program(WIDE, **WITH)
def view_becomes_a_part(a: Tensor) -> Any:
    v = a[0]
    v.as_strided_((2,), (2,), 0)
    v.sub_(1.5)
    return v + 3, a * 2


@TOPIC.program(WIDE, **WITH)
def view_is_transposed_and_written(a: Tensor) -> Any:
    v = a[:, 1:]
    v.t_()
    v.mul_(2)
    return v, a.cos()


@TOPIC.program(WIDE, **WITH)
def view_of_a_view(a: Tensor) -> Any:
    v = a.view(-1)
    w = v.unflatten(0, (-1, 2))
    v.unsqueeze_(0)
    w.mul_(3)
    v.squeeze_()
    return w.sin(), v, a


@TOPIC.program(SQUARE)
def transposed_then_expanded(b: Tensor) -> Tensor:
    b.swapaxes_(1, 0)
    return b.expand_as(b)


@TOPIC.program(SQUARE)
def transposed_then_sliced(b: Tensor) -> Tensor:
    b.transpose_(0, 1)
    return b[:, 2:]


@TOPIC.program(SQUARE)
def unsqueezed_then_sliced(b: Tensor) -> Tensor:
    b.unsqueeze_(1)
    return b[:, :, :-1]


@TOPIC.program(SQUARE)
def split_after_transposing(b: Tensor) -> Tensor:
    b.t_()
    return b.split(2, 0)[1]


@TOPIC.program(SQUARE)
def viewed_then_reshaped(b: Tensor) -> Tensor:
    v = b.unflatten(0, (-1, 1))
    b.as_strided_((4,), (1,), 0)
    return v


@TOPIC.program(SQUARE)
def written_and_transposed(b: Tensor) -> tuple[Tensor, Tensor]:
    b.mul_(2)
    b.t_()
    b.add_(1)
    return b[1:], b


@TOPIC.program(SQUARE, **WITH)
def detached_and_written(a: Tensor) -> Any:
    v = a.detach()
    v.mul_(a)
    return v


@TOPIC.program(SQUARE, **WITH)
def detached_and_written_beside_a_view(a: Tensor) -> Any:
    v = a[1:].detach()
    v.add_(a[:1])
    return a[0], v


@TOPIC.program(SQUARE, **WITH)
def detached_and_written_intermediate(a: Tensor) -> Any:
    b = a * 2
    v = b.detach()
    v.add_(a)
    return b, v


@TOPIC.program(SQUARE, **WITH)
def squeezed_with_a_view(a: Tensor) -> Any:
    b = a.unsqueeze(0) * 1.5
    b.squeeze_(0)
    return b, b.ravel()


@TOPIC.program(SQUARE, **WITH)
def two_views_of_what_was_unsqueezed(a: Tensor) -> Any:
    b = a.sin()
    b.unsqueeze_(0)
    return b.diagonal(0), b.swapaxes(0, 1)


@TOPIC.program(SQUARE, **WITH)
def data_beside_a_view(a: Tensor) -> Any:
    b = a * 3
    return b.data, b.diagonal(1)


@TOPIC.program(SQUARE, **WITH)
def view_of_a_reshaped_copy(a: Tensor) -> Any:
    b = a.t().reshape(-1, 2)
    return b.clamp_(-2, 2), b[1:]


@TOPIC.program(_overlapping_itself, **WITH)
def part_is_drawn(a: Tensor) -> Any:
    v = a[..., 1:]
    v.copy_(torch.ones(2, 1))
    return v


@TOPIC.program(_overlapping_itself, **WITH)
def part_is_scaled(a: Tensor) -> Any:
    v = a.unfold(1, 1, 2)
    v.mul_(v.clone())
    return a.tensor_split(2, 1)[1]


@TOPIC.program(_overlapping_itself, **WITH)
def changed_and_written(a: Tensor) -> Any:
    a.squeeze_()
    v = a.view_as(a)
    v.as_strided_((2,), (1,), 0)
    w = v[1]
    a.t_()
    w.mul_(-1)
    a.as_strided_((2,), (1,), 0)
    v.unsqueeze_(0)
    return a, v


@TOPIC.program(FIVE, **WITH)
def viewed_then_detached(a: Tensor) -> Any:
    v = a.expand(2, -1)
    a.detach_()
    return v


@TOPIC.program(FIVE, **WITH)
def detached_then_cut(a: Tensor) -> Any:
    a.detach_()
    a.as_strided_((2,), (2,), 0)
    return a.select(0, 0)
