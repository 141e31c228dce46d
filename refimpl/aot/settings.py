"""What holds for every ahead-of-time compile and export within a block, whoever asks for it.

Counterpart: torch/_functorch/config.py functionalize_rng_ops
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class AOTSettings:
    """functionalize_rng_ops: random ops become functions of the generator's state, an input of the graph (refimpl.aot.rng)."""

    functionalize_rng_ops: bool = False


_SETTINGS: contextvars.ContextVar[AOTSettings] = contextvars.ContextVar("refimpl_aot_settings")
_DEFAULT = AOTSettings()


def current_settings() -> AOTSettings:
    """Those of the innermost `aot_settings`."""
    return _SETTINGS.get(_DEFAULT)


@contextlib.contextmanager
def aot_settings(**changes: Any) -> Iterator[AOTSettings]:
    """Within it these fields are changed."""
    settings = replace(current_settings(), **changes)
    token = _SETTINGS.set(settings)
    try:
        yield settings
    finally:
        _SETTINGS.reset(token)
