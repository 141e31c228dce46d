"""Names of torch for what captured programs contain: C functions, numpy functions, TorchScript and modules."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

# numpy functions on tensors: an operator library like the fake kernels, not part of capture.
from torch import _numpy, _utils_internal
from torch.fx import _symbolic_trace
from torch.optim.optimizer import _get_value

torch_numpy: Any = _numpy

# C functions that capture knows: modules of operators only, functions that only query, functions that read torch's state.
TensorBase = torch._C.TensorBase
NATIVE_OPERATOR_MODULES = frozenset(
    f"torch._C.{name}" for name in ("_nn", "_fft", "_linalg", "_special", "_sparse", "_nested")
)
NATIVE_QUESTIONS: tuple[Any, ...] = (
    torch._C._has_torch_function,
    torch._C._has_torch_function_unary,
    torch._C._has_torch_function_variadic,
)
NATIVE_STATE_READERS: tuple[Any, ...] = (
    torch._C._get_tracing_state,
    torch._C._is_torch_function_enabled,
    torch._C._get_privateuse1_backend_name,  # it is given once, before the first use
    torch._C._accelerator_getAccelerator,  # the device type is fixed when torch is built
    _symbolic_trace.is_fx_tracing,
)
# Reads the number out of a tensor with one element. While a compiler captures, it returns the tensor.
value_for_optimizer: Any = _get_value
group_tensors: Any = getattr(torch._C, "_group_tensors_by_device_and_dtype")
PROFILER_ENABLED: Any = torch.autograd._profiler_enabled
_VARIABLE_FUNCTIONS: Any = getattr(torch._C, "_VariableFunctions")


def is_native_operator(function: Any) -> bool:
    """Whether the function is an operator in torch's namespace, such as torch.add: a method of C++'s _VariableFunctions."""
    return getattr(_VARIABLE_FUNCTIONS, getattr(function, "__name__", ""), None) is function


def resolved_overload(packet: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The name of the overload that a call of a packet takes. Raises RuntimeError if none takes the arguments."""
    return torch._C._jit_resolve_packet(packet._qualified_op_name, *args, **kwargs)


# Assertions on sizes and numbers, documented in spite of their names: functions of a condition or a size, and of a message.
torch_checks: tuple[Any, ...] = (
    torch._check, torch._check_is_size, torch._check_index, torch._check_value, torch._check_type, torch._check_not_implemented
)  # fmt: skip
# What the others end in: a function of an error's type, a condition and a message.
torch_check_with: Any = torch._check_with
# The tracer below torch.jit.trace, and whether it runs.
jit_get_trace_graph: Any = getattr(torch.jit, "_get_trace_graph")
is_jit_tracing: Callable[[], bool] = torch._C._is_tracing
# Wraps a C++ TorchScript module (the owner of a script method) as a Python module.
wrap_script_module: Any = getattr(getattr(torch.jit, "_recursive"), "wrap_cpp_module")
# Logs the use of an entry point, in builds of torch that collect usage.
log_torch_api_usage_once: Callable[[str], object] = torch._C._log_api_usage_once


@contextlib.contextmanager
def exporting_flags() -> Iterator[None]:
    """A block in which `torch.compiler.is_compiling()` and `is_exporting()` are True, and no operator chooses a backend for the
    sizes of an example: with oneDNN on, a convolution asks whether the batch is smaller than 16."""
    flags: Any = getattr(torch, "compiler")
    names = [name for name in ("_is_compiling_flag", "_is_exporting_flag") if hasattr(flags, name)]
    before = [getattr(flags, name) for name in names]
    backends = (torch.backends.mkldnn, torch.backends.nnpack, torch.backends.cudnn)
    settings = [backend.set_flags(False) for backend in backends]
    try:
        for name in names:
            setattr(flags, name, True)
        yield
    finally:
        for backend, setting in zip(backends, settings, strict=True):
            backend.set_flags(*setting)
        for name, value in zip(names, before, strict=True):
            setattr(flags, name, value)


def is_exporting() -> bool:
    """Whether a program is being exported: torch's flag, which `exporting_flags` sets."""
    return bool(getattr(getattr(torch, "compiler"), "_is_exporting_flag", False))


_NOT_THERE = object()


def call_slot(module: torch.nn.Module) -> Callable[..., Any]:
    """The function that calling the module runs."""
    compiled = module.__dict__.get("_compiled_call_impl")
    return module._call_impl if compiled is None else compiled


@contextlib.contextmanager
def call_replaced(module: torch.nn.Module, call: Callable[..., Any]) -> Iterator[None]:
    """A block in which calling the module runs `call`, by the attribute that `Module.compile` sets; `call` has to run hooks."""
    attributes = module.__dict__
    previous = attributes.get("_compiled_call_impl", _NOT_THERE)
    attributes["_compiled_call_impl"] = call
    try:
        yield
    finally:
        if previous is _NOT_THERE:
            attributes.pop("_compiled_call_impl", None)
        else:
            attributes["_compiled_call_impl"] = previous


@contextlib.contextmanager
def children_replaced(module: torch.nn.Module, replacement: dict[str, Any]) -> Iterator[None]:
    """A block in which the module's `_modules` is `replacement`. The program's changes of it are kept afterwards."""
    attributes = module.__dict__
    children = attributes["_modules"]
    attributes["_modules"] = replacement
    try:
        yield
    finally:
        if attributes["_modules"] is replacement:
            attributes["_modules"] = children
            if list(dict.items(replacement)) != list(children.items()):
                children.clear()
                children.update(dict.items(replacement))


def is_switched_on(feature: str) -> bool:
    """Whether torch's switch for a feature is on. It can be off only in builds that read switches from a service."""
    return bool(_utils_internal.justknobs_check(feature))


__all__ = [
    "NATIVE_OPERATOR_MODULES",
    "NATIVE_QUESTIONS",
    "NATIVE_STATE_READERS",
    "TensorBase",
    "call_replaced",
    "call_slot",
    "children_replaced",
    "exporting_flags",
    "group_tensors",
    "is_exporting",
    "is_jit_tracing",
    "is_native_operator",
    "is_switched_on",
    "jit_get_trace_graph",
    "log_torch_api_usage_once",
    "torch_check_with",
    "torch_checks",
    "torch_numpy",
    "value_for_optimizer",
    "wrap_script_module",
]


# The forward and backward hooks that run for every module, by registration.
HOOKS_OF_ALL_MODULES = tuple(
    getattr(torch.nn.modules.module, f"_global_{name}_hooks")
    for name in ("forward", "forward_pre", "backward", "backward_pre")
)
