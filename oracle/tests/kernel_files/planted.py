"""Kernels with one bug each, planted on purpose. What the check must say of each stands in the test."""

import sys

import torch
import triton
import triton.language as tl

NOT_A_FUNCTION = 5


def nothing(x):
    return x


@triton.jit
def _copy_kernel(x, o, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o + i, tl.load(x + i, mask=i < n))  # the store has no mask


def missing_mask(x):
    x = x.contiguous()
    o = torch.empty_like(x)
    _copy_kernel[(triton.cdiv(x.numel(), 32),)](x, o, x.numel(), BLOCK=32)
    return o


@triton.jit
def _relu_kernel(x, o, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(o + i, tl.maximum(v, 0.0), mask=i < n)


def wrong_stride(x):
    o = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    n = x.numel()
    _relu_kernel[(triton.cdiv(n, 32),)](x, o, n, BLOCK=32)  # takes x for contiguous
    return o


def relu(x):
    return torch.relu(x)


def identity(x):
    return x.clone()


def unwritten_tail(x):
    x = x.contiguous()
    o = torch.empty_like(x)
    n = x.numel()
    _relu_kernel[(n // 32,)](x, o, n, BLOCK=32)  # rounds down
    return o


def wrong_special_value(x):
    x = x.contiguous()
    o = torch.empty_like(x)
    _relu_kernel[(triton.cdiv(x.numel(), 32),)](x, o, x.numel(), BLOCK=32)  # maximum swallows NaN
    return o


@triton.jit
def _sum_kernel(x, o, n):
    row = tl.program_id(0)
    total = tl.load(x + row * n) * 0
    for c in range(n):
        v = tl.load(x + row * n + c)
        total += v * v  # in x's own dtype
    tl.store(o + row, total)


def narrow_accumulation(x):
    x = x.contiguous()
    o = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    _sum_kernel[(x.shape[0],)](x, o, x.shape[1])
    return o


def row_sum(x):
    return (x * x).sum(1)


@triton.jit
def _racing_kernel(x, o, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.sum(tl.load(x + i, mask=i < n, other=0.0), axis=0)
    tl.store(o, tl.load(o) + v)  # should be an atomic


def race(x):
    x = x.contiguous()
    o = torch.zeros((), dtype=x.dtype, device=x.device)
    _racing_kernel[(triton.cdiv(x.numel(), 32),)](x, o, x.numel(), BLOCK=32)
    return o


def total(x):
    return x.sum()


@triton.jit
def _last_kernel(x, o, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = tl.load(x + i, mask=i < n)
    following = tl.load(x + i + 1, mask=i < n)  # one too far
    tl.store(o + i, following - here, mask=i < n)


def reads_too_far(x):
    x = x.contiguous()
    o = torch.empty_like(x)
    _last_kernel[(triton.cdiv(x.numel(), 32),)](x, o, x.numel(), BLOCK=32)
    return o


def differences(x):
    flat = x.reshape(-1)
    return torch.cat([flat[1:], flat[:1] * 0]).reshape(x.shape) - x


@triton.jit
def _odd_kernel(x, o, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(o + i, tl.load(x + i, mask=i < n), mask=i < n)


def no_power_of_two(x):
    x = x.contiguous()
    o = torch.empty_like(x)
    _odd_kernel[(1,)](x, o, x.numel(), BLOCK=x.numel() + 1)
    return o


def refuses_everything(x):
    raise NotImplementedError("not today")


def inputs(rng):
    return (torch.arange(float(rng.choice((40, 50)))),)


def without_dynamo(x):
    """Raises where Dynamo is loaded: nothing that a command on kernels does needs it, and it takes as long as torch."""
    assert "torch._dynamo" not in sys.modules
    return wrong_special_value(x)
