"""Repairs of Triton's interpreter, made once when this module is imported. Imports Triton: import it only where that may be.

| fault of the interpreter (3.6 to 3.8) | repair |
|---|---|
| fp32 to bf16 truncates | rounded to nearest even |
| bf16 operands: constants fail, arithmetic and dot work on bit patterns | computed in fp32, rounded after each operation |
| libdevice functions return None | computed by torch |
| a comparison of two scalars has their type, a comparison of blocks is float | both are bool |
| fp to int of NaN, infinities and large values depends on the processor | NaN to 0, others saturated |
| maximum, minimum, clamp propagate NaN | fmax and fmin, unless PropagateNan.ALL is given |
| maximum and minimum of two zeros take either | the first, as in the emulator |
| x * -1.0 keeps the sign of NaN | changes it |
| fma rounds twice | once (fp64 twice) |
| integer division by zero gives 0 and a warning | all ones; the remainder is the dividend |
| atomic_add of fp16 and bf16 fails | lane after lane |
| an atomic with a value that is broadcast reads what lies after it | the value has an element for each lane |
| scalar arguments: bools fail, floats are Python numbers, integers typed by value | typed as the signature says |
| autotune asks for a device | the first configuration |
| 3.6: a loop with a bound that is a tensor fails with numpy 2.4 | tensors of one element are read as Python integers |
| any pointer is followed | only into the memory that the launch's tensors span |
| device_assert does nothing | asserts where `Assertions` are on |
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime import autotuner
from triton.runtime import interpreter as stock

from refimpl.codegen.emulator import Type, Value, make_libdevice

Builder: Any = stock.InterpreterBuilder
Handle: Any = stock.TensorHandle
_LANGUAGE_TYPES: dict[str, Any] = {
    "i1": tl.int1, "i8": tl.int8, "i16": tl.int16, "i32": tl.int32, "i64": tl.int64, "u8": tl.uint8, "u16": tl.uint16,
    "u32": tl.uint32, "u64": tl.uint64, "fp16": tl.float16, "bf16": tl.bfloat16, "fp32": tl.float32, "fp64": tl.float64,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TypedScalar:
    """A scalar argument and its type in the signature."""

    value: bool | int | float
    type: str


class Assertions:
    """Whether device_assert is checked in the launch that runs."""

    are_on = False


class OutsideOfArguments(Exception):
    """A pointer outside of all tensors of the launch."""


class Memory:
    """Memory ranges of the running launch's arguments: name, first byte, byte after the last."""

    ranges: list[tuple[str, int, int]] = []


# --------------------------------------------------------------------------------------------------------------- bfloat16


