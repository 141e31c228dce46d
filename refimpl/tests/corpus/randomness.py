"""Programs that draw random numbers: compiled, they draw eager mode's numbers and leave the generator in its state."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from refimpl.tests.corpus.program import Topic, computed, given

TOPIC = Topic("randomness", "aot")
TWO = computed((3, 4), (3, 4))
MATRIX = given(lambda: (torch.arange(12.0).view(3, 4),))


@TOPIC.program(TWO)
def random_numbers(x: Any, y: Any) -> Any:
    return torch.nn.functional.dropout(x, 0.5) * y + torch.rand_like(y)


@TOPIC.program(TWO)
def random_in_place(x: Any, y: Any) -> Any:
    z = x.clone()
    z.uniform_()
    return z * y


@TOPIC.program(TWO, with_gradients=(False,))
def random_on_transposed(x: Any, y: Any) -> Any:
    x.t().uniform_()
    z = (x * y).t().contiguous().t()
    z.add_(1).normal_()
    z[:, 1:].t().bernoulli_(0.5)
    return x * 2, z


@TOPIC.program(computed((4, 4), (4, 4)), rooms=("aot", "partition"))
def noisy(x, w):
    return F.dropout(F.gelu(F.dropout(x, 0.3) @ w), 0.5) * torch.rand_like(x)
