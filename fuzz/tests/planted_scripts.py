"""Backends with one bug each, for kinds of symptoms that `planted_bugs` lacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_GRAPHS: list[Callable[..., Any]] = []


def _instead_of(gm: torch.fx.GraphModule, name: str, instead: Callable[..., Any]) -> Callable[..., Any]:
    for node in gm.graph.nodes:
        if node.op == "call_function" and getattr(node.target, "__name__", "") == name:
            node.target = instead
    gm.recompile()
    return gm.forward


def first_graph(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """Every later graph is the first one."""
    _GRAPHS.append(gm.forward)
    return _GRAPHS[0]


def lost_history(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """acos is detached."""
    return _instead_of(gm, "acos", lambda x: torch.acos(x).detach())


def other_dtype(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """ceil gives float64."""
    return _instead_of(gm, "ceil", lambda x: torch.ceil(x).double())


def lost_sign(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """trunc gives zeros without a sign."""
    return _instead_of(gm, "trunc", lambda x: torch.trunc(x) + 0.0)


def draws(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """frac draws a random number, which nobody uses."""

    def drawing(x: torch.Tensor) -> torch.Tensor:
        torch.rand(())
        return torch.frac(x)

    return _instead_of(gm, "frac", drawing)


def weighted(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """A linear layer gives twice its result."""
    return lambda *args: [2 * result for result in gm(*args)]
