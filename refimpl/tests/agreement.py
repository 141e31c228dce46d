"""Compiled ahead of time and run as it is, a program gives its caller the same to see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refimpl.pipeline import compile_aot
from refimpl.tests.corpus import compare


def assert_agrees(function: Callable[..., Any], make: compare.MakeFresh, *, calls: int = 1, **options: Any) -> None:
    """`make` gives (sources of gradients, arguments), new ones at every call; `options` are those of `compile_aot`."""
    __tracebackhide__ = True
    compare.assert_agrees(function, compile_aot(function, **options), make, calls=calls)
