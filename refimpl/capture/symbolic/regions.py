"""Regions in another state of torch: `with torch.autocast(...)` and `with torch.inference_mode()`, as nodes at their ends.

Counterpart: torch/_dynamo/variables/ctx_manager.py AutocastModeVariable, InferenceModeVariable
Differs: a region that a graph break finds open is not captured: the segment ends before it; those in it begin in its state.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from refimpl._torch import enter_autocast, enter_inference_mode, exit_autocast, exit_inference_mode
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.symbolic.base import SymbolicBase
from refimpl.capture.symbolic.values import ConstantValue, RegionValue, Value

Arguments = Callable[..., tuple[Any, ...]]


def _of_autocast(
    device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None
) -> tuple[Any, ...]:
    return device_type, dtype, enabled, cache_enabled


def _of_cpu_autocast(
    enabled: bool = True, dtype: Any = torch.bfloat16, cache_enabled: bool | None = True
) -> tuple[Any, ...]:
    return "cpu", dtype, enabled, cache_enabled


def _of_cuda_autocast(
    enabled: bool = True, dtype: Any = torch.float16, cache_enabled: bool | None = True
) -> tuple[Any, ...]:
    return "cuda", dtype, enabled, cache_enabled


def _of_inference_mode(mode: bool = True) -> tuple[Any, ...]:
    return (mode,)


_AUTOCAST = (enter_autocast, exit_autocast)
_REGIONS: dict[int, tuple[Arguments, Any, Any]] = {
    id(torch.autocast): (_of_autocast, *_AUTOCAST),
    id(torch.cpu.amp.autocast): (_of_cpu_autocast, *_AUTOCAST),
    id(torch.cuda.amp.autocast): (_of_cuda_autocast, *_AUTOCAST),
    id(torch.inference_mode): (_of_inference_mode, enter_inference_mode, exit_inference_mode),
}


class SymbolicRegions(SymbolicBase):
    """Their beginnings and ends."""

    def region(self, class_: Any, args: list[Any], kwargs: dict[str, Any]) -> RegionValue | None:
        """A call of a class whose instances are such regions; None for other classes."""
        found = _REGIONS.get(id(class_))
        if found is None:
            return None
        arguments, enter, exit_ = found
        plain = [self.constant_of(arg, class_.__name__) for arg in args]
        named = {name: self.constant_of(arg, class_.__name__) for name, arg in kwargs.items()}
        try:
            inspect.signature(arguments).bind(*plain, **named)
        except TypeError as error:
            raise GraphBreak("op_raises_on_fake", what=class_.__name__, error="TypeError") from error
        return RegionValue(class_, arguments(*plain, **named), enter, exit_)

    def enter_region(self, region: RegionValue) -> Value:
        """`__enter__`, on the state of torch and in the graph."""
        if region.context is not None:
            raise GraphBreak("unsupported_operation", what="a second `with`", kind=region.kind)
        if self.state.inference_mode and region.enter is enter_inference_mode and not region.args[0]:
            # The graph would run in inference mode, where no result has a gradient: what is in the region begins in its state.
            raise GraphBreak("unsupported_operation", what="leaving inference mode", kind=region.kind)
        try:
            region.context = region.enter(*region.args)
        except Exception as error:
            raise GraphBreak("op_raises_on_fake", what=region.kind, error=type(error).__name__) from error
        region.node = self.state.enter_region(region)
        return region

    def leave_region(self, region: RegionValue) -> Value:
        """`__exit__`, whatever it is given."""
        if region.context is None or self.state.open_regions[-1][0] is not region:
            raise GraphBreak("unsupported_operation", what="__exit__", kind=region.kind)
        self.state.leave_region()
        return ConstantValue(None)
