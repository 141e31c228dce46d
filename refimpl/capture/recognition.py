"""Decides what capture does with a call: make it a node, evaluate it during capture, interpret it, or break the graph.

Counterpart: torch/_dynamo/trace_rules.py
Differs: the decision follows from the module that defines the callable, with a table of exceptions; there is no list of torch's
names.
"""

from __future__ import annotations

import builtins
import math
import operator
import sys
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, ModuleType, WrapperDescriptorType
from typing import Any

import torch

from refimpl._torch import (
    NATIVE_OPERATOR_MODULES,
    NATIVE_QUESTIONS,
    NATIVE_STATE_READERS,
    PROFILER_ENABLED,
    SYMBOLIC_FUNCTIONS,
    HigherOrderOperator,
    OpOverload,
    OpOverloadPacket,
    TensorBase,
    is_native_operator,
    set_grad_enabled,
)
from refimpl.capture.config import config
from refimpl.capture.public import marks, running

# Attribute of a function that `compile` returned: (original function, receiver). A captured function calls the original.
CAPTURES = "_refimpl_captures"
_MAKES_CAPTURED = "refimpl.capture.entry_points.contexts"  # the module of the functions that `compile` returns


class Treatment(Enum):
    """What a call becomes."""

    NODE = "a node of the graph"
    STATE = "its answer now, which the guard on torch's state holds"
    FOLD = "its answer for constants"
    ENTER = "its frame is interpreted"
    COMPILING = "true: the program asks whether it is captured"
    BREAK = "a graph break: nothing is known of it"
    ASKED = "a graph break: that is all that it is for"
    SKIP = "a graph break: it is marked to be left out"


# A Python function of these modules is one node: its rule works on tensors only, and it has no state.
# The last is the module of decorators such as `torch.no_grad()`, which call the function that they decorate.
_CAPTURED_OF_TORCH = (
    "torch.nn.modules", "torch.nn.functional", "torch.optim", torch.no_grad.__call__.__module__,
)  # fmt: skip
_OPERATOR_MODULES = frozenset({"torch.nn.functional", "torch.functional", "torch.linalg", "torch.fft", "torch.special"})
# Functions of these modules that read data or take functions or objects. They are interpreted.
_INTERPRETED = frozenset(
    {
        "torch.nn.functional.multi_head_attention_forward",
        "torch.nn.functional.gaussian_nll_loss",
        "torch.nn.functional.linear_cross_entropy",
        "torch.nn.functional.triplet_margin_with_distance_loss",
        "torch.functional.split",
    }
)


def _by_id(callables: set[Any]) -> dict[int, Any]:
    """Keyed by identity, because hashing an object may run code of the user's."""
    return {id(function): function for function in callables}


# These read state that the guard STATE covers.
STATE_READERS = _by_id(
    {
        torch.is_grad_enabled,
        torch.is_inference_mode_enabled,
        torch.is_autocast_enabled,
        torch.get_autocast_dtype,
        torch.is_autocast_cache_enabled,
        torch.is_autocast_cpu_enabled,  # this and the next two are older names for one device each
        torch.get_autocast_cpu_dtype,
        torch.get_autocast_gpu_dtype,
        torch.get_default_dtype,
        torch.are_deterministic_algorithms_enabled,
        torch.is_deterministic_algorithms_warn_only_enabled,
        *NATIVE_STATE_READERS,
        torch.jit.is_scripting,
        torch.jit.is_tracing,
        torch.onnx.is_in_onnx_export,
        torch.get_num_threads,
    }
)
# These change state, read data, or have an effect that a graph cannot repeat.
_BREAKING = _by_id(
    {
        set_grad_enabled,
        torch.set_autocast_enabled,
        torch.set_autocast_dtype,
        torch.manual_seed,
        torch.seed,
        torch.initial_seed,
        torch.set_rng_state,
        torch.get_rng_state,
        torch.from_numpy,
        torch.frombuffer,
        torch.save,
        torch.load,
    }
)
_QUESTIONS = _by_id({*NATIVE_QUESTIONS})

# Python functions that return equal results for equal constants, change nothing, and return no part of an argument (folding
# passes copies of lists). Functions of `operator` that are instructions have rules of their own (rules/builtin_calls.py).
FOLDED = _by_id(
    {
        *(getattr(builtins, name) for name in (
            "abs", "ascii", "bin", "bool", "bytes", "chr", "complex", "divmod", "float", "format", "hex", "int", "max", "min",
            "oct", "ord", "pow", "repr", "round", "str", "sum", "all", "any",
        )),
        operator.abs, operator.index, operator.countOf, operator.indexOf, sys.intern,
        *(value for value in vars(math).values() if isinstance(value, BuiltinFunctionType)),
        torch.finfo, torch.iinfo, torch.device, torch.typename, torch.promote_types, torch.can_cast, torch.is_storage,
    }
)  # fmt: skip
# Python functions that become nodes when an argument is a symbolic number. (torch.sym_ite is not among them: it takes nodes of
# torch's own class only, and decides.)
_ON_SYMBOLS = _by_id({*SYMBOLIC_FUNCTIONS} - {torch.sym_ite, torch.sym_fresh_size})
ROUNDING = _by_id({math.floor, math.ceil})
# The same in an exported program, in which a number that is asked for would hold all calls to it.
EXPORTED_ROUNDING = _by_id({math.floor, math.ceil, math.trunc, builtins.round})


