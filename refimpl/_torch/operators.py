"""Operators: their classes, higher-order operators, kernels, side effects, and mutated arguments."""

from __future__ import annotations

from typing import Any

import torch

# Python kernels of composite ops; the C++ ones would specialize symbolic sizes.
from torch._dispatch.python import enable_python_dispatcher as enable_python_dispatcher
from torch._dispatch.python import no_python_dispatcher as no_python_dispatcher

# Higher-order operators, of which only torch.cond has a public name.
from torch._higher_order_ops import map as hop_map
from torch._higher_order_ops import scan as hop_scan

# Has the function by which torch.cond and others compile themselves; refimpl replaces it (trace/higher_order/direct_calls.py).
from torch._higher_order_ops import utils as hop_utils
from torch._higher_order_ops import while_loop as hop_while_loop

# What the wrapper of torch.compiler.nested_compile_region calls.
from torch._higher_order_ops.invoke_subgraph import invoke_subgraph_placeholder as call_of_region

# Side effects of ops that their schemas do not show.
from torch._library import simple_registry as _simple_registry

# The type of aten.add.Tensor has no public name.
from torch._ops import HigherOrderOperator as HigherOrderOperator
from torch._ops import OpOverload as OpOverload
from torch._ops import OpOverloadPacket as OpOverloadPacket


def has_composite_kernel(func: OpOverload) -> bool:
    """Whether the op has a CompositeImplicitAutograd kernel, which may return an argument or a view of one."""
    name = func.name()
    if not torch._C._dispatch_has_kernel(name):  # some TorchScript operators
        return False
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")


def is_decomposed_by_autograd(func: OpOverload, device_types: frozenset[str]) -> bool:
    """Whether eager runs the op's composite kernel, because none of the devices has its own kernel.

    A dispatch mode does not see such an op, because autograd decomposes it first; in inference mode autograd does not.
    """
    if not has_composite_kernel(func):
        return False
    keys = [torch._C._dispatch_key_for_device(device_type) for device_type in device_types]
    return not any(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key) for key in keys)


def has_python_kernels() -> bool:
    """Whether the dispatcher prefers torch's Python kernels, as in symbolic traces."""
    return torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.PythonDispatcher)


def run_composite_kernel(func: OpOverload, args: Any, kwargs: Any) -> Any:
    """Run the op's composite kernel. `OpOverload.decompose` would prefer torch's Python decompositions."""
    return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def registered_effect(func: Any) -> Any:
    """The registered side effect of an op or higher-order operator (calls with one must stay in order); None without.

    Ops that mutate or return an argument are not looked up: their schemas show that.
    """
    if isinstance(func, OpOverload):
        arguments = (*func._schema.arguments, *func._schema.returns)
        return None if any(a.alias_info is not None for a in arguments) else _effect_of(func._name)
    return _effect_of(f"{func.namespace}::{func.name()}") if isinstance(func, HigherOrderOperator) else None


def _effect_of(name: str) -> Any:
    holder = getattr(_simple_registry.singleton.find(name), "effect", None)
    return None if holder is None else holder.effect


# with_effects(token, op, ...): an op with a side effect, put in order by the token it takes and the token it returns.
with_effects: Any = getattr(torch.ops.higher_order, "with_effects")


def written_arguments(func: OpOverload) -> tuple[tuple[int, str], ...]:
    """Position and name of every argument that the op mutates, by its schema."""
    arguments = func._schema.arguments
    return tuple((i, a.name) for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write)


__all__ = [
    "HigherOrderOperator",
    "OpOverload",
    "OpOverloadPacket",
    "call_of_region",
    "enable_python_dispatcher",
    "has_composite_kernel",
    "has_python_kernels",
    "hop_map",
    "hop_scan",
    "hop_utils",
    "hop_while_loop",
    "is_decomposed_by_autograd",
    "no_python_dispatcher",
    "registered_effect",
    "run_composite_kernel",
    "with_effects",
    "written_arguments",
]
