"""Autograd: grad, inference and autocast modes, saved tensor hooks, views, autograd nodes and backward passes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch

# Calls in graphs that change a mode of later ops and are no ops themselves.
from torch.amp.autocast_mode import _enter_autocast as enter_autocast
from torch.amp.autocast_mode import _exit_autocast as exit_autocast
from torch.autograd.grad_mode import _enter_inference_mode as enter_inference_mode
from torch.autograd.grad_mode import _exit_inference_mode as exit_inference_mode

# The function that torch.no_grad and others call, and that function modes see.
set_grad_enabled = torch._C._set_grad_enabled
# The Python function that runs the autograd engine: the engine has called every frame whose caller is this function.
engine_call: Any = getattr(torch.autograd.graph, "_engine_run_backward")
# Whether autocast is on for any device type: the C function, which guards call.
is_any_autocast_enabled = torch._C._is_any_autocast_enabled

# The current level of forward-mode AD, -1 if none is entered. Levels are shared by all threads.
forward_mode_level = functools.partial(getattr, torch.autograd.forward_ad, "_current_level")

# Within `with below_autograd():` ops skip autograd.
below_autograd = torch._C._AutoDispatchBelowAutograd


def is_inside_backward() -> bool:
    """Whether a backward pass is running in this thread."""
    return torch._C._current_graph_task_id() != -1


def autograd_sequence_number() -> int:
    """The sequence number of the next autograd node, which links a forward op to its backward in profiles and partitions."""
    return torch.autograd._get_sequence_nr()


def running_autograd_node() -> Any:
    """The autograd node whose backward is running in this thread; None outside of a backward pass."""
    return torch._C._current_autograd_node()


def is_inside_formula() -> bool:
    """Whether a built-in derivative formula is running in this thread, not the backward of a torch.autograd.Function."""
    node = torch._C._current_autograd_node()
    return node is not None and not isinstance(node, torch.autograd.function.BackwardCFunction)


@contextlib.contextmanager
def without_saved_tensors_hooks() -> Iterator[None]:
    """A block without the active saved tensor hooks, in which autograd checks that saved tensors were not mutated since."""
    hooks: Any = getattr(torch._C, "_autograd")
    with contextlib.ExitStack() as put_back:
        while (top := hooks._top_saved_tensors_default_hooks(True)) is not None:
            put_back.callback(hooks._push_saved_tensors_default_hooks, *top)
            hooks._pop_saved_tensors_default_hooks()
        yield


def has_saved_tensors_hooks() -> bool:
    """Whether saved tensor hooks are active."""
    hooks: Any = getattr(torch._C, "_autograd")
    return hooks._top_saved_tensors_default_hooks(True) is not None


def keeps_autograd_graph() -> bool:
    """Whether the running backward pass was called with `retain_graph=True`."""
    return bool(getattr(torch._C, "_autograd")._get_current_graph_task_keep_graph())


@contextlib.contextmanager
def saved_tensors_hooks_off() -> Iterator[None]:
    """A block in which active saved tensor hooks are not called, by the switch that torch's own capture uses."""
    hooks: Any = getattr(torch._C, "_autograd")
    before = hooks._saved_tensors_hooks_set_tracing(True)
    try:
        yield
    finally:
        hooks._saved_tensors_hooks_set_tracing(before)


def function_of(node: Any) -> Any:
    """The `torch.autograd.Function` class of an autograd node; None for other nodes, and for None."""
    return getattr(node, "_forward_cls", None)


def creation_of_view(view: torch.Tensor) -> Any:
    """A view's CreationMeta: by which mode and kind of op it was made, on which autograd's checks of in-place ops depend."""
    return getattr(torch._C, "_autograd")._get_creation_meta(view)


def set_creation_of_view(view: torch.Tensor, creation: Any) -> None:
    """Set a view's CreationMeta to that of another view."""
    hooks: Any = getattr(torch._C, "_autograd")
    if hooks._get_creation_meta(view) != creation:
        hooks._set_creation_meta(view, creation)


def is_made_without_gradients(creation: Any) -> bool:
    """Whether the CreationMeta is that of a view made under `no_grad` or in inference mode."""
    kinds: Any = getattr(getattr(torch._C, "_autograd"), "CreationMeta")
    return creation in (kinds.NO_GRAD_MODE, kinds.INFERENCE_MODE)


# Within `with without_autocast():` autocast is off for all device types.
without_autocast = torch._C._DisableAutocast


__all__ = [
    "autograd_sequence_number",
    "below_autograd",
    "creation_of_view",
    "engine_call",
    "enter_autocast",
    "enter_inference_mode",
    "exit_autocast",
    "exit_inference_mode",
    "forward_mode_level",
    "function_of",
    "has_saved_tensors_hooks",
    "is_any_autocast_enabled",
    "is_inside_backward",
    "is_made_without_gradients",
    "keeps_autograd_graph",
    "running_autograd_node",
    "saved_tensors_hooks_off",
    "set_creation_of_view",
    "set_grad_enabled",
    "without_autocast",
    "without_saved_tensors_hooks",
]
