"""Calls whose results are constants, enum members or named tuples; and functions behind a cache.

Counterpart: torch/_dynamo/variables/constant.py, user_defined.py, functions.py WrapperUserFunctionVariable
"""

from __future__ import annotations

import builtins
import copy
import functools
import operator
from collections import OrderedDict
from enum import Enum, EnumMeta, Flag
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from refimpl._torch import dispatch_modes_on, function_modes_on
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards.guard_list import GuardKind
from refimpl.capture.guards.sources import AttributeSource, CachedCallSource, KeptSource, Source
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.rules.rule_table import Rule, RuleTable
from refimpl.capture.values import (
    ConstantValue,
    DictValue,
    GetterValue,
    InstanceValue,
    NumberValue,
    ObjectValue,
    SequenceValue,
    Value,
    polyfills,
)
from refimpl.capture.values.classes import combines_as_flag, is_a
from refimpl.capture.values.constant import known

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

CONSTANT_RULES = RuleTable()
CACHED = type(functools.lru_cache(repr))


def _folding(function: Any) -> Rule:
    return lambda domain, frame, args, kwargs: domain.folded(function, args, kwargs)


# The guard on torch's state covers the last two.
for _callable in (torch.finfo, torch.iinfo, torch.device, bytes, dispatch_modes_on, function_modes_on):
    CONSTANT_RULES[id(_callable)] = _folding(_callable)


