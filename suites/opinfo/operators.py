"""Operators: the function that an entry stands for.

Upstream's entries for random operators reset the global seed and restore it around every call (`wrapper_set_seed`), so that its
tests can call them twice. No compiler captures that, the generator's state could not be compared, and here the runner seeds
anyway: those entries get the bare operator instead, which is what the entry hands to `wrapper_set_seed`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from types import FunctionType, MappingProxyType
from typing import Any

import torch

from oracle.errors import InternalError
from suites.opinfo.database import ENTRIES, OpInfo

_RESETTER = "wrapper_set_seed"


def operator_of(info: OpInfo) -> Callable[..., Any]:
    """The function variant."""
    return _operator_of(info.full_name)


def inplace_of(info: OpInfo) -> Callable[..., Any] | None:
    """The in-place variant, None where there is none."""
    inplace = info.get_inplace()
    return None if inplace is None else _inplace_of(info.full_name)


def resets_the_seed(function: Any) -> bool:
    """Whether upstream's function calls a random operator between setting and restoring the seed."""
    return _RESETTER in getattr(getattr(function, "__code__", None), "co_names", ())


@functools.cache
def _operator_of(name: str) -> Callable[..., Any]:
    operator = ENTRIES[name].op
    return (_WRITTEN_ANEW.get(name) or _without_reset(operator)) if resets_the_seed(operator) else operator


@functools.cache
def _inplace_of(name: str) -> Callable[..., Any] | None:
    inplace = ENTRIES[name].get_inplace()
    return _without_reset(inplace) if resets_the_seed(inplace) else inplace


def _without_reset(function: FunctionType) -> Callable[..., Any]:
    """The operator that `function` hands to `wrapper_set_seed` with its own arguments, perhaps with keyword arguments."""
    called: list[Any] = []

    def note(operator: Any, *args: Any, **kwargs: Any) -> None:
        called.append((operator, args, kwargs))

    parameters = inspect.signature(function).parameters.values()
    given = tuple(object() for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD and one.default is one.empty)
    copy = FunctionType(
        function.__code__, {**function.__globals__, _RESETTER: note}, None, function.__defaults__, function.__closure__
    )
    copy(*given)
    ((operator, args, kwargs),) = called
    if args != given or operator.__name__ == "<lambda>":
        raise InternalError(f"{function} does more than to call {operator}: it needs a row in operators._WRITTEN_ANEW")
    return _with_arguments(operator, kwargs) if kwargs else operator


def _with_arguments(operator: Callable[..., Any], bound: Mapping[str, Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return operator(*args, **kwargs, **bound)

    return call


def _svd_lowrank(a: torch.Tensor, b: torch.Tensor, **kwargs: Any) -> Any:
    return torch.svd_lowrank(a @ b.mT, **kwargs)


def _pca_lowrank(a: torch.Tensor, b: torch.Tensor, **kwargs: Any) -> Any:
    return torch.pca_lowrank(a @ b.mT, **kwargs)


def _normal_number_mean(std: torch.Tensor, mean: float, *args: Any, **kwargs: Any) -> torch.Tensor:
    return torch.normal(mean, std, *args, **kwargs)


# Entries whose function does more than to call the operator.
_WRITTEN_ANEW: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "svd_lowrank": _svd_lowrank,
        "pca_lowrank": _pca_lowrank,
        "normal.number_mean": _normal_number_mean,
        "rand_like": torch.rand_like,  # upstream's entry of this name calls randn_like
    }
)
