"""Functions of containers as functions of their leaves.

Counterpart: torch/_functorch/_aot_autograd/utils.py create_tree_flattened_fn, PytreeThunk
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from refimpl._torch import pytree

NOTHING: Mapping[int, Any] = MappingProxyType({})


def flattened(
    fn: Callable[..., Any], in_spec: pytree.TreeSpec
) -> tuple[Callable[..., list[Any]], Callable[[], pytree.TreeSpec]]:
    """`fn` on the leaves of (args, kwargs), and what gives the structure of its last result."""
    found: list[pytree.TreeSpec] = []

    def flat(*leaves: Any) -> list[Any]:
        args, kwargs = pytree.tree_unflatten(list(leaves), in_spec)
        results, spec = pytree.tree_flatten(fn(*args, **kwargs))
        found[:] = [spec]
        return results

    return flat, lambda: found[-1]


def leaves_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The leaves of a call; arguments that are all tensors are leaves themselves."""
    if not kwargs and all(map(_is_tensor, args)):
        return list(args)
    return pytree.arg_tree_leaves(*args, **kwargs)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def unflattener(spec: pytree.TreeSpec, plain: Mapping[int, Any] = NOTHING) -> Callable[[list[Any]], Any]:
    """A function that puts leaves into their containers, and `plain` objects at their positions; flat results take no detour."""
    if plain:
        return lambda leaves: pytree.tree_unflatten([plain.get(i, leaf) for i, leaf in enumerate(leaves)], spec)
    if spec.is_leaf():
        return _only
    if spec.type in (tuple, list) and all(child.is_leaf() for child in spec.children()):
        return spec.type
    return lambda leaves: pytree.tree_unflatten(leaves, spec)


def _only(leaves: list[Any]) -> Any:
    return leaves[0]
