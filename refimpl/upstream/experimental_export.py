"""Upstream's experimental entry points of export: a graph with the backward, and export at the first call.

Counterpart: torch/export/experimental/__init__.py _export_forward_backward, _sticky_export
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from refimpl.export.entry_points import export
from refimpl.export.errors import invalid_input
from refimpl.export.exported_program import ExportedProgram


def _export_forward_backward(ep: ExportedProgram, joint_loss_index: int = 0) -> ExportedProgram:
    """`ep.forward_backward(joint_loss_index)`."""
    return ep.forward_backward(joint_loss_index)


def _sticky_export(
    forward_func: Callable[..., Any], dynamic_shapes_callback: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """A forward that exports its module with the arguments of the first call, and from then on runs the exported module.

    forward_func: a method of a module, as in `model.forward = _sticky_export(model.forward)`.
    dynamic_shapes_callback: returns `dynamic_shapes` for the arguments of the first call.
    The exported module is then the function's `_exported_artifact`. If export raises, the next call exports again.
    Raises UserError if `forward_func` is not a method of a module.

    Counterpart: torch/export/experimental/__init__.py _sticky_export
    Differs: upstream exports at every call.
    """
    module = getattr(forward_func, "__self__", None)
    if not isinstance(module, torch.nn.Module):
        raise invalid_input(
            f"_sticky_export is given {forward_func!r}\n  expected: a method of a torch.nn.Module\n"
            "  what to do: model.forward = _sticky_export(model.forward)"
        )

    @functools.wraps(forward_func)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if forward._exported_artifact is None:  # type: ignore[attr-defined]
            shapes = None if dynamic_shapes_callback is None else dynamic_shapes_callback(*args, **kwargs)
            replaced = module.__dict__.get("forward")
            module.forward = forward_func
            try:
                exported = export(module, args, kwargs, dynamic_shapes=shapes).module()
            finally:
                del module.forward
                if replaced is not None:
                    module.forward = replaced
            forward._exported_artifact = exported  # type: ignore[attr-defined]
        return forward._exported_artifact(*args, **kwargs)  # type: ignore[attr-defined]

    forward._exported_artifact = None  # type: ignore[attr-defined]
    return forward
