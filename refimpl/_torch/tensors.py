"""Tensors and other values of graphs: fake tensors with their errors, non-public properties, script and opaque objects.

Fake tensors are the named exception to independence.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch

# Script objects, objects of registered opaque classes, and their fakes.
from torch._library import fake_class_registry as _fake_classes
from torch._library import opaque_object as _opaque_objects
from torch._library.fake_class_registry import FakeScriptObject as FakeScriptObject

# Fake tensors, and the errors that their kernels raise if data is needed. The named exception.
from torch._subclasses.fake_tensor import DataDependentOutputException as DataDependentOutputException  # noqa: TID251
from torch._subclasses.fake_tensor import DynamicOutputShapeException as DynamicOutputShapeException  # noqa: TID251
from torch._subclasses.fake_tensor import FakeCopyMode as FakeCopyMode  # noqa: TID251
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor  # noqa: TID251
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode  # noqa: TID251
from torch._subclasses.fake_tensor import UnsupportedFakeTensorException as UnsupportedFakeTensorException  # noqa: TID251
from torch._subclasses.fake_tensor import UnsupportedOperatorException as UnsupportedOperatorException  # noqa: TID251

# The entry in a fake mode's cache for a result that must not be cached.
from torch._subclasses.fake_tensor import _DispatchCacheBypassEntry as FakeCacheBypass  # noqa: TID251

# Fake tensors that share a storage can only be made inside of a fake kernel.
from torch._subclasses.fake_tensor import in_kernel_invocation_manager as _in_kernel_invocation  # noqa: TID251
from torch._subclasses.fake_tensor import unset_fake_temporarily as without_fake_mode  # noqa: TID251

# Tells whether a storage is in use, without keeping it.
from torch.multiprocessing.reductions import StorageWeakRef as StorageWeakRef

# Wrapper subclasses of Tensor.
from torch.utils._python_dispatch import is_traceable_wrapper_subclass as is_traceable_wrapper_subclass

# The class of value ranges that torch's fake kernels (nonzero, masked_select, cond) read from a shape env, and its error.
from torch.utils._sympy.value_ranges import ValueRangeError as TorchValueRangeError
from torch.utils._sympy.value_ranges import ValueRanges as TorchValueRanges

# A weak map keyed by tensor identity. A strong reference would change the trace: autograd detaches a gradient that somebody else
# references, and steals one that nobody does.
from torch.utils.weak import WeakTensorKeyDictionary as WeakTensorKeyDictionary

from refimpl._torch.dispatch import active_dispatch_modes

_NO_CONTEXT = contextlib.nullcontext()

# Errors about shapes that torch's meta kernels and users catch by type. Nothing else is imported from symbolic_shapes.
UPSTREAM_SHAPE_ERRORS = ("GuardOnDataDependentSymNode", "PendingUnbackedSymbolNotFound", "ConstraintViolationError")


def is_nested_int(number: Any) -> bool:
    """Whether a size or stride stands for the lengths of the rows of a jagged tensor. No expression of sizes contains it."""
    return isinstance(number, torch.SymInt) and bool(number.node.is_nested_int())


def upstream_shape_error(name: str) -> type[RuntimeError]:
    """An error type of torch's symbolic shapes, imported when one is raised: tracing in real mode must not load the module."""
    assert name in UPSTREAM_SHAPE_ERRORS, name
    kind = getattr(importlib.import_module("torch.fx.experimental.symbolic_shapes"), name)
    assert issubclass(kind, RuntimeError)
    return kind


@contextlib.contextmanager
def inside_fake_kernel(fake_mode: FakeTensorMode) -> Iterator[None]:
    """A block in which fake tensors act as their meta tensors, and comparisons of sizes record no guards."""
    shape_env: Any = fake_mode.shape_env
    is_ours = getattr(shape_env, "records_origins", None) is not None  # not torch's ShapeEnv, passed by a caller
    suppressed = shape_env.suppress_guards() if is_ours else _NO_CONTEXT
    with _in_kernel_invocation(fake_mode), suppressed, torch._C._DisablePythonDispatcher():
        yield


def propagate_real_tensors(fake_mode: FakeTensorMode) -> None:
    """Make the mode compute real values as well (`FakeTensor.real_tensor`), and those of numbers read from tensors (`item`) if
    the shape env keeps them."""
    fake_mode.propagate_real_tensors = True
    fake_mode.fake_tensor_converter.meta_converter.copy_data = True
    fake_mode.fake_tensor_converter.meta_converter.describer.copy_data = True


def active_fake_mode() -> FakeTensorMode | None:
    """The innermost active FakeTensorMode."""
    return next((mode for mode in reversed(active_dispatch_modes()) if isinstance(mode, FakeTensorMode)), None)


# Modules with settings of the user. They are loaded if the user has changed one, and never loaded from here.
_SIZE_SETTINGS = "torch.fx.experimental._config"
_SYMBOLS = "torch.fx.experimental.symbolic_shapes"
_AOT_SETTINGS = "torch._functorch.config"


