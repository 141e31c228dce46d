"""Matrix products run in bfloat16 under autocast, sums outside it in float32; it nests and switches off."""

import torch

PROGRAM = {"tags": ("context", "dtype"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(x, w):
    with torch.autocast(DEVICE.split(":")[0], dtype=torch.bfloat16):
        low = x @ w
        with torch.autocast(DEVICE.split(":")[0], enabled=False):
            full = x @ w
        kept = low.dtype
    return low, full + low.float(), str(kept)


def inputs(call):
    x = torch.randn(4, 8, device=DEVICE, requires_grad=True)
    return (x, torch.randn(8, 4, device=DEVICE, requires_grad=True)), {}
