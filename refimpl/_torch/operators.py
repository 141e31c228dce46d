"""Operators: their classes, higher-order operators, kernels, side effects, and mutated arguments."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

# Runs Python kernels of ops where there are any.
from torch._dispatch.python import enable_python_dispatcher as enable_python_dispatcher
from torch._dispatch.python import no_python_dispatcher as no_python_dispatcher

# Where torch's AOT autograd looks for the graphs of a region that it has made; without it, one backward serves all calls.
from torch._guards import TracingContext as _TracingContext
from torch._guards import tracing as _tracing

# Higher-order operators, of which only torch.cond has a public name.
from torch._higher_order_ops import map as hop_map
from torch._higher_order_ops import scan as hop_scan

# Has the function by which torch.cond and others compile themselves; refimpl replaces it (trace/higher_order/direct_calls.py).
from torch._higher_order_ops import utils as hop_utils
from torch._higher_order_ops import while_loop as hop_while_loop

# The class of operators that run one function on operands, and keep their keyword arguments.
from torch._higher_order_ops.base_hop import BaseHOP as BaseHOP

# What the wrapper of torch.compiler.nested_compile_region calls, and what makes the wrapper.
from torch._higher_order_ops.invoke_subgraph import invoke_subgraph_placeholder as call_of_region
from torch._higher_order_ops.invoke_subgraph import mark_compile_region as mark_of_region

# Side effects of ops that their schemas do not show.
from torch._library import simple_registry as _simple_registry

# Records of what operators were called with, from which torch makes fake kernels.
from torch._library.fake_profile import OpProfile as OpProfile
from torch._library.fake_profile import TensorMetadata as _TensorProfile

# While it is off, torch.library.wrap_triton returns the kernel itself.
from torch._library.triton import set_wrap_triton_enabled as _set_wrap_triton_enabled

# The type of aten.add.Tensor has no public name.
from torch._ops import HigherOrderOperator as HigherOrderOperator
from torch._ops import OpOverload as OpOverload
from torch._ops import OpOverloadPacket as OpOverloadPacket

TensorProfile = _TensorProfile


def regions_told_apart() -> contextlib.AbstractContextManager[Any]:
    """A block in which torch's AOT autograd, as a part of somebody's backend, gives each call of a region the right backward."""
    return _tracing(_TracingContext(None))


# Functions that no graph looks into (torch._dynamo.decorators.leaf_function); None before torch 2.13.
leaf_functions: Any = None
with contextlib.suppress(ImportError):
    leaf_functions = importlib.import_module("torch._higher_order_ops.invoke_leaf_function")


# Calls in graphs that assert a condition on numbers, or of a tensor, when the program runs.
check_condition = torch._check
assert_of_tensor = torch._assert_async
assert_in_graph = torch._assert


def without_wrapped_kernels() -> contextlib.AbstractContextManager[Any]:
    """A block in which a launch through `torch.library.wrap_triton(kernel)` is one of the kernel itself."""
    return _set_wrap_triton_enabled(False)


def is_wrapped_kernel(value: Any) -> bool:
    """Whether `torch.library.wrap_triton` has made it of a Triton kernel, which is its attribute `kernel`."""
    class_ = type(value)
    is_of_torch = class_.__module__ == "torch._higher_order_ops.triton_kernel_wrap"
    return is_of_torch and class_.__name__ == "TraceableTritonKernelWrapper"


def captured_launch(kernel: int, constants: int) -> tuple[Any, dict[str, Any]]:
    """The Triton kernel and the constant arguments that torch's table has under these numbers, if torch has captured a launch."""
    table = sys.modules["torch._higher_order_ops.triton_kernel_wrap"].kernel_side_table
    return table.get_kernel(kernel), table.get_constant_args(constants)


def has_composite_kernel(func: OpOverload) -> bool:
    """Whether the op has a CompositeImplicitAutograd kernel, which may return an argument or a view of one."""
    name = func.name()
    if not torch._C._dispatch_has_kernel(name):  # some TorchScript operators
        return False
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")


@functools.cache
def has_cpu_kernel(func: OpOverload) -> bool:
    """Whether the CPU has a kernel for the op, its own or one for all devices."""
    name = func.name()
    keys = ("CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "CompositeImplicitAutograd")
    return torch._C._dispatch_has_kernel(name) and any(
        torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in keys
    )


def is_decomposed_by_autograd(func: OpOverload, device_types: frozenset[str]) -> bool:
    """Whether eager runs the op's composite kernel, because none of the devices has its own kernel.

    A dispatch mode does not see such an op, because autograd decomposes it first; in inference mode autograd does not.
    """
    if not has_composite_kernel(func):
        return False
    keys = [torch._C._dispatch_key_for_device(device_type) for device_type in device_types]
    return not any(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key) for key in keys)


def has_python_composite_kernel(func: OpOverload) -> bool:
    """Whether somebody has registered a Python kernel that computes the op by others."""
    return torch._C.DispatchKey.CompositeImplicitAutograd in func.py_kernels


