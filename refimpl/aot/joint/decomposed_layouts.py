"""What the result of a decomposed kernel is laid out as. In the graph the layout is a constant, or what parts of the kernel make
of their operands in an order of their own; where only some of the incoming gradients arrive, the kernel may read another layout.

Counterpart: none
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from refimpl._torch import OpOverload, pytree
from refimpl.trace.eager_facts import gives_new_tensors
from refimpl.trace.recording_mode import RecordingMode

# Entries of meta: numbers of uses; the call that gives it.
LAYS_OUT, DECOMPOSED = "lays_out", "decomposed"


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor in a decomposed call: the node that has the number among its uses, and its value in the trace."""

    number: int
    value: torch.Tensor


@dataclass(frozen=True, slots=True)
class Decomposed:
    """A call, with operands in the place of tensors that are nodes. `index`: which of its results this one is."""

    func: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    index: int


@contextlib.contextmanager
def noted_layouts(recording: RecordingMode) -> Iterator[None]:
    """To be entered around the recording of a backward, while nothing else asks what is decomposed."""
    count = 0

    def operand(tensor: torch.Tensor) -> Any:
        nonlocal count
        tracked = recording.tracker.find(tensor)
        if tracked is None:
            return tensor
        tracked.node.meta[LAYS_OUT] = (*tracked.node.meta.get(LAYS_OUT, ()), count)
        count += 1
        return Operand(count - 1, tensor)

    def note(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        nonlocal count
        read = set(_nodes(recording, (args, kwargs)).values())
        found = _nodes(recording, result)
        if not gives_new_tensors(func) or not read.isdisjoint(found.values()):
            return
        given, named = pytree.tree_map_only(torch.Tensor, operand, (args, kwargs))
        for index, node in found.items():
            node.meta[DECOMPOSED] = Decomposed(func, given, named, index)

    assert recording.on_decomposed is None
    recording.on_decomposed = note
    try:
        yield
    finally:
        recording.on_decomposed = None


def _nodes(recording: RecordingMode, values: Any) -> dict[int, torch.fx.Node]:
    """Of the tensors that have one, by place among the leaves."""
    leaves = enumerate(pytree.tree_leaves(values))
    tracked = ((at, recording.tracker.find(leaf)) for at, leaf in leaves if isinstance(leaf, torch.Tensor))
    return {at: found.node for at, found in tracked if found is not None}
