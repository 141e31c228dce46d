"""Functions of containers as functions of their leaves, and results rebuilt from leaves.

Counterpart: torch/_functorch/_aot_autograd/utils.py create_tree_flattened_fn, PytreeThunk; the reconstruction of outputs in
torch/_dynamo (bytecode)
Differs: results may be Python objects without tensors, such as `torch.finfo`. Upstream's AOT autograd refuses these.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from refimpl._torch import pytree

NOTHING: Mapping[int, Any] = MappingProxyType({})


def flattened(
    fn: Callable[..., Any], in_spec: pytree.TreeSpec
) -> tuple[Callable[..., list[Any]], Callable[[], pytree.TreeSpec]]:
    """`fn` as a function of the leaves of (args, kwargs), and a function that returns the structure of its last result."""
    found: list[pytree.TreeSpec] = []

    def flat(*leaves: Any) -> list[Any]:
        args, kwargs = pytree.tree_unflatten(list(leaves), in_spec)
        results, spec = pytree.tree_flatten(fn(*args, **kwargs))
        found[:] = [spec]
        return results

    return flat, lambda: found[-1]


def leaves_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The leaves of a call. If all arguments are tensors, these are the leaves."""
    if not kwargs and all(map(_is_tensor, args)):
        return list(args)
    return pytree.arg_tree_leaves(*args, **kwargs)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def unflattener(spec: pytree.TreeSpec, plain: Mapping[int, Any] = NOTHING) -> Callable[[list[Any]], Any]:
    """A function that rebuilds a result from leaves, with `plain` objects at their positions. Flat results skip pytree."""
    if plain:
        return lambda leaves: pytree.tree_unflatten([plain.get(i, leaf) for i, leaf in enumerate(leaves)], spec)
    if spec.is_leaf():
        return _only
    if spec.type in (tuple, list) and all(child.is_leaf() for child in spec.children()):
        return spec.type
    return lambda leaves: pytree.tree_unflatten(leaves, spec)


def _only(leaves: list[Any]) -> Any:
    return leaves[0]


# Results that a graph does not return: Python objects without tensors, and torch.Size, which pytree turns into a tuple.

# Types of constants without tensors: every run returns the object that the trace returned.
_PLAIN = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.NotImplementedType,
    enum.Enum,
    range,
    bytes,
    torch.finfo,
    torch.iinfo,
)


class _Size(list[Any]):
    """Replaces torch.Size in the structure of a result."""


pytree.register_pytree_node(_Size, lambda size: (list(size), None), lambda numbers, _: torch.Size(list(numbers)))


def split_plain(leaves: Sequence[Any]) -> tuple[list[Any], dict[int, Any]]:
    """The leaves that the graph returns, with None for plain objects, and the plain objects by position."""
    plain = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, _PLAIN)}
    return [None if i in plain else leaf for i, leaf in enumerate(leaves)], plain


def with_sizes(spec: pytree.TreeSpec) -> pytree.TreeSpec:
    """The structure, changed so that it rebuilds a torch.Size as one. The same object if it has none."""
    if spec.is_leaf():
        return spec
    children = spec.children()
    mended = [with_sizes(child) for child in children]
    if spec.type is torch.Size:
        return pytree.TreeSpec(_Size, spec.context, mended)
    if all(new is old for new, old in zip(mended, children, strict=True)):
        return spec
    return pytree.TreeSpec(spec.type, spec.context, mended)
