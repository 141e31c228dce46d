"""Questions about modules: their hooks, the first attribute that exists, whether parameters are fake; a module's proxy.

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
    """The module's hooks of the chosen kinds; forward and backward hooks if no kind is chosen."""
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
    """Whether `nn_module_get_all_hooks` with these arguments finds a hook."""
    return bool(nn_module_get_all_hooks(mod, check_forward_hooks, check_backward_hooks, check_state_dict_hooks))


def nn_module_has_global_hooks() -> bool:
    """Whether global forward or backward hooks are registered, which run for every module."""
    names = ("forward", "forward_pre", "backward", "backward_pre")
    return any(getattr(_module, f"_global_{name}_hooks") for name in names)


def get_first_attr(obj: Any, *attrs: str) -> Any:
    """The value of the first of these attributes that the object has. Raises AssertionError if it has none."""
    found = next(filter(functools.partial(hasattr, obj), attrs), None)
    assert found is not None, f"{obj!r} has none of the attributes {', '.join(attrs)}"
    return getattr(obj, found)


def nn_module_proxy(mod: Any) -> Any:
    """A second object that shares the module's class and `__dict__`. GraphModules and non-modules are returned unchanged."""
    if not isinstance(mod, torch.nn.Module) or isinstance(mod, fx.GraphModule):
        return mod
    made = mod.__class__.__new__(mod.__class__)
    made.__dict__ = mod.__dict__
    return made


class _Hooks(dict[int, Any]):
    """A dict to which weak references are possible."""


def invalid_removeable_handle() -> RemovableHandle:
    """A handle whose hook is gone, so that `remove()` does nothing."""
    handle = RemovableHandle(_Hooks())
    assert isinstance(handle.hooks_dict_ref, weakref.ref)
    return handle


def assert_no_fake_params_or_buffers(gm: torch.nn.Module) -> None:
    """Raises AssertionError for a fake parameter or buffer. Its message has the stack where the fake was made, if recorded."""
    for kind, named in (("buffer", gm.named_buffers()), ("param", gm.named_parameters())):
        for name, tensor in named:
            trace = getattr(tensor, "_debug_trace", None)
            hint = (
                f"\n  made at:\n{''.join(trace.format())}"
                if trace is not None
                else "\n  what to do: set TORCH_FAKE_TENSOR_DEBUG=1 to see where it was made"
            )
            assert not isinstance(tensor, FakeTensor), f"Unexpected fake {kind} {name}{hint}"