def widened(bits: np.ndarray) -> np.ndarray:
    """bf16, carried as bits, as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def narrowed(values: np.ndarray) -> np.ndarray:
    """float32 as the bits of bf16, to nearest even."""
    singles = np.ascontiguousarray(values, dtype=np.float32)
    return (
        torch.from_numpy(singles.reshape(-1))
        .to(torch.bfloat16)
        .view(torch.int16)
        .numpy()
        .view(np.uint16)
        .reshape(values.shape)
    )


def _is_bf16(handle: Any) -> bool:
    return handle.dtype.scalar == tl.bfloat16


def _single(handle: Any) -> Any:
    return Handle(widened(handle.data), tl.float32) if _is_bf16(handle) else handle


_stock_binary, _stock_ternary, _stock_cast = Builder.binary_op, Builder.ternary_op, Builder.cast_impl
_stock_dot, _stock_sum = Builder.create_dot, stock.ReduceOps.sum


def _binary(self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
    if not _is_bf16(lhs):
        with np.errstate(all="ignore"):
            handle = _stock_binary(self, lhs, rhs, op)
        return Handle(handle.data, tl.int1) if handle.data.dtype == np.bool_ else handle
    with np.errstate(all="ignore"):
        result = op(widened(lhs.data), widened(rhs.data))
    return Handle(result, tl.int1) if result.dtype == np.bool_ else Handle(narrowed(result), tl.bfloat16)


def _cast(self: Any, src: Any, dst_type: Any) -> Any:
    source, target = src.dtype.scalar, dst_type.scalar
    if source == tl.bfloat16 and target != tl.bfloat16:
        return _cast(self, _single(src), dst_type)
    if target == tl.bfloat16:
        return Handle(narrowed(src.data.astype(np.float32)), target)
    if source.is_floating() and target.is_int() and target != tl.int1:
        return Handle(_to_integer(src.data, target), target)
    with np.errstate(all="ignore"):
        return _stock_cast(self, src, dst_type)


def _to_integer(values: np.ndarray, target: Any) -> np.ndarray:
    bits, signed = max(target.int_bitwidth, 16), target.is_int_signed()
    low, high = (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1)) if signed else (0.0, 2.0**bits)
    whole = np.trunc(np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=high, neginf=low))
    wide = np.dtype(f"{'int' if signed else 'uint'}{bits}")
    inside = np.where(whole < high, np.maximum(whole, low), 0.0).astype(wide)
    return np.where(whole >= high, np.iinfo(wide).max, inside).astype(stock._get_np_dtype(target))


def _fp_to_fp(self: Any, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
    pair = {src.dtype.scalar, dst_type.scalar}
    is_plain = rounding_mode is None or "RTNE" in str(rounding_mode)
    if is_plain and pair <= {tl.bfloat16, tl.float16, tl.float32, tl.float64}:
        return _cast(self, src, dst_type)
    return _stock_fp_to_fp(self, src, dst_type, rounding_mode)


_stock_fp_to_fp = Builder.create_fp_to_fp


def _fma(self: Any, x: Any, y: Any, z: Any) -> Any:
    a, b, c = (_single(handle).data for handle in (x, y, z))
    if a.dtype == np.float64:
        return Handle(a * b + c, z.dtype.scalar)
    with np.errstate(all="ignore"):
        product = a.astype(np.float64) * b.astype(np.float64)
        total = product + c.astype(np.float64)
        back = total - product
        error = (product - (total - back)) + (c - back)
        bits = total.view(np.int64)
        is_off = (error != 0) & np.isfinite(error) & ((bits & 1) == 0)
        bits = np.where(is_off, np.where((error > 0) == (total > 0), bits + 1, bits - 1), bits)
        single = bits.view(np.float64).astype(np.float32)
    return Handle(narrowed(single) if _is_bf16(z) else single.astype(z.data.dtype), z.dtype.scalar)


def _product(x: Any, y: Any) -> Any:
    """A product with -1 is a negation, as the compiler makes it: it changes the sign of NaN too."""
    return np.negative(x * np.ones_like(y)) if (y == -1).all() else np.multiply(x, y)


def _maximum(x: Any, y: Any) -> Any:
    """NaN if one is; of two zeros the first."""
    return np.where(x >= y, x, np.maximum(x, y))


def _minimum(x: Any, y: Any) -> Any:
    return np.where(x <= y, x, np.minimum(x, y))


def _clamp(self: Any, arg: Any, lo: Any, hi: Any, propagate_nans: Any) -> Any:
    is_all = "ALL" in str(propagate_nans)
    lower, upper = (_maximum, _minimum) if is_all else (np.fmax, np.fmin)
    return self.binary_op(self.binary_op(arg, lo, lower), hi, upper)


def _idiv(self: Any, lhs: Any, rhs: Any) -> Any:
    x, y = np.broadcast_arrays(lhs.data, rhs.data)
    is_zero = y == 0
    safe = np.where(is_zero, np.ones_like(y), y)
    with np.errstate(all="ignore"):
        quotient = (x - np.fmod(x, safe)) // safe
    return Handle(np.where(is_zero, np.bitwise_not(np.zeros_like(x)), quotient).astype(x.dtype), lhs.dtype.scalar)


def _irem(self: Any, lhs: Any, rhs: Any) -> Any:
    x, y = np.broadcast_arrays(lhs.data, rhs.data)
    is_zero = y == 0
    safe = np.where(is_zero, np.ones_like(y), y)
    return Handle(np.where(is_zero, x, np.fmod(x, safe)).astype(x.dtype), lhs.dtype.scalar)


def _dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
    return _stock_dot(self, _single(a), _single(b), d, input_precision, max_num_imprecise_acc)


def _sum(self: Any, input: Any) -> Any:
    if input.handle.dtype.scalar not in (tl.bfloat16, tl.float16):
        return _stock_sum(self, input)
    is_bf16 = _is_bf16(input.handle)
    data, axis = input.handle.data, self.axis
    if axis is None:
        data, axis = data.reshape(-1), 0
    data = np.moveaxis(data, axis, 0)
    while data.shape[0] > 1:  # rounded after each addition, neighbours first
        left, right = data[0::2], data[1::2]
        with np.errstate(all="ignore"):
            data = narrowed(widened(left) + widened(right)) if is_bf16 else left + right
    total = np.moveaxis(data, 0, axis)
    if not self.keep_dims:
        total = total.reshape(()) if self.axis is None else np.squeeze(total, axis)
    elif self.axis is None:
        total = total.reshape((1,) * len(input.shape))
    return self.to_tensor(total if total.shape else total.item(), input.dtype)


# ----------------------------------------------------------------------------------------------------------------- memory


def _check(what: str, pointers: np.ndarray, mask: np.ndarray) -> None:
    active = pointers[np.broadcast_to(mask, pointers.shape)].astype(np.int64)
    inside = np.zeros(active.shape, dtype=bool)
    for _, start, stop in Memory.ranges:
        inside |= (active >= start) & (active < stop)
    if inside.all():
        return
    lane = int(np.argmin(inside))
    name, start, stop = min(
        Memory.ranges, key=lambda r: min(abs(int(active[lane]) - r[1]), abs(int(active[lane]) - r[2]))
    )
    raise OutsideOfArguments(
        f"{what} outside of all arguments: {int((~inside).sum())} lanes; the first is "
        f"{int(active[lane]) - start} bytes after the start of {name!r}, which spans {stop - start} bytes"
    )


_stock_load, _stock_store, _stock_rmw = (
    Builder.create_masked_load,
    Builder.create_masked_store,
    Builder.create_atomic_rmw,
)


def _load(self: Any, ptrs: Any, mask: Any, other: Any, *rest: Any) -> Any:
    _check("a load", ptrs.data, mask.data)
    return _stock_load(self, ptrs, mask, other, *rest)


def _store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
    _check("a store", ptrs.data, mask.data)
    return _stock_store(self, ptrs, value, mask, *rest)


def _atomic(self: Any, op: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any) -> Any:
    _check("an atomic", ptr.data, mask.data)
    kind = val.dtype.scalar
    if kind not in (tl.float16, tl.bfloat16):
        in_memory = (Handle(np.ascontiguousarray(x.data), x.dtype) for x in (ptr, val, mask))
        return _stock_rmw(self, op, *in_memory, sem, scope)
    if "FADD" not in str(op):
        raise stock.InterpreterError(f"atomic {op} on {kind}")
    old = np.zeros(np.broadcast_shapes(ptr.data.shape, val.data.shape), dtype=val.data.dtype)
    flat = (np.broadcast_to(x, old.shape).reshape(-1) for x in (ptr.data, val.data, mask.data))
    result = old.reshape(-1)
    on = np.ones(1, dtype=bool)
    for lane, (place, add, active) in enumerate(zip(*flat, strict=True)):
        if active:
            pointer = np.array([place])
            before = stock._interpreter.load(pointer, on, np.zeros(1, dtype=old.dtype), old.dtype)
            adds = np.array([add], dtype=old.dtype)
            after = narrowed(widened(before) + widened(adds)) if kind == tl.bfloat16 else before + adds
            stock._interpreter.store(pointer, after, on)
            result[lane] = before[0]
    return Handle(old, kind)


def _assert(self: Any, condition: Any, message: str) -> None:
    if Assertions.are_on and not condition.data.all():
        raise AssertionError(message)


# ------------------------------------------------------------------------------------------------- arguments and libdevice

_stock_convert, _stock_to_host = stock._implicit_cvt, stock.GridExecutor._init_args_hst


def _to_host(self: Any, args_dev: Any, kwargs: Any) -> Any:
    """Records the memory ranges of a launch's tensors before it starts."""
    args_hst, kwargs_hst = _stock_to_host(self, args_dev, kwargs)
    named = [*zip(self.arg_names, args_hst, strict=False), *kwargs_hst.items()]
    Memory.ranges = [(name, *_span(tensor)) for name, arg in named for tensor in _tensors(arg)]
    return args_hst, kwargs_hst


