"""Results of `abs`, `sgn` and `hypot` near the dtype's largest number, where it depends on rounding whether they overflow.

A magnitude within a few roundings of the largest number may become that number or infinity. Eager's own kernels disagree there:
for 36 complex numbers of the largest magnitude, its vector loop returns infinity for a third, its scalar loop for none. `sgn`,
which divides by the magnitude, is then 0 and not of magnitude 1.

An element is *open*, with either result, if its magnitude in float64 (of coordinates scaled by a power of 2) is within
`_ROUNDINGS` of the largest number. That covers the operator's own roundings and the margin by which noise keeps numbers finite.
"""

from __future__ import annotations

import math
from typing import Any

import torch

MAGNITUDES = frozenset(["abs", "sgn", "hypot"])
_ROUNDINGS = 64
_SHRUNK = 0.25


def with_open_magnitudes(func: Any, args: Any, result: Any) -> Any:
    """`result` of an operator of MAGNITUDES, with the other possible value where an element is open.

    Applies to complex operands of `abs` and `sgn` and real ones of `hypot`, with coordinates of float32 or float64; otherwise
    returns `result`.
    """
    name = func._schema.name.removeprefix("aten::")
    coordinates = _coordinates(name, args, result)
    if coordinates is None:
        return result
    dtype = coordinates[0].dtype
    if dtype not in (torch.float32, torch.float64):
        return result
    limit = torch.finfo(dtype).max * _SHRUNK
    magnitude = torch.hypot(*(coordinate.double() * _SHRUNK for coordinate in coordinates))
    is_open = (magnitude - limit).abs() <= _ROUNDINGS * torch.finfo(dtype).eps * limit
    if not bool(is_open.any()):
        return result
    own = func(*args)
    if name == "sgn":
        direction = torch.complex(*(coordinate.double() * _SHRUNK / magnitude for coordinate in coordinates))
        other = torch.where(own == 0, direction.to(own.dtype), 0.0)
    else:
        other = torch.where(own.isinf(), own.new_full((), torch.finfo(dtype).max), math.inf)
    return torch.empty_like(result).copy_(torch.where(is_open, other, result))


def _coordinates(name: str, args: Any, result: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    if name == "hypot":
        x, y = torch.broadcast_tensors(*(arg.detach() for arg in args[:2]))
        return (x.to(result.dtype), y.to(result.dtype))
    z = args[0].detach()
    if not z.is_complex() or z.layout is not torch.strided:
        return None
    z = z.resolve_conj()
    return z.real, z.imag
