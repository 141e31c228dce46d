"""What eager mode refuses to write to, which fake kernels accept: an `out=` several elements of which are one place in memory.

Counterpart: at::assert_no_internal_overlap; upstream refuses when it copies the result into the output, at run time
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from refimpl._torch import OpOverload


def check_outputs(func: Any, kwargs: dict[str, Any]) -> None:
    """Raises eager mode's RuntimeError."""
    for name in _out_arguments(func):
        out = kwargs.get(name)
        for tensor in out if isinstance(out, (list, tuple)) else (out,):
            if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided and _repeats_elements(tensor):
                raise RuntimeError(
                    "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
                    "Please clone() the tensor before performing the operation."
                )


@functools.cache
def _out_arguments(func: Any) -> tuple[str, ...]:
    if not isinstance(func, OpOverload):
        return ()
    return tuple(argument.name for argument in func._schema.arguments if argument.is_out)


def _repeats_elements(tensor: torch.Tensor) -> bool:
    """Whether it is expanded, which is all that eager mode looks at."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return any(type(stride) is int and stride == 0 and type(size) is int and size > 1 for size, stride in pairs)