def has_oblivious_sizes() -> bool:
    """Whether the user has set torch's `backed_size_oblivious`."""
    return bool(getattr(sys.modules.get(_SIZE_SETTINGS), "backed_size_oblivious", False))


@contextlib.contextmanager
def hints_for_kernels() -> Iterator[None]:
    """A block in which torch's kernels learn the examples of symbols of any class. Under `backed_size_oblivious` they ask for
    them, by a function that knows the symbols of torch's class only."""
    if not has_oblivious_sizes():
        yield
        return
    holder: Any = importlib.import_module(_SYMBOLS)
    known: Any = holder.guarding_hint_or_throw

    def hint_of(value: Any) -> Any:
        is_other = isinstance(value, SYMBOLIC_TYPES) and not isinstance(value.node, holder.SymNode)
        return value.node.shape_env.guarding_hint_or_throw(value.node.expr) if is_other else known(value)

    holder.guarding_hint_or_throw = hint_of
    try:
        yield
    finally:
        holder.guarding_hint_or_throw = known


def equal_sizes_share_symbols() -> bool:
    """Whether the user has left torch's `use_duck_shape` on."""
    return bool(getattr(sys.modules.get(_SIZE_SETTINGS), "use_duck_shape", True))


def is_set_for_aot(name: str) -> bool:
    """Whether the user has switched on a setting of torch's AOT autograd, which is off by default."""
    return bool(aot_setting(name, False))


def aot_setting(name: str, default: Any) -> Any:
    """A setting of torch's AOT autograd; its default if the module with the settings is not loaded."""
    return getattr(sys.modules.get(_AOT_SETTINGS), name, default)


SYMBOLIC_TYPES = (torch.SymInt, torch.SymFloat, torch.SymBool)
PLAIN_TYPES: dict[type, type] = dict(zip(SYMBOLIC_TYPES, (int, float, bool), strict=True))
# Functions on symbolic numbers, such as torch.sym_max, without those that are ops.
SYMBOLIC_FUNCTIONS = tuple(
    value for name, value in vars(torch).items() if name.startswith("sym_") and isinstance(value, FunctionType)
)


def set_bits(tensor: torch.Tensor, *, is_conj: bool, is_neg: bool) -> None:
    """Set the tensor's lazy conjugate and negative bits, which views by `conj` and `imag` have."""
    if tensor.is_conj() is not is_conj:
        torch._C._set_conj(tensor, is_conj)
    if tensor.is_neg() is not is_neg:
        torch._C._set_neg(tensor, is_neg)


def set_wrapped_number(tensor: torch.Tensor, number: complex) -> None:
    """Set the Python number of a wrapped number tensor. Modes receive this number; the dispatcher itself would read the data."""
    vars(tensor)["_wrapped_number"] = number


def swap_tensor_impl(a: torch.Tensor, b: torch.Tensor) -> None:
    """Swap two tensor objects. The public function refuses tensors with weak references, which a trace's tracker has."""
    torch._C._swap_tensor_impl(a, b)


def has_no_dispatch_of_its_own(kind: type[torch.Tensor]) -> bool:
    """Whether a Tensor subclass, like Parameter, has no `__torch_dispatch__` of its own."""
    return getattr(kind, "__torch_dispatch__") is getattr(torch.Tensor, "__torch_dispatch__")


def storage_key(tensor: torch.Tensor) -> int:
    """The identity of the tensor's storage. `untyped_storage()` returns a new Python object at each call."""
    return tensor.untyped_storage()._cdata


def is_opaque_object(value: object) -> bool:
    """Whether the value is a script object, its fake, or an object of a registered opaque class.

    Objects of opaque value types, such as enums, are literals instead.
    """
    return isinstance(value, (torch.ScriptObject, FakeScriptObject)) or _is_opaque_type(type(value))


def _remembered_by_class(ask: Callable[[type], bool]) -> Callable[[type], bool]:
    """Remembers the answer for each class as long as the class lives: its methods may hold the program's tensors."""
    answers: WeakKeyDictionary[type, bool] = WeakKeyDictionary()

    @functools.wraps(ask)
    def asked(kind: type) -> bool:
        known = answers.get(kind)
        if known is None:
            known = answers[kind] = ask(kind)
        return known

    return asked


@_remembered_by_class
def _is_opaque_type(kind: type) -> bool:
    is_value_type = getattr(_opaque_objects, "is_opaque_value_type", None)  # torch 2.13
    return _opaque_objects.is_opaque_type(kind) and not (is_value_type is not None and is_value_type(kind))


def is_opaque_literal(value: object) -> bool:
    """Whether the value is an object of an opaque value type, which the code of a graph writes out. Enums are not counted."""
    return is_opaque_literal_class(type(value))


