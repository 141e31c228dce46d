"""The only door to non-public torch: every such name refimpl uses stands here with its reason.

What is allowed: the dispatcher, pytrees, fx's graph printer, weak maps over tensors, and `FakeTensorMode`, a named exception
to independence (docs/adr/0001-independence.md): fake kernels say which shapes and dtypes an op gives, and writing them anew
would be a second operator library. Everything that captures, traces, functionalizes, partitions or lowers is refimpl's own.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

# Functions of numpy on tensors, and the slot for modes above autograd, see `PreDispatchSlot`.
from torch import _numpy, _ops

# Python kernels for composite ops, without which C++ ones would ask for sizes as plain ints.
from torch._dispatch.python import enable_python_dispatcher as enable_python_dispatcher
from torch._dispatch.python import no_python_dispatcher as no_python_dispatcher

# Operators that take functions, of which only torch.cond has a public name.
from torch._higher_order_ops import map as hop_map
from torch._higher_order_ops import scan as hop_scan

# The one function through which torch.cond and its like compile themselves; it is never called (trace/higher_order).
from torch._higher_order_ops import utils as hop_utils
from torch._higher_order_ops import while_loop as hop_while_loop

# State that is no tensor: objects of C++ classes and registered Python ones, and the fakes that torch.library makes of them.
from torch._library import fake_class_registry as _fake_classes
from torch._library import opaque_object as _opaque_objects

# Which ops have side effects that their schemas do not show.
from torch._library import simple_registry as _simple_registry
from torch._library.fake_class_registry import FakeScriptObject as FakeScriptObject

# The type of aten.add.Tensor has no public name.
from torch._ops import HigherOrderOperator as HigherOrderOperator
from torch._ops import OpOverload as OpOverload
from torch._ops import OpOverloadPacket as OpOverloadPacket

# Tensors with metadata and no data, and the errors their kernels raise where data would be needed. The named exception.
from torch._subclasses.fake_tensor import DataDependentOutputException as DataDependentOutputException  # noqa: TID251
from torch._subclasses.fake_tensor import DynamicOutputShapeException as DynamicOutputShapeException  # noqa: TID251
from torch._subclasses.fake_tensor import FakeCopyMode as FakeCopyMode  # noqa: TID251
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor  # noqa: TID251
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode  # noqa: TID251
from torch._subclasses.fake_tensor import UnsupportedFakeTensorException as UnsupportedFakeTensorException  # noqa: TID251
from torch._subclasses.fake_tensor import UnsupportedOperatorException as UnsupportedOperatorException  # noqa: TID251

# What a fake mode takes out of its cache of results where a result is not to be kept.
from torch._subclasses.fake_tensor import _DispatchCacheBypassEntry as FakeCacheBypass  # noqa: TID251

# Fake tensors that share a storage can only be made from the inside of a fake kernel.
from torch._subclasses.fake_tensor import in_kernel_invocation_manager as _in_kernel_invocation  # noqa: TID251
from torch._subclasses.fake_tensor import unset_fake_temporarily as without_fake_mode  # noqa: TID251

# The slot for modes above autograd and autocast takes three classes only, by isinstance. Of them this one alone is no part of
# what refimpl is compared with: a mode that checks schemas. refimpl's own class inherits from it, and uses nothing of it.
from torch._subclasses.schema_check_mode import SchemaCheckMode as PreDispatchSlot  # noqa: TID251

# Calls that change what later ops do and are no ops themselves, as graphs name them.
from torch.amp.autocast_mode import _enter_autocast as enter_autocast
from torch.amp.autocast_mode import _exit_autocast as exit_autocast
from torch.autograd.grad_mode import _enter_inference_mode as enter_inference_mode
from torch.autograd.grad_mode import _exit_inference_mode as exit_inference_mode

# Whether torch.fx's own tracer runs: a captured function that it calls would look at proxies.
from torch.fx import _symbolic_trace as _fx_symbolic_trace

# Which fields of a node's meta a node made in its place takes over; functions that a stack trace always shows; whose number.
from torch.fx import proxy as _fx_proxy
from torch.fx import traceback as _fx_traceback

# Code is printed when it is first asked for: a graph module that only serves to be compiled never needs it.
from torch.fx._lazy_graph_module import _LazyGraphModule as LazyGraphModule

# A graph whose inputs and outputs are flat.
from torch.fx.graph import CodeGen as PlainCodeGen

# A graph whose inputs or outputs are nested containers: fx prints the flattening and unflattening code.
from torch.fx.graph import _PyTreeCodeGen as PyTreeCodeGen
from torch.fx.graph import _PyTreeInfo as PyTreeInfo

# What fx passes and backends read as a node's "tensor_meta".
from torch.fx.passes.shape_prop import TensorMetadata as TensorMetadata
from torch.fx.proxy import _COPY_META_FIELDS as PRESERVED_META_FIELDS

# Containers: torch.utils._pytree knows every container a user has registered with torch.
from torch.utils import _pytree as pytree

# The dispatcher's hook: sees every call of an aten overload below autograd. And tensors that consist of other tensors.
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass as is_traceable_wrapper_subclass

# The class of ranges that torch's fake kernels (nonzero, masked_select, cond) take out of an environment of shapes; its error.
from torch.utils._sympy.value_ranges import ValueRangeError as TorchValueRangeError
from torch.utils._sympy.value_ranges import ValueRanges as TorchValueRanges

# Maps keyed by the identity of a tensor that do not keep it alive. A strong reference would change what is traced: autograd
# detaches a tensor somebody else holds, where it moves one that nobody does.
from torch.utils.weak import WeakTensorKeyDictionary as WeakTensorKeyDictionary

# Functions of numpy on tensors: an operator library like the kernels of fake tensors, and no part of what captures.
torch_numpy: Any = _numpy

# What torch.no_grad and its like call, and function modes see.
set_grad_enabled = torch._C._set_grad_enabled

# What capture has to know of functions written in C: which hold operators only, which only ask, which change torch's state.
TensorBase = torch._C.TensorBase
NATIVE_OPERATOR_MODULES = frozenset(
    f"torch._C.{name}" for name in ("_nn", "_fft", "_linalg", "_special", "_sparse", "_nested")
)
NATIVE_QUESTIONS: tuple[Any, ...] = (
    torch._C._has_torch_function,
    torch._C._has_torch_function_unary,
    torch._C._has_torch_function_variadic,
)
NATIVE_STATE_READERS: tuple[Any, ...] = (torch._C._get_tracing_state, torch._C._is_torch_function_enabled)
_VARIABLE_FUNCTIONS: Any = getattr(torch._C, "_VariableFunctions")


def is_native_operator(function: Any) -> bool:
    """Whether it is torch.add or one of its like: functions of the one C++ class that torch's namespace is filled from."""
    return getattr(_VARIABLE_FUNCTIONS, getattr(function, "__name__", ""), None) is function


