"""Choose the contents of uninitialized memory for the length of a run.

A result that depends on them is arbitrary, such as `torch.empty(3) * 2`, or that of an attention kernel that reads past the rows
it filled. Two runs of eager often find the same bytes there by chance, so each run gets different ones. glibc's
`mallopt(M_PERTURB)` fills every block, also those that kernels allocate, at the cost of one pass over the block. It does not fill
the few small blocks that a thread has just freed and gets again.

Without glibc (macOS, musl), with another allocator, and for GPU memory the contents are not chosen.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator

_M_PERTURB = -6  # from malloc.h
# Freed memory is filled with the byte, and new memory with its complement.
ZEROS = 0xFF  # new memory is 0; freed memory is NaN in float dtypes, -1 in integer dtypes
LARGE = 0x80  # new memory is 3.4e38 in float32 and bfloat16, NaN in float16, about 2**31 in int32, not a bool in bool


def _find() -> Callable[[int, int], int] | None:
    try:
        found = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # a C library without mallopt, or Windows
        return None
    found.argtypes, found.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    return found


_mallopt = _find()
IS_CHOSEN = _mallopt is not None


@contextlib.contextmanager
def uninitialized_memory(byte: int) -> Iterator[None]:
    """Fill memory that is allocated or freed inside according to `byte`, one of the constants above. Must not be nested."""
    if _mallopt is None:
        yield
        return
    _mallopt(_M_PERTURB, byte)
    try:
        yield
    finally:
        _mallopt(_M_PERTURB, 0)
