"""The dispatcher: modes and keys, and the transforms of torch.func, which it goes through as well."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

# The slot for modes above autograd, see `PreDispatchSlot`.
from torch import _ops

# The slot for modes above autograd and autocast takes three classes only, by isinstance. Of them this one alone is no part of
# what refimpl is compared with: a mode that checks schemas. refimpl's own class inherits from it, and uses nothing of it.
from torch._subclasses.schema_check_mode import SchemaCheckMode as PreDispatchSlot  # noqa: TID251

# The dispatcher's hook: sees every call of an aten overload below autograd.
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode

# The dispatch keys of a tensor, whose `raw_repr()` is a number: layout, device, conjugation, negation, inference, autograd.
tensor_keys: Any = torch._C._dispatch_keys


# Functions of C, which guards call: how many modes are on the stacks, and whether functions may be overridden at all.
function_modes_on: Any = torch._C._len_torch_function_stack
dispatch_modes_on: Any = torch._C._len_torch_dispatch_stack
functions_may_be_overridden: Any = torch._C._is_torch_function_enabled


# The C++ side of torch.func: says which transforms are on.
_TRANSFORMS: Any = getattr(torch._C, "_functorch")

PRE_DISPATCH_KEY = torch._C.DispatchKey.PreDispatch

# Within `with without_dispatch():` no Python mode or subclass sees a call. The public equivalents are generators, and slow.
without_dispatch = torch._C._DisableTorchDispatch

# Within `with without_torch_function():` no subclass of Tensor sees a call of a function of torch.
without_torch_function = torch._C.DisableTorchFunctionSubclass


def active_dispatch_modes() -> list[Any]:
    """The dispatch modes now on, outermost first; the one above autograd is last. Only the C++ stack and the slot know."""
    modes = [torch._C._get_dispatch_stack_at(i) for i in range(torch._C._len_torch_dispatch_stack())]
    above_autograd = _ops._get_current_dispatch_mode_pre_dispatch()
    return modes if above_autograd is None else [*modes, above_autograd]


def is_any_mode_active_but(mode: Any) -> bool:
    """Whether another dispatch mode than this one is on, the slot above autograd aside."""
    count = torch._C._len_torch_dispatch_stack()
    return count > 1 or (count == 1 and torch._C._get_dispatch_stack_at(0) is not mode)


def dispatch_keys() -> Any:
    """Which kernels the dispatcher includes and leaves out, in this thread and at this point."""
    return torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()


def with_dispatch_keys(keys: Any) -> contextlib.AbstractContextManager[Any]:
    """A block in which the dispatcher is as `dispatch_keys()` found it: the functions of an operator run below autograd."""
    return torch._C._ForceDispatchKeyGuard(*keys)


def other_tracer() -> Any:
    """The mode of torch's own make_fx, if one is on. It has a slot of its own below all modes on the stack."""
    return _get_dispatch_mode(_PROXY_SLOT)


_get_dispatch_mode = torch._C._get_dispatch_mode
_PROXY_SLOT = torch._C._TorchDispatchModeKey.PROXY


@contextlib.contextmanager
def without_pre_dispatch_modes() -> Iterator[None]:
    """Within it nobody sees ops before autograd: whatever mode has the slot is put back afterwards."""
    modes = []
    while _ops._len_torch_dispatch_stack_pre_dispatch():
        modes.append(_ops._pop_mode_from_pre_dispatch())
    try:
        yield
    finally:
        for mode in reversed(modes):
            _ops._set_mode_pre_dispatch(mode)


def is_inside_function_transform() -> bool:
    """Whether vmap, grad or another of torch.func's transforms is on: tensors then stand for others."""
    return _TRANSFORMS.peek_interpreter_stack() is not None


def stands_for_another(tensor: torch.Tensor) -> bool:
    """Whether it is a tensor of one of torch.func's transforms, which has no memory; it may outlive the transform."""
    return _TRANSFORMS.is_functorch_wrapped_tensor(tensor)


__all__ = [
    "PRE_DISPATCH_KEY",
    "PreDispatchSlot",
    "TorchDispatchMode",
    "active_dispatch_modes",
    "dispatch_keys",
    "dispatch_modes_on",
    "function_modes_on",
    "functions_may_be_overridden",
    "is_any_mode_active_but",
    "is_inside_function_transform",
    "other_tracer",
    "stands_for_another",
    "tensor_keys",
    "with_dispatch_keys",
    "without_dispatch",
    "without_pre_dispatch_modes",
    "without_torch_function",
]