@_remembered_by_class
def is_opaque_literal_class(kind: type) -> bool:
    """Whether the class is registered as an opaque value type. Enums are not counted."""
    is_value_type = getattr(_opaque_objects, "is_opaque_value_type", None)  # torch 2.13
    return is_value_type is not None and not issubclass(kind, Enum) and is_value_type(kind)


def is_graph_object(value: object) -> bool:
    """Whether the value is a script object, or an object of a class of the program that is registered as opaque."""
    if issubclass(type(value), torch.ScriptObject):  # isinstance would ask the object for its `__class__`
        return True
    is_of_torch = (
        type(value).__module__.partition(".")[0] == "torch"
    )  # generators and meshes are handled as what they are
    return not is_of_torch and (_is_opaque_type(type(value)) or is_opaque_literal(value))


def is_opaque_class(kind: type) -> bool:
    """Whether the class is one of torch's `OpaqueBase`: `isinstance` asks only about the class of an object that is no fake."""
    base = getattr(_opaque_objects, "OpaqueBase", None)  # torch 2.11
    return base is not None and type(kind) is type(base) and kind is not base


def guarded_facts(value: Any) -> Any:
    """A function that returns what capture assumes of an object besides its class, or None.

    For a script object its class and contents, where it can tell them; for an opaque object what its `guard_fn` returns; for one
    of a value type how a graph writes it: after it changes in place it is still equal to itself, which the graph has.
    """
    if is_opaque_literal(value):
        return _as_written
    if isinstance(value, torch.ScriptObject):
        return _contents_of_script_object if has_fake_class(value) else _class_of_script_object
    find = getattr(_opaque_objects, "get_opaque_obj_info", None)  # torch 2.13
    found = None if find is None else find(type(value))
    return getattr(found, "guard_fn", None)


def _as_written(value: Any) -> Any:
    return value.__fx_repr__()


def _class_of_script_object(value: Any) -> str:
    return value._type().qualified_name()


def _contents_of_script_object(value: Any) -> tuple[Any, ...]:
    return (_class_of_script_object(value), _comparable(value.__obj_flatten__()))


def _comparable(content: Any) -> Any:
    """The content of a script object in tuples, with the metadata of its tensors, which is all that its fake has of them."""
    if isinstance(content, torch.Tensor):
        return (content.dtype, content.device, tuple(content.shape), content.stride(), content.requires_grad)
    if isinstance(content, (list, tuple)):
        return tuple(map(_comparable, content))
    return tuple((key, _comparable(item)) for key, item in content.items()) if isinstance(content, dict) else content


def has_fake_class(value: torch.ScriptObject) -> bool:
    """Whether its class has a registered fake (`torch._library.register_fake_class`), and the object tells its contents."""
    return _fake_classes.has_fake_class(value._type().qualified_name()) and hasattr(value, "__obj_flatten__")


def has_traced_method(value: Any, name: str) -> bool:
    """Whether a script object has the method, and a fake to run it while a program is traced."""
    return has_fake_class(value) and name in value._method_names()


def fake_object(fake_mode: FakeTensorMode, value: Any) -> Any:
    """The fake of a script or opaque object; the object itself if its class has no fake."""
    if isinstance(value, torch.ScriptObject) and not has_fake_class(value):
        return value
    return _fake_classes.maybe_to_fake_obj(fake_mode, value)


__all__ = [
    "UPSTREAM_SHAPE_ERRORS",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeCacheBypass",
    "FakeCopyMode",
    "FakeScriptObject",
    "FakeTensor",
    "FakeTensorMode",
    "StorageWeakRef",
    "TorchValueRangeError",
    "TorchValueRanges",
    "UnsupportedFakeTensorException",
    "UnsupportedOperatorException",
    "WeakTensorKeyDictionary",
    "active_fake_mode",
    "fake_object",
    "guarded_facts",
    "has_fake_class",
    "has_no_dispatch_of_its_own",
    "has_traced_method",
    "hints_for_kernels",
    "inside_fake_kernel",
    "is_graph_object",
    "is_nested_int",
    "is_opaque_class",
    "is_opaque_literal",
    "is_opaque_literal_class",
    "is_opaque_object",
    "is_traceable_wrapper_subclass",
    "propagate_real_tensors",
    "set_bits",
    "set_wrapped_number",
    "storage_key",
    "swap_tensor_impl",
    "upstream_shape_error",
    "without_fake_mode",
]


def item_of_fake(fake: FakeTensor) -> Any:
    """The symbolic float that `item()` of a fake gives; None if reading it makes a new one, or is refused."""
    found = getattr(fake, "_item_memo", None)
    return found if isinstance(found, torch.SymFloat) and found.node.hint is not None else None


def set_item_of_fake(fake: FakeTensor, number: torch.SymFloat | None) -> None:
    """Makes `item()` of a fake give this number, which must have a hint. The public setter does nothing in inference mode."""
    if number is not None:
        setattr(fake, "_item_memo", number)
