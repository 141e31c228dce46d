"""What a call passes on its way to a kernel: torch.func transforms, autograd and its modes, the dispatcher's modes and keys."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

# The slot for modes above autograd, see `PreDispatchSlot`.
from torch import _ops

# The slot for modes above autograd and autocast accepts three classes, by isinstance. refimpl's own mode inherits from
# the one that refimpl is not compared with, the mode that checks schemas, and uses none of its methods.
from torch._subclasses.schema_check_mode import SchemaCheckMode as PreDispatchSlot  # noqa: TID251

# Calls in graphs that change a mode of later ops and are no ops themselves.
from torch.amp.autocast_mode import _enter_autocast as enter_autocast
from torch.amp.autocast_mode import _exit_autocast as exit_autocast
from torch.autograd.grad_mode import _enter_inference_mode as enter_inference_mode
from torch.autograd.grad_mode import _exit_inference_mode as exit_inference_mode

# The mode that `with torch.device(...)` pushes, and the functions to which it gives the device.
from torch.utils._device import DeviceContext as DeviceContext
from torch.utils._device import _device_constructors as device_constructors

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

# Within `with without_torch_function():` no `__torch_function__` of a Tensor subclass is called; within
# `with without_overrides():` that of a mode neither; within `with with_overrides():` all are.
without_torch_function = torch._C.DisableTorchFunctionSubclass
without_overrides = torch._C.DisableTorchFunction
with_overrides = torch._C._EnableTorchFunction
overrides_are_off = torch._C._is_torch_function_all_disabled

# The C function that a class has as `__torch_function__` if it overrides nothing, and the stack of function modes.
no_torch_function: Any = getattr(torch._C, "_disabled_torch_function_impl")
push_function_mode: Any = getattr(torch._C, "_push_on_torch_function_stack")
pop_function_mode: Any = getattr(torch._C, "_pop_torch_function_stack")
function_mode_at: Any = getattr(torch._C, "_get_function_stack_at")
TORCH_FUNCTION_QUESTIONS: tuple[Any, ...] = (
    torch.overrides.has_torch_function,
    torch.overrides.has_torch_function_unary,
    torch.overrides.has_torch_function_variadic,
)


def active_dispatch_modes() -> list[Any]:
    """The active dispatch modes, outermost first; a mode above autograd is last."""
    modes = [torch._C._get_dispatch_stack_at(i) for i in range(torch._C._len_torch_dispatch_stack())]
    above_autograd = _ops._get_current_dispatch_mode_pre_dispatch()
    return modes if above_autograd is None else [*modes, above_autograd]


def active_function_modes() -> list[Any]:
    """The active function modes, outermost first, without those that `torch.device` and `set_default_device` make."""
    modes = [function_mode_at(i) for i in range(torch._C._len_torch_function_stack())]
    return [mode for mode in modes if not isinstance(mode, DeviceContext)]


def attention_order() -> list[int]:
    """The order in which kernels of attention are tried, as numbers."""
    return [int(backend) for backend in getattr(torch._C, "_get_sdp_priority_order", list)()]


def native_namespaces() -> list[tuple[str, Any]]:
    """The modules and classes of torch's native functions, by name."""
    names = ("_VariableFunctions", "_nn", "_fft", "_linalg", "_special", "_sparse", "_nested", "TensorBase")
    inner = [(f"torch._C.{name}", getattr(torch._C, name)) for name in names if hasattr(torch._C, name)]
    return [("torch._C", torch._C), *inner]


def registered_kernels() -> frozenset[str]:
    """The kernels that Python code has registered with `torch.library`: namespace/operator/dispatch key."""
    return frozenset(getattr(torch.library, "_impls"))


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


# The same as a C function, for loops.
is_functorch_wrapped_tensor = _TRANSFORMS.is_functorch_wrapped_tensor

# The function that torch.no_grad and others call, and that function modes see.
set_grad_enabled = torch._C._set_grad_enabled
set_determinism = torch._C._set_deterministic_algorithms
# The Python function that runs the autograd engine: the engine has called every frame whose caller is this function.
engine_call: Any = getattr(torch.autograd.graph, "_engine_run_backward")
# Whether autocast is on for any device type: the C function, which guards call.
is_any_autocast_enabled = torch._C._is_any_autocast_enabled
# The device types that have autocast, also where there is no such device.
autocast_device_types: Any = getattr(torch._C, "_autocast_supported_devices")
# Those whose autocast decides how a call is compiled: a program may ask for CUDA's autocast where there is no GPU.
AUTOCAST_DEVICES = ("cpu", "cuda")

# The current level of forward-mode AD, -1 if none is entered. Levels are shared by all threads.
forward_mode_level = functools.partial(getattr, torch.autograd.forward_ad, "_current_level")

