"""Methods of tensors, and of builtin containers.

Counterpart: torch/_dynamo/variables/tensor.py TensorVariable.call_method, lists.py, dicts.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.symbolic.state import UserRaise, raising, unsupported
from refimpl.capture.symbolic.values import (
    ConstantValue,
    DictValue,
    DictViewValue,
    ErrorValue,
    NumberValue,
    SequenceValue,
    TensorValue,
    Value,
)

Method = Callable[[Any, Any, list[Any]], Value]


def _names_in(text: str) -> frozenset[str]:
    return frozenset(text.split())


# They read data, or are known without a node.
_READ_DATA = frozenset(
    ["item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__complex__", "is_nonzero"]
)
_UNSUPPORTED = _names_in(
    """backward register_hook register_post_accumulate_grad_hook requires_grad_ retain_grad detach_ set_ resize_ resize_as_
    share_memory_ pin_memory storage untyped_storage data_ptr __reduce_ex__ __deepcopy__ as_subclass new_tensor cuda to_sparse
    map_ map2_ apply_ module_load record_stream __array__ __dlpack__
    is_inference _is_view is_shared is_pinned is_coalesced"""
)
_METADATA_CALLS = _names_in(
    """is_contiguous is_floating_point is_complex is_signed element_size get_device is_conj is_neg"""
)


def call_of_tensor(domain: Any, receiver: TensorValue, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`receiver.name(...)`."""
    if name in _READ_DATA and not (name == "item" and domain.state.reads_data):
        raise GraphBreak("data_dependent_read", what=f"Tensor.{name}()")
    if name in _UNSUPPORTED:
        unsupported(f"method {name}", receiver)
    if name in ("dim", "ndimension"):
        return ConstantValue(receiver.fake.dim())
    if name == "size":
        return _size(domain, receiver, args, kwargs)
    if name == "numel":
        return _numel(domain, receiver)
    if name == "stride":
        return _stride(domain, receiver, args, kwargs)
    if name == "__len__":
        return domain.length(receiver)
    if name == "__getitem__":
        return domain.get_item(receiver, args[0])
    if name == "storage_offset" and not args and not kwargs:
        return domain.state.storage_offset(receiver)
    if name in _METADATA_CALLS:
        plain = [domain.constant_of(arg, name) for arg in args]
        named = {key: domain.constant_of(arg, name) for key, arg in kwargs.items()}
        return _number(getattr(receiver.fake, name)(*plain, **named), receiver, name)
    return domain.state.operator(name, [receiver, *args], kwargs, kind="call_method")


def _number(found: Any, receiver: TensorValue, name: str) -> Value:
    return ConstantValue(found) if type(found) in (int, bool) else unsupported(f"method {name}", receiver)


def _size(domain: Any, receiver: TensorValue, args: list[Any], kwargs: dict[str, Any]) -> Any:
    given = [*args, *kwargs.values()]
    if not given or domain.constant_of(given[0], "size") is None:
        return domain.shape_value(receiver)
    dim, rank = domain.constant_of(given[0], "size"), receiver.fake.dim()
    if type(dim) is not int or not -rank <= dim < rank:
        raise GraphBreak("op_raises_on_fake", what="size", error="IndexError")
    return domain.size_value(receiver, dim % rank)


def _stride(domain: Any, receiver: TensorValue, args: list[Any], kwargs: dict[str, Any]) -> Any:
    given, rank = [*args, *kwargs.values()], receiver.fake.dim()
    dims = list(range(rank)) if not given else [domain.constant_of(given[0], "stride")]
    if any(type(dim) is not int or not -rank <= dim < rank for dim in dims):
        unsupported("method stride", receiver)
    steps = [_step(domain, receiver, dim % rank) for dim in dims]
    return steps[0] if given else SequenceValue(tuple, steps)


def _step(domain: Any, receiver: TensorValue, dim: int) -> Value:
    step = receiver.fake.stride()[dim]
    return ConstantValue(step) if type(step) is int else _computed(domain, receiver, "stride", step, dim)


def _numel(domain: Any, receiver: TensorValue) -> Value:
    found = receiver.fake.numel()
    return ConstantValue(found) if type(found) is int else _computed(domain, receiver, "numel", found)


def _computed(domain: Any, receiver: TensorValue, name: str, found: Any, *args: Any) -> Value:
    """A number that the graph has to ask the tensor for."""
    node = domain.state.graph.call("call_method", name, (receiver.node, *args), {}, found)
    return NumberValue(found, node)


# ----------------------------------------------------------------------------------------------------------------- containers


