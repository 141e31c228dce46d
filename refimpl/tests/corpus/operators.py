"""Programs of ordinary operators: arithmetic, layers, losses, indexing, dtypes."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from refimpl.tests.corpus.program import Inputs, Topic, given, leaves

TOPIC = Topic("operators", "trace", "aot")
MATRIX = given(lambda: (torch.arange(12.0).view(3, 4),))


@TOPIC.program(leaves((3, 4), (4,)))
def arithmetic(x, y):
    return (x + y) * 2 - y.exp() / 3


@TOPIC.program(leaves((3,)))
def literals(x):
    offset = torch.tensor([1.0, 2.0, 3.0])
    step = torch.tensor(2.0)
    step.add_(1)
    return x + offset * step.item()


@TOPIC.program(leaves((3, 4)))
def factories(x):
    return x + torch.arange(x.shape[0], dtype=x.dtype)[:, None] + torch.ones_like(x) + torch.full((1,), 2.0)


@TOPIC.program(given(lambda: (torch.randn(3, 4), torch.tensor([2, 0, 2]))))
def indexing(x, index):
    x = x.clone()
    x.index_add_(0, index, torch.ones(index.shape[0], x.shape[1]))
    return x[index], x.gather(1, index[:, None]), torch.where(x > 0, x, -x), x.masked_fill(x > 1, 0)


@TOPIC.program(given(lambda: (torch.arange(5.0), torch.tensor([True, False, True]), torch.tensor([-1, 9, -3]))))
def masked_indices_from_the_end(x, mask, index):
    return torch.ops.aten._unsafe_masked_index(x, mask, [index], 0.5)


@TOPIC.program(leaves((3, 4)))
def linear_algebra(x):
    a = x @ x.t()
    return a + torch.eye(a.shape[0]), torch.einsum("ij,kj->ik", x, x), a.softmax(-1)


def _block(requires_grad: bool) -> Inputs:
    sources = [torch.randn(shape, requires_grad=requires_grad) for shape in ((2, 3, 8, 8), (4, 3, 3, 3), (4,))]
    return Inputs(sources, [*sources, torch.zeros(4), torch.ones(4)])


@TOPIC.program(_block)
def convolution_block(x, weight, bias, mean, var):
    y = F.conv2d(x, weight, bias, padding=1)
    y = F.batch_norm(y, mean, var, training=True)
    return F.max_pool2d(F.relu(y), 2)


@TOPIC.program(leaves((2, 5, 8), (2, 5, 8), (2, 5, 8)))
def attention(q, k, v):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v


@TOPIC.program(leaves((2, 2, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8)))
def fused_attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@TOPIC.program(leaves((3, 4), (4,)))
def layer_norm_gelu(x, weight):
    return F.gelu(F.layer_norm(x, (x.shape[-1],), weight)) + F.silu(x)


@TOPIC.program(given(lambda: (torch.randn(3, 4), torch.tensor([0, 3, 1]))))
def losses(x, target):
    return F.cross_entropy(x, target), F.mse_loss(x, torch.zeros_like(x)), F.smooth_l1_loss(x, x * 2)


@TOPIC.program(given(lambda: (torch.tensor([[0, 2], [1, 1]]), torch.randn(3, 4))))
def embedding(index, table):
    return F.embedding(index, table).mean(1)


@TOPIC.program(leaves((3, 2, 4), (4, 4)))
def sequence(x, weight):
    hidden = torch.zeros(x.shape[1], weight.shape[0])
    for step in x:
        hidden = torch.tanh(step @ weight + hidden)
    return hidden


@TOPIC.program(given(lambda: (torch.arange(6).view(2, 3),)), with_gradients=(False,))
def integers_and_bools(x):
    return x // 2, x % 3, x & 1, x.bitwise_not(), x.sum(), (x > 2).any(), x.float().mean()


@TOPIC.program(leaves((3, 8)))
def complex_numbers(x):
    z = torch.fft.rfft(x)
    return z.conj() * z, z.real, torch.view_as_real(z), z.abs()


@TOPIC.program(leaves((3,)))
def casts(x):
    return x.half(), x.to(torch.float64), x.int(), x.bfloat16().float()


@TOPIC.program(leaves((3, 4), (4, 4)))
def autocast(x, weight):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ weight + x @ weight


@TOPIC.program(leaves((3, 4), (2, 4)), with_gradients=(False,))
def inference(x, weight):
    with torch.inference_mode():
        return F.linear(x, weight).clone()


@TOPIC.program(
    given(lambda: (torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 4.0]]),)), needs_data=True, with_gradients=(False,)
)
def sorting(x):
    return x.sort(dim=-1, stable=True), x.argsort(), x.cumsum(0), x.flip(0), x.unique(), x.nonzero()


@TOPIC.program(MATRIX, rooms=("functionalize", "aot"), with_gradients=(False,))
def dtypes(x: Tensor) -> Any:
    half = x.half()
    half.add_(torch.tensor(1.5))
    whole = torch.ones(3, 4, dtype=torch.int64)
    whole.mul_(True)
    whole.copy_(x)
    x.ge_(3)
    torch.sum(x.clone(), 0, out=x[0])
    return half, whole


@TOPIC.program(MATRIX, rooms=("functionalize", "aot"))
def batch_norm(x: Tensor) -> Any:
    mean, var = torch.zeros(4), torch.ones(4)
    y = torch.nn.functional.batch_norm(x, mean, var, training=True)
    return y, mean, var
