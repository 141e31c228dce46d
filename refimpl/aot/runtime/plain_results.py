"""Results of a program that no graph gives: Python objects without tensors, and sizes, which pytree gives back as tuples.

Counterpart: the reconstruction of outputs in torch/_dynamo (bytecode); upstream's AOT autograd refuses such results
"""

from __future__ import annotations

import enum
import types
from collections.abc import Sequence
from typing import Any

import torch

from refimpl._torch import pytree

# Values that hold no tensor and never change: what the trace saw is what every run gives.
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
    """Stands for a torch.Size in the structure of a result."""


pytree.register_pytree_node(_Size, lambda size: (list(size), None), lambda numbers, _: torch.Size(list(numbers)))


def split_plain(leaves: Sequence[Any]) -> tuple[list[Any], dict[int, Any]]:
    """The leaves for the graph, with None for plain objects; and these, by position."""
    plain = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, _PLAIN)}
    return [None if i in plain else leaf for i, leaf in enumerate(leaves)], plain


def with_sizes(spec: pytree.TreeSpec) -> pytree.TreeSpec:
    """The structure that gives sizes back as sizes; the very same where there are none."""
    if spec.is_leaf():
        return spec
    children = spec.children()
    mended = [with_sizes(child) for child in children]
    if spec.type is torch.Size:
        return pytree.TreeSpec(_Size, spec.context, mended)
    if all(new is old for new, old in zip(mended, children, strict=True)):
        return spec
    return pytree.TreeSpec(spec.type, spec.context, mended)
