"""Batch_norm of transposed numbers whose squares overflow is 0; eager's is 1.

Decomposition of native_batch_norm: the inverse square root of an infinite variance; eager adds up in double.
"""

import torch
import torch.nn.functional as F

PROGRAM = {"tags": ("differs", "inductor", "precision")}
DEVICE = "cpu"


def program(a, mean, variance):
    return F.batch_norm(a, mean, variance, training=True)


def inputs(call):
    a = torch.tensor([[1.0, 3e38], [2.0, 4.0], [3.0, 9.0]], device=DEVICE).t()
    return (a, torch.zeros(3, device=DEVICE), torch.ones(3, device=DEVICE)), {}
