"""Arguments of `auto_functionalized_v2`: the bases of the tensors that a custom operator writes to, and how each tensor views its
base.

Counterpart: torch/_higher_order_ops/auto_functionalize.py write_view_information_to_args
Differs: only bases that are contiguous from the beginning of their memory. For others `auto_functionalized` copies each tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from refimpl.functionalize.geometry import begins_inside, is_row_major, is_same_geometry
from refimpl.functionalize.memory import MemoryState
from refimpl.trace.layouts import is_same_number, is_same_shape

Node = torch.fx.Node


class WrittenBases:
    """The bases, each once, in the order in which the arguments name them; `written` has them once for each written tensor."""

    def __init__(self, memory: MemoryState) -> None:
        self._memory = memory
        self.nodes: list[Node] = []
        self.written: list[Node] = []

    def described(self, written: Sequence[tuple[str, bool, Any]]) -> dict[str, Any] | None:
        """The operator's keywords for its written arguments; None if a base or a view has no such description.

        written: for each argument its name, whether it is a list, and the tensors in the program.
        """
        found: dict[str, Any] = {}
        for argument, is_list, value in written:
            name = f"_{argument}"
            items = [(name, value)]
            if is_list:
                found[f"{name}_length"] = None if value is None else len(value)
                items = [(f"{name}_{index}", item) for index, item in enumerate(value or ())]
            for prefix, item in items:
                described = self._described(item)
                if described is None:
                    return None
                found.update({f"{prefix}_{key}": entry for key, entry in described.items()})
        return found

    def _described(self, value: Any) -> dict[str, Any] | None:
        if not isinstance(value, Node):
            return {"base_index": None}
        aliases = self._memory.aliases
        base = aliases.base_of(value)
        of_base, of_view = base.meta.get("val"), value.meta.get("val")
        if not isinstance(of_base, torch.Tensor) or not isinstance(of_view, torch.Tensor) or not self._is_plain(base):
            return None
        if base not in self.nodes:
            self.nodes.append(base)
        self.written.append(base)
        index = {"base_index": self.nodes.index(base)}
        if aliases.step_of(value) is None:
            return index
        view = _view(of_base, of_view)
        return None if view is None else {**index, **view}

    def _is_plain(self, base: Node) -> bool:
        """Whether the base's value lies in memory as the base does in the program, without gaps from the beginning."""
        given, now = base.meta["val"], self._memory.any_value(base)
        value = None if now is None else now.meta.get("val")
        if not isinstance(value, torch.Tensor) or self._memory.is_outgrown(base) or begins_inside(given):
            return False
        return given.layout is torch.strided and is_row_major(given) and is_row_major(value)


def _view(base: torch.Tensor, view: torch.Tensor) -> dict[str, Any] | None:
    """Which part of the base the view is."""
    if view.dtype != base.dtype or view.is_conj() != base.is_conj() or view.is_neg() != base.is_neg():
        return None
    if is_same_geometry(base, view) and not begins_inside(view):
        return {"alias": True}
    piece = _slice(base, view)
    if piece is not None:
        return dict(zip(("slice_dim", "slice_start", "slice_end"), piece, strict=True))
    return {"size": tuple(view.shape), "stride": view.stride(), "storage_offset": view.storage_offset()}


def _slice(base: torch.Tensor, view: torch.Tensor) -> tuple[int, Any, Any] | None:
    """The dimension, the beginning and the end, if the view is a slice of the base along one dimension."""
    if base.dim() != view.dim() or not is_same_shape(base.stride(), view.stride()):
        return None
    differ = [dim for dim in range(base.dim()) if not is_same_number(base.shape[dim], view.shape[dim])]
    if len(differ) != 1:
        return None
    step, offset = view.stride(differ[0]), view.storage_offset()
    if type(step) is not int or type(offset) is not int or step == 0 or offset % step:
        return None
    return differ[0], offset // step, offset // step + view.shape[differ[0]]
