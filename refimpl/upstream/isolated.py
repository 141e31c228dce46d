"""make_fx inside another trace that does not record it, and make_fx of a call with keyword arguments.

Counterpart: torch/fx/experimental/proxy_tensor.py get_isolated_graphmodule, wrapper_and_args_for_make_fx
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from refimpl._torch import pytree
from refimpl.trace.make_fx import make_fx
from refimpl.trace.options import DecompositionTable
from refimpl.trace.recording_mode import paused_recordings

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class _OfLeaves(Generic[R]):
    """A function that takes its arguments as one list of leaves. `spec` is the pytree of (args, kwargs)."""

    function: Callable[..., R]
    spec: pytree.TreeSpec

    def __call__(self, leaves: list[object]) -> R:
        positional, named = self.spec.unflatten(leaves)
        return self.function(*positional, **named)


def wrapper_and_args_for_make_fx(
    func: Callable[..., R], args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[Callable[[list[object]], R], list[object]]:
    """A call without keyword arguments, which make_fx does not take: a function of one list of leaves, and that list."""
    spec = pytree.tree_structure((args, kwargs))
    return _OfLeaves(func, spec), pytree.tree_leaves((args, kwargs))


def get_isolated_graphmodule(
    func: Callable[..., Any],
    args: tuple[object, ...],
    kwargs: dict[str, object],
    tracing_mode: str = "real",
    decomposition_table: DecompositionTable | None = None,
) -> torch.fx.GraphModule:
    """Trace `func(*args, **kwargs)` into a graph that takes one list of all leaves of `args` and `kwargs`.

    A trace that is active records nothing of this. Raises what `make_fx` raises.
    """
    with paused_recordings():
        call, leaves = wrapper_and_args_for_make_fx(func, args, kwargs)
        trace = make_fx(call, decomposition_table=decomposition_table, tracing_mode=tracing_mode)
        return trace(leaves)
