"""Modules as functions of their parameters and buffers.

Counterpart: torch/_functorch/_aot_autograd/graph_capture_wrappers.py create_functional_call
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.func import functional_call


def parameters_and_buffers(mod: torch.nn.Module) -> dict[str, torch.Tensor]:
    """By name, parameters first; one that is reachable by two names is there twice."""
    return {
        **dict(mod.named_parameters(remove_duplicate=False)),
        **dict(mod.named_buffers(remove_duplicate=False)),
    }


def functional_call_of(mod: torch.nn.Module, names: Sequence[str]) -> Callable[..., Any]:
    """A function of (values in the order of `names`, args, kwargs) that runs `mod` with the values in the place of its own."""

    def call(values: Sequence[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return functional_call(mod, dict(zip(names, values, strict=True)), tuple(args), kwargs, tie_weights=False)

    return call
