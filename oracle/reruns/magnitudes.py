"""Magnitudes of two coordinates at the edge of what the dtype holds: results that eager does not determine.

A magnitude is rounded several times on its way, and where it lies within a few roundings of the largest number, it is that number
or infinity. Eager has two kernels that disagree there: for 36 numbers of the largest magnitude its vector loop finds infinity
for a third, its scalar loop for none. What divides by such a magnitude is then 0, not of magnitude 1.

Proof of an element: its magnitude in float64, of coordinates made smaller by a power of 2, is within `_ROUNDINGS` of the limit:
a few of its own, and what noise takes from numbers at the limit so that they stay finite, for each operator they come from.
"""

from __future__ import annotations

import math
from typing import Any

import torch

MAGNITUDES = frozenset(["abs", "sgn", "hypot"])
_ROUNDINGS = 64
_SHRUNK = 0.25


def with_open_magnitudes(func: Any, args: Any, result: Any) -> Any:
    """`result` of an operator of MAGNITUDES, with the other of its two possible values where both are. Complex operands of `abs`
    and `sgn`, real ones of `hypot`; in other cases, and where a dtype is neither of 32 nor 64 bits a coordinate, `result`."""
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
