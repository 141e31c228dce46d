"""How many bytes a node's value takes, symbolic sizes counted as they are in the run that was traced.

Counterpart: torch/_functorch/partitioners.py _size_of
Differs: a view counts as the memory it keeps alive, which is its owner's.
"""

from __future__ import annotations

from typing import Any

import torch

# A size nobody knows before the run. Any number serves: it weighs such tensors against each other and against known ones.
UNKNOWN_SIZE = 4096
SCALAR_BYTES = 8


def hint_of(size: Any) -> int:
    """A size as a number."""
    if isinstance(size, int):
        return size
    hint = size.node.hint
    return int(hint) if isinstance(hint, (int, float)) else UNKNOWN_SIZE


def bytes_of(value: Any) -> int:
    """Bytes of the elements of a tensor, or of all tensors in a container."""
    if isinstance(value, torch.Tensor):
        count = 1
        for size in value.shape:
            count *= hint_of(size)
        return count * value.dtype.itemsize
    if isinstance(value, (list, tuple)):
        return sum(map(bytes_of, value))
    if isinstance(value, dict):
        return sum(map(bytes_of, value.values()))
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)):
        return SCALAR_BYTES
    return 0
