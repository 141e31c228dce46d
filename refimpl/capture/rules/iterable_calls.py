"""Builtins and classes that consume an iterable: constructors of containers, sorting, sums, reductions.

Counterpart: torch/_dynamo/variables/builtin.py call_sorted, call_min_max; functools.py
"""

from __future__ import annotations

import builtins
import collections
import functools
import math
import operator
from collections import OrderedDict, defaultdict, deque
from collections.abc import Sequence
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any

import torch

from refimpl._torch import is_exporting
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards.sources import AttributeSource, KeptSource
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.interpreter.signals import Enter
from refimpl.capture.rules import iterator_polyfills
from refimpl.capture.rules.lazy_iterators import callable_iterator
from refimpl.capture.rules.rule_table import Rule, RuleTable, wrong
from refimpl.capture.values import (
    ConstantValue,
    DefaultDictValue,
    DequeValue,
    DictValue,
    DictViewValue,
    FunctionValue,
    InstanceValue,
    IteratorValue,
    LazyValue,
    LocalFunctionValue,
    NumberValue,
    ObjectValue,
    PartialValue,
    ReversedValue,
    SequenceValue,
    SetValue,
    TensorValue,
    Value,
    polyfills,
)
from refimpl.capture.values.classes import MISSING, in_mro, is_a
from refimpl.capture.values.sequence import in_order
from refimpl.capture.values.set import make_set
from refimpl.capture.values.value import raising

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

ITERABLE_RULES = RuleTable()


def _nothing() -> Value:
    return ConstantValue(None)


# ---------------------------------------------------------------------------------------------------------- containers


