"""Inputs of a graph that are lists: flattened for a compiler, and given back to the graph nested.

Counterpart: torch/_dynamo/utils.py flatten_graph_inputs, GmWrapper, get_locals_to_steal, set_locals_to_steal
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from refimpl._torch import pytree

_STOLEN = "locals_to_steal"


class GmWrapper(torch.nn.Module):
    """A graph module that takes flat inputs. `unflatten_fn` gives, of their tuple, the inputs of the graph."""

    def __init__(self, gm: Any, unflatten_fn: Callable[[Sequence[Any]], Any]) -> None:
        super().__init__()
        self.gm, self.unflatten_fn = gm, unflatten_fn

    def forward(self, *leaves: Any) -> Any:
        nested = self.unflatten_fn(leaves)
        return self.gm(*nested)


def set_locals_to_steal(maybe_gm: Any, locals_to_steal: Sequence[str]) -> None:
    """Notes which list inputs may be emptied by the call. Only on what has `meta`."""
    if hasattr(maybe_gm, "meta"):
        maybe_gm.meta[_STOLEN] = list(locals_to_steal)


def get_locals_to_steal(maybe_gm: Any) -> list[str]:
    """Which may."""
    return list(getattr(maybe_gm, "meta", {}).get(_STOLEN, []))


def flatten_graph_inputs(gm: Any, inputs: Sequence[Any], compile_gm: Callable[..., Any]) -> Callable[..., Any]:
    """What `compile_gm(module, flat inputs)` gives, called with nested inputs of the same structure, which is not checked again.

    Lists that may be stolen are emptied once they are flattened, so that what is computed first can free them.
    """
    names = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
    stolen = [names.index(name) for name in get_locals_to_steal(gm) if name in names]
    flat, spec = pytree.tree_flatten(list(inputs))
    compiled = compile_gm(GmWrapper(gm, lambda leaves: pytree.tree_unflatten(list(leaves), spec)), flat)

    def call(*args: Any) -> Any:
        leaves = pytree.tree_leaves(list(args))
        for place in stolen:
            if isinstance(args[place], list):
                args[place].clear()
        return compiled(*leaves)

    return call