def is_fx_tracing() -> bool:
    """Whether torch.fx traces a function with proxies in this process."""
    return _fx_symbolic_trace._is_fx_tracing_flag


# The dispatch keys of a tensor, whose `raw_repr()` is a number: layout, device, conjugation, negation, inference, autograd.
tensor_keys: Any = torch._C._dispatch_keys


# What programs say of sizes and numbers. Public in all but name.
torch_checks: tuple[Any, ...] = (torch._check, torch._check_is_size)
# TorchScript's tracer below torch.jit.trace, and what tells whether it runs.
jit_get_trace_graph: Any = getattr(torch.jit, "_get_trace_graph")
is_jit_tracing: Callable[[], bool] = torch._C._is_tracing
# The module of Python's for one of TorchScript's own, as a method of a script has for its owner.
wrap_script_module: Any = getattr(getattr(torch.jit, "_recursive"), "wrap_cpp_module")
# The function that calls the engine of autograd: what has it for its caller is called by the engine.
engine_call: Any = getattr(torch.autograd.graph, "_engine_run_backward")
# Where builds of torch that collect such things count which entry points are used.
log_torch_api_usage_once: Callable[[str], object] = torch._C._log_api_usage_once


# Functions of C, which guards call: how many modes are on the stacks, and whether functions may be overridden at all.
function_modes_on: Any = torch._C._len_torch_function_stack
dispatch_modes_on: Any = torch._C._len_torch_dispatch_stack
functions_may_be_overridden: Any = torch._C._is_torch_function_enabled
is_any_autocast_on: Any = torch._C._is_any_autocast_enabled


