"""The Python functions that a call enters, which tell a longer way without timing it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def frames_of(call: Callable[[], Any]) -> list[str]:
    """File and name of each Python function that a call enters, in order. Comprehensions are none: 3.12 inlines them."""
    found: list[str] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        name = frame.f_code.co_name
        if event == "call" and name not in ("<listcomp>", "<setcomp>", "<dictcomp>"):
            found.append(f"{frame.f_code.co_filename}.{name}")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return found[1:]  # without `call` itself


def own_frames(call: Callable[[], Any]) -> list[str]:
    """Those of refimpl, and of code that it generates for a check."""
    return [
        name for name in frames_of(call) if ("/refimpl/" in name and "/tests/" not in name) or name.startswith("<check")
    ]
