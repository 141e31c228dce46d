"""`x[mask] = y` with a mask that is one bool: traced as a choice between `y` and what `x` holds.

Counterpart: none; torch's dynamo sees such an assignment before Python's indexing reads the mask
Differs: Python's indexing asks a mask of no dimensions for its value, which a trace does not know. The program is traced again
under a mode of functions that sees the assignment first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_READ = torch.ops.aten._local_scalar_dense.default
_ASSIGN = torch.Tensor.__setitem__


class BoolRead(Exception):
    """The program, or Python's indexing, reads a bool of a tensor. Not an error: it is traced again with assignments seen."""


def refuse_bool_read(node: torch.fx.Node) -> None:
    """Raises BoolRead if the recorded call is one."""
    if node.target is _READ and _is_bool(node.args[0]):
        raise BoolRead


def _is_bool(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return isinstance(value, torch.Tensor) and value.dtype is torch.bool


class ScalarMasksMode(TorchFunctionMode):
    """Makes the assignment by `where`. What cannot be assigned to such a place goes to Python's indexing, which says why."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _ASSIGN and _is_mask(args[1]):
            target, mask, value = args
            if not isinstance(value, torch.Tensor):
                value = torch.full_like(target.detach(), value)
            if value.dtype is target.dtype and value.device == target.device:
                target.copy_(torch.where(mask, _without_leading_ones(value, target.dim()), target))
                return None
        return func(*args, **(kwargs or {}))


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype is torch.bool and index.dim() == 0


def _without_leading_ones(value: torch.Tensor, rank: int) -> torch.Tensor:
    while value.dim() > rank and value.shape[0] == 1:
        value = value[0]
    return value