@contextlib.contextmanager
def exporting_flags() -> Iterator[None]:
    """Within it torch tells programs that ask that they are compiled and exported: the variables behind the public questions."""
    flags: Any = getattr(torch, "compiler")
    names = [name for name in ("_is_compiling_flag", "_is_exporting_flag") if hasattr(flags, name)]
    before = [getattr(flags, name) for name in names]
    try:
        for name in names:
            setattr(flags, name, True)
        yield
    finally:
        for name, value in zip(names, before, strict=True):
            setattr(flags, name, value)


# The C++ side of torch.func: says which transforms are on.
_TRANSFORMS: Any = getattr(torch._C, "_functorch")

PRE_DISPATCH_KEY = torch._C.DispatchKey.PreDispatch

STACK_TRACE_ANCHORS: set[tuple[str, str]] = getattr(_fx_proxy, "_STACK_TRACE_ANCHORS", set())  # since torch 2.13

_NO_CONTEXT = contextlib.nullcontext()

# Within `with without_dispatch():` no Python mode or subclass sees a call. The public equivalents are generators, and slow.
without_dispatch = torch._C._DisableTorchDispatch
_NOT_THERE = object()

# Within `with without_torch_function():` no subclass of Tensor sees a call of a function of torch.
without_torch_function = torch._C.DisableTorchFunctionSubclass

# Within `with below_autograd():` ops run their kernels, and autograd does not see them.
below_autograd = torch._C._AutoDispatchBelowAutograd

# Errors about shapes that torch's meta kernels and users catch by type. Named here one by one; nothing else is taken from there.
UPSTREAM_SHAPE_ERRORS = ("GuardOnDataDependentSymNode", "PendingUnbackedSymbolNotFound", "ConstraintViolationError")


def upstream_shape_error(name: str) -> type[RuntimeError]:
    """An error type of torch's symbolic shapes. Loaded when one is raised: tracing in real mode must not load its module."""
    assert name in UPSTREAM_SHAPE_ERRORS, name
    kind = getattr(importlib.import_module("torch.fx.experimental.symbolic_shapes"), name)
    assert issubclass(kind, RuntimeError)
    return kind


@contextlib.contextmanager
def inside_fake_kernel(fake_mode: FakeTensorMode) -> Iterator[None]:
    """Within it fake tensors are the meta tensors they are made of, and what sizes are asked for records no guard."""
    shape_env: Any = fake_mode.shape_env
    is_ours = getattr(shape_env, "records_origins", None) is not None  # a caller's is not ours to use
    suppressed = shape_env.suppress_guards() if is_ours else _NO_CONTEXT
    with _in_kernel_invocation(fake_mode), suppressed, torch._C._DisablePythonDispatcher():
        yield


def set_bits(tensor: torch.Tensor, *, is_conj: bool, is_neg: bool) -> None:
    """Mark the tensor's data as conjugated or negated lazily, as views by `conj` and `imag` are."""
    if tensor.is_conj() is not is_conj:
        torch._C._set_conj(tensor, is_conj)
    if tensor.is_neg() is not is_neg:
        torch._C._set_neg(tensor, is_neg)


def swap_tensor_impl(a: torch.Tensor, b: torch.Tensor) -> None:
    """Two objects exchange what they are. The public function refuses tensors that a weak map knows, as a trace's does."""
    torch._C._swap_tensor_impl(a, b)


def has_composite_kernel(func: OpOverload) -> bool:
    """Whether the op has a kernel made of other operators, which may return an argument or a view of one. Kernel tables are only
    readable through `torch._C`; some operators of TorchScript have none."""
    name = func.name()
    if not torch._C._dispatch_has_kernel(name):
        return False
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")


def is_decomposed_by_autograd(func: OpOverload, device_types: frozenset[str]) -> bool:
    """Whether eager runs the op's composite kernel rather than one of the devices' own.

    Autograd does that before the mode sees the call; in inference mode nobody does. Kernel tables are only readable through
    `torch._C`.
    """
    if not has_composite_kernel(func):
        return False
    keys = [torch._C._dispatch_key_for_device(device_type) for device_type in device_types]
    return not any(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key) for key in keys)


