"""Copies of observed tensors. A large tensor with bits that were seen in the same place before shares that copy.

The parameters of a model are the same after each call, and in each run, and most gradients of a compiled model are eager's bit
by bit. With one copy of each, equal tensors need not be compared again: they are one object. Copies that are not shared are on
disk if they are large (`oracle.observe.shelf`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from oracle.observe.outcome import CallObservation
from oracle.observe.shelf import Shelf, drop_pages
from oracle.program.clone import has_plain_storage

_FEWEST = 1 << 14  # elements of a tensor below which a copy costs less than a comparison
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_SECTIONS = ("outputs", "inputs_after", "gradients", "module_state")
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class Copies:
    """Makes the copies of one run. `like` are the calls of an earlier run, whose copies may be shared. Mutable."""

    def __init__(self, like: Iterable[CallObservation]) -> None:
        self._known: dict[tuple[int, str, str], torch.Tensor] = {
            (number, section, leaf.path): leaf.value
            for number, call in enumerate(like)
            for section in _SECTIONS
            for leaf in getattr(call, section)
            if _is_shareable(leaf.value)
        }
        self._last: dict[tuple[str, str], torch.Tensor] = {}
        self._shelf = Shelf()

    def of(self, value: Any, call: int, section: str, path: str) -> Any:
        """A detached copy of a tensor, which nobody may change; any other value as it is."""
        if not isinstance(value, torch.Tensor):
            return value
        with torch.no_grad():
            tensor = value.detach()
            if not _is_shareable(value):
                return tensor.clone()
            for known in (self._known.get((call, section, path)), self._last.get((section, path))):
                if known is not None and _has_equal_bits(tensor, known):
                    self._last[section, path] = known
                    return known
            self._last[section, path] = copied = self._shelf.copy(tensor)
            return copied


def _is_shareable(tensor: Any) -> bool:
    """Whether it is a large tensor, and bits, sizes and strides say everything about its copy. Calls no method of a subclass."""
    return (
        type(tensor) in _PLAIN
        and has_plain_storage(tensor)
        and tensor.device.type != "meta"
        and tensor.numel() >= _FEWEST
        and not tensor.is_inference()
        and not (tensor.is_conj() or tensor.is_neg())
        and tensor.element_size() in _BITS
        and not tensor.is_complex()
        and torch.ops.aten.is_non_overlapping_and_dense(tensor)
    )


def _has_equal_bits(tensor: torch.Tensor, known: torch.Tensor) -> bool:
    """Whether a copy of the tensor would be `known`, NaN payloads and signs of zeros included."""
    if (tensor.dtype, tensor.shape, tensor.stride(), tensor.device) != (
        known.dtype, known.shape, known.stride(), known.device,
    ):  # fmt: skip
        return False
    bits = _BITS[tensor.element_size()]
    flat = (one.as_strided((one.numel(),), (1,), one.storage_offset()).view(bits) for one in (tensor, known))
    is_equal = torch.equal(*flat)
    drop_pages()
    return is_equal
