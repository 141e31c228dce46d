"""Keeps what a program prints out of a command's output: it runs some dozen times, and the report would be lost in it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def without_prints() -> Iterator[None]:
    """A context in which `print` shows nothing, in forked processes too."""
    with open(os.devnull, "w", encoding="utf-8") as nothing, contextlib.redirect_stdout(nothing):
        yield
