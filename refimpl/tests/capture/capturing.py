"""What tests of capture share: a backend that keeps graphs, modes with many breaks, equality of results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from refimpl.capture.captured import CaptureOptions
from refimpl.capture.compile import with_options
from refimpl.capture.translate import BreaksAt

MODES: dict[str, BreaksAt | None] = {
    "breaks where it must": None,
    "every second instruction is run": lambda start, offset: offset != start,
    "every second instruction is run, the first one too": lambda start, offset: offset != start or start == 0,
}


@dataclass
class Recorder:
    """A backend that runs graphs as they are and keeps them."""

    graphs: list[torch.fx.GraphModule] = field(default_factory=list)

    def __call__(self, graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        self.graphs.append(graph)
        return graph.forward

    @property
    def targets(self) -> list[str]:
        """What the calls of all graphs call."""
        nodes = [node for graph in self.graphs for node in graph.graph.nodes if node.op.startswith("call")]
        return [node.target if isinstance(node.target, str) else node.target.__name__ for node in nodes]


def options(recorder: Recorder, **fields: Any) -> CaptureOptions:
    return CaptureOptions(backend=recorder, **fields)


def same(left: Any, right: Any) -> bool:
    """Equal containers of equal tensors and equal others."""
    left_leaves, left_tree = tree_flatten(left)
    right_leaves, right_tree = tree_flatten(right)
    if left_tree != right_tree:
        return False
    for a, b in zip(left_leaves, right_leaves, strict=True):
        if isinstance(a, torch.Tensor):
            if not isinstance(b, torch.Tensor) or a.dtype != b.dtype or not torch.equal(a, b):
                return False
        elif type(a) is not type(b) or a != b:
            return False
    return True


def captured_with(function: Callable[..., Any], **fields: Any) -> tuple[Callable[..., Any], Recorder, CaptureOptions]:
    recorder = Recorder()
    made = options(recorder, **fields)
    return with_options(function, made), recorder, made
