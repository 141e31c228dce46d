"""The dispatcher: its modes and keys, and torch.func transforms."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

# The slot for modes above autograd, see `PreDispatchSlot`.
from torch import _ops

# The slot for modes above autograd and autocast accepts three classes, by isinstance. refimpl's own mode inherits from
# the one that refimpl is not compared with, the mode that checks schemas, and uses none of its methods.
from torch._subclasses.schema_check_mode import SchemaCheckMode as PreDispatchSlot  # noqa: TID251

# Sees every call of an aten overload below autograd.
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode


class DispatchMode(TorchDispatchMode):
    """A TorchDispatchMode whose handler torch does not wrap in torch._dynamo.disable, which would run dynamo's code."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


# The dispatch keys of a tensor (layout, device, conjugation, negation, inference, autograd); `raw_repr()` is an int.
tensor_keys: Any = torch._C._dispatch_keys


# C functions for guards: how many function and dispatch modes are on, and whether `__torch_function__` is enabled.
function_modes_on: Any = torch._C._len_torch_function_stack
dispatch_modes_on: Any = torch._C._len_torch_dispatch_stack
functions_may_be_overridden: Any = torch._C._is_torch_function_enabled


# The C++ side of torch.func, which knows the active transforms.
_TRANSFORMS: Any = getattr(torch._C, "_functorch")

PRE_DISPATCH_KEY = torch._C.DispatchKey.PreDispatch

# Within `with without_dispatch():` no `__torch_dispatch__` is called. The public equivalents are slow generators.
without_dispatch = torch._C._DisableTorchDispatch

# Within `with without_torch_function():` no `__torch_function__` of a Tensor subclass is called.
without_torch_function = torch._C.DisableTorchFunctionSubclass


def active_dispatch_modes() -> list[Any]:
    """The active dispatch modes, outermost first; a mode above autograd is last."""
    modes = [torch._C._get_dispatch_stack_at(i) for i in range(torch._C._len_torch_dispatch_stack())]
    above_autograd = _ops._get_current_dispatch_mode_pre_dispatch()
    return modes if above_autograd is None else [*modes, above_autograd]


def is_any_mode_active_but(mode: Any) -> bool:
    """Whether a dispatch mode other than this one is active; a mode above autograd does not count."""
    count = torch._C._len_torch_dispatch_stack()
    return count > 1 or (count == 1 and torch._C._get_dispatch_stack_at(0) is not mode)


def dispatch_keys() -> Any:
    """The dispatch keys that this thread now includes and excludes."""
    return torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()


def with_dispatch_keys(keys: Any) -> contextlib.AbstractContextManager[Any]:
    """A block in which the dispatcher's included and excluded keys are those that `dispatch_keys()` returned."""
    return torch._C._ForceDispatchKeyGuard(*keys)


def upstream_proxy_mode() -> Any:
    """The mode of torch's own make_fx, if active. It is kept in its own slot, not on the stack of modes."""
    return _get_dispatch_mode(_PROXY_SLOT)


_get_dispatch_mode = torch._C._get_dispatch_mode
_PROXY_SLOT = torch._C._TorchDispatchModeKey.PROXY


@contextlib.contextmanager
def without_pre_dispatch_modes() -> Iterator[None]:
    """A block without modes above autograd; they are put back afterwards."""
    modes = []
    while _ops._len_torch_dispatch_stack_pre_dispatch():
        modes.append(_ops._pop_mode_from_pre_dispatch())
    try:
        yield
    finally:
        for mode in reversed(modes):
            _ops._set_mode_pre_dispatch(mode)


def is_inside_function_transform() -> bool:
    """Whether vmap, grad or another torch.func transform is active."""
    return _TRANSFORMS.peek_interpreter_stack() is not None


def is_functorch_wrapped(tensor: torch.Tensor) -> bool:
    """Whether the tensor is a torch.func wrapper, which has no storage; it may outlive its transform."""
    return _TRANSFORMS.is_functorch_wrapped_tensor(tensor)


__all__ = [
    "PRE_DISPATCH_KEY",
    "DispatchMode",
    "PreDispatchSlot",
    "TorchDispatchMode",
    "active_dispatch_modes",
    "dispatch_keys",
    "dispatch_modes_on",
    "function_modes_on",
    "functions_may_be_overridden",
    "is_any_mode_active_but",
    "is_functorch_wrapped",
    "is_inside_function_transform",
    "tensor_keys",
    "upstream_proxy_mode",
    "with_dispatch_keys",
    "without_dispatch",
    "without_pre_dispatch_modes",
    "without_torch_function",
]
