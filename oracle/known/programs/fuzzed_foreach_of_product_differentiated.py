"""`_foreach_mul_` of the product of a vector and a matrix is ignored in the gradient.

AOTAutograd: the product is a view there, and a foreach operator's write to a view is not differentiated.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "autograd", "mutation"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(a, b, factor):
    c = a @ b
    torch._foreach_mul_([c], [factor])
    return c


def inputs(call):
    b = torch.eye(2, device=DEVICE)
    return (torch.ones(2, device=DEVICE).requires_grad_(), b, torch.full((2,), 3.0, device=DEVICE)), {}
