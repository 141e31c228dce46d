"""Remakes views by size, stride and offset when an op such as `x.t_()` changes the geometry of their base in a trace.

Counterpart: none; torch's AOT autograd replays the view ops on the base with its new geometry
Differs: for a real tensor autograd remembers a view by size, stride and offset, which stay valid if the base changes. For a fake
tensor it calls the view op again. On a base with a new geometry this fails or selects other elements. It also does so on the
gradient of the base: the gradient's memory begins at offset 0, so an offset into a base that begins elsewhere is wrong there.
So the program is traced again under this function mode, under which autograd behaves as in eager mode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from refimpl._torch import (
    creation_of_view,
    is_made_without_gradients,
    set_creation_of_view,
    storage_key,
    swap_tensor_impl,
)
from refimpl.aot.analysis.metadata import GEOMETRY_CHANGES
from refimpl.errors import UnsupportedByRefimpl
from refimpl.functionalize.geometry import extent
from refimpl.trace.recording_mode import RecordingMode, paused_recordings

_NAMES = frozenset(op._schema.name.partition("::")[2] for op in GEOMETRY_CHANGES)


class RemadeViewsMode(TorchFunctionMode):
    """Remakes views in place: the program keeps its tensor objects."""

    def __init__(self, recording: RecordingMode) -> None:
        super().__init__()
        self.recording = recording

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "").partition(".")[0]
        if name == "as_strided":
            return self._relative(func(*args, **(kwargs or {})))
        if name not in _NAMES or not args or not self._is_followed(args[0]):
            return func(*args, **(kwargs or {}))
        return self._change(name, func, args, kwargs or {})

    def _is_followed(self, tensor: Any) -> bool:
        is_plain = isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided and not tensor.is_inference()
        return is_plain and self.recording.is_recording and self.recording.tracker.find(tensor) is not None

    def _relative(self, view: Any) -> Any:
        """The result of `as_strided`, remade with an offset that counts from the beginning of its base.

        Autograd can then apply the view to a gradient, whose memory begins at 0. A view that begins in front of its base stays.
        """
        base = view._base if self._is_followed(view) else None
        if base is None or not _is_known_by_places(view, base):
            return view
        before, offset = base.storage_offset(), view.storage_offset()
        if type(before) is int and type(offset) is int and 0 != before <= offset:
            self._make_again(view, lambda: _view_by_places(base, view))
        return view

    def _change(self, name: str, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        tensor = args[0]
        base = tensor._base
        if base is not None:
            by_places = name == "as_strided_" and _is_known_by_places(tensor, base)
            same: Any = (
                None if by_places else self._view(tensor, lambda: getattr(torch.Tensor, name[:-1])(*args, **kwargs))
            )
            result = func(*args, **kwargs)
            swap_tensor_impl(tensor, self._view(tensor, lambda: _view_by_places(base, tensor)) if by_places else same)
            return result
        result = func(*args, **kwargs)
        for view, _ in self.recording.tracker.items():
            if view._base is tensor and _is_known_by_places(view, tensor):
                self._make_again(view, lambda v=view: _view_by_places(tensor, v))
        return result

    def _make_again(self, view: torch.Tensor, make: Callable[[], torch.Tensor]) -> None:
        swap_tensor_impl(view, self._view(view, make))

    def _view(self, view: torch.Tensor, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """A new view in place of `view`, with the same creation metadata, so that autograd refuses the same uses of it."""
        creation = creation_of_view(view)
        is_quiet = is_made_without_gradients(creation)
        with paused_recordings(), torch.inference_mode(False), torch.set_grad_enabled(not is_quiet):
            again = make()  # with a history, which inference mode would not record
        set_creation_of_view(again, creation)
        return again


def is_read_otherwise(view: torch.Tensor) -> bool:
    """Whether a view has another dtype than its base, or is conjugated. Autograd then remakes it by the op that was called."""
    return view._base is not None and not _is_known_by_places(view, view._base)


def _is_known_by_places(view: torch.Tensor, base: torch.Tensor) -> bool:
    """Whether autograd remakes the view by size, stride and offset.

    Not if it has another dtype than its base, or is conjugated, since eager calls the view op again as well. Nor if `set_` or
    `x.data = y` has put it into other memory than that of its base.
    """
    if storage_key(view) != storage_key(base):
        return False
    return view.dtype == base.dtype and view.is_conj() == base.is_conj() and view.is_neg() == base.is_neg()


def _view_by_places(base: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    """The view of `base` at the elements of `view`, by an offset that counts from the beginning of the base if possible."""
    size, stride, before = view.shape, view.stride(), base.storage_offset()
    first = view.storage_offset() - before
    if type(first) is int and first == 0:
        return base.as_strided(size, stride)
    if type(first) is not int or type(before) is not int or before == 0:
        return base.as_strided(size, stride, view.storage_offset())
    if first < 0:
        if not base.requires_grad:
            return base.as_strided(size, stride, view.storage_offset())
        raise UnsupportedByRefimpl(
            seen="a view in front of the memory that its base has been given in place",
            supported="bases that still begin where they began, or in front of that",
            do="make the view again after as_strided_",
        )
    end = first + extent(size, stride, 0)[1]
    return base.as_strided((end,), (1,)).narrow(0, first, end - first).as_strided(size, stride)
