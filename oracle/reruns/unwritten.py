"""Unwritten memory: what the allocator's memory holds before anything is written to it, chosen for the length of a run.

A result that depends on it is arbitrary: `torch.empty(3) * 2`, or an attention kernel that reads past the rows it filled.
Two runs of eager often find the same bytes there, so each run is given other ones. glibc's `mallopt(M_PERTURB)` does that
for every block, those that kernels take for themselves too, at the price of one pass over each block. Only the few small
blocks that a thread had freed before, and is given again at once, stay as they are.

Without glibc (macOS, musl), under another allocator, and in the memory of a GPU nothing is chosen: what is there is there.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator

_M_PERTURB = -6  # from malloc.h
# A byte B: freed memory is filled with B, and new memory with its complement.
NOUGHTS = 0xFF  # new memory is 0; what was freed is NaN, or -1
LARGE = 0x80  # new memory is 3.4e38 in float32 and bfloat16, NaN in float16, about 2**31 in int32, not a bool in bool


def _find() -> Callable[[int, int], int] | None:
    try:
        found = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # a C library without it; Windows has no library of that name
        return None
    found.argtypes, found.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    return found


_mallopt = _find()
IS_CHOSEN = _mallopt is not None


@contextlib.contextmanager
def unwritten_memory(byte: int) -> Iterator[None]:
    """Fill what is allocated and freed inside by `byte`, one of those above. Not to be nested."""
    if _mallopt is None:
        yield
        return
    _mallopt(_M_PERTURB, byte)
    try:
        yield
    finally:
        _mallopt(_M_PERTURB, 0)