_COMPILING = ("is_compiling", "is_dynamo_compiling")


def treatment(function: Any) -> Treatment:
    """What a call of this function becomes. Classes and instances are decided elsewhere."""
    kind = type(function)  # the type is inspected and not `__class__`, which may be code of the user's
    if id(function) in _BREAKING or id(function) in marks.BREAKING or id(function) in marks.FORBIDDEN:
        return Treatment.BREAK
    if id(function) in marks.ALLOWED:
        return Treatment.NODE
    if function is running.is_compiling:
        return Treatment.COMPILING
    if function is running.is_exporting:
        return Treatment.STATE
    if id(function) in _ON_SYMBOLS:
        return Treatment.NODE
    if id(function) in STATE_READERS:
        return Treatment.STATE
    if function is PROFILER_ENABLED and config.constant_fold_autograd_profiler_enabled:
        return Treatment.FOLD
    if issubclass(kind, FunctionType):
        return _of_python(function)
    if issubclass(kind, (OpOverload, OpOverloadPacket)):
        return Treatment.NODE
    if issubclass(kind, HigherOrderOperator):
        return Treatment.BREAK
    if id(function) in FOLDED:
        return Treatment.FOLD
    if issubclass(kind, (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType)):
        return Treatment.NODE if _is_torch_native(function) else Treatment.BREAK
    return Treatment.BREAK


def names_of(module: ModuleType, name: str) -> dict[str, Any]:
    """The attributes of a module. Those of torch.ops, its namespaces and refimpl exist only after `getattr` has read them."""
    if type(module).__module__ == type(torch.ops).__module__ or vars(module).get("__name__") == "refimpl":
        getattr(module, name, None)
    return vars(module)


def defined_in(function: FunctionType) -> str:
    """The module of a function's code. The `__module__` of a wrapper is often that of the function it wraps."""
    return str(function.__globals__.get("__name__", ""))


def is_captured_in(module: str) -> bool:
    """Whether a module's functions are captured if they are called at a graph break: those of the program, of torch.nn."""
    root = module.partition(".")[0]
    return root not in sys.stdlib_module_names and (root != "torch" or module.startswith(_CAPTURED_OF_TORCH))


def captured_original(function: FunctionType) -> tuple[FunctionType, Any] | None:
    """For a function that `compile` returned: the original and its receiver. None for others, also for a wrapper to which
    `functools.wraps` has copied the attributes of such a function."""
    found = function.__dict__.get(CAPTURES)
    return found if found is not None and defined_in(function) == _MAKES_CAPTURED else None


def marks_static(function: FunctionType) -> bool:
    """Whether the function is `mark_static` of torch or of refimpl: called in captured code, it makes a size a number."""
    return function.__name__ == "mark_static" and defined_in(function).endswith((".decorators", ".marks"))


def is_setup_of_optimizer(function: FunctionType) -> bool:
    """Whether this is the `_init_group` of one of torch's optimizers, which makes the state of parameters in the first step. It
    is marked to be left out of frames that are captured on their own, and is captured with the step that calls it.
    """
    if function.__name__ != "_init_group":
        return False
    inner = function.__dict__.get("_torchdynamo_orig_callable", function)
    return issubclass(type(inner), FunctionType) and defined_in(inner).startswith("torch.optim.")


def excludes(function: FunctionType) -> bool:
    """Whether this is `disable` or `skip` of torch or of refimpl, which marks another function."""
    return function.__name__ in ("disable", "skip") and defined_in(function).endswith((".decorators", ".compiler"))


def _of_python(function: FunctionType) -> Treatment:
    if function.__name__ == "graph_break" and defined_in(function).endswith(
        ("._dynamo.decorators", ".public.decorators")
    ):
        return Treatment.ASKED
    if function.__name__ in _COMPILING and defined_in(function).startswith("torch."):
        return Treatment.COMPILING  # defined in a module of torch that may not be loaded
    if excludes(function):
        return Treatment.SKIP
    if getattr(function, "_torchdynamo_disable", False):
        return Treatment.ENTER if is_setup_of_optimizer(function) else Treatment.SKIP
    if (
        "_torchdynamo_orig_callable" in function.__dict__
    ):  # the function inside is captured by another compiler, or not at all
        return Treatment.BREAK
    if (
        id(function.__dict__.get("__wrapped__")) in _BREAKING
    ):  # torch.manual_seed, which torch's own capture wraps when it is loaded
        return Treatment.BREAK
    module = function.__module__ or ""
    if module in _OPERATOR_MODULES and f"{module}.{function.__qualname__}" not in _INTERPRETED:
        return Treatment.NODE
    return Treatment.ENTER


def _is_torch_native(function: Any) -> bool:
    owner = getattr(function, "__self__", None)
    if isinstance(owner, ModuleType):
        return owner.__name__ in NATIVE_OPERATOR_MODULES or id(function) in _QUESTIONS
    if isinstance(owner, type):
        return owner.__module__.partition(".")[0] == "torch"
    class_ = getattr(function, "__objclass__", None)
    if isinstance(class_, type):
        return issubclass(class_, TensorBase)
    return is_native_operator(function) or getattr(function, "__module__", None) in NATIVE_OPERATOR_MODULES
