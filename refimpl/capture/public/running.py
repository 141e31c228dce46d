"""The capture mode of the current thread, and whether a segment is being captured in it.

Counterpart: torch/_C/_dynamo/eval_frame set_eval_frame; torch/_dynamo/eval_frame.py
Differs: thread-local state that the wrapper of a captured function reads; nothing is hooked into CPython.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from refimpl._torch import is_exporting as is_exporting
from refimpl._torch import saved_tensors_hooks_off

CAPTURE, RUN_ONLY, DISABLED = 0, 1, 2


class _Running(threading.local):
    mode = CAPTURE
    is_capturing = False
    is_called = False  # whether a captured function runs at a graph break of another one, which continues afterwards


running = _Running()


@contextlib.contextmanager
def in_mode(mode: int) -> Iterator[None]:
    """Sets the mode within the block: CAPTURE, RUN_ONLY (use existing segments only) or DISABLED."""
    before, running.mode = running.mode, mode
    try:
        yield
    finally:
        running.mode = before


@contextlib.contextmanager
def capturing() -> Iterator[None]:
    """Within the block, a segment is being captured."""
    before, running.is_capturing = running.is_capturing, True
    try:
        with _disable_saved_tensors_hooks_during_tracing():
            yield
    finally:
        running.is_capturing = before


def _disable_saved_tensors_hooks_during_tracing() -> contextlib.AbstractContextManager[None]:
    """Saved-tensor hooks do not run within the block: they run when the graph runs, as often as without capture."""
    return saved_tensors_hooks_off()


def is_compiling() -> bool:
    """Whether the current call is being captured. In captured code, capture answers True."""
    return running.is_capturing