def names_of_composite_ops() -> list[str]:
    """The names of all ops with a composite kernel, such as "aten::matmul", in order."""
    return sorted(torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd"))


def run_composite_kernel(func: OpOverload, args: Any, kwargs: Any) -> Any:
    """Run the op's composite kernel. `OpOverload.decompose` would prefer torch's Python decompositions."""
    return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


# Whether torch.cond and while_loop take functions that write to their operands, where gradients are off. Before torch 2.13 they
# refuse these.
BRANCHES_MAY_WRITE = "mutated_arg_indices" in inspect.signature(torch.ops.higher_order.while_loop.__call__).parameters
_COMPOSITE_KEYS = (torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.Autograd)
_AUTOGRAD = torch._C.DispatchKey.Autograd
_exchange = threading.RLock()
_exchanged: list[int] = [0]  # how many blocks of `with_kernels_of_composites` are open


@contextlib.contextmanager
def with_kernels_of_composites(own: Mapping[OpOverload, Callable[..., Any]]) -> Iterator[None]:
    """Within, the Python kernels of composite ops are `own`, and no others; ops without one run their C++ kernels.

    Blocks may be nested, and run in several threads: the first puts the kernels in, the last takes them out.
    """
    with _exchange:
        if not _exchanged[0]:
            _exchange_kernels(own)
        _exchanged[0] += 1
    try:
        yield
    finally:
        with _exchange:
            _exchanged[0] -= 1
            if not _exchanged[0]:
                for op, kernels in _taken_out:
                    _take_out(op, kernels)
                _taken_out.clear()


_taken_out: list[tuple[OpOverload, dict[Any, Any]]] = []


def _exchange_kernels(own: Mapping[OpOverload, Callable[..., Any]]) -> None:
    """Put the kernels in, and note the Python kernels that torch has for each op."""
    of_torch = _ops_with_python_kernels()
    for op in of_torch:
        _taken_out.append((op, _take_out(op)))
    for op, kernel in own.items():
        if op not in of_torch:
            _taken_out.append((op, {}))
            op._dispatch_cache.clear()
        op.py_kernels.update(dict.fromkeys(_keys_of_own(op), kernel))


def _take_out(op: OpOverload, others: Mapping[Any, Any] = MappingProxyType({})) -> dict[Any, Any]:
    """The composite Python kernels of an op, which it has no more; `others` are put in their place."""
    kernels = op.py_kernels
    # One call for each key: the hash of a dispatch key takes longer than what is done with it.
    found = {key: kernel for key in _COMPOSITE_KEYS if (kernel := kernels.pop(key, None)) is not None}
    kernels.update(others)
    op._dispatch_cache.clear()
    return found


@contextlib.contextmanager
def with_autograd_kernel(operator: HigherOrderOperator, kernel: Callable[..., Any]) -> Iterator[None]:
    """Within, `kernel(original, *args, **kwargs)` runs where the operator is dispatched to autograd. original: torch's kernel."""
    kernels: dict[Any, Any] = operator.py_kernels
    original = kernels[_AUTOGRAD]
    kernels[_AUTOGRAD] = functools.partial(kernel, original)
    operator._dispatch_cache.clear()
    try:
        yield
    finally:
        kernels[_AUTOGRAD] = original
        operator._dispatch_cache.clear()


@functools.cache
def _keys_of_own(op: OpOverload) -> tuple[Any, ...]:
    return _COMPOSITE_KEYS[:1] if has_composite_kernel(op) else _COMPOSITE_KEYS


def _ops_with_python_kernels() -> Mapping[OpOverload, None]:
    """Ops of torch for which somebody has registered a Python kernel: only these exist as Python objects already.

    Modules register them when they are loaded, so the three thousand ops are searched again only after one was.
    """
    loaded = len(sys.modules)
    if loaded not in _found_kernels:
        _found_kernels.clear()
        _found_kernels[loaded] = dict.fromkeys(known.op for known in _known_ops() if known.has_composite())
    return _found_kernels[loaded]


_found_kernels: dict[int, Mapping[OpOverload, None]] = {}  # by the number of loaded modules


@dataclass(slots=True)
class _KnownOp:
    """An op as the last search found it. A search looks only at ops whose number of Python kernels has changed since."""

    op: OpOverload
    kernels: int = 0
    is_composite: bool = False

    def has_composite(self) -> bool:
        count = len(self.op.py_kernels)
        if count != self.kernels:
            self.kernels, self.is_composite = count, any(key in self.op.py_kernels for key in _COMPOSITE_KEYS)
        return self.is_composite


def _known_ops() -> Iterator[_KnownOp]:
    for name, packet in list(vars(torch.ops.aten).items()):
        if not isinstance(packet, OpOverloadPacket):
            continue
        held = vars(packet)
        count, known = _known_packets.get(name, (None, []))
        if count != len(held):
            known = [_KnownOp(op) for op in list(held.values()) if isinstance(op, OpOverload)]
            _known_packets[name] = len(held), known
        yield from known


_known_packets: dict[str, tuple[int, list[_KnownOp]]] = {}  # by name: how many attributes the packet had, and its ops


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
# call_torchbind(script object, name of a method, *args)
call_torchbind: Any = getattr(torch.ops.higher_order, "call_torchbind")


def written_arguments(func: OpOverload) -> tuple[tuple[int, str], ...]:
    """Position and name of every argument that the op mutates, by its schema."""
    arguments = func._schema.arguments
    return tuple((i, a.name) for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write)


__all__ = [
    "BRANCHES_MAY_WRITE",
    "BaseHOP",
    "HigherOrderOperator",
    "OpOverload",
    "OpOverloadPacket",
    "assert_in_graph",
    "assert_of_tensor",
    "call_of_region",
    "call_torchbind",
    "check_condition",
    "enable_python_dispatcher",
    "has_composite_kernel",
    "has_cpu_kernel",
    "has_python_composite_kernel",
    "hop_map",
    "hop_scan",
    "hop_utils",
    "hop_while_loop",
    "is_decomposed_by_autograd",
    "mark_of_region",
    "names_of_composite_ops",
    "no_python_dispatcher",
    "regions_told_apart",
    "registered_effect",
    "run_composite_kernel",
    "with_autograd_kernel",
    "with_effects",
    "with_kernels_of_composites",
    "written_arguments",
]
