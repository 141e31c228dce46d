"""Operators of the program that launch Triton kernels, which on a CPU run in Triton's interpreter; one writes to an argument.

Without Triton, which is optional, operators of torch do the same.
"""

import os

import torch

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

PROGRAM = {"tags": ("mutation", "aliasing"), "calls": [{}, {}]}
DEVICE = "cpu"

if triton is not None:
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1" if DEVICE == "cpu" else "0"

    @triton.jit
    def scale_kernel(x_ptr, out_ptr, n, factor, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = offsets < n
        tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * factor, mask=mask)

    if before is None:
        del os.environ["TRITON_INTERPRET"]
    else:
        os.environ["TRITON_INTERPRET"] = before


def launch(x, out, factor):
    if triton is None:
        out.copy_(x * factor)
    else:
        scale_kernel[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)](x, out, x.numel(), factor, BLOCK=8)


@torch.library.custom_op("oracle_features::scaled_by_kernel", mutates_args=())
def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    out = torch.empty_like(x)
    launch(x, out, factor)
    return out


@scaled.register_fake
def _(x, factor):
    return torch.empty_like(x)


@torch.library.custom_op("oracle_features::scale_by_kernel", mutates_args={"x"})
def scale(x: torch.Tensor, factor: float) -> None:
    launch(x, x, factor)


def program(x, whole):
    out = scaled(x, 0.5)
    scale(whole[1], 2.0)
    scale(out, 3.0)
    return out.sin(), whole.sum(dim=0)


def inputs(call):
    return (torch.randn(13, device=DEVICE), torch.ones(2, 13, device=DEVICE)), {}
