"""Programs that the tracing tests run: a function of fresh arguments, and those arguments from a seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F


class Example(NamedTuple):
    """One program. `arguments` makes fresh ones at every call, from the generator as it is seeded."""

    function: Callable[..., Any]
    arguments: Callable[[], tuple[Any, ...]]


def _x(*shape: int, grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=grad)


def arithmetic(x, y):
    return (x + y) * 2 - y.exp() / 3


def several_outputs(x):
    values, indices = x.topk(2)
    return values, indices, x.split(2), x.max(dim=0)


def nested_containers(tree, scale):
    return {"sum": tree["a"] + tree["b"][0], "rest": [tree["b"][1] * scale, (scale, None, "text")]}


def mutate_input(x, y):
    x.add_(y)
    x[0] = 7
    return x * 2


def mutate_through_view(x):
    row = x[1]
    row.mul_(3)
    x.t()[0].zero_()
    return x + row


def mutate_intermediate(x):
    y = x.clone()
    y[:, 1:].copy_(x[:, :-1])
    y.relu_()
    return y


def views(x):
    return x.view(-1)[2:].unfold(0, 2, 1).permute(1, 0), x.transpose(0, 1), x.expand(2, *x.shape), x.diagonal()


def returns_input(x, y):
    return x, y.sin(), x


def literals(x):
    offset = torch.tensor([1.0, 2.0, 3.0])
    step = torch.tensor(2.0)
    step.add_(1)
    return x + offset * step.item()


def factories(x):
    return x + torch.arange(x.shape[0], dtype=x.dtype)[:, None] + torch.ones_like(x) + torch.full((1,), 2.0)


def in_place_on_list(x, y):
    torch._foreach_add_([x, y], 1.0)
    return torch._foreach_mul([x, y], [2.0, 3.0])


def out_argument(x, y):
    result = torch.empty_like(x)
    torch.add(x, y, out=result)
    return result.sin()


def indexing(x, index):
    x = x.clone()
    x.index_add_(0, index, torch.ones(index.shape[0], x.shape[1]))
    return x[index], x.gather(1, index[:, None]), torch.where(x > 0, x, -x), x.masked_fill(x > 1, 0)


def linear_algebra(x):
    a = x @ x.t()
    return a + torch.eye(a.shape[0]), torch.einsum("ij,kj->ik", x, x), a.softmax(-1)


def convolution_block(x, weight, bias, mean, var):
    y = F.conv2d(x, weight, bias, padding=1)
    y = F.batch_norm(y, mean, var, training=True)
    return F.max_pool2d(F.relu(y), 2)


def attention(q, k, v):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v


def fused_attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def layer_norm_gelu(x, weight):
    return F.gelu(F.layer_norm(x, (x.shape[-1],), weight)) + F.silu(x)


def losses(x, target):
    return F.cross_entropy(x, target), F.mse_loss(x, torch.zeros_like(x)), F.smooth_l1_loss(x, x * 2)


def embedding(index, table):
    return F.embedding(index, table).mean(1)


def gradient(x):
    y = (x.view(-1).sin() * 2).sum()
    return torch.autograd.grad(y, x)


def gradient_of_gradient(x):
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    return torch.autograd.grad(first.sum(), x)[0], first.detach()


def joint_forward_backward(x, weight):
    y = F.layer_norm(x @ weight, (weight.shape[1],)).tanh().sum()
    return (y.detach(), *torch.autograd.grad(y, (x, weight)))


def sequence(x, weight):
    hidden = torch.zeros(x.shape[1], weight.shape[0])
    for step in x:
        hidden = torch.tanh(step @ weight + hidden)
    return hidden


def integers_and_bools(x):
    return x // 2, x % 3, x & 1, x.bitwise_not(), x.sum(), (x > 2).any(), x.float().mean()


def complex_numbers(x):
    z = torch.fft.rfft(x)
    return z.conj() * z, z.real, torch.view_as_real(z), z.abs()


def casts(x):
    return x.half(), x.to(torch.float64), x.int(), x.bfloat16().float()


def autocast(x, weight):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ weight + x @ weight


def inference(x, weight):
    with torch.inference_mode():
        return F.linear(x, weight).clone()


def update_through_detach(weight, gradient):
    weight.detach().sub_(0.1 * gradient)
    return weight * 1


def sorting(x):
    return x.sort(dim=-1, stable=True), x.argsort(), x.cumsum(0), x.flip(0), x.unique(), x.nonzero()


EXAMPLES: dict[str, Example] = {
    "arithmetic": Example(arithmetic, lambda: (_x(3, 4), _x(4))),
    "several_outputs": Example(several_outputs, lambda: (_x(4),)),
    "nested_containers": Example(nested_containers, lambda: ({"a": _x(2), "b": [_x(2), _x(3)]}, 3)),
    "mutate_input": Example(mutate_input, lambda: (_x(3, 4), _x(4))),
    "mutate_through_view": Example(mutate_through_view, lambda: (_x(3, 4),)),
    "mutate_intermediate": Example(mutate_intermediate, lambda: (_x(3, 4),)),
    "views": Example(views, lambda: (_x(3, 4),)),
    "returns_input": Example(returns_input, lambda: (_x(3), _x(2))),
    "literals": Example(literals, lambda: (_x(3),)),
    "factories": Example(factories, lambda: (_x(3, 4),)),
    "in_place_on_list": Example(in_place_on_list, lambda: (_x(3), _x(4))),
    "out_argument": Example(out_argument, lambda: (_x(3), _x(3))),
    "indexing": Example(indexing, lambda: (_x(3, 4), torch.tensor([2, 0, 2]))),
    "linear_algebra": Example(linear_algebra, lambda: (_x(3, 4),)),
    "convolution_block": Example(
        convolution_block, lambda: (_x(2, 3, 8, 8), _x(4, 3, 3, 3), _x(4), torch.zeros(4), torch.ones(4))
    ),
    "attention": Example(attention, lambda: (_x(2, 5, 8), _x(2, 5, 8), _x(2, 5, 8))),
    "fused_attention": Example(fused_attention, lambda: (_x(2, 2, 5, 8), _x(2, 2, 5, 8), _x(2, 2, 5, 8))),
    "layer_norm_gelu": Example(layer_norm_gelu, lambda: (_x(3, 4), _x(4))),
    "losses": Example(losses, lambda: (_x(3, 4), torch.tensor([0, 3, 1]))),
    "embedding": Example(embedding, lambda: (torch.tensor([[0, 2], [1, 1]]), _x(3, 4))),
    "gradient": Example(gradient, lambda: (_x(3, 4, grad=True),)),
    "gradient_of_gradient": Example(gradient_of_gradient, lambda: (_x(3, grad=True),)),
    "joint_forward_backward": Example(joint_forward_backward, lambda: (_x(3, 4, grad=True), _x(4, 5, grad=True))),
    "sequence": Example(sequence, lambda: (_x(3, 2, 4), _x(4, 4))),
    "integers_and_bools": Example(integers_and_bools, lambda: (torch.arange(6).view(2, 3),)),
    "complex_numbers": Example(complex_numbers, lambda: (_x(3, 8),)),
    "casts": Example(casts, lambda: (_x(3),)),
    "autocast": Example(autocast, lambda: (_x(3, 4), _x(4, 4))),
    "inference": Example(inference, lambda: (_x(3, 4), _x(2, 4))),
    "update_through_detach": Example(update_through_detach, lambda: (_x(3, grad=True), _x(3))),
    "sorting": Example(sorting, lambda: (torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 4.0]]),)),
}
NEEDS_DATA = frozenset({"sorting"})  # unique, nonzero: no fake tensor knows their shape
