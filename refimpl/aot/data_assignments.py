"""`x.data = y`: the only way to change what memory a tensor is in that no op is dispatched for.

Counterpart: none; torch's AOT autograd does not see it, and returns what `x` was before
Differs: noticed when a tensor is used, or at the end, by its memory; the program is then traced again under a mode of functions
that records the assignment as `set_`, and does it as the program did, so that autograd does not notice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from refimpl.errors import UnsupportedByRefimpl
from refimpl.trace.recording_mode import RecordingMode

ASSIGNS_DATA = "assigns_data"  # in the meta of a `set_` that stands for `x.data = y`
_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]


class DataAssigned(Exception):
    """A tensor is in other memory than any op has put it in. Not an error: it is traced again with assignments recorded."""


def refuse_assigned(tensor: torch.Tensor) -> None:
    """Raises DataAssigned."""
    raise DataAssigned


def refuse_unseen(tensor: torch.Tensor) -> None:
    """Raises UnsupportedByRefimpl: the mode has not seen what put the tensor elsewhere."""
    raise UnsupportedByRefimpl(
        seen=f"a tensor of shape {tuple(tensor.shape)} that is in other memory than any op has put it in",
        supported="`x.data = y` in Python, and ops",
        do="use x.set_(y) or x.copy_(y)",
    )


class DataAssignmentsMode(TorchFunctionMode):
    """Records `x.data = y` as ops. Without a recording (of wrapper subclasses) the ops are run in its place."""

    def __init__(self, recording: RecordingMode | None) -> None:
        super().__init__()
        self._recording = recording

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == _SET_DATA:  # a new object at every access
            return _assign(self._recording, *args)
        return func(*args, **(kwargs or {}))


def _assign(recording: RecordingMode | None, tensor: torch.Tensor, value: torch.Tensor) -> None:
    if tensor.dtype != value.dtype or tensor.device != value.device or tensor.layout != value.layout:
        raise UnsupportedByRefimpl(
            seen=f"`x.data = y` with a y of {value.dtype} on {value.device}, where x is of {tensor.dtype} on {tensor.device}",
            supported="data of the same dtype, device and layout",
            do="make a new tensor of it",
        )
    with torch.no_grad():
        value = value.detach()
    if recording is None:
        with torch.no_grad():
            tensor.set_(value)  # type: ignore[call-overload]
        return
    if recording.tracker.find(tensor) is None and recording.on_captured is not None:
        recording.on_captured(tensor)
    node = recording.builder.call(
        torch.ops.aten.set_.source_Tensor, (recording.node_of(tensor), recording.node_of(value)), {}
    )
    node.meta[ASSIGNS_DATA] = True
    _SET_DATA(tensor, value)
    recording.track_result(tensor, node)
