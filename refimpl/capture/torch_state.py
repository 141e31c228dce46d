"""The state of torch that a graph depends on without being given it: one tuple, which a guard compares.

Counterpart: torch/_dynamo/guards.py GLOBAL_STATE; torch/csrc/dynamo/guards.cpp GlobalStateGuard
"""

from __future__ import annotations

from typing import Any

import torch

from refimpl._torch import modes_on

_DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


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
