"""Programs that give a tensor more memory or other memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from refimpl.tests.corpus.program import Inputs, Topic, computed, given, leaves, named

TOPIC = Topic("storage", "aot")
TWO = computed((3, 4), (3, 4))
MATRIX = given(lambda: (torch.arange(12.0).view(3, 4),))


@TOPIC.program(MATRIX, rooms=("functionalize", "aot"), with_gradients=(False,))
def sets(x: Tensor) -> Any:
    y = torch.zeros(2)
    kept = y.view(1, 2)
    y.set_(x)  # pyright: ignore[reportArgumentType]
    y.add_(1)
    z = torch.zeros(3)
    z.set_(torch.ones(1))  # pyright: ignore[reportArgumentType]
    return kept, y, z


@TOPIC.program(
    MATRIX,
    rooms=("functionalize", "aot"),
    with_gradients=(False,),
    refused={"functionalize.symbolic": "tried to directly modify sizes"},
)
def resizes(x: Tensor) -> Any:
    y = x + 1
    y.resize_(2, 2)
    y.mul_(2)
    z = x.clone()
    z.resize_(5, 5).fill_(3)
    w = torch.empty(0)
    torch.add(x, 1, out=w)
    w.neg_()
    return y, z, w + 0


@TOPIC.program(TWO, with_gradients=(False,))
def assigns_data_of_argument(x: Any, y: Any) -> Any:
    x.data = y.detach() * 2
    return x + 1


@TOPIC.program(TWO, with_gradients=(False,))
def assigns_data_of_intermediate(x: Any, y: Any) -> Any:
    z = x * y
    z.data = x.detach()[0]
    return z * 2, y


@TOPIC.program(TWO, with_gradients=(False,))
def assigns_data_of_another(x: Any, y: Any) -> Any:
    z = y.detach().clone()
    z.data = x.detach()
    z.add_(1)
    return z, y * 2


DEFAULT: dict[str, Any] = {"ways": ("default",)}
SMALL = given(lambda: (torch.arange(4.0).view(2, 2),))


def _row_and_whole(requires_grad: bool) -> Inputs:
    root = torch.arange(6.0).view(3, 2)
    return Inputs([root], [root[1], root])


def _column(requires_grad: bool) -> Inputs:
    root = torch.arange(8.0).view(4, 2)
    return Inputs([root], [root[:, 1]])


@TOPIC.program(SMALL, with_gradients=(False,), **DEFAULT)
def made_larger(a: Tensor) -> Tensor:
    return a.resize_(6).fill_(3)


@TOPIC.program(SMALL, with_gradients=(False,), **DEFAULT)
def written_then_made_larger(a: Tensor) -> Tensor:
    a.mul_(2)
    return a.resize_(6).fill_(3)[1:]


@TOPIC.program(SMALL, with_gradients=(False,), **DEFAULT)
def made_larger_twice(a: Tensor) -> Tensor:
    a.resize_(3)
    a.resize_(6).fill_(2)
    a.resize_(9).fill_(1)
    return a.as_strided_((3,), (2,), 0)


@TOPIC.program(SMALL, with_gradients=(False,), **DEFAULT)
def made_larger_through_a_view(a: Tensor) -> Tensor:
    a.reshape(1, -1).resize_(14).fill_(1)
    return a + 1


@TOPIC.program(SMALL, with_gradients=(False,), **DEFAULT)
def view_from_before(a: Tensor) -> tuple[Tensor, Tensor]:
    v = a[:, 0]
    a.resize_(10).fill_(-1)
    return v, v * 2


@TOPIC.program(SMALL, with_gradients=(False,), **DEFAULT)
def larger_for_a_while(a: Tensor) -> tuple[Tensor, Tensor]:
    a.resize_(10).fill_(-1)
    v = a[6:]
    a.resize_(2)
    return v, a


@TOPIC.program(SMALL, with_gradients=(False,), **DEFAULT)
def own_memory_made_larger(a: Tensor) -> tuple[Tensor, Tensor]:
    b = a + 1
    v = b[:, 1:]
    w = b.view(-1)
    w.resize_(9).fill_(5)
    b[0, 0] = 0
    return v, w


@TOPIC.program(SMALL, with_gradients=(False,), **DEFAULT)
def put_elsewhere_then_larger(a: Tensor) -> Tensor:
    b = torch.zeros(2)
    b.set_(a.detach().clone())  # pyright: ignore[reportArgumentType]
    b.resize_(8).fill_(7)
    return b


@TOPIC.program(_row_and_whole, with_gradients=(False,), **DEFAULT)
def within(a: Tensor, b: Tensor) -> Tensor:
    a.resize_(4).fill_(-1)
    return b[:, :1]


@TOPIC.program(_row_and_whole, with_gradients=(False,), **DEFAULT)
def beyond(a: Tensor, b: Tensor) -> Tensor:
    a.resize_(9).fill_(-1)
    return b * 2


@TOPIC.program(_column, with_gradients=(False,), **DEFAULT)
def column_made_larger(b: Tensor) -> Tensor:
    return b.resize_(4).fill_(1.5)


@TOPIC.program(named("leaf", leaves((2, 2))), named("computed", computed((2, 2))), with_gradients=(True,), **DEFAULT)
def computed_then_put_elsewhere(a: Tensor) -> Tensor:
    v = a.sigmoid()
    v.data = a.detach()
    return v


@TOPIC.program(named("leaf", leaves((2, 2))), named("computed", computed((2, 2))), with_gradients=(True,), **DEFAULT)
def put_elsewhere_then_computed(a: Tensor) -> Tensor:
    v = a.sin()
    v.data = a.detach() * 2
    return v * v


@TOPIC.program(named("leaf", leaves((2, 2))), named("computed", computed((2, 2))), with_gradients=(True,), **DEFAULT)
def view_of_what_was_put_elsewhere(a: Tensor) -> tuple[Tensor, Tensor]:
    v = a.exp()
    w = v[:1]
    v.data = a.detach() * 2
    return w, v


@TOPIC.program(named("leaf", leaves((2, 2))), named("computed", computed((2, 2))), with_gradients=(True,), **DEFAULT)
def put_in_a_part_of_itself(a: Tensor) -> Tensor:
    v = a[1:]
    a.data = v.detach()
    return v


@TOPIC.program(named("leaf", leaves((2, 2))), named("computed", computed((2, 2))), with_gradients=(True,), **DEFAULT)
def written_after_a_view_was_put_elsewhere(a: Tensor) -> Tensor:
    b = a * 1
    v = b[:, :1]
    w = v.view(-1)
    v.data = torch.ones(1, 2)
    b.mul_(3)
    return v + w.sum()


@TOPIC.program(named("leaf", leaves((2, 2))), named("computed", computed((2, 2))), with_gradients=(True,), **DEFAULT)
def part_of_a_view_that_was_put_elsewhere(a: Tensor) -> tuple[Tensor, Tensor]:
    b = a * 1
    v = b.view_as(b)
    v.data = v[::2].detach()
    w = v[0:]
    w.mul_(3)
    return v, b


@TOPIC.program(named("leaf", leaves((2, 2))), named("computed", computed((2, 2))), with_gradients=(True,), **DEFAULT)
def put_elsewhere_and_made_larger(a: Tensor) -> tuple[Tensor, Tensor]:
    v = torch.zeros(2)
    v.data = a.detach()
    v.resize_(2, 2).fill_(0.5)
    return v, a * 3
