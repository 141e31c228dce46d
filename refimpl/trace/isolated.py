"""Traces that leave no mark on the trace they are made in, and keyword arguments for make_fx.

Counterpart: torch/fx/experimental/proxy_tensor.py get_isolated_graphmodule, wrapper_and_args_for_make_fx
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from refimpl._torch import pytree
from refimpl.trace.make_fx import make_fx
from refimpl.trace.options import DecompositionTable
from refimpl.trace.recording_mode import paused_recordings

R = TypeVar("R")


def wrapper_and_args_for_make_fx(
    func: Callable[..., R], args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[Callable[[list[object]], R], list[object]]:
    """A function of one flat list, and that list: make_fx takes no keyword arguments."""
    leaves, spec = pytree.tree_flatten((args, kwargs))

    def wrapped(flat_args: list[object]) -> R:
        unflattened_args, unflattened_kwargs = pytree.tree_unflatten(flat_args, spec)
        return func(*unflattened_args, **unflattened_kwargs)

    return wrapped, leaves


def get_isolated_graphmodule(
    func: Callable[..., Any],
    args: tuple[object, ...],
    kwargs: dict[str, object],
    tracing_mode: str = "real",
    decomposition_table: DecompositionTable | None = None,
) -> torch.fx.GraphModule:
    """The graph of `func(*args, **kwargs)` as a function of one list of all leaves of `args` and `kwargs`.

    Inside of a trace nothing that happens here is recorded by it. Raises what `make_fx` raises.
    """
    wrapped, leaves = wrapper_and_args_for_make_fx(func, args, kwargs)
    with paused_recordings():
        return make_fx(wrapped, decomposition_table=decomposition_table, tracing_mode=tracing_mode)(leaves)
