"""Compiles a graph with nested inputs, such as lists, by a compiler that takes flat inputs.

Counterpart: torch/_dynamo/utils.py flatten_graph_inputs, GmWrapper, get_locals_to_steal, set_locals_to_steal
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from refimpl._torch import pytree

_STOLEN = "locals_to_steal"


class GmWrapper(torch.nn.Module):
    """A graph module with flat inputs. `unflatten_fn` turns the tuple of them into the graph's nested inputs."""

    takes_list = True  # `aot_module_simplified` gives a function of one list, which it empties

    def __init__(self, gm: Any, unflatten_fn: Callable[[Sequence[Any]], Any]) -> None:
        super().__init__()
        self.gm, self.unflatten_fn = gm, unflatten_fn

    def forward(self, *leaves: Any) -> Any:
        nested = self.unflatten_fn(leaves)
        return self.gm(*nested)


def set_locals_to_steal(maybe_gm: Any, locals_to_steal: Sequence[str]) -> None:
    """Record in `meta` the names of list inputs that a call may empty. An object without `meta` is left unchanged."""
    if hasattr(maybe_gm, "meta"):
        maybe_gm.meta[_STOLEN] = list(locals_to_steal)


def get_locals_to_steal(maybe_gm: Any) -> list[str]:
    """The names of list inputs that a call may empty."""
    return list(getattr(maybe_gm, "meta", {}).get(_STOLEN, []))


def flatten_graph_inputs(gm: Any, inputs: Sequence[Any], compile_gm: Callable[..., Any]) -> Callable[..., Any]:
    """Compile by `compile_gm(module, flat inputs)`. The result takes nested inputs; their structure is not checked again.

    Lists that may be emptied are, after they are flattened, so that their tensors can be freed during the call.
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
        if not getattr(compiled, "_boxed_call", False):
            return compiled(*leaves)
        del args
        return compiled(leaves)

    return call
