"""Programs that give a tensor more memory or other memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from refimpl.tests.corpus.program import Topic, computed, given

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
    refused=dict.fromkeys(("functionalize.symbolic", "aot.dynamic"), "tried to directly modify sizes"),
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
