"""Helpers for elements of tensors: distance, equality, and their text in verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from oracle.dtypes import INTEGERS
from oracle.judge.tolerance import TABLE
from oracle.judge.ulp import bits_of

# Tensors of other dtypes (packed float4, uint4, bits8 ...) can neither be indexed nor converted: their bits are shown.
READABLE = INTEGERS | {*TABLE, torch.bool}


def is_identical(left: Tensor, right: Tensor) -> bool:
    """Whether two plain strided tensors of one shape and dtype have the same bits, NaN payloads included."""
    if left is right:  # a copy that runs share (oracle.observe.copies)
        return True
    if left.dtype is torch.bool:
        return torch.equal(left, right)
    return torch.equal(bits_of(left), bits_of(right))


def is_float(dtype: torch.dtype) -> bool:
    """Whether values of this dtype are compared as numbers with a tolerance; packed formats are compared by their bits."""
    return dtype in TABLE


def widen(tensor: Tensor) -> Tensor:
    """The tensor in float64 or complex128."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def is_close(e: Tensor, s: Tensor, *, rtol: float, atol: float) -> Tensor:
    magnitude = e.abs()
    close = ((s - e).abs() <= rtol * magnitude + atol) & (magnitude < math.inf)
    return close | is_same_special(s, e)


def is_same_special(s: Tensor, e: Tensor) -> Tensor:
    """Which elements are NaN in both, or the same infinity in both. Complex: any two elements that are not finite.

    C leaves open which parts of a complex infinity or NaN are NaN, and eager's vector and scalar loops differ in it.
    """
    if e.is_complex():
        return ~e.isfinite() & ~s.isfinite()
    return (e.isnan() & s.isnan()) | (e.isinf() & (e == s))


def distance(left: Tensor, right: Tensor) -> Tensor:
    """Absolute difference. NaN where either element is NaN, or both are the same infinity."""
    return (left - right).abs()


def finite_or_none(value: Tensor) -> float | None:
    number = value.item()
    return number if math.isfinite(number) else None


def finite(tensor: Tensor) -> Tensor:
    return tensor.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def number_text(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.3g}"


def unravel(flat: int, shape: torch.Size) -> tuple[int, ...]:
    index = []
    for size in reversed(shape):
        index.append(flat % size)
        flat //= size
    return tuple(reversed(index))


def index_text(index: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, index))}]" if index else ""


def element_text(flat: Tensor, index: int) -> str:
    """The element as text, with enough digits to tell it from its neighbours."""
    if flat.dtype not in READABLE:
        flat = bits_of(flat)
    value = flat[index]
    if value.is_floating_point() and value.dtype is not torch.float64:
        value = value.to(torch.float64)  # prints float32 in full
        return f"{value.item():.9g}"
    return str(value.item())


def usable_noise(runs: Sequence[Tensor], shape: torch.Size, dtype: torch.dtype) -> list[Tensor]:
    return [run.reshape(-1) for run in runs if run.shape == shape and run.dtype == dtype]
