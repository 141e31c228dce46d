"""The first call of a program's plan as a function that can be called again and again, to measure its time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from oracle.observe.flatten import flatten
from oracle.program.build import Instance

_GRAD_MODES = {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}


def repeated_call(
    instance: Instance, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[], None]:
    """A function that calls `target`, which is the instance's own or a compiled one, and differentiates if the plan does."""
    call = instance.program.calls[0]
    grad_mode = _GRAD_MODES[call.grad_mode]

    def run() -> None:
        with grad_mode():
            given, given_kwargs, _ = instance.arguments(args, kwargs)
            result = target(*given, **given_kwargs)
            if call.backward:
                roots = [
                    leaf.value
                    for leaf in flatten(result, "")[0]
                    if isinstance(leaf.value, torch.Tensor) and leaf.value.requires_grad
                ]
                torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])

    return run
