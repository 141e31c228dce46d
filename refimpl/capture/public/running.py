"""Whether calls of captured functions are captured in this thread, and whether one is being captured.

Counterpart: torch/_C/_dynamo/eval_frame set_eval_frame; torch/_dynamo/eval_frame.py
Differs: state of a thread, which the wrapper of a captured function asks; there is no hook.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from refimpl._torch import saved_tensors_hooks_off

CAPTURE, RUN_ONLY, DISABLED = 0, 1, 2


class _Running(threading.local):
    mode = CAPTURE
    is_capturing = False
    is_called = False  # what runs, at a break of a function that goes on
    error_on_break: bool | None = None


running = _Running()


@contextlib.contextmanager
def in_mode(mode: int) -> Iterator[None]:
    """CAPTURE, RUN_ONLY (what is captured already is used, nothing new) or DISABLED, put back on any way out."""
    before, running.mode = running.mode, mode
    try:
        yield
    finally:
        running.mode = before


@contextlib.contextmanager
def capturing() -> Iterator[None]:
    """While a segment is made."""
    before, running.is_capturing = running.is_capturing, True
    try:
        with _disable_saved_tensors_hooks_during_tracing():
            yield
    finally:
        running.is_capturing = before


def _disable_saved_tensors_hooks_during_tracing() -> contextlib.AbstractContextManager[None]:
    """Hooks on saved tensors pack nothing meanwhile: those that are on run when the graph runs, as often as without capture."""
    return saved_tensors_hooks_off()


def is_compiling() -> bool:
    """Whether the call is being captured. Known to capture as a function that is answered at once."""
    return running.is_capturing