_stock_patch_tensor = stock._patch_lang_tensor


def _patch_tensor(tensor: Any, *rest: Any) -> None:
    _stock_patch_tensor(tensor, *rest)
    tensor.__index__ = lambda self: int(self.handle.data.reshape(-1)[0])


def _tensors(arg: Any) -> list[torch.Tensor]:
    if isinstance(arg, (tuple, list)):
        return [tensor for item in arg for tensor in _tensors(item)]
    base = getattr(arg, "base", None)  # of descriptors and wrappers
    return [x for x in (arg, base) if isinstance(x, torch.Tensor)][:1]


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """First byte, and byte after the last element that shape and strides reach."""
    extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    return tensor.data_ptr(), tensor.data_ptr() + extent * tensor.element_size()


def _convert(arg: Any) -> Any:
    if isinstance(arg, (bool, float)):
        arg = TypedScalar(arg, "i1" if isinstance(arg, bool) else "fp32")
    if not isinstance(arg, TypedScalar):
        return _stock_convert(arg)
    kind = _LANGUAGE_TYPES[arg.type]
    data = np.array([arg.value], dtype=np.float32 if kind == tl.bfloat16 else stock._get_np_dtype(kind))
    return tl.tensor(Handle(narrowed(data) if kind == tl.bfloat16 else data, kind), kind)