# Within `with below_autograd():` ops skip autograd.
below_autograd = torch._C._AutoDispatchBelowAutograd


def is_below_autograd() -> bool:
    """Whether ops skip autograd here."""
    return torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.AutogradCPU)


def is_inside_backward() -> bool:
    """Whether a backward pass is running in this thread."""
    return torch._C._current_graph_task_id() != -1


def gradients_in_trace(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """`torch.autograd.grad` of traced tensors, which have no data: without anomaly mode's search for NaN."""
    if not torch.is_anomaly_check_nan_enabled():
        return torch.autograd.grad(*args, **kwargs)
    is_on = torch.is_anomaly_enabled()
    torch.autograd.set_detect_anomaly(is_on, False)
    try:
        return torch.autograd.grad(*args, **kwargs)
    finally:
        torch.autograd.set_detect_anomaly(is_on, True)


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


def replays_views() -> bool:
    """Whether autograd repeats the operators of a view of which a base was written, instead of one `as_strided`."""
    return torch._C._is_view_replay_enabled()


def has_saved_tensors_hooks() -> bool:
    """Whether saved tensor hooks are active."""
    hooks: Any = getattr(torch._C, "_autograd")
    return hooks._top_saved_tensors_default_hooks(True) is not None


def keeps_autograd_graph() -> bool:
    """Whether the running backward pass was called with `retain_graph=True`."""
    return bool(getattr(torch._C, "_autograd")._get_current_graph_task_keep_graph())


def versions_kept(tensors: Sequence[torch.Tensor]) -> contextlib.AbstractContextManager[None]:
    """A block after which the tensors have the versions that they had before, for writes that autograd need not notice."""
    return torch.autograd._unsafe_preserve_version_counter(tuple(tensors))


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


def is_creation_meta(value: object) -> bool:
    """Whether the value is a CreationMeta."""
    return isinstance(value, _creation_metas())


def creation_meta_named(name: str) -> Any:
    """Autograd's note on how a view was made, by the name in its CreationMeta. Raises KeyError for an unknown name."""
    return _creation_metas().__members__[name]


def _creation_metas() -> Any:
    return getattr(torch._C, "_autograd").CreationMeta


def is_made_without_gradients(creation: Any) -> bool:
    """Whether the CreationMeta is that of a view made under `no_grad` or in inference mode."""
    kinds: Any = getattr(getattr(torch._C, "_autograd"), "CreationMeta")
    return creation in (kinds.NO_GRAD_MODE, kinds.INFERENCE_MODE)


# The sizes of a tensor, as a tensor of integers.
shape_as_tensor = torch._shape_as_tensor
# Within `with without_autocast():` autocast is off for all device types.
without_autocast = torch._C._DisableAutocast


__all__ = [
    "AUTOCAST_DEVICES",
    "PRE_DISPATCH_KEY",
    "TORCH_FUNCTION_QUESTIONS",
    "DeviceContext",
    "DispatchMode",
    "PreDispatchSlot",
    "TorchDispatchMode",
    "active_dispatch_modes",
    "active_function_modes",
    "attention_order",
    "autocast_device_types",
    "autograd_sequence_number",
    "below_autograd",
    "creation_meta_named",
    "creation_of_view",
    "device_constructors",
    "dispatch_keys",
    "dispatch_modes_on",
    "engine_call",
    "enter_autocast",
    "enter_inference_mode",
    "exit_autocast",
    "exit_inference_mode",
    "forward_mode_level",
    "function_mode_at",
    "function_modes_on",
    "function_of",
    "functions_may_be_overridden",
    "gradients_in_trace",
    "has_saved_tensors_hooks",
    "is_any_autocast_enabled",
    "is_any_mode_active_but",
    "is_below_autograd",
    "is_creation_meta",
    "is_functorch_wrapped",
    "is_functorch_wrapped_tensor",
    "is_inside_backward",
    "is_inside_function_transform",
    "is_made_without_gradients",
    "keeps_autograd_graph",
    "native_namespaces",
    "no_torch_function",
    "overrides_are_off",
    "pop_function_mode",
    "push_function_mode",
    "registered_kernels",
    "replays_views",
    "running_autograd_node",
    "saved_tensors_hooks_off",
    "set_creation_of_view",
    "set_determinism",
    "set_grad_enabled",
    "tensor_keys",
    "upstream_proxy_mode",
    "versions_kept",
    "with_dispatch_keys",
    "with_overrides",
    "without_autocast",
    "without_dispatch",
    "without_overrides",
    "without_pre_dispatch_modes",
    "without_saved_tensors_hooks",
    "without_torch_function",
]
