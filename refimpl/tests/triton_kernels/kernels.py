"""Triton kernels of the tests. They run in Triton's interpreter, which `@triton.jit` chooses while they are defined."""

from __future__ import annotations

import os
from typing import Any

import torch
import triton
import triton.language as tl

_BEFORE = os.environ.get("TRITON_INTERPRET")
os.environ["TRITON_INTERPRET"] = "1"

FACTOR = 2.0


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x + y, mask=mask)


@triton.jit
def scale_kernel(ptr, n, factor, BLOCK: tl.constexpr = 16):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    values = tl.load(ptr + offsets, mask=mask)
    tl.store(ptr + offsets, values * factor, mask=mask)


@triton.jit
def write_to(ptr, offsets, values, mask):
    tl.store(ptr + offsets, values, mask=mask)


@triton.jit
def write_tenfold(ptr, offsets, values, mask):
    tl.store(ptr + offsets, values * 10, mask=mask)


@triton.jit
def write_to_nothing(ptr, offsets, values, mask):
    tl.load(ptr + offsets, mask=mask)


@triton.jit
def subtract_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) - tl.load(y_ptr + offsets, mask=mask), mask=mask)


@triton.jit
def through_helper_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    write_to(out_ptr, offsets, tl.load(x_ptr + offsets, mask=mask) + 1, mask)


@triton.jit
def doubled(x):
    return x * 2


@triton.jit
def squared(x):
    return x * x


@triton.jit
def applied_kernel(x_ptr, out_ptr, n, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, FUNCTION(tl.load(x_ptr + offsets, mask=mask)), mask=mask)


@triton.jit
def optional_kernel(x_ptr, bias_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    if bias_ptr is not None:
        x += tl.load(bias_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x, mask=mask)


@triton.jit
def count_kernel(x_ptr, count_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0)
    tl.atomic_add(count_ptr + offsets * 0, x)


@triton.jit
def nothing_kernel(x_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.load(x_ptr + offsets, mask=offsets < n)


@triton.jit
def two_results_kernel(x_ptr, first_ptr, second_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(first_ptr + offsets, x + 1, mask=mask)
    tl.store(second_ptr + offsets, x * 3, mask=mask)


@triton.jit
def gather_kernel(x_ptr, index_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    index = tl.load(index_ptr + offsets, mask=mask, other=0)
    source = x_ptr + index
    tl.store(out_ptr + offsets, tl.load(source, mask=mask), mask=mask)


@triton.jit
def strided_kernel(x_ptr, out_ptr, rows, columns, x_row, x_column, out_row, out_column, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns_ = tl.arange(0, BLOCK)
    mask = columns_ < columns
    x = tl.load(x_ptr + row * x_row + columns_ * x_column, mask=mask)
    tl.store(out_ptr + row * out_row + columns_ * out_column, x + row, mask=mask)


@triton.jit
def global_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * FACTOR, mask=mask)


@triton.jit
def cast_kernel(x_ptr, out_ptr, n, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask).to(DTYPE) * 2, mask=mask)


@triton.jit
def shift_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Each program reads what the one before it may have written, if both arguments are one tensor."""
    at = tl.program_id(0)
    tl.store(out_ptr + at + 1, tl.load(x_ptr + at) + 1)


@triton.jit
def tuple_kernel(inputs, out_ptr, n, factors, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(inputs[0] + offsets, mask=mask) * factors[0]
    y = tl.load(inputs[1] + offsets, mask=mask) * factors[1]
    tl.store(out_ptr + offsets, x + y, mask=mask)


def run_once(call, quantiles):
    """Stands for a measurement, which needs a GPU."""
    call()
    return 1.0, 1.0, 1.0


tuned_add_kernel = triton.autotune(configs=[triton.Config({"BLOCK": 8})], key=["n"])(add_kernel)
several_add_kernel = triton.autotune(
    configs=[triton.Config({"BLOCK": 8}), triton.Config({"BLOCK": 32}, num_warps=2)],
    key=["n"],
    do_bench=run_once,
)(add_kernel)
heuristic_add_kernel = triton.heuristics({"BLOCK": lambda args: 8 if args["n"] < 10 else 16})(add_kernel)
tuned_heuristic_kernel = triton.autotune(configs=[triton.Config({}, num_warps=2)], key=[])(heuristic_add_kernel)
cleared_count_kernel = triton.autotune(
    configs=[triton.Config({"BLOCK": 8}), triton.Config({"BLOCK": 16})],
    key=["n"],
    reset_to_zero=["count_ptr"],
    do_bench=run_once,
)(count_kernel)

if _BEFORE is None:
    del os.environ["TRITON_INTERPRET"]
else:
    os.environ["TRITON_INTERPRET"] = _BEFORE


@torch.library.triton_op("refimpl_tests::add_by_kernel", mutates_args={})
def add_operator(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    torch.library.wrap_triton(add_kernel)[(triton.cdiv(x.numel(), 8),)](x, y, out, x.numel(), 8)
    return out


@torch.library.triton_op("refimpl_tests::scale_by_kernel", mutates_args={"x"})
def scale_operator(x: torch.Tensor, factor: float) -> None:
    torch.library.wrap_triton(scale_kernel)[(triton.cdiv(x.numel(), 16),)](x, x.numel(), factor)


@torch.library.triton_op("refimpl_tests::add_with_gradients", mutates_args={})
def differentiable_operator(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    torch.library.wrap_triton(add_kernel)[(triton.cdiv(x.numel(), 8),)](x, y, out, x.numel(), 8)
    return out


differentiable_operator.register_autograd(lambda ctx, tangent: (tangent * 2, add_operator(tangent, tangent)))


def add(x: torch.Tensor, y: torch.Tensor, block: int = 16) -> torch.Tensor:
    out = torch.empty_like(x)
    n: Any = out.numel()
    add_kernel[(triton.cdiv(n, block),)](x, y, out, n, BLOCK=block)
    return out
