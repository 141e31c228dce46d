"""Views that a trace decomposes: remembered as the program called them, for autograd knows them by these calls.

Counterpart: none; upstream's traces for metadata run without decompositions
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from refimpl.functionalize.aliases import DecomposedView, view_of
from refimpl.trace.recording_mode import RecordingMode


class DecomposedViewsState:
    """Of one recording. Mutable; `record` is told of every op that was decomposed, the innermost first."""

    def __init__(self, recording: RecordingMode) -> None:
        self._recording = recording
        self._calls: dict[torch.fx.Node, DecomposedView] = {}

    @property
    def calls(self) -> Mapping[torch.fx.Node, DecomposedView]:
        """By the node that is the view."""
        return MappingProxyType(self._calls)

    def record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """`result` is what a decomposition gave for a call."""
        alias = view_of(func)
        source = None if alias is None else alias.parameter.of(args, kwargs)
        if alias is None or not isinstance(source, torch.Tensor):
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
