"""The graph of a segment: nodes at the level of torch's functions, with upstream's names.

Counterpart: torch/_dynamo/output_graph.py OutputGraph, SubgraphTracer
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from refimpl._torch import LazyGraphModule
from refimpl.capture.sources import Source, placeholder_name


class SegmentGraph:
    """Grows by one node a call."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.sources: list[Source] = []  # of the inputs, in order
        self.examples: list[Any] = []  # what they were when the segment was captured
        self._last_input: fx.Node | None = None
        self.calls = 0
        self.sets_state = False
        self.has_effects = False  # it writes to tensors, or may do what else eager would do once

    def input(self, source: Source, fake: Any, real: Any) -> fx.Node:
        """A placeholder; they stand before all else, in order of first use."""
        place = self.graph._root if self._last_input is None else self._last_input
        with self.graph.inserting_after(place):
            target = placeholder_name(source)
            node = self.graph.create_node("placeholder", target, name=target.lower().rstrip("_") + "_")
        node.meta["example_value"] = fake
        self.examples.append(real)
        self._last_input = node
        self.sources.append(source)
        return node

    def call(self, kind: str, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], value: Any) -> fx.Node:
        """A node for a call that gave `value` on fakes."""
        node = self.graph.create_node(kind, target, tuple(args), dict(kwargs))
        node.meta["example_value"] = value
        self.calls += 1
        return node

    def set_state(self, setter: Any, state: Any) -> None:
        """A node that changes a mode of torch. Alone it is no reason to compile anything."""
        self.graph.create_node("call_function", setter, (state,), {})
        self.sets_state = True

    def finish(self, outputs: Sequence[fx.Node]) -> fx.GraphModule:
        """The graph module, with the outputs as one flat tuple."""
        self.graph.output(tuple(outputs))
        return LazyGraphModule(torch.nn.Module(), self.graph)