@CONSTANT_RULES.of(builtins.hash)
def _hash(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    value = known(domain, domain.state.realize(args[0])) if len(args) == 1 and not kwargs else None
    if isinstance(value, (InstanceValue, ObjectValue)) and domain.special(value, "__hash__") is not None:
        return value.hashed(domain)
    if not isinstance(value, (ConstantValue, SequenceValue)):
        raise GraphBreak("call_of_native_code", what="hash")
    return domain.folded(hash, [value], {})


def getter(domain: SymbolicDomain, class_: Any, args: list[Any], kwargs: dict[str, Any], source: Any = None) -> Value:
    """Calls `operator.itemgetter`, `attrgetter` or `methodcaller`."""
    plain: list[Value] = [domain.state.realize(arg) for arg in args]
    given: list[Value]
    if not args or (kwargs and class_ is not operator.methodcaller):
        raise GraphBreak("op_raises_on_fake", what=class_.__name__, error="TypeError")
    if class_ is operator.itemgetter:
        function = polyfills.item_of
        given = [SequenceValue(tuple, plain)]
    elif class_ is operator.attrgetter:
        names = [domain.constant_of(arg, "a name") for arg in plain]
        if any(type(name) is not str for name in names):
            raise GraphBreak("op_raises_on_fake", what=class_.__name__, error="TypeError")
        function, given = polyfills.attribute_of, [domain.constant(tuple(tuple(name.split(".")) for name in names))]
    else:
        function, given = polyfills.method_called, [plain[0], SequenceValue(tuple, plain[1:]), domain.named(kwargs)]
    made = GetterValue(class_, ObjectValue(function), given, {}, source)
    made.written = (plain, dict(kwargs))
    return made


def _getter_rule(class_: type) -> Rule:
    return lambda domain, frame, args, kwargs: getter(domain, class_, args, kwargs)


for _class in (operator.itemgetter, operator.attrgetter, operator.methodcaller):
    CONSTANT_RULES[id(_class)] = _getter_rule(_class)


@CONSTANT_RULES.of(copy.deepcopy)
def _deepcopy(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs:
        raise GraphBreak("call_of_native_code", what="deepcopy with a memo")
    return _copied(domain, args[0], {})


def _copied(domain: SymbolicDomain, value: Any, made: dict[Any, Value]) -> Value:
    """A deep copy of containers of constants. What was one object stays one object."""
    value = domain.state.realize(value)
    if value in made:
        return made[value]
    match value:
        case ConstantValue() | NumberValue():
            return value
        case ObjectValue() if is_a(value.object, (type, FunctionType, Enum)):
            return value
        case SequenceValue() if value.class_ is list:
            copied = made[value] = SequenceValue(list, [])
            copied.items += [_copied(domain, item, made) for item in value.items]
            return copied
        case SequenceValue() if value.class_ is tuple:
            items = [_copied(domain, item, made) for item in value.items]
            is_same = all(a is domain.state.realize(b) for a, b in zip(items, value.items, strict=True))
            made[value] = value if is_same else SequenceValue(tuple, items)
            return made[value]
        case DictValue() if value.class_ in (dict, OrderedDict):
            table = made[value] = DictValue({}, class_=value.class_)
            for key, item in list(value.items.values()):
                domain.put(table, _copied(domain, key, made), _copied(domain, item, made))
            return table
        case _:
            raise GraphBreak("call_of_native_code", what=f"deepcopy of a {value.kind}")


@CONSTANT_RULES.of(polyfills.constant_only)
def _constant_only(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    result, cached = domain.state.realize(args[0]), domain.state.realize(args[2])
    if _changes(domain) != domain.constant_of(args[1], "a count"):
        raise GraphBreak("call_of_native_code", what="a function behind a cache that does more than give something")
    plain, named = (domain.constant_of(arg, "an argument") for arg in args[3:5])
    # The function may read what the segment has changed but not yet written back; the cache must not keep a result without the
    # change.
    if domain.state.effects.count and not _is_same_constant(domain, result, cached.object.__wrapped__(*plain, **named)):
        raise GraphBreak("call_of_native_code", what="a function behind a cache after a change")
    # Its only effect is to fill the cache, as in the program.
    kept = cached.object(*plain, **named)
    if not _is_same_constant(domain, result, kept):
        raise GraphBreak("call_of_native_code", what="a function behind a cache that keeps what it gave before")
    way = CachedCallSource(_way_to(cached), tuple(plain), tuple(named.items()))
    domain.state.guard(GuardKind.ID if isinstance(result, ObjectValue) else GuardKind.EQUALS, way, kept)
    return result


def _way_to(function: ObjectValue) -> Source:
    return KeptSource(function.object, "cached") if function.source is None else function.source


def _is_same_constant(domain: SymbolicDomain, value: Any, kept: Any) -> bool:
    """Whether the cached result is a constant, and the one that the function returns now."""
    match value := domain.state.realize(value):
        case SequenceValue() if value.class_ is tuple and type(kept) is tuple and len(kept) == len(value.items):
            return all(_is_same_constant(domain, item, part) for item, part in zip(value.items, kept, strict=True))
        case ConstantValue():
            return type(value.value) is type(kept) and value.value == kept
        case ObjectValue():
            return value.object is kept
        case _:
            return False


def call_cached(domain: SymbolicDomain, function: ObjectValue, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Calls a function behind `functools.lru_cache`: inlines the wrapped function if nobody can tell how often it runs."""
    for arg in (*args, *kwargs.values()):
        domain.constant_of(arg, "an argument of a function behind a cache")
    wrapped = domain.state.wrap(function.object.__wrapped__, AttributeSource(_way_to(function), "__wrapped__"))
    given = [SequenceValue(tuple, list(args)), domain.named(kwargs)]
    return domain.enter_polyfill(
        polyfills.called_for_a_constant, [wrapped, *given, ConstantValue(_changes(domain)), function]
    )


def _changes(domain: SymbolicDomain) -> int:
    """The number of visible effects and of guards on symbols so far. (Guards on symbols are checked last.)"""
    return domain.state.effects.count + len(domain.state.graph.graph.nodes) + len(domain.state.shape_env.guards)


def member_of(domain: SymbolicDomain, class_value: ObjectValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    """Calls an enumeration with the value of a member."""
    class_: Any = class_value.object
    if len(args) != 1 or kwargs or type(class_).__call__ is not EnumMeta.__call__ or class_.__new__ is not Enum.__new__:
        raise GraphBreak("call_of_native_code", what=f"class {class_.__qualname__}")
    given = domain.state.realize(args[0])
    if isinstance(given, ObjectValue) and type(given.object) is class_:
        return given
    member = class_._value2member_map_.get(domain.hash_key(given))
    if member is None and isinstance(given, ConstantValue):
        member = _combined(class_, given.value)
    if member is None:
        raise GraphBreak("op_raises_on_fake", what=class_.__qualname__, error="an exception")
    return ObjectValue(member)


def _combined(class_: Any, value: Any) -> Any:
    """The member of a `Flag` that stands for several others, which Python makes when it is first asked for; None if none."""
    if not issubclass(class_, Flag) or not combines_as_flag(next(iter(class_), None)):
        return None
    try:
        return class_(value)
    except (TypeError, ValueError):
        return None
