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
from refimpl.trace.layouts.elementwise import follows_operands
from refimpl.trace.recording_mode import RecordingMode

# Entries of meta: numbers of uses; the number of this result's gradient; whether no gradient has a say; the call that gives it.
LAYS_OUT, LAID_OUT_BY, IS_LAID_OUT_ALONE = "lays_out", "laid_out_by", "is_laid_out_alone"
DECOMPOSED = "decomposed"

_aten = torch.ops.aten
_CHANNELS_LAST_OR_NOT = frozenset({
    _aten.channel_shuffle, _aten.pixel_shuffle, _aten.pixel_unshuffle, _aten.roll, _aten.upsample_nearest2d_backward,
    _aten._upsample_nearest_exact2d_backward, _aten.upsample_bilinear2d_backward, _aten.upsample_trilinear3d_backward,
})  # fmt: skip
_BY_NO_GRADIENT = frozenset({
    _aten.batch_norm_backward, _aten.native_batch_norm_backward, _aten.native_group_norm_backward,
    _aten.native_layer_norm_backward, _aten._softmax_backward_data, _aten._log_softmax_backward_data, _aten.tril, _aten.triu,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor in a decomposed call: the node that has the number among its uses, and its value in the trace."""

    number: int
    value: torch.Tensor


@dataclass(frozen=True, slots=True)
class Decomposed:
    """An elementwise call, with operands in the place of tensors that are nodes. `index`: which of its results this one is."""

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
        packet = getattr(func, "overloadpacket", None)
        is_elementwise = packet not in _BY_NO_GRADIENT and follows_operands(func)
        if packet not in _CHANNELS_LAST_OR_NOT and packet not in _BY_NO_GRADIENT and not is_elementwise:
            return
        read, found = _nodes(recording, args), _nodes(recording, result)
        if any(node in read for node in found):
            return
        if packet in _BY_NO_GRADIENT:
            for node in found:
                node.meta[IS_LAID_OUT_ALONE] = True
        elif is_elementwise:
            given, named = pytree.tree_map_only(torch.Tensor, operand, (args, kwargs))
            for index, node in enumerate(found):
                node.meta[DECOMPOSED] = Decomposed(func, given, named, index)
        elif read and found:
            read[0].meta[LAYS_OUT] = (*read[0].meta.get(LAYS_OUT, ()), count)
            found[0].meta[LAID_OUT_BY] = count
            count += 1

    assert recording.on_decomposed is None
    recording.on_decomposed = note
    try:
        yield
    finally:
        recording.on_decomposed = None


def _nodes(recording: RecordingMode, values: Any) -> list[torch.fx.Node]:
    leaves = [value for value in pytree.tree_leaves(values) if isinstance(value, torch.Tensor)]
    return [tracked.node for tracked in map(recording.tracker.find, leaves) if tracked is not None]
