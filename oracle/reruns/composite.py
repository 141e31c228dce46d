"""Run composite operators by their parts under a dispatch mode.

In inference mode a dispatch mode sees a composite operator itself, since autograd does not decompose it there. Noise would then
round it only once, and its schema does not declare all it writes: `batch_norm` writes its running statistics.
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
    """Whether the operator calls other operators and has no kernel of its own."""

    def has_kernel(key: str) -> bool:
        return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)

    return isinstance(func, OpOverload) and has_kernel(_COMPOSITE.name) and not any(map(has_kernel, _BACKENDS))


def call_parts(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a composite operator so that the active modes see the operators it calls."""
    return func._op_dk(_COMPOSITE, *args, **kwargs)
