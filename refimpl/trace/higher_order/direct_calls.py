"""torch.cond and its like, called while a trace runs, reach their operator without a compiler in between.

Counterpart: torch/_higher_order_ops/utils.py _hop_compile_and_call
Differs: `torch.cond`, `while_loop`, `scan` and `map` compile themselves when they are called from eager code, to find out what
their functions use from around them. refimpl's traces find that out by themselves (refimpl.trace.higher_order.calls).

While at least one trace runs in the process, one function of torch, through which all of them go, is replaced. In a thread that
traces it calls the operator; in any other it does what it did. torch before 2.13 has no such function: there the call goes
through torch's compiler, which steps aside because a dispatch mode is on.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterator
from typing import Any

from refimpl._torch import hop_utils

_NAME = "_hop_compile_and_call"
_is_tracing: contextvars.ContextVar[bool] = contextvars.ContextVar("refimpl_calls_operators_directly", default=False)


class _InstallationState:
    """Counts the traces that run, over all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._original: Callable[..., Any] | None = None

    def enter(self) -> None:
        with self._lock:
            self._count += 1
            if self._count == 1:
                self._original = getattr(hop_utils, _NAME)
                setattr(hop_utils, _NAME, self._call)

    def leave(self) -> None:
        with self._lock:
            self._count -= 1
            if self._count == 0:
                setattr(hop_utils, _NAME, self._original)

    def _call(self, fn: Callable[..., Any], args: Any, kwargs: Any = None) -> Any:
        if _is_tracing.get():
            return fn(*args, **(kwargs or {}))
        assert self._original is not None
        return self._original(fn, args, kwargs)


_INSTALLATION = _InstallationState()


@contextlib.contextmanager
def operators_called_directly() -> Iterator[None]:
    """For the time of a trace, and for the thread it runs in."""
    if not hasattr(hop_utils, _NAME):
        yield
        return
    _INSTALLATION.enter()
    token = _is_tracing.set(True)
    try:
        yield
    finally:
        _is_tracing.reset(token)
        _INSTALLATION.leave()
