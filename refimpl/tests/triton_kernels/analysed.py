"""Kernels that are analysed only. The comment above each names the parameters that it may write."""
# ruff: noqa: F821

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


# out
@triton.jit
def pointer_is_chosen(x, y, out, flag, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    source = x if flag else y
    target = out + offsets
    tl.store(target, tl.load(source + offsets))


# x y
@triton.jit
def target_is_chosen(x, y, out, flag, BLOCK: tl.constexpr):
    target = x
    if flag:
        target = y
    target += tl.arange(0, BLOCK)
    tl.store(target, tl.load(out))


# x y
@triton.jit
def target_is_selected(x, y, out, flag, BLOCK: tl.constexpr):
    tl.store(tl.where(flag, x, y) + tl.arange(0, BLOCK), tl.load(out))


# out
@triton.jit
def pointer_moves_in_a_loop(x, y, out, n, BLOCK: tl.constexpr):
    for _ in range(n):
        tl.store(out, tl.load(x) + tl.load(y))
        x += BLOCK
        y += BLOCK
        out += BLOCK


# x y
@triton.jit
def pointers_are_exchanged_in_a_loop(x, y, out, n, BLOCK: tl.constexpr):
    a, b = x, y
    for _ in range(n):
        tl.store(a, tl.load(out))
        a, b = b, a


# out
@triton.jit
def index_is_loaded(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.load(x + tl.arange(0, BLOCK))
    tl.store(out + at, tl.load(y + at))


# out
@triton.jit
def block_pointer(x, y, out, n, BLOCK: tl.constexpr):
    source = tl.make_block_ptr(x, (n,), (1,), (0,), (BLOCK,), (0,))
    target = tl.make_block_ptr(base=out, shape=(n,), strides=(1,), offsets=(0,), block_shape=(BLOCK,), order=(0,))
    target = tl.advance(target, (BLOCK,))
    tl.store(target, tl.load(source), boundary_check=(0,))


# out
@triton.jit
def descriptor(x, y, out, n, BLOCK: tl.constexpr):
    source = tl.make_tensor_descriptor(x, shape=[n], strides=[1], block_shape=[BLOCK])
    target = tl.make_tensor_descriptor(out, shape=[n], strides=[1], block_shape=[BLOCK])
    target.store([0], source.load([0]))


# x y
@triton.jit
def atomics(x, y, out, n, BLOCK: tl.constexpr):
    old = tl.atomic_add(x + tl.arange(0, BLOCK), 1.0)
    tl.atomic_cas(y, old, tl.load(out))


# out
@triton.jit
def types_are_read(x, y, out, n, BLOCK: tl.constexpr):
    value = tl.load(x).to(out.dtype.element_ty) + tl.load(y).to(tl.float32)
    tl.store(out, value.to(y.type.element_ty))


# out x y
@triton.jit
def number_becomes_a_pointer(x, y, out, n, BLOCK: tl.constexpr):
    address = tl.load(x).to(tl.pointer_type(tl.float32))
    tl.store(address, 1.0)


# out x y
@triton.jit
def number_becomes_a_pointer_like_another(x, y, out, n, BLOCK: tl.constexpr):
    address = tl.load(x).to(out.dtype)
    tl.store(address, 1.0)


# out
@triton.jit
def mathematics(x, y, out, n, BLOCK: tl.constexpr):
    value = tl.sum(tl.exp(tl.load(x + tl.arange(0, BLOCK))), axis=0) + libdevice.pow(tl.load(y), 2.0)
    tl.static_assert(BLOCK > 0)
    tl.device_print("value", value)
    tl.store(out, tl.maximum(value, tl.cdiv(n, BLOCK)))


# y
@triton.jit
def assembly(x, y, out, n, BLOCK: tl.constexpr):
    tl.load(x)
    tl.inline_asm_elementwise("", "", [y, tl.load(out)], dtype=tl.int32, is_pure=False, pack=1)


# y
@triton.jit
def method_is_unknown(x, y, out, n, BLOCK: tl.constexpr):
    tl.load(x)
    y.surprise(tl.load(out))


# out y
@triton.jit
def function_is_unknown(x, y, out, n, BLOCK: tl.constexpr):
    tl.load(x)
    not_defined_anywhere(y, out)


@triton.jit
def moved(pointer, by):
    return pointer + by


@triton.jit
def stored_twice(first, second, value):
    tl.store(first, value)
    tl.store(moved(second, 1), value)


@triton.jit
def written_in_turn(pointer, other, depth: tl.constexpr):
    if depth > 0:
        written_in_turn(other, pointer, depth - 1)
    tl.store(pointer, 0.0)


# out y
@triton.jit
def helpers(x, y, out, n, BLOCK: tl.constexpr):
    stored_twice(value=tl.load(moved(x, 1)), second=y, first=moved(out, n))


# x y
@triton.jit
def helper_calls_itself(x, y, out, n, BLOCK: tl.constexpr):
    written_in_turn(x, y, 3)
    tl.load(out)


# out x
@triton.jit
def helper_gets_a_tuple(x, y, out, n, BLOCK: tl.constexpr):
    pointers = (x, out)
    stored_twice(*pointers, tl.load(y))


# out
@triton.jit
def function_is_an_argument(x, y, out, n, BLOCK: tl.constexpr):
    BLOCK(out, tl.load(x))
    tl.load(y)


#
@triton.jit
def nothing(x, y, out, n, BLOCK: tl.constexpr):
    """Stores nothing: tl.store(out, 0)."""
    tl.load(x)


KERNELS = {
    name: value for name, value in vars().copy().items() if hasattr(value, "fn") and value.fn.__module__ == __name__
}
