"""Memory layouts that kernels choose for their results.

Counterpart: torch/_prims_common/__init__.py suggest_memory_format
Differs: answers for the layouts of four and five dimensions only, since no kernel asks for others; gaps, and strides along
sizes of 1, count as in eager.
"""

from __future__ import annotations

import torch

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def suggested_format(x: torch.Tensor) -> torch.memory_format:
    """Channels last for a tensor whose strides grow in that order, else contiguous."""
    wanted = _CHANNELS_LAST.get(x.ndim)
    return wanted if wanted is not None and _is_like_channels_last(x) else torch.contiguous_format


def _is_like_channels_last(x: torch.Tensor) -> bool:
    """Whether each dimension, from the channels outwards, steps over all of the one before. A size of 1 counts by its stride."""
    if x.is_contiguous() and x.stride(1) != 1:  # spares the comparisons below their guards
        return False
    shape, strides = x.shape, x.stride()
    if strides[1] == 0:
        return False
    least: int | torch.SymInt = 0
    for dim in (1, *range(x.ndim - 1, 1, -1), 0):
        if shape[dim] == 0 or strides[dim] < least:
            return False
        if dim == 0 and least == strides[1]:  # of one channel and one position: as well contiguous
            return False
        least = strides[dim] * (shape[dim] if shape[dim] > 1 else 1)
    return True


def laid_out_as(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The result in the layout that is suggested by the input."""
    return out.contiguous(memory_format=suggested_format(x))
