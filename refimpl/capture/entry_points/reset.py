"""Removes captured segments.

Counterpart: torch/_dynamo/__init__.py reset; torch/_dynamo/eval_frame.py remove_from_cache, _debug_get_cache_entry_list
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import torch

from refimpl.capture.captured import CapturedCode
from refimpl.capture.entry_points.contexts import innermost_fn
from refimpl.capture.entry_points.options_table import live_options, release, reset_backends
from refimpl.capture.segment import Segment

_LOG = logging.getLogger(__name__)


def reset() -> None:
    """Removes all segments, so that every function is captured again at its next call. Resets backends that have a `reset`."""
    for options in live_options():
        for captured in options.functions.values():
            captured.cache.clear()
        options.breaks.clear()
    release()
    reset_backends()


def remove_from_cache(f: Any) -> None:
    """Removes the segments of one function: a code object, a function, or an object whose `forward` has code. For others, all
    segments.
    """
    code = _code_of(f)
    if code is None:
        _LOG.warning("could not determine __code__ for %s", f)
        reset()
        return
    for captured in _captured_of(code):
        captured.cache.clear()


def cache_entries(code_or_callable: Any) -> list[Segment]:
    """The segments of a function. Raises TypeError for an object without code."""
    code = _code_of(code_or_callable)
    if code is None:
        raise TypeError(f"{code_or_callable!r} has no code\n  expected a code object! A function of Python has one")
    return [segment for captured in _captured_of(code) for segment in captured.cache.segments()]


def _captured_of(code: CodeType) -> Iterator[CapturedCode]:
    for options in live_options():
        for captured in options.functions.values():
            if captured.code is code:
                yield captured


def _code_of(f: Any) -> CodeType | None:
    f = innermost_fn(f)
    if isinstance(f, CodeType):
        return f
    if not isinstance(f, (FunctionType, torch.nn.Module)):
        f = getattr(f, "__func__", f)
    code = getattr(f, "__code__", None) or getattr(getattr(f, "forward", None), "__code__", None)
    return code if isinstance(code, CodeType) else None
