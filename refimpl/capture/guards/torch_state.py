"""Global state of torch on which a graph depends: one tuple, which a guard compares.

Counterpart: torch/_dynamo/guards.py GLOBAL_STATE; torch/csrc/dynamo/guards.cpp GlobalStateGuard
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from refimpl._torch import (
    AUTOCAST_DEVICES,
    dispatch_modes_on,
    forward_mode_level,
    function_modes_on,
    functions_may_be_overridden,
    is_any_autocast_enabled,
    overrides_are_off,
)


def autocast_state() -> tuple[Any, ...]:
    """Autocast: nesting depth, whether casts are cached, and for each device whether it is on and its dtype."""
    torch.autocast_increment_nesting()
    nesting = torch.autocast_decrement_nesting()
    devices = [
        (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in AUTOCAST_DEVICES
    ]
    return nesting, torch.is_autocast_cache_enabled(), devices


def restore_autocast(state: tuple[Any, ...]) -> None:
    """Leaves the autocast regions that were entered since, because an exception has left the code that would leave them."""
    nesting, is_cached, devices = state
    torch.autocast_increment_nesting()
    while torch.autocast_decrement_nesting() > nesting:
        pass
    if not nesting:
        torch.clear_autocast_cache()
    torch.set_autocast_cache_enabled(is_cached)
    for device, is_on, dtype in devices:
        torch.set_autocast_enabled(device, is_on)
        torch.set_autocast_dtype(device, dtype)


def determinism() -> tuple[bool, bool]:
    """Whether operators must be deterministic, and whether those that are not only warn."""
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModesAtTheEnd:
    """The modes that a segment ends with, where they differ from those at its entry."""

    grad_mode: bool | None
    determinism: tuple[bool, bool] | None


def torch_state() -> tuple[Any, ...]:
    """The state that `state_condition` compares."""
    return tuple(read() for read in _READERS)


def state_condition(seen: tuple[Any, ...], constant: Callable[[Any], str]) -> str:
    """A Python expression that is true if `torch_state()` returns this. Each part calls a C function."""
    parts = []
    for read, value in zip(_READERS, seen, strict=True):
        is_singleton = (value in (True, False) and type(value) is bool) or isinstance(value, torch.dtype)
        sign = "is" if is_singleton else "=="
        shown = repr(value) if type(value) in (bool, int) else constant(value)
        parts.append(f"{constant(read)}() {sign} {shown}")
    return " and ".join(parts)


# Grad and inference mode, autocast, default dtype, determinism, active modes, threads, forward-mode AD.
_READERS: tuple[Callable[[], Any], ...] = (
    torch.is_grad_enabled,
    torch.is_inference_mode_enabled,
    is_any_autocast_enabled,
    torch.get_default_dtype,
    torch.are_deterministic_algorithms_enabled,
    torch.is_deterministic_algorithms_warn_only_enabled,
    function_modes_on,
    dispatch_modes_on,
    functions_may_be_overridden,
    overrides_are_off,
    torch.get_num_threads,
    forward_mode_level,
)
