"""Methods of tensors.

Counterpart: torch/_dynamo/variables/tensor.py TensorVariable.call_method
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.symbolic.raising import unsupported
from refimpl.capture.symbolic.values import (
    ConstantValue,
    NumberValue,
    SequenceValue,
    TensorValue,
    Value,
)
from refimpl.capture.symbolic.watched_gradients import WATCHING_METHODS, before_the_write, before_watching

Method = Callable[[Any, Any, list[Any]], Value]


def _names_in(text: str) -> frozenset[str]:
    return frozenset(text.split())


# They read data, or are known without a node.
_READ_DATA = frozenset(
    ["item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__complex__", "is_nonzero"]
)
_MOST_ITEMS = 64  # that are read out of a tensor by `tolist`
_UNSUPPORTED = _names_in(
    """backward register_post_accumulate_grad_hook requires_grad_ set_ resize_ resize_as_
    share_memory_ pin_memory storage untyped_storage data_ptr __reduce_ex__ __deepcopy__ as_subclass new_tensor cuda to_sparse
    map_ map2_ apply_ module_load record_stream __array__ __dlpack__
    is_inference _is_view is_shared is_pinned is_coalesced"""
)
# A gradient may come in any layout, and require a gradient itself.
_UNKNOWN_IN_BACKWARD = _names_in("is_contiguous stride storage_offset")
_METADATA_CALLS = _names_in(
    """is_contiguous is_floating_point is_complex is_signed element_size get_device is_conj is_neg"""
)


def call_of_tensor(domain: Any, receiver: TensorValue, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`receiver.name(...)`."""
    if domain.state.backward_of and name in _UNKNOWN_IN_BACKWARD:
        unsupported(f"method {name} in backward", receiver)
    if name == "numpy" and not args and not kwargs:
        return domain.array_of_tensor(receiver)
    if name == "tolist" and domain.state.reads_data and not args and not kwargs:
        return _list(domain, receiver)
    if name in _READ_DATA and not (name == "item" and domain.state.reads_data):
        raise GraphBreak("data_dependent_read", what=f"Tensor.{name}()")
    if name in WATCHING_METHODS:
        raise before_watching(domain.state, receiver, name)
    if name == "detach_":
        raise before_the_write(domain.state, receiver)
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


def _list(domain: Any, receiver: TensorValue) -> Value:
    """The items of a tensor of few elements, read one by one."""
    numel = receiver.fake.numel()
    if type(numel) is not int or numel > _MOST_ITEMS:
        raise GraphBreak("data_dependent_read", what="Tensor.tolist()")
    if not receiver.fake.dim():
        return domain.state.operator("item", [receiver], {}, kind="call_method")
    rows = [domain.get_item(receiver, ConstantValue(index)) for index in range(receiver.fake.shape[0])]
    return SequenceValue(list, [_list(domain, row) for row in rows])


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
