"""Autograd: modes of gradients, inference and autocast, hooks on saved tensors, views, steps and backward passes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch

# Calls that change what later ops do and are no ops themselves, as graphs name them.
from torch.amp.autocast_mode import _enter_autocast as enter_autocast
from torch.amp.autocast_mode import _exit_autocast as exit_autocast
from torch.autograd.grad_mode import _enter_inference_mode as enter_inference_mode
from torch.autograd.grad_mode import _exit_inference_mode as exit_inference_mode

# What torch.no_grad and its like call, and function modes see.
set_grad_enabled = torch._C._set_grad_enabled
# The function that calls the engine of autograd: what has it for its caller is called by the engine.
engine_call: Any = getattr(torch.autograd.graph, "_engine_run_backward")
is_any_autocast_on: Any = torch._C._is_any_autocast_enabled

# The level of forward-mode AD that is entered, within which tensors may have tangents; -1 where none is. Not of one thread.
forward_mode_level = functools.partial(getattr, torch.autograd.forward_ad, "_current_level")

# Within `with below_autograd():` ops run their kernels, and autograd does not see them.
below_autograd = torch._C._AutoDispatchBelowAutograd


def is_inside_backward() -> bool:
    """Whether autograd now runs a backward pass in this thread."""
    return torch._C._current_graph_task_id() != -1


def autograd_sequence_number() -> int:
    """Of the next autograd node: what links a forward op with its backward in profiles and partitions."""
    return torch.autograd._get_sequence_nr()


def running_autograd_node() -> Any:
    """The step of a backward pass that now runs in this thread; None outside of one."""
    return torch._C._current_autograd_node()


def is_inside_formula() -> bool:
    """Whether a step of a backward pass now runs in this thread that is autograd's own, and no user's Function."""
    step = torch._C._current_autograd_node()
    return step is not None and not isinstance(step, torch.autograd.function.BackwardCFunction)


@contextlib.contextmanager
def without_saved_tensors_hooks() -> Iterator[None]:
    """Within it hooks on saved tensors from around see nothing, and autograd checks that nobody has written to what was saved."""
    hooks: Any = getattr(torch._C, "_autograd")
    with contextlib.ExitStack() as put_back:
        while (top := hooks._top_saved_tensors_default_hooks(True)) is not None:
            put_back.callback(hooks._push_saved_tensors_default_hooks, *top)
            hooks._pop_saved_tensors_default_hooks()
        yield


def has_saved_tensors_hooks() -> bool:
    """Whether hooks from around pack what is saved now."""
    hooks: Any = getattr(torch._C, "_autograd")
    return hooks._top_saved_tensors_default_hooks(True) is not None


def keeps_autograd_graph() -> bool:
    """Whether the backward pass that now runs may be run again: `retain_graph`."""
    return bool(getattr(torch._C, "_autograd")._get_current_graph_task_keep_graph())


@contextlib.contextmanager
def saved_tensors_hooks_off() -> Iterator[None]:
    """Within it no tensor is packed by hooks from around, as while torch's own capture runs; they are on again afterwards."""
    hooks: Any = getattr(torch._C, "_autograd")
    before = hooks._saved_tensors_hooks_set_tracing(True)
    try:
        yield
    finally:
        hooks._saved_tensors_hooks_set_tracing(before)


def function_of(step: Any) -> Any:
    """The class of the `torch.autograd.Function` that a step of autograd, or None, is a call of; None where it is of none."""
    return getattr(step, "_forward_cls", None)


def creation_of_view(view: torch.Tensor) -> Any:
    """In which mode, and by what kind of op, a view was made: what autograd refuses to do in place depends on it."""
    return getattr(torch._C, "_autograd")._get_creation_meta(view)


def set_creation_of_view(view: torch.Tensor, creation: Any) -> None:
    """Tell autograd that the view was made as another one was."""
    hooks: Any = getattr(torch._C, "_autograd")
    if hooks._get_creation_meta(view) != creation:
        hooks._set_creation_meta(view, creation)


def is_made_without_gradients(creation: Any) -> bool:
    """Whether a view with this creation was made under `no_grad` or in inference mode."""
    kinds: Any = getattr(getattr(torch._C, "_autograd"), "CreationMeta")
    return creation in (kinds.NO_GRAD_MODE, kinds.INFERENCE_MODE)


def is_any_autocast_enabled() -> bool:
    """Whether autocast is on for any device type."""
    return torch._C._is_any_autocast_enabled()


# Within `with without_autocast():` no op casts, whatever the device type.
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
    "is_any_autocast_on",
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