def _library_function(function: Any) -> Any:
    """A function of the emulator on the interpreter's tensors."""

    def apply(*args: Any, **_: Any) -> Any:
        values: list[Any] = []
        like: Any = None
        for arg in args:
            if isinstance(arg, tl.tensor):
                tensor: Any = arg
                like = tensor if like is None or tensor.type.is_block() else like
                values.append(
                    Value(torch.from_numpy(np.array(tensor.handle.data)).unsqueeze(0), Type(tensor.dtype.name))
                )
            else:
                values.append(arg.value if isinstance(arg, tl.constexpr) else arg)
        result = function(*values)
        kind = _LANGUAGE_TYPES[result.dtype.in_signatures]
        data = result.data.squeeze(0).numpy().astype(stock._get_np_dtype(kind))
        is_block = like is not None and like.type.is_block()
        type_ = tl.block_type(kind, list(data.shape)) if is_block else kind
        return tl.tensor(Handle(data if is_block else data.reshape(1), kind), type_)

    return apply


def repair() -> None:
    """Applies all repairs. A second call in a process changes nothing."""
    if Builder.binary_op is _binary:
        return
    Builder.binary_op, Builder.cast_impl, Builder.create_fp_to_fp = _binary, _cast, _fp_to_fp
    Builder.create_fma, Builder.create_clampf, Builder.create_dot = _fma, _clamp, _dot
    Builder.create_idiv, Builder.create_srem, Builder.create_urem = _idiv, _irem, _irem
    Builder.create_minnumf = lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmin)
    Builder.create_maxnumf = lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmax)
    Builder.create_fmul = lambda self, lhs, rhs: self.binary_op(lhs, rhs, _product)
    Builder.create_minimumf = lambda self, lhs, rhs: self.binary_op(lhs, rhs, _minimum)
    Builder.create_maximumf = lambda self, lhs, rhs: self.binary_op(lhs, rhs, _maximum)
    Builder.get_bf16 = lambda self, value: Handle(narrowed(np.array([value], dtype=np.float32)), tl.bfloat16)
    Builder.create_masked_load, Builder.create_masked_store, Builder.create_atomic_rmw = _load, _store, _atomic
    stock.ReduceOps.sum, stock._patch_lang_tensor = _sum, _patch_tensor
    stock._implicit_cvt, stock.GridExecutor._init_args_hst = _convert, _to_host
    stock.interpreter_builder.options = replace(stock.interpreter_builder.options, debug=True, sanitize_overflow=False)
    Builder.create_assert = _assert
    library = importlib.import_module("triton.language.extra.libdevice")
    for name, function in vars(make_libdevice()).items():
        setattr(library, name, _library_function(function))
    _repair_autotune()


def _repair_autotune() -> None:
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        config = self.configs[0]
        return self.fn.run(*args, **{**kwargs, **config.all_kwargs()})

    autotuner.Autotuner.run = run


VERSION: str = triton.__version__
