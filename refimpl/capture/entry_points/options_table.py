"""Which captured functions there are: compiled the same way they share what was captured, and `reset` finds them all.

Counterpart: the cache on code objects of torch/csrc/dynamo/extra_state.cpp; torch/_dynamo/eval_frame.py cached_backends
Differs: kept by code, backend and options beside code objects, and not on them.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Hashable
from types import CodeType
from typing import Any

from refimpl.capture.captured import CaptureOptions

_MOST_HELD = 8  # of one code: a backend that is made anew for each call of `compile` must not pile up
# By id of code that was compiled: its options, which outlive their wrappers, so that compiling it again finds what was captured.
_HELD: dict[int, tuple[CodeType, deque[CaptureOptions]]] = {}
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


def hold(code: CodeType, options: CaptureOptions) -> None:
    """Keeps what is captured of a function beyond its wrapper: until `reset`, or until it was compiled in eight other ways.

    Not for modules, methods and closures: what is captured of them holds what they refer to.
    """
    _, held = _HELD.setdefault(id(code), (code, deque(maxlen=_MOST_HELD)))
    if not any(options is each for each in held):
        held.append(options)


def release() -> None:
    """Keeps nothing of what has no wrapper."""
    _HELD.clear()


def live_options() -> list[CaptureOptions]:
    """All that are held."""
    return list(_SHARED.values())


def reset_backends() -> None:
    """Calls `reset` of every backend that has one, and forgets them."""
    for backend in list(cached_backends.values()):
        if hasattr(backend, "reset"):
            backend.reset()
    cached_backends.clear()
