"""Times a model, and converts one to TorchScript.

Counterpart: torch/_dynamo/utils.py timed, torchscript
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Sequence
from typing import Any

import torch

from refimpl.upstream.predicates import is_jit_model

_LOG = logging.getLogger(__name__)
_SEED = 1337


def is_on_cuda(value: Any) -> bool:
    """Whether the value is or contains a CUDA tensor, in containers or as a module's parameter."""
    if isinstance(value, torch.Tensor):
        return value.is_cuda
    if isinstance(value, torch.nn.Module):
        return any(map(is_on_cuda, value.parameters()))
    if isinstance(value, dict):
        return any(map(is_on_cuda, value.values()))
    return isinstance(value, (list, tuple)) and any(map(is_on_cuda, value))


def timed(model: Any, example_inputs: Sequence[Any], times: int = 1) -> tuple[Any, float]:
    """The result of the last of `times` calls, and the seconds that all of them took. The random seed is fixed."""
    waits = is_on_cuda(example_inputs) or is_on_cuda(model)
    _settle(waits)
    gc.collect()
    torch.manual_seed(_SEED)
    began = time.perf_counter()
    result = None
    for _ in range(times):
        result = model(*example_inputs)
        _settle(waits)
    return result, time.perf_counter() - began


def _settle(waits: bool) -> None:
    if waits:
        torch.cuda.synchronize()


def torchscript(model: Any, example_inputs: Any, verbose: bool = False) -> Any:
    """Trace the model to TorchScript, or script it if tracing fails. A TorchScript model is returned unchanged.

    If both fail, both errors are logged (at level ERROR if `verbose`, else INFO), and None is returned.
    """
    if is_jit_model(model):
        return model
    failures: list[str] = []
    ways = (lambda: torch.jit.trace(model, example_inputs), lambda: torch.jit.script(model))
    for way, convert in zip(("trace", "script"), ways, strict=True):
        try:
            return convert()
        except Exception as error:  # whatever the model, or TorchScript's compiler, raises
            failures.append(f"{way}: {error}")
    level = logging.ERROR if verbose else logging.INFO
    _LOG.log(level, "the model can be neither traced nor scripted\n  %s", "\n  ".join(failures))
    return None
