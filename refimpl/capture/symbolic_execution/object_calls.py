"""Calls of the program's objects: whether a call is inlined, becomes a node, or is evaluated at once.

Counterpart: torch/_dynamo/variables/functions.py, builtin.py, torch.py
"""

from __future__ import annotations

import functools
import inspect
import math
import weakref
from collections.abc import Sequence
from enum import EnumMeta
from types import (
    BuiltinFunctionType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodWrapperType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any

import torch

from refimpl._torch import (
    AUTOCAST_DEVICES,
    HigherOrderOperator,
    LazyGraphModule,
    OpOverload,
    OpOverloadPacket,
    pytree,
    set_grad_enabled,
)
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.config import config
from refimpl.capture.guards.guard_list import GuardKind
from refimpl.capture.guards.sources import (
    AttributeSource,
    FactsSource,
    ItemSource,
    KeptSource,
    ReferentSource,
    class_source,
)
from refimpl.capture.higher_order.autograd_functions import AUTOGRAD_RULES
from refimpl.capture.higher_order.checkpoints import CHECKPOINT_RULES
from refimpl.capture.higher_order.compile_regions import REGION_RULES
from refimpl.capture.higher_order.control_flow import CONTROL_FLOW_RULES
from refimpl.capture.higher_order.function_transforms import TRANSFORM_RULES
from refimpl.capture.higher_order.leaf_functions import call_leaf_function, is_leaf_function
from refimpl.capture.higher_order.nonstrict import NONSTRICT_RULES, call_as_it_is, is_run_as_it_is
from refimpl.capture.higher_order.operators import call_operator
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.public import marks
from refimpl.capture.public.fake_values import get_real_value
from refimpl.capture.public.running import is_exporting
from refimpl.capture.recognition import (
    CAPTURES,
    EXPORTED_ROUNDING,
    ROUNDING,
    Treatment,
    captured_original,
    marks_static,
    treatment,
)
from refimpl.capture.rules.builtin_calls import BUILTIN_RULES
from refimpl.capture.rules.class_calls import CLASS_RULES, begin_module, call_class, is_module_init
from refimpl.capture.rules.constant_calls import CACHED, CONSTANT_RULES, call_cached, member_of
from refimpl.capture.rules.iterable_calls import ITERABLE_RULES, eaten
from refimpl.capture.rules.lazy_iterators import ITERATOR_RULES
from refimpl.capture.rules.optimizer_calls import OPTIMIZER_RULES, setup_inside, without_reads
from refimpl.capture.rules.random_calls import RANDOM_RULES
from refimpl.capture.rules.symbol_questions import symbol_rule
from refimpl.capture.rules.torch_calls import TORCH_RULES, call_numpy, is_array_call
from refimpl.capture.state.operator_calls import number_of
from refimpl.capture.state.side_effects import LaterCall, version_of
from refimpl.capture.torch_functions.constructors import CONSTRUCTOR_RULES, is_tensor_class, make_tensor
from refimpl.capture.torch_functions.devices import DEVICE_RULES
from refimpl.capture.torch_functions.rules import TORCH_FUNCTION_RULES, switch_of
from refimpl.capture.values import (
    ConstantValue,
    DictValue,
    NativeMethodValue,
    NumberValue,
    ObjectValue,
    SequenceValue,
    SetValue,
    TensorValue,
    Value,
)
from refimpl.capture.values.classes import in_mro, is_a
from refimpl.capture.values.constant import is_float_of_inputs, known
from refimpl.capture.values.tensor import Progress, apart, before_the_write, before_watching
from refimpl.capture.values.value import raising, unsupported

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

_RULES = {
    **BUILTIN_RULES,
    **CONSTANT_RULES,
    **ITERABLE_RULES,
    **ITERATOR_RULES,
    **TORCH_RULES,
    **AUTOGRAD_RULES,
    **CHECKPOINT_RULES,
    **CLASS_RULES,
    **CONTROL_FLOW_RULES,
    **NONSTRICT_RULES,
    **TRANSFORM_RULES,
    **REGION_RULES,
    **CONSTRUCTOR_RULES,
    **TORCH_FUNCTION_RULES,
    **DEVICE_RULES,
    **RANDOM_RULES,
    **OPTIMIZER_RULES,
}
_MAY_BE_OVERRIDDEN = (
    FunctionType, BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType, OpOverload, OpOverloadPacket,
)  # fmt: skip
_INLINED = "_torchdynamo_inline"  # the Python function that TorchScript compiled
_ACCESSES = (GetSetDescriptorType, MemberDescriptorType, property)
_ANSWERED = (Treatment.NODE, Treatment.STATE, Treatment.FOLD, Treatment.COMPILING)
_OWNERS = (list, tuple, dict, set, frozenset, str)
_MODULE_CALL = torch.nn.Module.__call__
_UNKNOWN: Any = object()
_UNBOUND = (torch.Tensor.register_hook, torch.Tensor.retain_grad)
_GRAD = torch.autograd.grad
_WITHOUT_NAMES = (getattr, iter, next)  # builtins without a signature whose arguments have no names
_DETACH = (torch.detach_, torch.Tensor.detach_)


def call_object(
    domain: SymbolicDomain, frame: FrameState, function: ObjectValue, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """Calls an object: by a rule for this object, else by its kind, else by where it is defined."""
    found = _by_override(domain, function, args, kwargs)
    if found is _UNKNOWN:
        found = _by_rule(domain, frame, function, args, kwargs)
    if found is _UNKNOWN:
        found = _by_kind(domain, frame, function, args, kwargs)
    return _by_treatment(domain, frame, function, args, kwargs) if found is _UNKNOWN else found


def _by_override(domain: SymbolicDomain, function: ObjectValue, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The answer of `__torch_function__` to a call of a function of torch."""
    target = function.object
    if not is_a(target, _MAY_BE_OVERRIDDEN) or id(target) in TORCH_FUNCTION_RULES:
        return _UNKNOWN
    if treatment(target) is not Treatment.NODE and target is not set_grad_enabled:
        return _UNKNOWN
    answer = domain.overridden(target, args, kwargs)
    if answer is None:
        return _UNKNOWN
    if function.source is not None:
        domain.state.guard(GuardKind.ID, function.source, target)
    return answer


def _by_rule(
    domain: SymbolicDomain, frame: FrameState, function: ObjectValue, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    target = function.object
    gone_through = eaten(domain, function, args, kwargs)
    if gone_through is not None:
        return gone_through
    if config.ignore_logging_functions and any(target is ignored for ignored in config.ignore_logging_functions):
        return ConstantValue(None)
    if any(target is moved for moved in config.reorderable_logging_functions) and _is_moved(
        domain, function, args, kwargs
    ):
        return ConstantValue(None)
    if function.source is not None and _is_answered(target):
        # operators and numpy functions have one class each, so a guard on the type would not be enough
        domain.state.guard(GuardKind.ID, function.source, target)
    rule = _RULES.get(id(target))
    if rule is not None:
        if is_a(target, BuiltinFunctionType) and target.__module__ == "builtins":
            _refuse_others(target, args, kwargs)
        return rule(domain, frame, args, kwargs)
    asked = symbol_rule(target)
    if asked is not None:
        return asked(domain, args, kwargs)
    if is_module_init(target):
        return begin_module(domain, frame, args, kwargs)
    if marks.is_forbidden(target):
        raise AssertionError(
            f"Attempt to trace forbidden callable {target}\n  expected: a function that may be called while it is captured\n"
            "  what to do: call it outside of what is captured"
        )
    if id(target) in marks.SUBSTITUTED:
        return domain.call(frame, ObjectValue(marks.SUBSTITUTED[id(target)][1]), args, kwargs)
    return domain.state.operator(target, args, kwargs) if id(target) in marks.ALLOWED else _UNKNOWN


def _refuse_others(target: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Raises TypeError for arguments that a builtin function does not take. Some builtins, as `getattr`, have no signature."""
    if target in _WITHOUT_NAMES and kwargs:
        raising(TypeError)
    signature = _signature_of(target)
    if signature is not None:
        try:
            signature.bind(*args, **kwargs)
        except TypeError:
            raising(TypeError)


@functools.cache
def _signature_of(target: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(target)
    except ValueError:
        return None


def _is_moved(domain: SymbolicDomain, function: ObjectValue, args: list[Any], kwargs: dict[str, Any]) -> bool:
    """Whether the call is moved behind the graph: its arguments are tensors, numbers and constants."""
    state = domain.state
    values = [state.realize(arg) for arg in args]
    named = {name: state.realize(arg) for name, arg in kwargs.items()}
    given = [*values, *named.values()]
    if not all(isinstance(value, (ConstantValue, NumberValue, TensorValue)) for value in given):
        return False
    if function.source is not None:
        state.guard(GuardKind.ID, function.source, function.object)
    versions = [(value.fake, version_of(value.fake)) for value in given if isinstance(value, TensorValue)]
    call = LaterCall(function=function, args=values, kwargs=named, versions=versions, at=state.position())
    state.effects.call_later(call)
    return True


def _by_kind(
    domain: SymbolicDomain, frame: FrameState, function: ObjectValue, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    target: Any = function.object
    if is_a(target, torch.nn.Module):
        return _call_module(domain, frame, function, args, kwargs)
    if is_a(target, HigherOrderOperator):
        return call_operator(domain, frame, function, args, kwargs)
    if is_a(target, CACHED):
        return call_cached(domain, function, args, kwargs)
    if type(function.object) is weakref.ref and function.source is not None and not args and not kwargs:
        return domain.state.wrap(target(), ReferentSource(function.source))
    if is_a(target, EnumMeta):
        return member_of(domain, function, args, kwargs)
    if is_a(target, type):
        switch = switch_of(target)
        if switch is not None:
            return switch
        if is_array_call(target):
            return call_numpy(domain, target, args, kwargs)
        if is_tensor_class(target):
            return make_tensor(domain, target, args, kwargs)
        return call_class(domain, function, args, kwargs)
    if is_a(target, MethodWrapperType) and is_a(target.__self__, _ACCESSES) and not kwargs:
        return _access(domain, target, args)
    if is_a(target, FunctionType) and marks_static(target):
        return _mark_static(domain, args, kwargs)
    if is_a(target, FunctionType) and captured_original(target) is not None:
        return _call_captured(domain, frame, function, args, kwargs)
    if is_leaf_function(target):
        return call_leaf_function(domain, function, args, kwargs)
    if is_run_as_it_is(target):
        return call_as_it_is(domain, function, args, kwargs)
    if is_a(target, torch.jit.ScriptFunction) and is_a(getattr(target, _INLINED, None), FunctionType):
        way = KeptSource(target, "script") if function.source is None else function.source
        inner = domain.state.wrap(getattr(target, _INLINED), AttributeSource(way, _INLINED))
        return domain.call(frame, inner, args, kwargs)
    if is_a(target, FunctionType) and target.__dict__.get(marks.CONSTANT_RESULT):
        return _assumed_result(domain, target, args, kwargs)
    return call_numpy(domain, target, args, kwargs) if is_array_call(target) else _UNKNOWN


def _mark_static(domain: SymbolicDomain, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`mark_static(tensor, index=None)`: the sizes at these dimensions, all by default, become numbers."""
    tensor = domain.state.realize(args[0]) if args else None
    if not isinstance(tensor, TensorValue) or len(args) + len(kwargs) > 2:
        raise GraphBreak("call_of_native_code", what="mark_static")
    given = domain.constant_of(next(iter([*args[1:], *kwargs.values()]), ConstantValue(None)), "mark_static")
    dims = range(tensor.fake.dim()) if given is None else given if isinstance(given, (list, tuple)) else (given,)
    for dim in dims:
        size = domain.state.size_of(tensor, dim)
        if isinstance(size, NumberValue):
            domain.state.specialised(size)
    return ConstantValue(None)


def _access(domain: SymbolicDomain, target: Any, args: list[Any]) -> Any:
    """`torch.Tensor.shape.__get__(x)`, and `__set__`: reads or assigns the attribute. Of other accesses those of `type`, as
    `type.__dict__["__mro__"].__get__(class_)`, which ask no metaclass.
    """
    owner = target.__self__
    receiver = domain.state.realize(args[0]) if len(args) == 1 else None
    if isinstance(receiver, ObjectValue) and receiver.is_class and target.__name__ == "__get__":
        if getattr(owner, "__objclass__", None) is type:
            way = KeptSource(receiver.object, "class") if receiver.source is None else receiver.source
            return domain.state.wrap(target(receiver.object), FactsSource(way, target))
    found = ((name, member) for base in torch.Tensor.__mro__ for name, member in base.__dict__.items())
    name = next((name for name, member in found if member is owner), None)
    if name is None or not args or not isinstance(domain.state.realize(args[0]), TensorValue):
        raise GraphBreak("call_of_native_code", what=target.__qualname__)
    if target.__name__ == "__get__":
        return domain.load_attr(args[0], name)
    if target.__name__ == "__set__" and len(args) == 2:
        stored = domain.store_attr(args[0], name, args[1])
        return ConstantValue(None) if stored is None else stored
    raise GraphBreak("call_of_native_code", what=target.__qualname__)


def _by_treatment(
    domain: SymbolicDomain, frame: FrameState, function: ObjectValue, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    target = function.object
    _keep_watched_apart(domain.state, target, args)
    match treatment(target):
        case Treatment.NODE:
            _keep_detached_apart(domain.state, target, args)
            return _node(domain, target, args, kwargs)
        case Treatment.STATE:
            return _state_of_torch(domain, target, [domain.constant_of(arg, target.__name__) for arg in args])
        case Treatment.FOLD:
            return _fold(domain, target, args, kwargs)
        case Treatment.COMPILING:
            return ConstantValue(True)
        case Treatment.ENTER:
            _keep_inputs_apart(domain.state, target, args, kwargs)
            inner = setup_inside(domain, function)
            if inner is not None:
                return domain.call(frame, inner, args, kwargs)
            return domain.enter_function(function, args, without_reads(target, kwargs))
        case Treatment.ASKED:
            if domain.state.passes_breaks:
                return ConstantValue(None)
            asked = GraphBreak("user_break")
            asked.is_done = True
            raise asked
        case Treatment.SKIP:
            raise GraphBreak("call_of_skipped_function", what=target.__qualname__)
        case Treatment.BREAK:
            return _call_native(domain, frame, function, args, kwargs)


def _state_of_torch(domain: SymbolicDomain, target: Any, given: list[Any]) -> ConstantValue:
    """The part of torch's state that a function of torch returns. A guard compares it."""
    if "autocast" in target.__name__:
        if not {*given} <= {*AUTOCAST_DEVICES}:
            raise GraphBreak("call_of_native_code", what=target.__name__)
        domain.state.guard_autocast()
    return ConstantValue(target(*given))


def _call_native(
    domain: SymbolicDomain, frame: FrameState, function: ObjectValue, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """A call of a C function, or of an object whose class may have a `__call__` in Python."""
    target = function.object
    is_method = is_a(target, (MethodDescriptorType, WrapperDescriptorType))
    if is_method and args and _has_rules(domain, target, args[0]):
        return domain.call(frame, NativeMethodValue(domain.state.realize(args[0]), target.__name__), args[1:], kwargs)
    if is_a(target, BuiltinFunctionType) and type(target.__self__) in _OWNERS:
        return _call_bound(domain, frame, function, args, kwargs)
    if not is_a(target, (BuiltinFunctionType, FunctionType, MethodDescriptorType)):
        return _call_special_with(domain, function, args, kwargs)
    raise GraphBreak("call_of_native_code", what=getattr(target, "__qualname__", str(target)))


def _call_bound(
    domain: SymbolicDomain, frame: FrameState, function: ObjectValue, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """A call of a method that the program has bound to a container before: `iskeyword` is `frozenset(kwlist).__contains__`."""
    target: Any = function.object
    way = KeptSource(target, target.__name__) if function.source is None else function.source
    owner = domain.state.wrap(target.__self__, AttributeSource(way, "__self__"))
    if target.__name__ == "__contains__" and len(args) == 1 and not kwargs:
        return domain.contains(args[0], owner, False)
    return domain.call(frame, NativeMethodValue(owner, target.__name__), args, kwargs)


def _is_answered(target: Any) -> bool:
    """Whether the object alone determines what a call becomes, so that no interpreted code guards it."""
    if id(target) in _RULES or is_array_call(target) or symbol_rule(target) is not None:
        return True
    return treatment(target) in _ANSWERED


def _has_rules(domain: SymbolicDomain, method: Any, receiver: Any) -> bool:
    """Whether the method may be called as `receiver.method(...)`: `list.append(receiver, x)` is `receiver.append(x)`."""
    receiver, owner = domain.state.realize(receiver), method.__objclass__
    match receiver:
        case SequenceValue() | DictValue() | SetValue():
            return receiver.class_ is owner
        case ConstantValue():
            return type(receiver.value) is owner and hasattr(owner, method.__name__)
        case _:
            return False


def _call_captured(
    domain: SymbolicDomain, frame: FrameState, function: ObjectValue, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """A call of a function that `compile` returned: calls the original."""
    source = function.source if function.source is not None else KeptSource(function.object, "captured")
    inner, receiver = function.object.__dict__[CAPTURES]
    way = AttributeSource(source, CAPTURES)
    found = domain.state.wrap(inner, ItemSource(way, 0))
    first = [domain.state.wrap(item, ItemSource(ItemSource(way, 1), index)) for index, item in enumerate(receiver)]
    return domain.call(frame, found, [*first, *args], kwargs)


def _node(domain: SymbolicDomain, target: Any, args: list[Any], kwargs: dict[str, Any]) -> Value:
    owner = getattr(target, "__objclass__", None)
    if owner is not None:  # torch.Tensor.add is a method call
        receiver = domain.state.realize(args[0])
        if not isinstance(receiver, TensorValue):
            unsupported(target.__name__, receiver)
        return receiver.call_method(domain, None, target.__name__, args[1:], kwargs)
    return domain.state.operator(target, args, kwargs)


def _fold(domain: SymbolicDomain, target: Any, args: list[Any], kwargs: dict[str, Any]) -> Value:
    seen = [domain.state.realize(arg) for arg in args]
    if any(isinstance(value, TensorValue) for value in seen):
        raise GraphBreak("data_dependent_read", what=getattr(target, "__name__", str(target)))
    rounding = EXPORTED_ROUNDING if is_exporting() else ROUNDING
    if id(target) in rounding and not kwargs and any(isinstance(value, NumberValue) for value in seen):
        if len(seen) == 1 and is_float_of_inputs(seen[0]):
            return known(domain, domain.state.arithmetic(target, seen))  # a guard on the integer alone
        return domain.state.operator(target, args, kwargs)
    if target is math.sqrt and len(seen) == 1 and isinstance(seen[0], NumberValue) and not kwargs:
        if is_exporting() or (is_float_of_inputs(seen[0]) and number_of(seen[0].number) >= 0):
            return domain.state.operator(torch.sym_sqrt, seen, {})
    return domain.folded(target, seen, kwargs)


def _call_module(
    domain: SymbolicDomain, frame: FrameState, function: ObjectValue, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    class_ = type(function.object)
    if is_a(function.object, LazyGraphModule):
        LazyGraphModule.force_recompile(function.object)  # its `forward` is generated on first use
    if class_.__call__ is _MODULE_CALL and function.source is not None and not function.hooks_of(domain):
        forward = domain.state.wrap(class_.forward, AttributeSource(class_source(function.object), "forward"))
        bound = in_mro(class_, "forward")
        if is_a(bound, staticmethod):
            return domain.call(frame, forward, args, kwargs)
        return domain.call(frame, forward, args if is_a(bound, classmethod) else [function, *args], kwargs)
    return _call_special_with(domain, function, args, kwargs)


def _call_special_with(domain: SymbolicDomain, function: ObjectValue, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Calls the `__call__` of the object's class."""
    found = getattr(type(function.object), "__call__", None)  # noqa: B004 - which function it is
    if not isinstance(found, FunctionType) or function.source is None:
        raise GraphBreak("call_of_native_code", what=type(function.object).__qualname__)
    way = AttributeSource(class_source(function.object), "__call__")
    return domain.enter_function(domain.state.wrap(found, way), [function, *args], kwargs)


# ------------------------------------------------------------------------------ results that are always the same


class _Evaluation:
    """The graph so far in the form that `get_real_value` needs, with the inputs' current values."""

    def __init__(self, state: Any) -> None:
        self.fake_mode = state.fake_mode
        self.nn_modules: dict[str, Any] = {}
        inputs = [node for node in state.graph.graph.nodes if node.op == "placeholder"]
        self.real_value_cache = dict(zip(inputs, state.graph.examples, strict=True))


def _assumed_result(domain: SymbolicDomain, function: FunctionType, args: list[Any], kwargs: dict[str, Any]) -> Value:
    """The value of a call whose result is assumed to be constant (`assume_constant_result`).

    Raises GraphBreak for arguments whose object is unknown, and for tensors computed after the graph wrote to a tensor. An
    error of the function is raised.
    """
    evaluation = _Evaluation(domain.state)
    given = [_real_of(domain, arg, evaluation) for arg in args]
    named = {name: _real_of(domain, arg, evaluation) for name, arg in kwargs.items()}
    own = {id(leaf) for leaf in pytree.tree_leaves((given, named)) if isinstance(leaf, torch.Tensor)}
    result = pytree.tree_map_only(
        torch.Tensor, lambda tensor: tensor.detach().clone() if id(tensor) in own else tensor, function(*given, **named)
    )
    return domain.state.wrap(result, KeptSource(result, f"{function.__qualname__}()"))


def _real_of(domain: SymbolicDomain, arg: Any, evaluation: _Evaluation) -> Any:
    value = domain.state.realize(arg)
    if isinstance(value, TensorValue) and value.source is None:
        if domain.state.graph.has_effects:
            unsupported("a call whose result is assumed to be constant, after a write,", value)
        return get_real_value(value.node, evaluation)
    return domain.state.real_of(value)


# ------------------------------------------------------------------------ calls that look at gradients of the segment


def _keep_watched_apart(state: Progress, target: Any, args: Sequence[Any]) -> None:
    """Raises GraphBreak before `torch.Tensor.register_hook(t, ...)` and `retain_grad(t)`."""
    value = state.realize(args[0]) if args and any(target is method for method in _UNBOUND) else None
    if isinstance(value, TensorValue):
        raise before_watching(state, value, target.__name__)


def _keep_inputs_apart(state: Progress, target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raises GraphBreak before a `torch.autograd.grad` whose inputs are computed and used in this segment."""
    given = kwargs.get("inputs", args[1] if len(args) > 1 else None) if target is _GRAD else None
    found = state.realize(given)
    for item in found.items if isinstance(found, SequenceValue) else [found]:
        value = state.realize(item)
        if isinstance(value, TensorValue):
            reason = apart(state, value, GraphBreak("call_of_skipped_function", what="grad"))
            if reason.restart_at is not None:
                raise reason


def _keep_detached_apart(state: Progress, target: Any, args: Sequence[Any]) -> None:
    """Raises GraphBreak before `torch.detach_`."""
    value = state.realize(args[0]) if target in _DETACH and args else None
    if isinstance(value, TensorValue):
        raise before_the_write(state, value)
