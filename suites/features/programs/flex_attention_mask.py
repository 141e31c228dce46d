"""flex_attention with a mask of blocks and a function of scores that closes over tensors."""

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

PROGRAM = {"tags": ("functional",), "calls": [{}]}
DEVICE = "cpu"


mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 8, 8, device=DEVICE, BLOCK_SIZE=8)
bias = torch.linspace(-1, 1, 64, device=DEVICE).view(8, 8)


def program(q, k, v):
    slopes = v[0, :, 0, 0]
    scored = flex_attention(q, k, v, score_mod=lambda s, b, h, m, n: s * slopes[h] + bias[m, n], block_mask=mask)
    return scored, flex_attention(q, k, v, block_mask=mask, scale=0.5)


def inputs(call):
    return tuple(torch.randn(1, 2, 8, 16, device=DEVICE) for _ in range(3)), {}
