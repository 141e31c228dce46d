"""`x.data = y`: the only way to change what memory a tensor is in that no op is dispatched for.

Counterpart: none; torch's AOT autograd does not see it, and returns what `x` was before
Differs: noticed when a tensor is used, or at the end, by its memory; the program is then traced again under a mode of functions
that records the assignment as `set_`, and does it as the program did, so that autograd does not notice.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from refimpl._torch import swap_tensor_impl
from refimpl.aot.analysis.autograd_graph import history_of
from refimpl.aot.analysis.fake_arguments import with_history
from refimpl.errors import UnsupportedByRefimpl
from refimpl.functionalize.geometry import extent_of
from refimpl.functionalize.schemas import METADATA_OPS, RESIZE_OPS, SET_OPS
from refimpl.trace.notes import note
from refimpl.trace.recording_mode import RecordingMode, paused_recordings

_NO_WRITES = frozenset(op._schema.name.partition("::")[2] for op in (*METADATA_OPS, *SET_OPS, *RESIZE_OPS)) | {
    "requires_grad_"
}
_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]


def refuse_unseen(tensor: torch.Tensor) -> None:
    """Raises UnsupportedByRefimpl: the mode has not seen what put the tensor elsewhere."""
    raise UnsupportedByRefimpl(
        seen=f"a tensor of shape {tuple(tensor.shape)} that is in other memory than any op has put it in",
        supported="`x.data = y` in Python, and ops",
        do="use x.set_(y) or x.copy_(y)",
    )


class _Kept(NamedTuple):
    """A tensor with a history, the same before it got other data, and the history."""

    tensor: torch.Tensor
    same: torch.Tensor
    grad_fn: Any


class DataAssignmentsMode(TorchFunctionMode):
    """Records `x.data = y` as ops. Without a recording (of wrapper subclasses) the ops are run in its place."""

    def __init__(self, recording: RecordingMode | None) -> None:
        super().__init__()
        self._recording = recording
        self._kept: dict[int, _Kept] = {}
        self._views: list[tuple[weakref.ref[torch.Tensor], int]] = []  # with a history; and their versions

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.update_views()
        if func == _SET_DATA:  # a new object at every access
            self._keep(args[0])
            _assign(self._recording, *args)
            self._note(args[0])
            return None
        position = self._position(args[0]) if args else None
        if position is not None and _is_in_place(getattr(func, "__name__", "")):
            self._make_again(position)
        result = func(*args, **(kwargs or {}))
        if position is not None and self._position(result) is None:
            self._note(result)
        return result

    def update_views(self) -> None:
        """Give assigned views the history that they have after a write to what they viewed.

        Autograd makes it anew then: of a plain tensor from where it lies now, as if that were in the memory of its base. Of a
        fake tensor it calls the view op again.
        """
        for position, (reference, version) in enumerate(self._views):
            view = reference()
            if view is not None and view._version != version:
                self._make_again(position)

    def before(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The tensor as it was in its old memory, with the history that it has still; None if that is another."""
        kept = self._kept.get(id(tensor))
        return None if kept is None or kept.grad_fn is not history_of(tensor) else kept.same

    def _keep(self, tensor: torch.Tensor) -> None:
        if self._recording is None or not tensor.requires_grad or tensor.is_leaf:
            return
        kept = self._kept.get(id(tensor))
        tracked = self._recording.tracker.find(tensor)
        history = history_of(tensor)
        if tracked is None or history is None or (kept is not None and kept.grad_fn is history):
            return
        with paused_recordings(), torch.enable_grad():
            same = with_history(tensor)
            self._recording.track(same, tracked.node)
        self._kept[id(tensor)] = _Kept(tensor, same, history)

    def _note(self, view: Any) -> None:
        """A tensor with a history that was assigned, or a view of one."""
        if self._recording is None or not isinstance(view, torch.Tensor):
            return
        if view.requires_grad and view._is_view() and not view.is_inference() and self._position(view) is None:
            self._views.append((weakref.ref(view), view._version))

    def _position(self, tensor: Any) -> int | None:
        return next((i for i, (reference, _) in enumerate(self._views) if reference() is tensor), None)

    def _make_again(self, position: int) -> None:
        view = self._views[position][0]()
        assert view is not None
        base = view._base
        assert base is not None
        with paused_recordings(), torch.enable_grad():
            if extent_of(view)[1] > base.untyped_storage().nbytes() // base.element_size():
                raise UnsupportedByRefimpl(
                    seen="a write to the memory that a view was in before `x.data = y` put it elsewhere, further behind",
                    supported="places of y in its memory that are places of the view's base too",
                    do="detach the view before it gets other data",
                )
            again = base.as_strided(view.shape, view.stride(), view.storage_offset())
            _SET_DATA(again, view.detach())
        swap_tensor_impl(view, again)
        self._views[position] = self._views[position][0], view._version


def _is_in_place(name: str) -> bool:
    """Whether it is a write to data, of which the history of a view begins anew."""
    return name not in _NO_WRITES and ((name.endswith("_") and not name.endswith("__")) or name.startswith("__i"))


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
    note(node, is_data_assignment=True)
    _SET_DATA(tensor, value)
    recording.track_result(tensor, node)
