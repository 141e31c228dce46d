"""A selective checkpoint saves products of matrices and computes the rest again."""

import functools

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

PROGRAM = {"tags": ("autograd",), "calls": [{"backward": True}]}
DEVICE = "cpu"


def policy(ctx, op, *args, **kwargs):
    saved = op is torch.ops.aten.mm.default
    return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE


contexts = functools.partial(create_selective_checkpoint_contexts, policy)


def block(x, y):
    return torch.sigmoid(x @ y.mT) @ y


def program(x, y):
    return checkpoint(block, torch.sin(x), y, use_reentrant=False, context_fn=contexts)


def inputs(call):
    x = torch.randn(3, 4, device=DEVICE, requires_grad=True)
    return (x, torch.randn(3, 4, device=DEVICE, requires_grad=True)), {}