def propagate_real_tensors(fake_mode: FakeTensorMode) -> None:
    """From now on results have, beside what they look like, the values that they have for the values of the inputs
    (`FakeTensor.real_tensor`); numbers that are read out of them too, if the shape env keeps these."""
    fake_mode.propagate_real_tensors = True
    fake_mode.fake_tensor_converter.meta_converter.copy_data = True
    fake_mode.fake_tensor_converter.meta_converter.describer.copy_data = True


def has_python_kernels() -> bool:
    """Whether the dispatcher prefers torch's kernels in Python, as it does in traces with symbolic sizes."""
    return torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.PythonDispatcher)


def run_composite_kernel(func: OpOverload, args: Any, kwargs: Any) -> Any:
    """The composite kernel that eager runs. `OpOverload.decompose` prefers torch's Python decompositions where it has any."""
    return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


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


def active_fake_mode() -> FakeTensorMode | None:
    """The innermost FakeTensorMode that is on."""
    return next((mode for mode in reversed(active_dispatch_modes()) if isinstance(mode, FakeTensorMode)), None)


def is_opaque_object(value: object) -> bool:
    """Whether a graph passes the value on without looking into it: a script object, its fake, or of a registered class.

    Of the registered classes those with identity: one of plain values, as enumerations are, is a literal.
    """
    return isinstance(value, (torch.ScriptObject, FakeScriptObject)) or _is_opaque_type(type(value))


@functools.lru_cache(maxsize=1024)
def _is_opaque_type(kind: type) -> bool:
    is_value_type = getattr(_opaque_objects, "is_opaque_value_type", None)  # torch 2.13
    return _opaque_objects.is_opaque_type(kind) and not (is_value_type is not None and is_value_type(kind))


def fake_object(fake_mode: FakeTensorMode, value: Any) -> Any:
    """The fake of a script or opaque object; the object itself where its class has no fake."""
    if isinstance(value, torch.ScriptObject) and not _fake_classes.has_fake_class(value._type().qualified_name()):
        return value
    return _fake_classes.maybe_to_fake_obj(fake_mode, value)


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


def is_inside_backward() -> bool:
    """Whether autograd now runs a backward pass in this thread."""
    return torch._C._current_graph_task_id() != -1


def is_inside_function_transform() -> bool:
    """Whether vmap, grad or another of torch.func's transforms is on: tensors then stand for others."""
    return _TRANSFORMS.peek_interpreter_stack() is not None


def stands_for_another(tensor: torch.Tensor) -> bool:
    """Whether it is a tensor of one of torch.func's transforms, which has no memory; it may outlive the transform."""
    return _TRANSFORMS.is_functorch_wrapped_tensor(tensor)


def autograd_sequence_number() -> int:
    """Of the next autograd node: what links a forward op with its backward in profiles and partitions."""
    return torch.autograd._get_sequence_nr()


def running_autograd_node() -> Any:
    """The step of a backward pass that now runs in this thread; None outside of one."""
    return torch._C._current_autograd_node()


def keeps_sequence_number_of_meta() -> bool:
    """Whether nodes are to have the sequence number that the current meta names, not autograd's."""
    return getattr(_fx_traceback, "_is_preserving_node_seq_nr", bool)()


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


def graph_codegen(graph: torch.fx.Graph) -> PlainCodeGen:
    """What prints the graph as Python, and knows the containers its inputs and outputs come in."""
    return graph._codegen


def call_slot(module: torch.nn.Module) -> Callable[..., Any]:
    """What calling the module runs."""
    compiled = module.__dict__.get("_compiled_call_impl")
    return module._call_impl if compiled is None else compiled


@contextlib.contextmanager
def call_replaced(module: torch.nn.Module, call: Callable[..., Any]) -> Iterator[None]:
    """Within it calling the module runs `call`, by the slot that `Module.compile` fills; its hooks are `call`'s to run."""
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
    """Within it the module keeps its children in `replacement`. What the program changes there is kept afterwards."""
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


