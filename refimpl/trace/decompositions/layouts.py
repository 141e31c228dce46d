"""Memory layouts that kernels choose for their results.

Counterpart: torch/_prims_common/__init__.py suggest_memory_format
Differs: answers for the layouts of four and five dimensions only, since no kernel asks for others.
"""

from __future__ import annotations

import torch

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def suggested_format(x: torch.Tensor) -> torch.memory_format:
    """Channels last for a tensor that is laid out so and in no other way, else contiguous."""
    wanted = _CHANNELS_LAST.get(x.ndim)
    if wanted is None or x.is_contiguous() or not x.is_contiguous(memory_format=wanted):
        return torch.contiguous_format
    return wanted


def laid_out_as(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The result in the layout that is suggested by the input."""
    return out.contiguous(memory_format=suggested_format(x))
