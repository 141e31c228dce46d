"""The table of captured functions: equal calls of `compile` share segments, and `reset` finds all of them.

Counterpart: the cache on code objects of torch/csrc/dynamo/extra_state.cpp; torch/_dynamo/eval_frame.py cached_backends
Differs: the table is keyed by code, backend and options; nothing is attached to code objects.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Hashable
from types import CodeType
from typing import Any

from refimpl.capture.captured import CaptureOptions
from refimpl.capture.repro.backend import innermost_backend

_MOST_HELD = 8  # per code: a program may make a new backend for each call of `compile`
# id of code -> its options. They outlive the wrappers, so that compiling the function again finds its segments.
_HELD: dict[int, tuple[CodeType, deque[CaptureOptions]]] = {}
_SHARED: weakref.WeakValueDictionary[Hashable, CaptureOptions] = weakref.WeakValueDictionary()
# Backends used since the last reset, by identity.
cached_backends: dict[int, Any] = {}


def options_for(
    backend: Callable[..., Any], *, fullgraph: bool, dynamic: bool | None, recompile_limit: int | None, hooks: Any
) -> CaptureOptions:
    """Options with this content: the same object as long as something holds it."""
    given = innermost_backend(backend)
    cached_backends.setdefault(id(given), given)
    name = getattr(backend, "compiler_name", None)
    key = (id(given), name, fullgraph, dynamic, recompile_limit, *map(id, hooks))
    made = _SHARED.get(key)
    if made is None:
        made = CaptureOptions(backend=backend, fullgraph=fullgraph, dynamic=dynamic, recompile_limit=recompile_limit)
        made.guard_export_fn, made.guard_fail_fn, made.guard_filter_fn = hooks
        made.wraps_errors = True
        _SHARED[key] = made
    return made


def hold(code: CodeType, options: CaptureOptions) -> None:
    """Keeps a function's segments after its wrapper is gone, until `reset` or until it was compiled in eight other ways.

    Not for modules, methods and closures: their segments keep other objects alive.
    """
    _, held = _HELD.setdefault(id(code), (code, deque(maxlen=_MOST_HELD)))
    if not any(options is each for each in held):
        held.append(options)


def release() -> None:
    """Forgets the options that are kept without a wrapper."""
    _HELD.clear()


def live_options() -> list[CaptureOptions]:
    """All options that are alive."""
    return list(_SHARED.values())


def reset_backends() -> None:
    """Calls `reset` of every backend that has one, and forgets the backends."""
    for backend in list(cached_backends.values()):
        if hasattr(backend, "reset"):
            backend.reset()
    cached_backends.clear()