def has_no_dispatch_of_its_own(kind: type[torch.Tensor]) -> bool:
    """Whether a class of tensors, like Parameter, does at the dispatcher what Tensor does."""
    return getattr(kind, "__torch_dispatch__") is getattr(torch.Tensor, "__torch_dispatch__")


def storage_key(tensor: torch.Tensor) -> int:
    """Identity of the storage: `untyped_storage()` makes a new Python object at every call, the C++ object stays."""
    return tensor.untyped_storage()._cdata


def registered_effect(func: Any) -> Any:
    """The kind of side effect that an op or higher-order operator is registered with, whose order counts; None without.

    Only of ops whose results are no arguments, and which write to none: the others' effects show in their schemas.
    """
    if isinstance(func, OpOverload):
        arguments = (*func._schema.arguments, *func._schema.returns)
        return None if any(a.alias_info is not None for a in arguments) else _effect_of(func._name)
    return _effect_of(f"{func.namespace}::{func.name()}") if isinstance(func, HigherOrderOperator) else None


def _effect_of(name: str) -> Any:
    holder = getattr(_simple_registry.singleton.find(name), "effect", None)
    return None if holder is None else holder.effect


# with_effects(token, op, ...): an op with a side effect as a function of what happened before; gives a token for what is next.
with_effects: Any = getattr(torch.ops.higher_order, "with_effects")


def written_arguments(func: OpOverload) -> tuple[tuple[int, str], ...]:
    """Position and name of every argument the op writes to, by its schema."""
    arguments = func._schema.arguments
    return tuple((i, a.name) for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write)


__all__ = [
    "PRESERVED_META_FIELDS",
    "PRE_DISPATCH_KEY",
    "STACK_TRACE_ANCHORS",
    "UPSTREAM_SHAPE_ERRORS",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeCacheBypass",
    "FakeCopyMode",
    "FakeScriptObject",
    "FakeTensor",
    "FakeTensorMode",
    "HigherOrderOperator",
    "LazyGraphModule",
    "OpOverload",
    "PlainCodeGen",
    "PreDispatchSlot",
    "PyTreeCodeGen",
    "PyTreeInfo",
    "TensorMetadata",
    "TorchDispatchMode",
    "TorchValueRangeError",
    "TorchValueRanges",
    "UnsupportedFakeTensorException",
    "UnsupportedOperatorException",
    "WeakTensorKeyDictionary",
    "active_dispatch_modes",
    "active_fake_mode",
    "autograd_sequence_number",
    "below_autograd",
    "call_replaced",
    "call_slot",
    "children_replaced",
    "creation_of_view",
    "dispatch_keys",
    "enable_python_dispatcher",
    "engine_call",
    "enter_autocast",
    "enter_inference_mode",
    "exit_autocast",
    "exit_inference_mode",
    "exporting_flags",
    "fake_object",
    "graph_codegen",
    "has_no_dispatch_of_its_own",
    "hop_map",
    "hop_scan",
    "hop_utils",
    "hop_while_loop",
    "inside_fake_kernel",
    "is_any_autocast_enabled",
    "is_decomposed_by_autograd",
    "is_fx_tracing",
    "is_inside_backward",
    "is_inside_function_transform",
    "is_jit_tracing",
    "is_made_without_gradients",
    "is_opaque_object",
    "is_traceable_wrapper_subclass",
    "jit_get_trace_graph",
    "keeps_sequence_number_of_meta",
    "log_torch_api_usage_once",
    "no_python_dispatcher",
    "other_tracer",
    "propagate_real_tensors",
    "pytree",
    "registered_effect",
    "run_composite_kernel",
    "running_autograd_node",
    "saved_tensors_hooks_off",
    "set_bits",
    "set_creation_of_view",
    "set_grad_enabled",
    "stands_for_another",
    "storage_key",
    "swap_tensor_impl",
    "torch_checks",
    "torch_numpy",
    "upstream_shape_error",
    "with_dispatch_keys",
    "with_effects",
    "without_autocast",
    "without_dispatch",
    "without_fake_mode",
    "without_pre_dispatch_modes",
    "without_saved_tensors_hooks",
    "without_torch_function",
    "wrap_script_module",
    "written_arguments",
]
