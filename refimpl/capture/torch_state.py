"""The state of torch that a graph depends on without being given it: one tuple, which a guard compares.

Counterpart: torch/_dynamo/guards.py GLOBAL_STATE; torch/csrc/dynamo/guards.cpp GlobalStateGuard
"""

from __future__ import annotations

from typing import Any

import torch

from refimpl._torch import modes_on

_DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def autocast_state() -> tuple[Any, ...]:
    """What `restore_autocast` takes."""
    torch.autocast_increment_nesting()
    nesting = torch.autocast_decrement_nesting()
    devices = [(device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in _DEVICES]
    return nesting, torch.is_autocast_cache_enabled(), devices


def restore_autocast(state: tuple[Any, ...]) -> None:
    """Ends the regions of autocast that were entered since, where what runs them was left by an exception."""
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


def torch_state() -> tuple[Any, ...]:
    """Grad and inference mode, autocast of each device, default dtype and device, determinism, modes on the stacks."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        *((torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in _DEVICES),
        torch.is_autocast_cache_enabled(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        modes_on(),
        torch.get_num_threads(),
    )