def method_of_container(domain: Any, receiver: Value, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A method of a list, tuple, torch.Size or dict."""
    if isinstance(receiver, SequenceValue) and receiver.class_ is torch.Size and name == "numel":
        return _product(domain, receiver)
    match receiver:
        case DictValue():
            method = _DICT_METHODS.get(name)
        case SequenceValue() if receiver.class_ is list:
            method = _LIST_METHODS.get(name)
        case _:
            method = None
    if method is None or kwargs:
        unsupported(f"method {name}", receiver)
    if name in _WRITING:
        domain.state.effects.will_change(receiver)
    return method(domain, receiver, args)


def _product(domain: Any, receiver: SequenceValue) -> Value:
    total: Any = ConstantValue(1)
    for item in receiver.items:
        total = domain.binary("*", total, item)
    return total


def _nothing() -> Value:
    return ConstantValue(None)


def _append(domain: Any, receiver: SequenceValue, args: list[Any]) -> Value:
    receiver.items.append(_only(args))
    return _nothing()


def _extend(domain: Any, receiver: SequenceValue, args: list[Any]) -> Value:
    receiver.items.extend(domain.elements(_only(args)))
    return _nothing()


def _insert(domain: Any, receiver: SequenceValue, args: list[Any]) -> Value:
    if len(args) != 2:
        _wrong("insert")
    receiver.items.insert(_index(domain, args[0]), args[1])
    return _nothing()


def _pop(domain: Any, receiver: SequenceValue, args: list[Any]) -> Value:
    index = _index(domain, args[0]) if args else -1
    if not -len(receiver.items) <= index < len(receiver.items):
        raising(IndexError, "pop index out of range" if receiver.items else "pop from empty list")
    return receiver.items.pop(index)


def _reverse(domain: Any, receiver: SequenceValue, args: list[Any]) -> Value:
    receiver.items.reverse()
    return _nothing()


def _clear(domain: Any, receiver: Any, args: list[Any]) -> Value:
    receiver.items.clear()
    return _nothing()


def _copy(domain: Any, receiver: Any, args: list[Any]) -> Value:
    if isinstance(receiver, DictValue):
        return DictValue(dict(receiver.items))
    return SequenceValue(list, list(receiver.items))


def _get(domain: Any, receiver: DictValue, args: list[Any]) -> Value:
    found = receiver.items.get(domain.hash_key(args[0]))
    if found is not None:
        return found[1]
    return args[1] if len(args) > 1 else _nothing()


def _view(which: str) -> Method:
    return lambda domain, receiver, args: DictViewValue(receiver, which)


def _dict_pop(domain: Any, receiver: DictValue, args: list[Any]) -> Value:
    key = domain.hash_key(args[0])
    if key in receiver.items:
        return receiver.items.pop(key)[1]
    if len(args) > 1:
        return args[1]
    raise UserRaise(ErrorValue(KeyError, [domain.state.see(args[0])]))


def _set_default(domain: Any, receiver: DictValue, args: list[Any]) -> Value:
    key = domain.hash_key(args[0])
    if key not in receiver.items:
        receiver.items[key] = (domain.state.see(args[0]), args[1] if len(args) > 1 else _nothing())
    return receiver.items[key][1]


def _update(domain: Any, receiver: DictValue, args: list[Any]) -> Value:
    other = domain.state.see(_only(args))
    if not isinstance(other, DictValue):
        unsupported("update()", other)
    for hashed, (key, value) in other.items.items():
        receiver.items[hashed] = (receiver.items[hashed][0] if hashed in receiver.items else key, value)
    return _nothing()


def _only(args: list[Any]) -> Any:
    return args[0] if len(args) == 1 else _wrong("a method")


def _index(domain: Any, value: Any) -> int:
    index = domain.constant_of(value, "an index")
    return index if type(index) is int else _wrong("an index")


def _wrong(what: str) -> Any:
    raise GraphBreak("op_raises_on_fake", what=what, error="an exception")


_LIST_METHODS: dict[str, Method] = {
    "append": _append, "extend": _extend, "insert": _insert, "pop": _pop, "reverse": _reverse, "clear": _clear, "copy": _copy,
}  # fmt: skip
_DICT_METHODS: dict[str, Method] = {
    "get": _get, "keys": _view("keys"), "values": _view("values"), "items": _view("items"), "pop": _dict_pop,
    "setdefault": _set_default,
    "update": _update, "clear": _clear, "copy": _copy,
}  # fmt: skip
_WRITING = frozenset(["append", "extend", "insert", "pop", "reverse", "clear", "setdefault", "update"])
