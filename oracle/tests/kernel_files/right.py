"""Kernels that are right, each with its reference. What the check says of them must be nothing."""

import torch
import triton
import triton.language as tl


@triton.jit
def _add_kernel(x, y, o, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(o + i, tl.load(x + i, mask=mask) + tl.load(y + i, mask=mask), mask=mask)


def add(x, y):
    x, y = x.contiguous(), y.contiguous()
    o = torch.empty_like(x)
    n = x.numel()
    _add_kernel[(triton.cdiv(n, 128),)](x, y, o, n, BLOCK=128)
    return o


def add_eager(x, y):
    return x + y


@triton.jit
def _softmax_kernel(x, o, n, row_stride, column_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    mask = c < n
    v = tl.load(x + row * row_stride + c * column_stride, mask=mask, other=float("-inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(o + row * n + c, e / tl.sum(e, axis=0), mask=mask)


def softmax(x):
    rows, n = x.shape
    o = torch.empty((rows, n), dtype=x.dtype, device=x.device)
    if o.numel():
        _softmax_kernel[(rows,)](x, o, n, x.stride(0), x.stride(1), BLOCK=triton.next_power_of_2(n))
    return o


def softmax_eager(x):
    return torch.softmax(x, dim=1)


@triton.jit
def _norm_kernel(x, w, o, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, n, BLOCK):
        c = start + tl.arange(0, BLOCK)
        v = tl.load(x + row * n + c, mask=c < n, other=0.0).to(tl.float32)
        total += v * v
    scale = 1.0 / tl.sqrt(tl.sum(total, axis=0) / n + eps)
    for start in range(0, n, BLOCK):
        c = start + tl.arange(0, BLOCK)
        mask = c < n
        v = tl.load(x + row * n + c, mask=mask, other=0.0).to(tl.float32)
        tl.store(o + row * n + c, v * scale * tl.load(w + c, mask=mask, other=0.0).to(tl.float32), mask=mask)


def rms_norm(x, w, eps):
    x, w = x.contiguous(), w.contiguous()
    o = torch.empty_like(x)
    if x.numel():
        _norm_kernel[(x.shape[0],)](x, w, o, x.shape[1], eps, BLOCK=64)
    return o


def rms_norm_eager(x, w, eps):
    return torch.nn.functional.rms_norm(x, (x.shape[1],), w, eps)


@triton.jit
def _gather_kernel(t, index, o, n, D, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(index + i // D, mask=i < n * D, other=0)
    v = tl.load(t + row * D + i % D, mask=i < n * D)
    tl.store(o + i, v, mask=i < n * D)


def gather_rows(t, index):
    t, index = t.contiguous(), index.contiguous()
    n, d = index.numel(), t.shape[1]
    o = torch.empty((n, d), dtype=t.dtype, device=t.device)
    if o.numel():
        _gather_kernel[(triton.cdiv(n * d, 64),)](t, index, o, n, d, BLOCK=64)
    return o


def gather_rows_eager(t, index):
    return t[index]


@triton.jit
def _scale_kernel(x, s, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, mask=i < n) * s, mask=i < n)


def scale_(x, s):
    if not x.is_contiguous():
        raise ValueError("x must be contiguous")
    _scale_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, s, x.numel(), BLOCK=32)
    return x


def scale_eager_(x, s):
    return x.mul_(s)


@triton.jit
def _matmul_kernel(a, b, c, M, N, K, am, ak, bk, bn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(tl.cdiv(K, BK)):
        rk = k * BK + tl.arange(0, BK)
        left = tl.load(a + rm[:, None] * am + rk[None, :] * ak, mask=(rm[:, None] < M) & (rk[None, :] < K), other=0.0)
        right = tl.load(b + rk[:, None] * bk + rn[None, :] * bn, mask=(rk[:, None] < K) & (rn[None, :] < N), other=0.0)
        acc = tl.dot(left, right, acc, input_precision="ieee")
    tl.store(c + rm[:, None] * N + rn[None, :], acc, mask=(rm[:, None] < M) & (rn[None, :] < N))


def matmul(a, b):
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty((M, N), dtype=a.dtype, device=a.device)
    if c.numel():
        grid = (triton.cdiv(M, 32), triton.cdiv(N, 32))
        _matmul_kernel[grid](a, b, c, M, N, K, *a.stride(), *b.stride(), BM=32, BN=32, BK=32)
    return c


def matmul_eager(a, b):
    return a @ b
