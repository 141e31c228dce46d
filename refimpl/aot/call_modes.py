"""What a function compiled once per mode depends on besides its arguments: gradient modes, autocast.

Counterpart: none; torch's aot_function keeps the graph of its first call, and loses gradients if that was made under no_grad
Differs: a call under other modes than those seen so far compiles once more. Sizes are no part of it (AO-25).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

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
    """What was compiled, by the modes it was compiled under. Several threads may ask at once: one of them compiles.

    Arguments that need a gradient where they did not before are noticed by what was compiled: then there is one entry more.
    """

    def __init__(self) -> None:
        self._entries: dict[Hashable, tuple[Entry, ...]] = {}
        self._lock = threading.RLock()

    def entries(self, compile_entry: Callable[[], Entry]) -> tuple[Entry, ...]:
        """Those for a call at this place, the latest first; one by `compile_entry` if there is none yet.

        Empty where there is none and the call is part of a trace, which is no occasion to compile something else.
        """
        entries = self._entries.get(_modes(), ())
        if entries or current_trace() is not None:
            return entries
        return self.more(entries, compile_entry)

    def more(self, known: tuple[Entry, ...], compile_entry: Callable[[], Entry]) -> tuple[Entry, ...]:
        """The entries once `known` did not do: with a new one, unless another thread has made that meanwhile."""
        key = _modes()
        with self._lock:
            entries = self._entries.get(key, ())
            if len(entries) == len(known):
                entries = self._entries[key] = (compile_entry(), *entries)
            return entries


def _modes() -> Hashable:
    autocast = autocast_state() if is_any_autocast_enabled() else None
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast
