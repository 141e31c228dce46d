"""Records `x.data = y`, which changes the memory of a tensor without dispatching an op.

Counterpart: none; torch's AOT autograd does not see the assignment, and returns the old value of `x`
Differs: an assignment is noticed when the tensor is next used, or at the end, because its memory is not the recorded one. The
program is then traced again under a torch function mode. The mode records the assignment as `set_` but executes the assignment
itself, so that autograd treats it as in eager.
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
from refimpl.trace.metadata import note
from refimpl.trace.recording_mode import RecordingMode, paused_recordings

_NO_WRITES = frozenset(op._schema.name.partition("::")[2] for op in (*METADATA_OPS, *SET_OPS, *RESIZE_OPS)) | {
    "requires_grad_"
}
_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]


def refuse_unseen(tensor: torch.Tensor) -> None:
    """Raises UnsupportedByRefimpl for a tensor whose memory changed by something that the mode has not seen."""
    raise UnsupportedByRefimpl(
        seen=f"a tensor of shape {tuple(tensor.shape)} that is in other memory than any op has put it in",
        supported="`x.data = y` in Python, and ops",
        do="use x.set_(y) or x.copy_(y)",
    )


class _Kept(NamedTuple):
    """A tensor with a grad_fn whose data was replaced, and `same`: a tensor in its old memory, with the same history."""

    tensor: torch.Tensor
    same: torch.Tensor
    grad_fn: Any


class DataAssignmentsMode(TorchFunctionMode):
    """Records `x.data = y` as `set_`. Without a recording (for wrapper subclasses) it runs `set_` in place of the assignment."""

    def __init__(self, recording: RecordingMode | None) -> None:
        super().__init__()
        self._recording = recording
        self._kept: dict[int, _Kept] = {}
        # Views that require a gradient, with their versions.
        self._views: list[tuple[weakref.ref[torch.Tensor], int]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.update_views()
        if func == _SET_DATA:  # `==`, because every access to `__set__` makes a new object
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
        """Regenerates the grad_fn of views whose `.data` was assigned and whose base was written to since.

        After a write to its base, autograd regenerates a view's grad_fn. For a plain tensor it uses the view's present strides
        and offset, as if its new memory were that of the base. For a fake tensor it calls the view op again, with the old
        geometry. So this method makes the view as eager does.
        """
        for position, (reference, version) in enumerate(self._views):
            view = reference()
            if view is not None and view._version != version:
                self._make_again(position)

    def before(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A tensor in the memory from before the assignment; None without one, or if the history has changed since."""
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
        """Watches a view that requires a gradient: its `.data` was assigned, or it is the result of an op on a watched view."""
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
    """Whether a method writes data in place, so that autograd regenerates the grad_fn of views."""
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
