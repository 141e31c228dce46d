"""Operators made of others, which a dispatch mode sees whole in inference mode: there autograd does not take them apart.

As a whole they would be one rounding, and their schemas do not say what they write: `batch_norm` its running statistics.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._ops import OpOverload

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_BACKENDS = ("CPU", "CUDA")


@functools.cache
def is_composite(func: Any) -> bool:
    """Whether the operator calls others and has no kernel of its own."""

    def has_kernel(key: str) -> bool:
        return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)

    return isinstance(func, OpOverload) and has_kernel(_COMPOSITE.name) and not any(map(has_kernel, _BACKENDS))


def call_parts(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The operators that a composite one calls, which the modes that are active see."""
    return func._op_dk(_COMPOSITE, *args, **kwargs)
