"""What a function compiled once per mode depends on besides its arguments' data: gradients, autocast.

Counterpart: none; torch's aot_function keeps the graph of its first call, and loses gradients if that was made under no_grad
Differs: a call under other modes than those seen so far compiles once more. Sizes are no part of it (AO-25).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

import torch

from refimpl._torch import is_any_autocast_enabled
from refimpl.trace.tracing import current_trace

Entry = TypeVar("Entry")
_DEVICE_TYPES = ("cpu", "cuda")


def autocast_state() -> Hashable:
    """None where autocast is off."""
    if not is_any_autocast_enabled():
        return None
    return tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICE_TYPES)


class PerMode(Generic[Entry]):
    """What was compiled, by the modes it was compiled under. Several threads may ask at once: one of them compiles."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, Entry] = {}
        self._lock = threading.RLock()

    def get(self, leaves: Sequence[Any], compile_entry: Callable[[], Entry]) -> Entry | None:
        """The entry for a call with these leaves, by `compile_entry` if there is none yet.

        None where there is none and the call is part of a trace, which is no occasion to compile something else.
        """
        with_gradient = [isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves]
        autocast = autocast_state() if is_any_autocast_enabled() else None
        key = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast, tuple(with_gradient)
        entry = self._entries.get(key)
        if entry is not None or current_trace() is not None:
            return entry
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                found = self._entries[key] = compile_entry()
            return found
