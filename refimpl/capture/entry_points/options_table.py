"""Which captured functions there are: compiled the same way they share what was captured, and `reset` finds them all.

Counterpart: the cache on code objects of torch/csrc/dynamo/extra_state.cpp; torch/_dynamo/eval_frame.py cached_backends
Differs: kept by function, backend and options as long as a wrapper lives, and not on code objects.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any

from refimpl.capture.captured import CaptureOptions

_SHARED: weakref.WeakValueDictionary[Hashable, CaptureOptions] = weakref.WeakValueDictionary()
# Backends that were compiled with since the last reset, by identity.
cached_backends: dict[int, Any] = {}


def options_for(
    backend: Callable[..., Any], *, fullgraph: bool, dynamic: bool | None, recompile_limit: int | None, hooks: Any
) -> CaptureOptions:
    """Options of this content, the same object as long as somebody holds it."""
    cached_backends.setdefault(id(backend), backend)
    key = (id(backend), fullgraph, dynamic, recompile_limit, *map(id, hooks))
    made = _SHARED.get(key)
    if made is None:
        made = CaptureOptions(backend=backend, fullgraph=fullgraph, dynamic=dynamic, recompile_limit=recompile_limit)
        made.guard_export_fn, made.guard_fail_fn = hooks
        made.wraps_errors = True
        _SHARED[key] = made
    return made


def live_options() -> list[CaptureOptions]:
    """All that wrappers hold."""
    return list(_SHARED.values())


def reset_backends() -> None:
    """Calls `reset` of every backend that has one, and forgets them."""
    for backend in list(cached_backends.values()):
        if hasattr(backend, "reset"):
            backend.reset()
    cached_backends.clear()
