"""The models with their inputs, for benchmarks: functions by name that build a model when they are called."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

from suites.models.catalog import ARCHITECTURES
from suites.models.zoo import build, make_inputs

Example = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


def examples() -> dict[str, Callable[[], Example]]:
    """Name of an architecture -> a function that makes (module in eval mode, args, kwargs), float32 on the CPU."""
    return {name: functools.partial(example, name) for name in ARCHITECTURES}


def example(name: str) -> Example:
    """Make one example. Raises UsageError if the model needs transformers and it is not installed."""
    args, kwargs = make_inputs(name, mode="eval", dtype="float32", device="cpu", call=0)
    return build(name, mode="eval", dtype="float32", device="cpu").eval(), args, dict(kwargs)
