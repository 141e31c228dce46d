"""Views that a trace decomposes: remembered as the program called them, for autograd knows them by these calls. And views that
decompositions end in where the program called no view: for autograd those own their memory.

Counterpart: none; upstream's traces for metadata run without decompositions
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from refimpl._torch import FakeTensor, pytree, storage_key
from refimpl.functionalize.aliases import DecomposedView, view_of
from refimpl.trace.recording_mode import RecordingMode


class DecomposedViewsState:
    """Of one recording. Mutable; `record` is told of every op that was decomposed, the innermost first."""

    def __init__(self, recording: RecordingMode) -> None:
        self._recording = recording
        self._calls: dict[torch.fx.Node, DecomposedView] = {}
        self._owners: set[torch.fx.Node] = set()

    @property
    def calls(self) -> Mapping[torch.fx.Node, DecomposedView]:
        """By the node that is the view."""
        return MappingProxyType(self._calls)

    @property
    def owners(self) -> frozenset[torch.fx.Node]:
        """What decompositions gave for new tensors, and what `own` was told of."""
        return frozenset(self._owners)

    def own(self, tensor: torch.Tensor) -> None:
        """The tensor is in memory of its own in eager mode."""
        tracked = self._recording.tracker.find(tensor)
        if tracked is not None:
            self._owners.add(tracked.node)

    def record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """`result` is what a decomposition gave for a call."""
        alias = view_of(func)
        if alias is None:
            self._record_owners(args, kwargs, result)
            return
        source = alias.parameter.of(args, kwargs)
        if not isinstance(source, torch.Tensor):
            return
        viewed = self._recording.tracker.find(source)
        for index, tensor in enumerate(result if alias.is_list else [result]):
            tracked = self._recording.tracker.find(tensor)
            if viewed is None or tracked is None or tracked.node is viewed.node:
                continue
            self._calls[tracked.node] = DecomposedView(
                target=func,
                args=self._recording.node_of(args),
                kwargs=self._recording.node_of(kwargs),
                output_index=index if alias.is_list else None,
            )

    def _record_owners(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        given = {storage_key(tensor) for tensor in _tensors_with_memory((args, kwargs))}
        for tensor in _tensors_with_memory(result):
            if storage_key(tensor) not in given:
                self.own(tensor)


def _tensors_with_memory(values: Any) -> list[FakeTensor]:
    tensors = [value for value in pytree.tree_leaves(values) if type(value) is FakeTensor]
    return [tensor for tensor in tensors if tensor.layout is torch.strided and not tensor.is_nested]
