"""Tracebacks that show the user's functions and lines and leave out the interpreter.

Counterpart: torch/_dynamo/exc.py augment_exc_message
Differs: an exception has the traceback that it would have in CPython.
"""

from __future__ import annotations
import __future__

import dis
import functools
import operator
import sys
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any

from refimpl.capture.interpreter.frame import FrameState

_FUTURE = functools.reduce(
    operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)
_HAS_POSITIONS = sys.version_info >= (3, 11)
_PACKAGE = __name__.rpartition(".")[0]
_CAPTURE = _PACKAGE.rpartition(".")[0] + "."
_MARK = "interpreted_call"  # first local variable of the frames that `caller` makes


def _never_run():
    yield


# On one line, so that all of it is at the first line, which is replaced by the user's.
_ONE_LINE_CALL: dict[str, Any] = {}
exec(f"def call({_MARK}, args, kwargs): return {_MARK}(*args, **kwargs)", _ONE_LINE_CALL)
_CALL_CODE: CodeType = _ONE_LINE_CALL["call"].__code__
_GENERATOR_CODE = _never_run.__code__


def _named_like(code: CodeType, user: CodeType, line: int) -> CodeType:
    changes: dict[str, Any] = {
        "co_name": user.co_name,
        "co_filename": user.co_filename,
        "co_firstlineno": line,
        # `eval`, `exec` and `compile` use the `__future__` flags of the caller's file.
        "co_flags": code.co_flags & ~_FUTURE | user.co_flags & _FUTURE,
    }
    if hasattr(user, "co_qualname"):
        changes["co_qualname"] = getattr(user, "co_qualname")
    return code.replace(**changes)


def shown_frame(frame: FrameState) -> FrameType:
    """A real frame with the name, file and globals of the user's frame. It belongs to a generator that never runs."""
    if frame.shown is None:
        frame.shown = FunctionType(_shown_code(frame.code.code), frame.globals)().gi_frame
    assert frame.shown is not None
    return frame.shown


def _shown_code(user: CodeType) -> CodeType:
    """A generator's code with the user's positions, so that a traceback can mark the part of a line."""
    code = _named_like(_GENERATOR_CODE, user, user.co_firstlineno)
    if not _HAS_POSITIONS:
        return code
    filling = bytes([dis.opmap["NOP"], 0]) * ((len(user.co_code) - len(code.co_code)) // 2)
    return code.replace(co_code=code.co_code + filling, co_linetable=user.co_linetable)


def with_entry(traceback: TracebackType | None, frame: FrameState) -> TracebackType:
    """The traceback with an entry for the frame."""
    lasti = frame.current.offset if frame.is_started and _HAS_POSITIONS else -1
    return TracebackType(traceback, shown_frame(frame), lasti, frame.line())


def without_interpreter(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback without the entries of this package, and without those of a call of a captured function. An error of capture
    itself keeps the latter.
    """
    entries: list[TracebackType] = []
    entry = traceback
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    kept = [entry for entry in entries if not _is_ours(entry.tb_frame)]
    if kept and not _is_of_capture(kept[-1].tb_frame):
        kept = [entry for entry in kept if not _is_of_capture(entry.tb_frame)]
    if len(kept) == len(entries):
        return traceback
    chain: TracebackType | None = None
    for entry in reversed(kept):
        if entry.tb_next is not chain:
            entry = TracebackType(chain, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
        chain = entry
    return chain


def _is_ours(frame: FrameType) -> bool:
    if frame.f_code.co_varnames[:1] == (_MARK,):
        return True
    return str(frame.f_globals.get("__name__", "")).startswith(_PACKAGE)


def _is_of_capture(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith(_CAPTURE)


# By code object and line. The values keep the code objects alive.
_CALLERS: dict[tuple[int, int], tuple[CodeType, CodeType]] = {}
_MOST_CALLERS = 8192


def caller(frame: FrameState) -> FunctionType:
    """A function that calls another one from a frame that looks like the user's at the current line.

    Functions that inspect their caller (warnings, namedtuple, logging) find the user's module and line.
    """
    user, line = frame.code.code, frame.line()
    known = _CALLERS.get((id(user), line))
    if known is None:
        if len(_CALLERS) >= _MOST_CALLERS:
            _CALLERS.clear()
        known = _CALLERS[id(user), line] = user, _named_like(_CALL_CODE, user, line)
    return FunctionType(known[1], frame.globals)
