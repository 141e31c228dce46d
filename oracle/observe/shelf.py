"""Copies of large tensors on disk: files that are mapped into memory, whose pages are dropped when nothing reads them.

A check holds results of every run: of eager, of the subject, in float64, and under noise, for each call. All are needed until
the judge has compared them, but one tensor at a time. So a large copy lies in a file without a name, in the directory for
temporary files, and vanishes with its last tensor. A tensor on it is an ordinary CPU tensor.

Where there is no room on the disk, copies stay in memory.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import weakref
from typing import BinaryIO, Final

import torch

FEWEST_BYTES: Final = 1 << 20  # of a copy that is put on disk
_SMALLEST_FILE, _LARGEST_FILE = 1 << 24, 1 << 28  # a larger tensor has a file of its own
_CAN_MAP: Final = hasattr(os, "pwrite") and hasattr(mmap.mmap, "madvise")

_MAPS: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


class Shelf:
    """The files of one run. Mutable."""

    def __init__(self) -> None:
        self._file: BinaryIO | None = None
        self._map: mmap.mmap | None = None
        self._used = self._size = 0
        self._is_full = not _CAN_MAP

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy with the same sizes, strides and bits. The tensor is dense, and requires no gradient."""
        size = tensor.numel() * tensor.element_size()
        if self._is_full or size < FEWEST_BYTES or tensor.device.type != "cpu":
            return tensor.clone()
        try:
            flat = self._written(tensor, size)
        except (OSError, ValueError):  # there is no room on the disk, or for the map
            self._is_full = True
            return tensor.clone()
        return flat.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())

    def _written(self, tensor: torch.Tensor, size: int) -> torch.Tensor:
        """The tensor's bytes in a file."""
        if self._used + size > self._size:
            self._start_file(size)
        assert self._file is not None
        assert self._map is not None
        start = self._used
        source = memoryview((ctypes.c_char * size).from_address(tensor.data_ptr()))
        # Written by a call, since a write to a map kills the process where the disk is full.
        done = 0
        while done < size:
            done += os.pwrite(self._file.fileno(), source[done:], start + done)
        self._used = start + -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        return torch.frombuffer(self._map, dtype=torch.uint8, count=size, offset=start)

    def _start_file(self, least: int) -> None:
        size = max(least, min(2 * self._size, _LARGEST_FILE), _SMALLEST_FILE)
        file = tempfile.TemporaryFile(prefix="torch-oracle-")  # noqa: SIM115  open until the next one is full
        file.truncate(size)
        self._file, self._map = file, mmap.mmap(file.fileno(), size)
        self._used, self._size = 0, size
        _MAPS.add(self._map)


def drop_pages() -> None:
    """Drop from this process's memory what was read of the copies on disk. They are read again when needed."""
    for one in list(_MAPS):
        one.madvise(mmap.MADV_DONTNEED)
