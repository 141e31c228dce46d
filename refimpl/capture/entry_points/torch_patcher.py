"""Marks functions of torch that capture skips: other tracers, fused optimizers, optimizer steps that cannot be captured.

Counterpart: torch/_dynamo/eval_frame.py TorchPatcher
Differs: the functions themselves are marked, not replaced, so earlier references to them are marked as well.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import fx

from refimpl._torch import jit_get_trace_graph

_DISABLED = "_torchdynamo_disable"  # upstream's name; recognition.py reads it
_Result = TypeVar("_Result")
# Optimizers with sparse gradients, or whose `step` runs backward.
_STEPS = (torch.optim.SparseAdam, torch.optim.LBFGS)


class TorchPatcher:
    """Changes to torch that a capturing context makes once."""

    @staticmethod
    @functools.cache
    def patch() -> None:
        """Marks the functions. Also turns off the argument checks of distributions, as upstream does: a check reads data."""
        for function in _functions():
            setattr(function, _DISABLED, True)
        torch.distributions.Distribution.set_default_validate_args(False)

    @staticmethod
    def suppress_torch_distributed_warnings(fn: Callable[..., _Result]) -> Callable[..., _Result]:
        """Wraps `fn` so that UserWarnings of torch.distributed are suppressed during the call."""

        @functools.wraps(fn)
        def quiet(*args: Any, **kwargs: Any) -> _Result:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\.distributed")
                return fn(*args, **kwargs)

        return quiet


def _functions() -> Iterator[Any]:
    yield from (torch.jit.trace, torch.jit.trace_module, jit_get_trace_graph, fx.Tracer.trace)
    for found in pkgutil.iter_modules(torch.optim.__path__):
        module = importlib.import_module(f"{torch.optim.__name__}.{found.name}")
        fused = getattr(module, f"_fused_{found.name.removeprefix('_')}", None)
        if fused is not None:
            yield fused
    for class_ in vars(torch.optim).values():
        if not isinstance(class_, type) or not issubclass(class_, torch.optim.Optimizer):
            continue
        if class_ in _STEPS:
            yield class_.step
        if hasattr(class_, "_init_group"):
            yield getattr(class_, "_init_group")
