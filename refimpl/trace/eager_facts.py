"""What eager's kernels do on the processor that runs them, asked of the kernels: which vectors they have, and what they round.

Counterpart: none
Differs: torch builds its kernels for several kinds of processors, and takes those for the best one it finds, or the one that
ATEN_CPU_CAPABILITY names. No rule may state what one of these builds does.

Every question runs a kernel on a few numbers, once in a process; also while a program is traced, which sees nothing of it.
"""

from __future__ import annotations

import functools
import math

import torch

from refimpl._torch import without_dispatch

aten = torch.ops.aten
_PLACES = (1, 2, 4, 8, 16, 32)  # of first lanes: numbers of float64 in a vector, of 8 to 256 bytes


@functools.cache
def row_vector_bytes() -> int:
    """Bytes of a vector of the CPU's kernels of norms of rows: these need not be as wide as the processor's vectors.

    In rows of zeros and one number whose square overflows, the variance is NaN where that number is of a first lane. A kernel
    in which none is gets the length of these rows: no shorter row is one of whole vectors, then.
    """
    with without_dispatch():
        rows = torch.zeros(len(_PLACES), 2 * _PLACES[-1], dtype=torch.float64, device="cpu")
        for row, place in zip(rows, _PLACES, strict=True):
            row[place] = 1e200
        _, _, rstd = aten.native_layer_norm.default(rows, [rows.shape[1]], None, None, 1e-5)
        found = [place for place, number in zip(_PLACES, rstd.flatten().tolist(), strict=True) if math.isnan(number)]
    return min(found, default=rows.shape[1]) * rows.itemsize


@functools.cache
def rounds_products_of_sums(dtype: torch.dtype) -> bool:
    """Whether the CPU's kernels round a product of floats to the dtype before they add something to it.

    Those for processors with fused multiplications do not: of (1 + eps) * (1 + eps) - (1 + 2 * eps) they find eps * eps.
    """
    eps = torch.finfo(dtype).eps
    with without_dispatch():
        ones = torch.ones(64, dtype=dtype, device="cpu")
        return not bool(aten.add.Tensor(-(ones + 2 * eps), ones + eps, alpha=1 + eps).any())
