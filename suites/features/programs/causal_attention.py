"""Scaled dot product attention with a causal mask, and with a mask given by the caller."""

import torch
from torch.nn.functional import scaled_dot_product_attention

PROGRAM = {"tags": ("autograd", "guards"), "calls": [{"backward": True}, {"backward": True}]}
DEVICE = "cpu"


def program(x, mask):
    q, k, v = x.view(2, 4, 3, 2, 3).permute(2, 0, 3, 1, 4)
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)


def inputs(call):
    mask = (None, torch.tensor([[1, 1, 0, 0]] * 4, dtype=torch.bool, device=DEVICE))[call]
    return (torch.randn(2, 4, 18, device=DEVICE, requires_grad=True), mask), {}
