"""What autograd knows of how a tensor came up.

Counterpart: none
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def is_new_leaf(tensor: torch.Tensor) -> bool:
    """Whether the program asked for its gradient by requires_grad_."""
    return tensor.requires_grad and history_of(tensor, forbidden=tensor) is None


def has_gradient_of_base(tensor: torch.Tensor) -> bool:
    """Whether it is a view made without gradients of what requires one: it does too, as any such view that is made again."""
    base = tensor._base
    return base is not None and base.requires_grad and history_of(tensor, forbidden=tensor) is None


def history_of(tensor: torch.Tensor, forbidden: Any = None) -> Any:
    """The autograd node behind a tensor. `forbidden` for a view made without gradients of what was then written to with them:
    autograd raises when it is asked, which a program that returns such a view does not do."""
    try:
        return tensor.grad_fn
    except RuntimeError:
        return forbidden


def steps_behind(tensors: Sequence[torch.Tensor]) -> list[Any]:
    """Every step of autograd that a backward from these runs, once."""
    waiting = [history_of(tensor) for tensor in tensors]
    found: dict[Any, None] = {}
    while waiting:
        step = waiting.pop()
        if step is not None and step not in found:
            found[step] = None
            waiting += [following for following, _ in step.next_functions]
    return list(found)
