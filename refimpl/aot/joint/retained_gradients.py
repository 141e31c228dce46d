"""Refuses `retain_grad` of what is seen behind the call: a graph has no gradient of a result with all its uses.

Counterpart: none; torch's aot_autograd gives results that retain nothing
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from refimpl.errors import UnsupportedByRefimpl


def refuse_retained(values: Iterable[Any]) -> None:
    """Raises UnsupportedByRefimpl where a result or argument with a history retains its gradient. Leaves have theirs anyway."""
    if any(isinstance(value, torch.Tensor) and value.retains_grad for value in values):
        raise UnsupportedByRefimpl(
            seen="retain_grad() of a tensor with a history, in the program",
            supported="retain_grad() of leaves, and of results behind the call",
            do="capture the program, which breaks the graph there, or return the tensor and compile what comes behind apart",
        )
