"""Captured Python stacks: cheap to capture, formatted when they are read.

Counterpart: torch/utils/_traceback.py CapturedTraceback
Differs: pure Python. Finds the user's line also in a program that refimpl interprets, which has no Python frames.
"""

from __future__ import annotations

import contextlib
import contextvars
import dis
import functools
import linecache
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Protocol

import torch

DEEPEST = 64
_TORCH = str(Path(torch.__file__).parent)
_REFIMPL = str(Path(__file__).parent.parent)
_OUR_TESTS = str(Path(_REFIMPL) / "tests")
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
_is_user_code: dict[str, bool] = {}


def is_user_file(filename: str) -> bool:
    """Whether the file is user code: not of torch, refimpl (except its tests) or the standard library."""
    known = _is_user_code.get(filename)
    if known is None:
        inside = filename.startswith(_REFIMPL) and not filename.startswith(_OUR_TESTS)
        is_python = filename.startswith(_STANDARD_LIBRARY) and "site-packages" not in filename
        wraps = filename.endswith("typing_extensions.py")  # wraps torch's deprecated functions
        known = not (inside or is_python or wraps or filename.startswith((_TORCH, "<")))
        _is_user_code[filename] = known
    return known


class Place(Protocol):
    """A line of the user's program."""

    @property
    def file(self) -> str: ...
    @property
    def line(self) -> int: ...
    @property
    def function(self) -> str: ...


_PLACE: contextvars.ContextVar[Callable[[], Place | None]] = contextvars.ContextVar("refimpl_place_in_user_code")


@contextlib.contextmanager
def interpreting(place: Callable[[], Place | None]) -> Iterator[None]:
    """Inside, `place` returns the current line of the user's program; None if it is not known."""
    token = _PLACE.set(place)
    try:
        yield
    finally:
        _PLACE.reset(token)


class Stack:
    """Frames, innermost first. `place` is the line of the user's program, if it was interpreted."""

    __slots__ = ("_frames", "_place")

    def __init__(self, frames: list[tuple[CodeType, int]], place: Place | None = None) -> None:
        self._frames, self._place = frames, place

    @staticmethod
    def capture() -> Stack:
        place = _PLACE.get(None)
        frames: list[tuple[CodeType, int]] = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and len(frames) < DEEPEST:
            frames.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back
        return Stack(frames, None if place is None else place())

    def user_frame(self) -> tuple[str, int, str] | None:
        """File, line and function of the innermost frame of user code."""
        if self._place is not None:
            return self._place.file, self._place.line, self._place.function
        for code, line in self._frames:
            if is_user_file(code.co_filename):
                return code.co_filename, line, code.co_name
        return None

    def user_line(self) -> str:
        """`file:line in function: source`, or "(no frame of user code)"."""
        found = self.user_frame()
        if found is None:
            return "(no frame of user code)"
        file, line, function = found
        return f"{file}:{line} in {function}: {linecache.getline(file, line).strip()}"

    def user_frames(self) -> tuple[tuple[str, int], ...]:
        """File and line of every frame of user code, innermost first: the road on which the program came here."""
        first = () if self._place is None else ((self._place.file, self._place.line),)
        frames = ((code.co_filename, line) for code, line in self._frames)
        return (*first, *(frame for frame in frames if is_user_file(frame[0])))

    def as_trace(self) -> str:
        """The innermost frame of user code in the form of a `stack_trace` of a node; empty if there is none."""
        found = self.user_frame()
        if found is None:
            return ""
        file, line, function = found
        return f'File "{file}", line {line}, in {function}\n    {linecache.getline(file, line).strip()}'

    def summary(self) -> list[str]:
        """All frames as text, outermost first."""
        return [f"{code.co_filename}:{line} in {code.co_name}" for code, line in reversed(self._frames)]

    def __str__(self) -> str:
        return self.user_line()


def asserts_condition() -> bool:
    """Whether the innermost frame of user code evaluates the condition of an `assert` statement."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame is not None and frame.f_lasti in _asserted_conditions(frame.f_code)


@functools.lru_cache(maxsize=256)
def _asserted_conditions(code: CodeType) -> frozenset[int]:
    """The places in the bytecode where an `assert` evaluates its condition: what follows is a jump over the raise."""
    found = set[int]()
    steps = list(dis.get_instructions(code))
    for before, jump, after in zip(steps, steps[1:], steps[2:], strict=False):
        is_jump = jump.opname in ("POP_JUMP_IF_TRUE", "POP_JUMP_FORWARD_IF_TRUE")
        if is_jump and after.opname == "LOAD_ASSERTION_ERROR":
            found.add(jump.offset)
            if before.opname == "TO_BOOL" or (before.opname == "COMPARE_OP" and sys.version_info >= (3, 13)):
                found.add(before.offset)  # which converts to a bool
    return frozenset(found)
