"""Programs that return views, and that view and write by other shapes, dtypes and places."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from refimpl.tests.corpus.program import Topic, computed, given, leaves, named, views

TOPIC = Topic("views", "aot")
TWO = computed((3, 4), (3, 4))
MATRIX = given(lambda: (torch.arange(12.0).view(3, 4),))
COMPLEX = given(lambda: (torch.tensor([1 + 2j, -3 + 1j, 2 - 2j]),))


@TOPIC.program(leaves((3, 4)), rooms=("trace", "aot"))
def views_of_many_kinds(x):
    return x.view(-1)[2:].unfold(0, 2, 1).permute(1, 0), x.transpose(0, 1), x.expand(2, *x.shape), x.diagonal()


@TOPIC.program(TWO, calls_again=True)
def view_then_write(x: Any, y: Any) -> Any:
    v = x.view(-1)
    x.add_(1)
    return v * 2, v, y.t()


@TOPIC.program(TWO, calls_again=True)
def siblings(x: Any, y: Any) -> Any:
    z = x * y
    return z.view(-1), z.t(), z[0]


@TOPIC.program(TWO)
def base_and_views(x: Any, y: Any) -> Any:
    z = x * y
    return z.view(-1), z, z.detach()


@TOPIC.program(TWO)
def unbound(x: Any, y: Any) -> Any:
    z = x * y
    a, b, c = z.unbind()
    return a, b * 2, c, y.split(2, 1)


@TOPIC.program(TWO)
def expanded(x: Any, y: Any) -> Any:
    z = (x * y).sum(0)
    return z.expand(5, 4), z


@TOPIC.program(TWO)
def parts_of_complex_numbers(x: Any, y: Any) -> Any:
    z = torch.complex(x, y)
    torch.view_as_real(z)[..., 0].mul_(2)
    return z.abs(), z.real, z.imag


@TOPIC.program(computed((4, 4), (4, 4)), rooms=("aot", "partition"))
def aliasing(x, w):
    y = x @ w
    return y.view(-1), y.t(), x[0]


@TOPIC.program(MATRIX, rooms=("functionalize", "aot"), with_gradients=(False,))
def as_dtype(x: Tensor) -> Any:
    x.view(torch.int32).bitwise_and_(0x7F800000)
    return x.view(torch.int16)[:, 1]


@TOPIC.program(MATRIX, rooms=("functionalize", "aot"), with_gradients=(False,))
def complex_views(x: Tensor) -> Any:
    z = torch.view_as_complex(x.view(3, 2, 2))
    z.conj().mul_(2 + 1j)
    z.imag.add_(1)
    torch.view_as_real(z)[..., 0].neg_()
    z.conj().imag.mul_(2)
    return z


@TOPIC.program(COMPLEX, rooms=("functionalize", "aot"), with_gradients=(False,))
def conjugated(z: Tensor) -> Tensor:
    v = z.clone().conj()
    v.neg_()
    return v


@TOPIC.program(COMPLEX, rooms=("functionalize", "aot"), with_gradients=(False,))
def part_of_conjugated(z: Tensor) -> Tensor:
    v = z.clone().conj()[1:]
    v.mul_(2j)
    return v


@TOPIC.program(COMPLEX, rooms=("functionalize", "aot"), with_gradients=(False,))
def negated(z: Tensor) -> Tensor:
    v = z.clone().conj().imag
    v.add_(1)
    return v


# ------------------------------------------------------------------------------------------------ geometry changed in place


@TOPIC.program(TWO)
def metadata(x: Any, y: Any) -> Any:
    x.t_()
    y.unsqueeze_(0)
    return x * 2


@TOPIC.program(TWO)
def metadata_and_data(x: Any, y: Any) -> Any:
    x.t_()
    x.mul_(3)
    return x + 1, x, y


@TOPIC.program(
    named("same_twice", views((4, 4), lambda w: w, lambda w: w)),
    named("base_and_view", views((3, 4), lambda w: w.t()[:3], lambda w: w)),
)
def transpose_first(x: Any, y: Any) -> Any:
    x.t_()
    return x.sum() + y.sum()


@TOPIC.program(MATRIX, rooms=("functionalize", "aot"), with_gradients=(False,))
def metadata_ops(x: Tensor) -> Any:
    x.t_()
    y = x[1]
    y.unsqueeze_(0)
    y.add_(1)
    z = x.clone()
    z.squeeze_().transpose_(0, 1)
    z[0].zero_()
    z.as_strided_((2, 2), (1, 3))
    z.mul_(3)
    return y, z
