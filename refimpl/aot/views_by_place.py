"""Views whose history says where they lie, not by which op they were made: for programs that change a geometry in place.

Counterpart: none
Differs: autograd makes the history of a view anew after a write. Of a plain tensor it does so from its place in the memory of its
base; of a fake tensor it replays the view op on the base, which goes wrong once the base, or the view itself, has another
geometry. In such a program every view is made by `as_strided` of its base, so that both are the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from refimpl._torch import FakeTensor, swap_tensor_impl
from refimpl.functionalize.schemas import METADATA_OPS
from refimpl.trace.recording_mode import RecordingMode

_aten = torch.ops.aten
_GEOMETRY_OPS = frozenset(METADATA_OPS) - {_aten.detach_.default}
_METHODS = frozenset({"t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_", "as_strided_"})


class GeometryChanged(Exception):
    """The program changes the geometry of a tensor in place, and has gradients. Not an error: it is traced again with views by
    place."""


def refuse_geometry_change(node: torch.fx.Node) -> None:
    """Raises GeometryChanged for the node of such an op."""
    if node.target in _GEOMETRY_OPS:
        raise GeometryChanged


class ViewsByPlaceMode(TorchFunctionMode):
    """Makes views with gradients by `as_strided`, also those that an op such as `t_` changes in place."""

    def __init__(self, recording: RecordingMode) -> None:
        super().__init__()
        self._recording = recording

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _METHODS and _has_place(args[0]) and not _is_refused(args[0]):
            return self._change(args[0], getattr(args[0], name[:-1])(*args[1:], **kwargs))
        result = func(*args, **kwargs)
        if _has_place(result) and not any(result is arg for arg in args) and not _has_custom_history(result):
            return _at_place_of(result)
        return result

    def _change(self, tensor: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
        """The tensor becomes what `view`, a view of it, is."""
        fresh = _at_place_of(view)
        tracked = self._recording.tracker.find(fresh)
        assert tracked is not None
        swap_tensor_impl(tensor, fresh)
        self._recording.track(tensor, tracked.node)
        return tensor


def _has_place(value: Any) -> bool:
    """Whether it is a view with a gradient, whose elements are elements of its base."""
    if type(value) is not FakeTensor or not value.requires_grad or not value._is_view():
        return False
    base = value._base
    if type(base) is not FakeTensor or base.layout is not torch.strided or value.dtype != base.dtype:
        return False
    return not any(t.is_conj() or t.is_neg() for t in (value, base))


def _is_refused(view: torch.Tensor) -> bool:
    """Whether eager mode refuses to change the view in place: its base is a leaf."""
    assert view._base is not None
    return view._base.is_leaf and torch.is_grad_enabled()


def _has_custom_history(view: torch.Tensor) -> bool:
    """Whether a user's autograd.Function made it, whose backward counts."""
    try:
        return isinstance(view.grad_fn, torch.autograd.function.BackwardCFunction)
    except RuntimeError:  # a view made without gradients of what was then written to with them
        return False


def _at_place_of(view: torch.Tensor) -> torch.Tensor:
    assert view._base is not None
    return view._base.as_strided(view.size(), view.stride(), view.storage_offset())
