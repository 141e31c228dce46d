"""Dtypes and layouts by what they can do, asked of torch: each version has others. Packed and quantised dtypes are in no set.

Counterpart: none
"""

from __future__ import annotations

from collections.abc import Callable

import torch


def _having(limits: Callable[[torch.dtype], object]) -> frozenset[torch.dtype]:
    """The dtypes for which torch knows the limits: packed ones (float4_e2m1fn_x2, int4, bits8) have none."""
    found = []
    for dtype in vars(torch).values():
        if isinstance(dtype, torch.dtype):
            try:
                limits(dtype)
            except (TypeError, NotImplementedError):
                continue
            found.append(dtype)
    return frozenset(found)


_FRACTIONS = _having(lambda dtype: torch.finfo(dtype).eps)
FLOATS = frozenset(dtype for dtype in _FRACTIONS if dtype.is_floating_point)
COMPLEX = _FRACTIONS - FLOATS
FLOAT8 = frozenset(dtype for dtype in FLOATS if dtype.itemsize == 1)
SIGNED_FLOAT8 = frozenset(
    dtype for dtype in FLOAT8 if torch.finfo(dtype).min < 0
)  # the others are scales, and have no 0
INTEGERS = frozenset(dtype for dtype in _having(torch.iinfo) if not str(dtype).startswith("torch.q"))

# With kernels for arithmetic: float8 and unsigned integers of 16 or more bits only convert, complex32 has few.
ARITHMETIC_FLOATS = FLOATS - FLOAT8
ARITHMETIC_COMPLEX = frozenset(dtype for dtype in COMPLEX if dtype.to_real().itemsize > 2)
ARITHMETIC_INTEGERS = frozenset(dtype for dtype in INTEGERS if dtype.is_signed or dtype.itemsize == 1)

SPARSE_LAYOUTS = frozenset(
    layout for name, layout in vars(torch).items() if isinstance(layout, torch.layout) and name.startswith("sparse_")
)
COMPRESSED_LAYOUTS = SPARSE_LAYOUTS - {torch.sparse_coo}


def short_name(dtype: torch.dtype) -> str:
    """A dtype's name as in `f32`, `bf16`, `c64`, `i8`, `u8`."""
    name = str(dtype).removeprefix("torch.")
    for word in ("loat", "omplex", "int" if name.startswith("u") else "nt"):
        name = name.replace(word, "")
    return name


def in_order(dtypes: frozenset[torch.dtype]) -> list[torch.dtype]:
    """The dtypes by size, then by name."""
    return sorted(dtypes, key=lambda dtype: (dtype.itemsize, str(dtype)))
