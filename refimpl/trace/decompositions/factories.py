"""Decompositions of factory functions: zeros, new_full, arange, linspace ...

Counterpart: torch/_refs/__init__.py, factories
Differs: all decompose into full, full_like, empty, empty_strided, arange.start_step and scalar_tensor.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from refimpl.trace.decompositions.device_numerics import follows_cpu
from refimpl.trace.decompositions.promotion import cast, computation_dtype, kind_of
from refimpl.trace.decompositions.registry import aten, rule
from refimpl.trace.dtypes import rounded_number
from refimpl.trace.refusals import number_fits

Tensor = torch.Tensor


@rule(aten.zeros.default)
def zeros(size: Sequence[Any], **options: Any) -> Tensor:
    return aten.full.default(size, 0, **_with_dtype(options))


@rule(aten.ones.default)
def ones(size: Sequence[Any], **options: Any) -> Tensor:
    return aten.full.default(size, 1, **_with_dtype(options))


def _with_dtype(options: dict[str, Any]) -> dict[str, Any]:
    """Options with the default dtype if none is given; `full` would take the dtype of the value."""
    return options if options.get("dtype") is not None else {**options, "dtype": torch.get_default_dtype()}


@rule(aten.zeros_like.default)
def zeros_like(x: Tensor, **options: Any) -> Tensor:
    return aten.full_like.default(x, 0, **options) if x.layout is torch.strided else NotImplemented


@rule(aten.ones_like.default)
def ones_like(x: Tensor, **options: Any) -> Tensor:
    return aten.full_like.default(x, 1, **options)


@rule(aten.zero.default)
def zero(x: Tensor) -> Tensor:
    return aten.full_like.default(x, 0)


def _new(x: Tensor, size: Sequence[Any], value: Any, options: dict[str, Any]) -> Tensor:
    given = {name: option for name, option in options.items() if option is not None}
    return aten.full.default(size, value, **{"dtype": x.dtype, "layout": x.layout, "device": x.device, **given})


@rule(aten.new_zeros.default)
def new_zeros(x: Tensor, size: Sequence[Any], **options: Any) -> Tensor:
    return _new(x, size, 0, options)


@rule(aten.new_ones.default)
def new_ones(x: Tensor, size: Sequence[Any], **options: Any) -> Tensor:
    return _new(x, size, 1, options)


@rule(aten.new_full.default)
def new_full(x: Tensor, size: Sequence[Any], fill_value: Any, **options: Any) -> Tensor:
    return _new(x, size, fill_value, options)


@rule(aten.new_empty.default)
def new_empty(x: Tensor, size: Sequence[Any], **options: Any) -> Tensor:
    given = {name: option for name, option in options.items() if option is not None}
    return aten.empty.memory_format(size, **{"dtype": x.dtype, "layout": x.layout, "device": x.device, **given})


@rule(aten.new_empty_strided.default)
def new_empty_strided(x: Tensor, size: Sequence[Any], stride: Sequence[Any], **options: Any) -> Tensor:
    given = {name: option for name, option in options.items() if option is not None}
    defaults = {"dtype": x.dtype, "layout": x.layout, "device": x.device}
    return aten.empty_strided.default(size, stride, **{**defaults, **given})


@rule(aten.empty_permuted.default)
def empty_permuted(size: Sequence[Any], physical_layout: Sequence[int], **options: Any) -> Tensor:
    inner_to_outer = [0] * len(size)
    for position, dim in enumerate(physical_layout):
        inner_to_outer[dim] = position
    dense = aten.empty.memory_format([size[dim] for dim in physical_layout], **options)
    return torch.permute(dense, inner_to_outer)


@rule(aten.arange.default)
def arange(end: Any, **options: Any) -> Tensor:
    return aten.arange.start_step(0, end, 1, **options)


@rule(aten.arange.start)
def arange_start(start: Any, end: Any, **options: Any) -> Tensor:
    return aten.arange.start_step(start, end, 1, **options)


@rule(aten.eye.default)
def eye(n: Any, **options: Any) -> Tensor:
    return _eye(n, n, options)


@rule(aten.eye.m)
def eye_m(n: Any, m: Any, **options: Any) -> Tensor:
    return _eye(n, m, options)


def _eye(n: Any, m: Any, options: dict[str, Any]) -> Tensor:
    if options.get("pin_memory") or options.get("layout") not in (None, torch.strided):
        return NotImplemented
    device = options.get("device")
    is_diagonal = torch.arange(n, device=device).unsqueeze(1) == torch.arange(m, device=device)
    return cast(is_diagonal, options.get("dtype") or torch.get_default_dtype())


@rule(
    aten.linspace.default,
    aten.linspace.Tensor_Tensor,
    aten.linspace.Tensor_Scalar,
    aten.linspace.Scalar_Tensor,
)
def linspace(start: Any, end: Any, steps: int, **options: Any) -> Tensor:
    """Computed from both ends, so that both are exact. CPU kernels of half dtypes round each step."""
    dtype = _dtype_of_space(start, end, options)
    out_device = options.get("device")
    if out_device is None and (isinstance(start, torch.Tensor) or isinstance(end, torch.Tensor)):
        out_device = (start if isinstance(start, torch.Tensor) else end).device
    if steps < 0:
        return NotImplemented  # eager raises
    if not dtype.is_complex and any(isinstance(x, torch.Tensor) and x.is_complex() for x in (start, end)):
        return NotImplemented  # eager raises
    if kind_of(dtype) in ("int", "bool") or any(isinstance(x, torch.Tensor) and x.ndim for x in (start, end)):
        return NotImplemented  # integers are truncated steps, which each kernel rounds in its own way
    inner = computation_dtype(dtype)
    if inner is not dtype and follows_cpu(torch.device(out_device or torch.get_default_device())):
        if not isinstance(steps, int):
            return NotImplemented
        inner = dtype
    number = (
        functools.partial(rounded_number, dtype=inner) if inner.is_floating_point and isinstance(steps, int) else _same
    )
    if not _all_fit(dtype, start, end):
        return NotImplemented  # eager raises
    start, end = (number(+x) if isinstance(x, (bool, int, float)) else x for x in (start, end))
    count = torch.arange(steps, device=out_device)
    i = cast(count, inner)
    start, end = _number_or(start, inner), _number_or(end, inner)
    if steps == 1:
        return cast(
            aten.clone.default(start.reshape(1)) if isinstance(start, torch.Tensor) else torch.full_like(i, start),
            dtype,
        )
    rest = cast(steps - 1 - count, inner)
    step = end - start
    step = number(number(step) / number(steps - 1)) if isinstance(step, (int, float)) else step / number(steps - 1)
    if inner in (torch.float32, torch.float64):  # kernels round the product and sum once
        start, end, step, back = (_tensor_of(x, inner, out_device) for x in (start, end, step, -step))
        first, last = torch.addcmul(start, step, i), torch.addcmul(end, back, rest)
    else:
        first, last = start + step * i, end - step * rest
    return cast(torch.where(count < steps // 2, first, last), dtype)


def _tensor_of(x: Any, dtype: torch.dtype, device: Any) -> Tensor:
    return x if isinstance(x, torch.Tensor) else aten.scalar_tensor.default(x, dtype=dtype, device=device)


def _all_fit(dtype: torch.dtype, *numbers: Any) -> bool:
    return all(number_fits(x, dtype) for x in numbers if isinstance(x, (bool, int, float)))


def _same(number: Any) -> Any:
    return number


def _number_or(x: Any, dtype: torch.dtype) -> Any:
    return cast(x, dtype) if isinstance(x, torch.Tensor) else x


def _dtype_of_space(start: Any, end: Any, options: dict[str, Any]) -> torch.dtype:
    if options.get("dtype") is not None:
        return options["dtype"]
    is_complex = any(x.is_complex() if isinstance(x, torch.Tensor) else isinstance(x, complex) for x in (start, end))
    default = torch.get_default_dtype()
    return torch.promote_types(default, torch.complex32) if is_complex else default


@rule(
    aten.logspace.default,
    aten.logspace.Tensor_Tensor,
    aten.logspace.Tensor_Scalar,
    aten.logspace.Scalar_Tensor,
)
def logspace(start: Any, end: Any, steps: int, base: float = 10.0, **options: Any) -> Tensor:
    dtype = _dtype_of_space(start, end, options)
    if kind_of(dtype) in ("int", "bool") or base < 0:
        return NotImplemented
    if not _all_fit(dtype, start, end):
        return NotImplemented  # eager raises
    exponents = linspace(start, end, steps, **{**options, "dtype": computation_dtype(dtype)})
    return exponents if exponents is NotImplemented else cast(torch.pow(base, exponents), dtype)
