"""What is asked of modules: their hooks, their first attribute of several, whether they are fake; a proxy for one.

Counterpart: torch/_dynamo/utils.py nn_module_get_all_hooks, nn_module_proxy, get_first_attr, assert_no_fake_params_or_buffers
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch
from torch import fx
from torch.nn.modules import module as _module
from torch.utils.hooks import RemovableHandle

from refimpl._torch import FakeTensor

forward_hook_names = ["_forward_pre_hooks", "_forward_hooks"]
backward_hook_names = ["_backward_pre_hooks", "_backward_hooks"]
state_dict_hook_names = [
    "_state_dict_pre_hooks", "_state_dict_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
]  # fmt: skip
all_hook_names = [*forward_hook_names, *backward_hook_names, *state_dict_hook_names]


def nn_module_get_all_hooks(
    mod: torch.nn.Module,
    check_forward_hooks: bool = False,
    check_backward_hooks: bool = False,
    check_state_dict_hooks: bool = False,
) -> list[Any]:
    """The hooks of a module of the kinds asked for; without any: those of forward and backward."""
    kinds = (
        (check_forward_hooks, forward_hook_names),
        (check_backward_hooks, backward_hook_names),
        (check_state_dict_hooks, state_dict_hook_names),
    )
    names = [name for is_asked, names in kinds if is_asked for name in names]
    names = names or [*forward_hook_names, *backward_hook_names]
    return [hook for name in names for hook in getattr(mod, name, {}).values()]


def nnmodule_has_hooks(
    mod: torch.nn.Module,
    check_forward_hooks: bool = False,
    check_backward_hooks: bool = False,
    check_state_dict_hooks: bool = False,
) -> bool:
    """Whether there are any of these."""
    return bool(nn_module_get_all_hooks(mod, check_forward_hooks, check_backward_hooks, check_state_dict_hooks))


def nn_module_has_global_hooks() -> bool:
    """Whether there are hooks that run with every module's forward or backward."""
    names = ("forward", "forward_pre", "backward", "backward_pre")
    return any(getattr(_module, f"_global_{name}_hooks") for name in names)


def get_first_attr(obj: Any, *attrs: str) -> Any:
    """The first of these attributes that the object has. Raises AssertionError where it has none."""
    found = next(filter(functools.partial(hasattr, obj), attrs), None)
    assert found is not None, f"{obj!r} has none of the attributes {', '.join(attrs)}"
    return getattr(obj, found)


def nn_module_proxy(mod: Any) -> Any:
    """An object of the same class with the same `__dict__`, which hooks and attributes go to; a graph module itself."""
    if not isinstance(mod, torch.nn.Module) or isinstance(mod, fx.GraphModule):
        return mod
    made = mod.__class__.__new__(mod.__class__)
    made.__dict__ = mod.__dict__
    return made


class _Hooks(dict[int, Any]):
    """A dict that can be referred to weakly."""


def invalid_removeable_handle() -> RemovableHandle:
    """A handle of a hook that is gone: removing it does nothing."""
    handle = RemovableHandle(_Hooks())
    assert isinstance(handle.hooks_dict_ref, weakref.ref)
    return handle


def assert_no_fake_params_or_buffers(gm: torch.nn.Module) -> None:
    """Raises AssertionError that names a parameter or buffer without data, and where it was made, where that is known."""
    for kind, named in (("buffer", gm.named_buffers()), ("param", gm.named_parameters())):
        for name, tensor in named:
            stack = getattr(tensor, "_debug_trace", None)
            hint = (
                f"\n  made at:\n{stack}"
                if stack
                else "\n  what to do: set TORCH_FAKE_TENSOR_DEBUG=1 to see where it was made"
            )
            assert not isinstance(tensor, FakeTensor), f"Unexpected fake {kind} {name}{hint}"