def _set_rule(class_: type) -> Rule:
    def make(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if kwargs or len(args) > 1:
            wrong(class_.__name__)
        return domain.set_of(class_, domain.state.realize(args[0])) if args else make_set(domain, class_, [])

    return make


ITERABLE_RULES[id(set)] = _set_rule(set)
ITERABLE_RULES[id(frozenset)] = _set_rule(frozenset)


def _filled(domain: SymbolicDomain, made: DictValue, args: list[Any], kwargs: dict[str, Any], name: str) -> Any:
    if len(args) > 1:
        wrong(name)
    given = domain.state.realize(args[0]) if args else None
    if args and domain.is_mapping(given, made.class_):
        return domain.enter_polyfill(polyfills.filled, [made, given, domain.named(kwargs)])
    for key, value in [
        *(domain.pairs_of(given, made.class_) if args else []),
        *((ConstantValue(n), v) for n, v in kwargs.items()),
    ]:
        domain.put(made, key, value)
    return made


@ITERABLE_RULES.of(dict)
def _dict(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return _filled(domain, DictValue({}), args, kwargs, "dict")


@ITERABLE_RULES.of(OrderedDict)
def _ordered_dict(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return _filled(domain, DictValue({}, class_=OrderedDict), args, kwargs, "OrderedDict")


@ITERABLE_RULES.of(defaultdict)
def _defaultdict(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    factory = domain.state.realize(args[0]) if args else _nothing()
    if isinstance(factory, ConstantValue) and factory.value is not None:
        wrong("defaultdict")
    return _filled(domain, DefaultDictValue({}, factory), args[1:], kwargs, "defaultdict")


@ITERABLE_RULES.of(deque)
def _deque(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    named = dict(zip(("iterable", "maxlen"), args, strict=False)) | kwargs
    if len(args) > 2 or named.keys() - {"iterable", "maxlen"}:
        wrong("deque")
    limit = domain.constant_of(named.get("maxlen", _nothing()), "maxlen")
    if limit is not None and (type(limit) is not int or limit < 0):
        wrong("deque")
    items = domain.elements(named["iterable"]) if "iterable" in named else []
    return DequeValue(items[max(0, len(items) - limit) :] if limit is not None else items, limit)


@ITERABLE_RULES.of(list)
def _list(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if kwargs or len(args) > 1:
        wrong("list")
    return SequenceValue(list, domain.elements(args[0]) if args else [])


@ITERABLE_RULES.of(tuple)
def _tuple(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if kwargs or len(args) > 1:
        wrong("tuple")
    value = domain.state.realize(args[0]) if args else None
    if isinstance(value, SequenceValue) and value.class_ is tuple:
        return value
    return SequenceValue(tuple, domain.elements(value) if args else [])


@ITERABLE_RULES.of(torch.Size)
def _size(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    items = domain.elements(args[0]) if len(args) == 1 and not kwargs else wrong("Size")
    for item in map(domain.state.realize, items):
        if not isinstance(item, NumberValue) and not (isinstance(item, ConstantValue) and type(item.value) is int):
            wrong("Size")
    return SequenceValue(torch.Size, items)


# --------------------------------------------------------------------------------------------------------------- orders


@ITERABLE_RULES.of(polyfills.same)
def _same(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    left, right = map(domain.state.realize, args)
    is_one = left is right or (
        isinstance(left, ObjectValue) and isinstance(right, ObjectValue) and left.object is right.object
    )
    return ConstantValue(is_one or domain.same_or_equal(left, right) is True)


@ITERABLE_RULES.of(polyfills.is_iterator)
def _is_iterator(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    value = domain.state.realize(args[0])
    return ConstantValue(value.is_iterator or in_mro(value.class_of(), "__next__") is not MISSING)


@ITERABLE_RULES.of(polyfills.failed)
def _failed(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    raising(domain.state.realize(args[0]).object)


@ITERABLE_RULES.of(polyfills.ordered)
def _ordered(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    items, keys = domain.elements(args[0]), domain.elements(args[1])
    return SequenceValue(list, in_order(domain, items, keys, args[2]))


def _in_any_order(domain: SymbolicDomain, value: Any) -> list[Value]:
    """The elements; those of a set in any order, if the result does not depend on it."""
    value = domain.state.realize(value)
    found = value.sortable_elements() if isinstance(value, SetValue) else None
    return domain.elements(value) if found is None else found


@ITERABLE_RULES.of(builtins.sorted)
def _sorted(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs.keys() - {"key", "reverse"}:
        wrong("sorted")
    key, is_reversed = kwargs.get("key", _nothing()), kwargs.get("reverse", ConstantValue(False))
    if not domain.is_none(key):
        return domain.enter_polyfill(polyfills.sorted_by, [args[0], key, is_reversed])
    items = _in_any_order(domain, args[0])
    return SequenceValue(list, in_order(domain, items, items, is_reversed))


def _extremum_of_tensors(domain: SymbolicDomain, function: Any, items: Sequence[Value]) -> Any:
    """`min` or `max` of tensors, under fullgraph only: a number that is the result is returned as a tensor, unlike in eager."""
    is_known = all(
        (isinstance(item, TensorValue) and not item.fake.dim())
        or (isinstance(item, ConstantValue) and type(item.value) in (int, float))
        for item in items
    )
    if not domain.state.is_whole or not is_known:
        raise GraphBreak("branch_on_tensor", what=f"{function.__name__} of tensors")
    is_better = operator.lt if function is min else operator.gt
    given = [SequenceValue(list, list(items)), ObjectValue(is_better), ObjectValue(torch.where)]
    return domain.enter_polyfill(polyfills.extremum_of_tensors, given)


def _extremum(function: Any, polyfill: Any) -> Rule:
    def find(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if not args or kwargs.keys() - {"key", "default"}:
            wrong(function.__name__)
        key = kwargs.get("key", _nothing())
        if len(args) == 1 and domain.runs_code(args[0]):
            given = [ObjectValue(function), args[0], SequenceValue(tuple, []), domain.named(kwargs)]
            return domain.enter_polyfill(polyfills.called_with_list, given)
        items = list(args) if len(args) > 1 else (_in_any_order if domain.is_none(key) else _elements)(domain, args[0])
        if not items and "default" in kwargs:
            return kwargs["default"]
        if not items:
            raising(ValueError)
        seen = [domain.state.realize(item) for item in items]
        if any(isinstance(item, TensorValue) for item in seen) and domain.is_none(key) and len(items) > 1:
            return _extremum_of_tensors(domain, function, seen)
        if domain.is_none(key) and len(seen) > 1 and _are_read(domain, seen):
            either = torch.sym_max if function is max else torch.sym_min
            return functools.reduce(lambda a, b: domain.state.operator(either, [a, b], {}), seen)
        if domain.is_none(key) and all(isinstance(item, ConstantValue) for item in seen):
            found = domain.constant_of(domain.folded(function, [SequenceValue(list, seen)], {}), function.__name__)
            return next(item for item in seen if isinstance(item, ConstantValue) and item.value is found)
        return domain.enter_polyfill(polyfill, [SequenceValue(list, items), key])

    return find


def _are_read(domain: SymbolicDomain, items: Sequence[Value]) -> bool:
    """Whether these are integers, and which is the largest is known only when the program runs, or an exported program computes
    it at every call."""
    if not all(isinstance(item, (NumberValue, ConstantValue)) and item.class_of() is int for item in items):
        return False
    numbers = [item for item in items if isinstance(item, NumberValue)]
    return any(map(domain.state.is_read, numbers)) or (bool(numbers) and is_exporting())


def _elements(domain: SymbolicDomain, value: Any) -> list[Value]:
    return domain.elements(value)


ITERABLE_RULES[id(min)] = _extremum(min, polyfills.least)
ITERABLE_RULES[id(max)] = _extremum(max, polyfills.greatest)


@ITERABLE_RULES.of(builtins.sum)
def _sum(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    given = [*args[1:], *kwargs.values()]
    if not args or len(given) > 1 or kwargs.keys() - {"start"}:
        wrong("sum")
    start = given[0] if given else ConstantValue(0)
    if isinstance(domain.state.realize(start), ConstantValue) and type(domain.state.realize(start).value) in (
        str,
        bytes,
    ):
        raising(TypeError)
    items = domain.state.realize(args[0])
    if isinstance(items, SetValue) and {type(key) for key in items.real} <= {int, bool}:
        items = SequenceValue(list, [*items.values.values()])
    return domain.enter_polyfill(polyfills.total, [items, start])


@ITERABLE_RULES.of(math.prod)
def _prod(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs.keys() - {"start"}:
        wrong("prod")
    return domain.enter_polyfill(polyfills.product, [args[0], kwargs.get("start", ConstantValue(1))])


@ITERABLE_RULES.of(builtins.any)
def _any(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return domain.enter_polyfill(polyfills.any_of, args) if len(args) == 1 and not kwargs else wrong("any")


@ITERABLE_RULES.of(builtins.all)
def _all(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return domain.enter_polyfill(polyfills.all_of, args) if len(args) == 1 and not kwargs else wrong("all")


@ITERABLE_RULES.of(builtins.reversed)
def _reversed(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    value = domain.state.realize(args[0]) if len(args) == 1 and not kwargs else wrong("reversed")
    match value:
        case SequenceValue() if value.class_ is list:
            iterator = ReversedValue(value)
            domain.state.effects.watch(iterator)
            return iterator
        case SequenceValue() | DictValue() | DictViewValue():
            items = domain.elements(value)[::-1]
        case ConstantValue() if type(value.value) is range:
            return ConstantValue(value.value[::-1]).iterate(domain)
        case ConstantValue() if type(value.value) is str:
            items = domain.elements(value)[::-1]
        case InstanceValue() | ObjectValue() if domain.special(value, "__reversed__") is not None:
            return domain.call_special(value, "__reversed__", [])
        case _:
            raise GraphBreak("call_of_native_code", what="reversed")
    return IteratorValue(SequenceValue(list, items), items)


@ITERABLE_RULES.of(builtins.iter)
def _iter(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if kwargs or not 1 <= len(args) <= 2:
        wrong("iter")
    return domain.get_iter(args[0]) if len(args) == 1 else callable_iterator(domain, *args)


# ------------------------------------------------------------------------------------------------------------ functools


@ITERABLE_RULES.of(functools.partial)
def _partial(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if not args:
        wrong("partial")
    function = domain.state.realize(args[0])
    if type(function) is PartialValue:
        return PartialValue(function.function, [*function.args, *args[1:]], {**function.keywords, **kwargs})
    if isinstance(function, (ConstantValue, SequenceValue, DictValue, SetValue, TensorValue)):
        wrong("partial")
    return PartialValue(function, list(args[1:]), dict(kwargs))


@ITERABLE_RULES.of(functools.update_wrapper)
def _update_wrapper(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    named = dict(zip(("wrapper", "wrapped", "assigned", "updated"), args, strict=False)) | kwargs
    wrapper, wrapped = (domain.state.realize(named.get(name, _nothing())) for name in ("wrapper", "wrapped"))
    for name, usual in (("assigned", functools.WRAPPER_ASSIGNMENTS), ("updated", functools.WRAPPER_UPDATES)):
        if name in named and domain.constant_of(named[name], name) != usual:
            raise GraphBreak("call_of_native_code", what="update_wrapper")
    if not isinstance(wrapper, FunctionValue) or isinstance(wrapper, LocalFunctionValue):
        raise GraphBreak("call_of_native_code", what="update_wrapper")
    found = _wrapped_attributes(domain, wrapped)
    if is_a(getattr(wrapped, "object", None), FunctionType) or isinstance(wrapped, FunctionValue):
        wrapper.annotations = _annotations_of(domain, wrapped)
    wrapper.attributes |= {**found, "__wrapped__": wrapped}
    return wrapper


def _annotations_of(domain: SymbolicDomain, wrapped: Any) -> Value:
    """The dict `__annotations__` of a function. That of a function of the program is not looked into."""
    if type(wrapped) is FunctionValue:
        return wrapped.load_attr(domain, "__annotations__")
    function = wrapped.object
    source = KeptSource(function, "wrapped") if wrapped.source is None else wrapped.source
    return LazyValue(function.__annotations__, AttributeSource(source, "__annotations__"))


def _wrapped_attributes(domain: SymbolicDomain, wrapped: Value) -> dict[str, Value]:
    """The attributes that a wrapper copies from what it wraps; for a module only its documentation."""
    if isinstance(wrapped, FunctionValue):
        return {name: domain.load_attr(wrapped, name) for name in _TAKEN} | wrapped.attributes
    if not isinstance(wrapped, ObjectValue):
        found = {name: domain.has_attribute(wrapped, name) for name in _TAKEN}
        return {name: domain.load_attr(wrapped, name) for name, is_there in found.items() if is_there}
    source = KeptSource(wrapped.object, "wrapped") if wrapped.source is None else wrapped.source
    if is_a(wrapped.object, torch.nn.Module):
        kind = type(wrapped.object)
        return {"__module__": ConstantValue(kind.__module__), "__doc__": ConstantValue(kind.__doc__)}
    if not is_a(wrapped.object, FunctionType):
        if not is_a(wrapped.object, BuiltinFunctionType):
            raise GraphBreak("call_of_native_code", what="update_wrapper")
        found = {name: getattr(wrapped.object, name, None) for name in _TAKEN}
        return {name: ConstantValue(text) for name, text in found.items() if text is not None}
    own = domain.state.wrap(wrapped.object.__dict__, AttributeSource(source, "__dict__"))
    if not isinstance(own, DictValue):
        raise GraphBreak("call_of_native_code", what="update_wrapper")
    copied = {domain.constant_of(key, "a name"): item for key, item in own.items.values()}
    return {name: domain.load_attr(wrapped, name) for name in _TAKEN} | copied


_TAKEN = ("__module__", "__name__", "__qualname__", "__doc__")


@ITERABLE_RULES.of(vars(collections)["_count_elements"])
def _count_elements(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return domain.enter_polyfill(polyfills.counted_into, args) if len(args) == 2 and not kwargs else wrong("Counter")


@ITERABLE_RULES.of(functools.reduce)
def _reduce(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if not 2 <= len(args) <= 3 or kwargs:
        wrong("reduce")
    return domain.enter_polyfill(iterator_polyfills.reduced, [*args[:2], SequenceValue(tuple, args[2:])])


# Builtins and classes that consume an iterable before they do anything else.
_EATERS = frozenset(
    map(id, (list, tuple, dict, set, frozenset, deque, OrderedDict, builtins.sorted, min, max, torch.Size))
)  # fmt: skip
_TAKING_MAPPINGS = frozenset(map(id, (dict, OrderedDict)))


def eaten(domain: SymbolicDomain, function: ObjectValue, args: list[Any], kwargs: dict[str, Any]) -> Enter | None:
    """Calls such a builtin on an iterable whose iteration runs code; None for every other call."""
    if id(function.object) not in _EATERS or not args or not domain.runs_code(args[0]) or "key" in kwargs:
        return None
    if id(function.object) in _TAKING_MAPPINGS and domain.is_mapping(args[0], function.object):
        return None
    given = [function, args[0], SequenceValue(tuple, args[1:]), domain.named(kwargs)]
    return domain.enter_polyfill(polyfills.called_with_list, given)
