"""ShapesCollection: `dynamic_shapes` assigned tensor by tensor.

Counterpart: torch/export/dynamic_shapes.py ShapesCollection
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from refimpl.errors import BadParameter
from refimpl.export.shapes.additional_inputs import IntWrapper, is_int_wrapper
from refimpl.export.shapes.policies import map_arguments, signature_of


class ShapesCollection:
    """A map from tensors and wrapped integers, by identity, to their dynamic shapes.

    Raises AssertionError for a key that is no tensor, and for a second, different shape of a tensor.
    """

    def __init__(self) -> None:
        self._shapes: dict[int, Any] = {}
        self._tensors: dict[int, Any] = {}  # keeps the tensors alive, so that ids remain theirs

    def __setitem__(self, tensor: torch.Tensor | IntWrapper, shape: Any) -> None:
        if not isinstance(tensor, torch.Tensor) and not is_int_wrapper(tensor):
            raise BadParameter(
                seen=f"Cannot assign shape to non-tensor type {type(tensor)}", expected="a tensor or an IntWrapper"
            )
        known = self._shapes.get(id(tensor))
        if known is not None and known != shape:
            raise BadParameter(
                seen=f"Shapes assigned to tensor do not match: expected {known}, got {shape}", expected="one of the two"
            )
        self._shapes[id(tensor)] = shape
        self._tensors[id(tensor)] = tensor

    def __getitem__(self, tensor: torch.Tensor | IntWrapper) -> Any:
        self._tensors[id(tensor)] = tensor
        return self._shapes.setdefault(id(tensor), {})

    def __len__(self) -> int:
        return len(self._shapes)

    def dynamic_shapes(self, m: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> Any:
        """The `dynamic_shapes` argument for `export`. Raises ValueError for a shape whose tensor is not among the inputs."""
        found: set[int] = set()

        def shape_of(leaf: Any) -> Any:
            found.add(id(leaf))
            return self._shapes.get(id(leaf)) if isinstance(leaf, torch.Tensor) or is_int_wrapper(leaf) else None

        arguments = signature_of(m).bind(*args, **(kwargs or {})).arguments
        tree = {name: map_arguments(shape_of, value) for name, value in arguments.items()}
        missing = [shape for key, shape in self._shapes.items() if key not in found]
        if missing:
            raise ValueError(
                f"Tensors to which the shapes {missing} were assigned are not among the inputs of export\n"
                "  what to do: assign shapes to the tensors themselves that export is given, not to copies of them"
            )
        return tree
