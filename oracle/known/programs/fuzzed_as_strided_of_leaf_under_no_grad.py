"""Under no_grad a transposed leaf is written through `as_strided`: an assertion of `as_strided_scatter`.

Functionalization: as_strided_scatter refuses a non-contiguous tensor that requires grad, even under no_grad.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "autograd", "mutation", "strides")}
DEVICE = "cpu"


def program(a):
    with torch.no_grad():
        a.as_strided((2,), (1,)).neg_()


def inputs(call):
    return (torch.ones(2, 2, device=DEVICE).t().requires_grad_(),), {}
