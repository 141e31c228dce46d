"""Programs that ask for gradients, end them, or are differentiated in a way of their own."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from refimpl.tests.corpus.program import Topic, computed, leaves

TOPIC = Topic("gradients", "aot")
TWO = computed((3, 4), (3, 4))
WITH_GRADIENTS: dict[str, Any] = {"rooms": ("trace", "aot"), "with_gradients": (True,)}


@TOPIC.program(leaves((3, 4)), **WITH_GRADIENTS)
def gradient(x):
    y = (x.view(-1).sin() * 2).sum()
    return torch.autograd.grad(y, x)


@TOPIC.program(leaves((3,)), **WITH_GRADIENTS)
def gradient_of_gradient(x):
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    return torch.autograd.grad(first.sum(), x)[0], first.detach()


@TOPIC.program(leaves((3, 4), (4, 5)), **WITH_GRADIENTS)
def joint_forward_backward(x, weight):
    y = F.layer_norm(x @ weight, (weight.shape[1],)).tanh().sum()
    return (y.detach(), *torch.autograd.grad(y, (x, weight)))


@TOPIC.program(TWO)
def inner_gradient(x: Any, y: Any) -> Any:
    with torch.enable_grad():
        a = x.detach().clone().requires_grad_()
        (g,) = torch.autograd.grad((a * 3).sin().sum(), a)
    return g * y


@TOPIC.program(TWO)
def nothing_with_gradient(x: Any, y: Any) -> Any:
    return x.detach() * 2, y.detach()


@TOPIC.program(TWO, with_gradients=(True,))
def detaches_argument(x: Any, y: Any) -> Any:
    x.mul_(2)
    x.detach_()
    return x + 1, x * y


@TOPIC.program(TWO, with_gradients=(True,))
def only_detaches(x: Any, y: Any) -> Any:
    x.detach_()
    return x * y


@TOPIC.program(computed((4, 4), (4, 4)), rooms=("aot", "partition"))
def block(x, w):
    return F.gelu(x @ w) @ w


@TOPIC.program(computed((4, 4), (4, 4)), rooms=("aot", "partition"))
def checkpointed(x, w):
    for _ in range(3):
        x = checkpoint(block, x, w, use_reentrant=False)
    return x
