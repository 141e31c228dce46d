"""Tensors: nodes of the graph.

Counterpart: torch/_dynamo/variables/tensor.py TensorVariable
Differs: the segment ends where the program reads or hooks the gradient of a tensor computed in it, so that hooks see what they
see in eager.
"""

from __future__ import annotations

import inspect
import math
import operator
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import torch
from torch.fx import Node

from refimpl._torch import FakeTensor, is_functorch_wrapped, is_nested_int, storage_key
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards.guard_list import GuardKind
from refimpl.capture.guards.sources import AttributeSource, Source
from refimpl.capture.interpreter.concrete import BINARY, COMPARE, UNARY
from refimpl.capture.values import polyfills
from refimpl.capture.values.bound import NativeMethodValue
from refimpl.capture.values.constant import ConstantValue, NumberValue
from refimpl.capture.values.hashing import CONSTANT_TYPES, Member
from refimpl.capture.values.sequence import SequenceValue
from refimpl.capture.values.value import Value, raising, unsupported

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain


def _names_in(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Attributes that the fake tensor knows.
_METADATA = _names_in(
    """dtype device layout ndim requires_grad is_sparse is_sparse_csr is_quantized is_nested is_cuda is_cpu is_meta
    is_mkldnn is_xpu is_mps is_mtia is_vulkan is_xla is_maia is_ipu is_hpu itemsize nbytes"""
)
# Attributes that are tensors; reading one is a node.
_TENSOR_ATTRIBUTES = frozenset(["T", "H", "mT", "mH", "real", "imag", "data"])
_MARKS = ("_is_param", "_is_buffer")
WATCHING_METHODS = frozenset({"register_hook", "retain_grad"})
# Methods that read data.
_READ_DATA = frozenset(
    ["item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__complex__", "is_nonzero"]
)
_MOST_ITEMS = 64  # elements that `tolist` reads out of a tensor
_UNSUPPORTED = _names_in(
    """backward register_post_accumulate_grad_hook requires_grad_ set_ resize_ resize_as_
    share_memory_ pin_memory storage untyped_storage data_ptr __reduce_ex__ __deepcopy__ new_tensor cuda to_sparse
    map_ map2_ apply_ module_load record_stream __array__ __dlpack__
    is_inference _is_view is_shared is_pinned is_coalesced"""
)
# In an interpreted backward, the strides of the incoming gradient are not known.
_UNKNOWN_IN_BACKWARD = _names_in("is_contiguous stride storage_offset")
_METADATA_CALLS = _names_in(
    """is_contiguous is_floating_point is_complex is_signed element_size get_device is_conj is_neg"""
)


class TensorValue(Value):
    """A tensor: a node of the graph, with a fake tensor for its metadata.

    made_at: the offset in the segment's first frame where it was computed; None for a tensor of the program. attributes: what the
    segment has assigned to attributes of a tensor that it computed.
    """

    __slots__ = ("attributes", "fake", "made_at", "node")
    operand_rank = 4

    def __init__(self, node: Node, fake: torch.Tensor, source: Source | None = None) -> None:
        super().__init__(source)
        self.node = node
        self.fake = fake
        self.made_at: int | None = None
        self.attributes: dict[str, Any] = {}

    def class_of(self) -> type:
        return torch.nn.Parameter if isinstance(self.fake, torch.nn.Parameter) else torch.Tensor

    def hash_key(self, domain: SymbolicDomain) -> Any:
        return Member(self) if domain.state.is_first_of_its_fake(self) else unsupported("a key", self)

    def truth(self, domain: SymbolicDomain) -> bool:
        raise GraphBreak("branch_on_tensor", what="bool(Tensor)")

    # -------------------------------------------------------------------------------------------------- operators

    def unary(self, domain: SymbolicDomain, sign: str) -> Any:
        return domain.state.operator(UNARY[sign], [self], {})

    def binary(self, domain: SymbolicDomain, sign: str, left: Value, right: Value) -> Any:
        # A number has no in-place operator: `left += right` is `left = left + right`.
        plain = sign if isinstance(left, TensorValue) else sign.removesuffix("=")
        return _operator(domain, BINARY[plain], left, right)

    def compare(self, domain: SymbolicDomain, sign: str, left: Value, right: Value) -> Any:
        other = right if isinstance(left, TensorValue) else left
        if isinstance(other, ConstantValue) and other.value is None:
            return ConstantValue(sign == "!=") if sign in ("==", "!=") else unsupported(f"`{sign}`", other)
        return _operator(domain, COMPARE[sign], left, right)

    # ------------------------------------------------------------------------------------------------- attributes

    def load_attr(self, domain: SymbolicDomain, name: str) -> Any:
        answer = domain.overridden_attribute(self, name)
        if answer is not None:
            return answer
        if name == "shape":
            return self.shape(domain)
        if name in ("requires_grad", "is_leaf") and (reason := unknown_gradient(domain.state, self)) is not None:
            unsupported(f"attribute {name} {reason}", self)
        if name == "is_leaf":
            return self._is_leaf(domain)
        if name == "__class__":
            return domain.object(self.class_of())
        if name in _METADATA:
            found = getattr(self.fake, name)
            return ConstantValue(found) if type(found) in CONSTANT_TYPES else unsupported(f"attribute {name}", self)
        if name in _TENSOR_ATTRIBUTES:
            return domain.state.operator(getattr, [self, ConstantValue(name)], {})
        if inspect.isroutine(getattr(torch.Tensor, name, None)):
            return NativeMethodValue(self, name)
        if name == "grad" and self._is_made_anew:
            return self.attributes.get(name, ConstantValue(None))
        if (
            name == "grad"
            and self.source is None
            and not domain.is_none(self.attributes.get(name, ConstantValue(None)))
        ):
            return self.attributes[name]
        if name == "grad" and self.source is not None and (found := self._gradient(domain)) is not None:
            return found
        if hasattr(torch.Tensor, name):
            raise before_reading(domain.state, self, name)
        return self._of_program(domain, name)

    @property
    def _is_made_anew(self) -> bool:
        """Whether an operator without tensors for arguments made it: it is no other tensor, and has no gradient."""
        node = self.node if self.source is None else None
        return node is not None and type(node.target) is BuiltinFunctionType and not node.all_input_nodes

    def _gradient(self, domain: SymbolicDomain) -> Any:
        """The gradient that a leaf of the program has: no segment accumulates into it. None for others, where reading warns."""
        written = self.written(domain, "grad")
        if written is not None:
            return written
        real = domain.state.object_of(self)
        if not real.is_leaf or self.source is None:
            return None
        self._is_leaf(domain)  # guards it
        return domain.state.wrap(real.grad, AttributeSource(self.source, "grad"))

    def _of_program(self, domain: SymbolicDomain, name: str) -> Any:
        """An attribute that torch.Tensor does not have: the program has assigned it."""
        written = self.written(domain, name)
        if written is not None:
            return written
        if self.source is not None and name in domain.state.object_of(self).__dict__:
            return domain.state.wrap(domain.state.object_of(self).__dict__[name], AttributeSource(self.source, name))
        return self.missing(domain, name)

    def written(self, domain: SymbolicDomain, name: str) -> Any:
        """What the segment has assigned to the attribute; None if nothing."""
        if self.source is not None:
            return domain.state.effects.attribute(self, name)
        return self.attributes.get(name)

    def missing(self, domain: SymbolicDomain, name: str) -> NoReturn:
        """Raises AttributeError, with a guard for a tensor of the program."""
        if self.source is not None:
            domain.state.guard(GuardKind.WITHOUT, self.source, name)
        raising(AttributeError)

    def shape(self, domain: SymbolicDomain) -> Value:
        """`tensor.shape`."""
        return SequenceValue(torch.Size, [domain.state.size_of(self, dim) for dim in range(self.fake.dim())])

    def _is_leaf(self, domain: SymbolicDomain) -> Value:
        """Whether it is a leaf: guarded for an input that requires grad. A result breaks the graph, since an operator may
        return its argument.
        """
        if not self.fake.requires_grad:
            return ConstantValue(True)
        if self.source is None:
            unsupported("attribute is_leaf", self)
        found = domain.state.object_of(self).is_leaf
        if found is not self.fake.is_leaf:  # the segment has written to it
            unsupported("attribute is_leaf", self)
        domain.state.guard(GuardKind.EQUALS, AttributeSource(self.source, "is_leaf"), found)
        return ConstantValue(found)

    def has_attribute(self, domain: SymbolicDomain, name: str) -> bool:
        if hasattr(torch.Tensor, name):
            return hasattr(self.fake, name)
        if self.written(domain, name) is not None:
            return True
        if self.source is None:  # results of operators have no other attributes of the program
            return False
        if hasattr(domain.state.object_of(self), name):
            return True
        domain.state.guard(GuardKind.WITHOUT, self.source, name)
        return False

    def guard_attribute(self, domain: SymbolicDomain, name: str) -> None:
        if self.source is not None and self.written(domain, name) is None and not hasattr(torch.Tensor, name):
            domain.state.guard(GuardKind.HAS, self.source, name)

    def store_attr(self, domain: SymbolicDomain, name: str, attribute: Any) -> Any:
        """Breaks the graph for an attribute of torch.Tensor but `grad`. Autograd state follows an assigned `.data`; that of a
        graph's outputs does not.
        """
        if not hasattr(torch.Tensor, name) or (name == "grad" and self._may_have_gradient(domain, attribute)):
            if self.source is not None:
                domain.state.effects.set_attribute(self, name, attribute)
            else:
                self.attributes[name] = attribute
            if name in _MARKS:  # isinstance of Parameter and Buffer reads it
                setattr(self.fake, name, domain.constant_of(attribute, f"an assignment to attribute {name}"))
            return
        reason = GraphBreak("unsupported_operation", what=f"an assignment to attribute {name}", kind=self.kind)
        raise apart(domain.state, self, reason) if name == "data" else reason

    def _may_have_gradient(self, domain: SymbolicDomain, attribute: Any) -> bool:
        """Whether `tensor.grad = attribute` raises nothing: None, or a plain tensor of the same geometry, dtype and device."""
        new = domain.state.realize(attribute)
        if domain.is_none(new):
            return self.source is not None
        if type(new) is not TensorValue or type(self) is not TensorValue or new is self:
            return False
        facts = [
            (fake.dtype, fake.device, fake.layout, fake.is_inference(), fake.dim()) for fake in (self.fake, new.fake)
        ]
        is_plain = self.fake.layout is torch.strided and (self.fake.is_floating_point() or self.fake.is_complex())
        return is_plain and facts[0] == facts[1] and bool(self.fake.shape == new.fake.shape)

    # ------------------------------------------------------------------------------------------------------ items

    def length(self, domain: SymbolicDomain) -> Value:
        return domain.state.size_of(self, 0) if self.fake.dim() else unsupported("the length", self)

    def get_item(self, domain: SymbolicDomain, key: Value) -> Any:
        return domain.state.operator(operator.getitem, [self, key.plain_of_member()], {})

    def set_item(self, domain: SymbolicDomain, key: Value, item: Any) -> None:
        domain.state.operator(operator.setitem, [self, key, item], {})

    def contains(self, domain: SymbolicDomain, item: Value, inverted: bool) -> Any:
        """`item in tensor`: whether any element equals it, which is data."""
        if not domain.state.reads_data:
            raise GraphBreak("data_dependent_read", what="`in` of a tensor")
        if not isinstance(item, (ConstantValue, NumberValue, TensorValue)):
            unsupported("`in`", self)
        found = domain.state.operator(torch.any, [domain.state.operator(operator.eq, [item, self], {})], {})
        answer = domain.state.operator(torch.logical_not, [found], {}) if inverted else found
        return domain.state.operator("item", [answer], {}, kind="call_method")

    def elements(self, domain: SymbolicDomain) -> list[Value]:
        if not self.fake.dim():
            unsupported("iterating", self)
        return [self.get_item(domain, ConstantValue(index)) for index in range(int(self.fake.shape[0]))]

    def runs_code(self, domain: SymbolicDomain) -> bool:
        """Whether a mode answers `unbind`, which iterating calls."""
        return domain.state.overrides.has_modes and self.fake.dim() > 0

    def iterate(self, domain: SymbolicDomain) -> Any:
        if self.runs_code(domain):
            return domain.enter_polyfill(polyfills.unbound, [self])
        return domain.iterator(self, self.elements(domain))

    # ---------------------------------------------------------------------------------------------------- methods

    def _new_tensor(self, domain: SymbolicDomain, frame: Any, data: Any, kwargs: dict[str, Any]) -> Any:
        """`tensor.new_tensor(data)`: `torch.tensor` with dtype and device of the tensor."""
        if isinstance(domain.state.realize(data), TensorValue):
            unsupported("method new_tensor of a tensor", self)
        named = {"dtype": ConstantValue(self.fake.dtype), "device": ConstantValue(self.fake.device), **kwargs}
        return domain.call(frame, domain.object(torch.tensor), [data], named)

    def _numpy(self, domain: SymbolicDomain, *, is_forced: Any) -> Any:
        """`tensor.numpy(force=...)`. Forced, it is the array of a detached tensor in the memory of the CPU."""
        if type(is_forced) is not bool:
            raise GraphBreak("op_raises_on_fake", what="Tensor.numpy()", error="TypeError")
        tensor: Any = self
        for name in ("detach", "cpu", "resolve_conj", "resolve_neg") if is_forced else ():
            tensor = domain.state.operator(name, [tensor], {}, kind="call_method")
        return domain.array_of_tensor(tensor)

    def call_method(
        self, domain: SymbolicDomain, frame: Any, name: str, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        answer = domain.overridden(name, [self, *args], kwargs, is_method=True)
        if answer is not None:
            return answer
        if domain.state.backward_of and name in _UNKNOWN_IN_BACKWARD:
            unsupported(f"method {name} in backward", self)
        if name == "numpy" and not args and kwargs.keys() <= {"force"}:
            return self._numpy(domain, is_forced="force" in kwargs and domain.constant_of(kwargs["force"], "numpy"))
        if name == "tolist" and domain.state.reads_data and not args and not kwargs:
            return items_read_from(domain, self)
        if name in _READ_DATA and not (name == "item" and domain.state.reads_data):
            raise GraphBreak("data_dependent_read", what=f"Tensor.{name}()")
        if name == "__iter__" and not args and not kwargs:
            return domain.get_iter(self)
        if name in WATCHING_METHODS:
            raise before_watching(domain.state, self, name)
        if name == "detach_":
            raise before_the_write(domain.state, self)
        if name == "as_subclass" and len(args) == 1 and not kwargs:
            return domain.as_subclass(self, args[0])
        if name == "requires_grad_" and self.source is None and not self.fake.requires_grad and len(args) == 1:
            if domain.constant_of(args[0], name) is False:
                return self
        if name == "new_tensor" and len(args) == 1:
            return self._new_tensor(domain, frame, args[0], kwargs)
        if name in _UNSUPPORTED:
            unsupported(f"method {name}", self)
        if name in ("dim", "ndimension"):
            return ConstantValue(self.fake.dim())
        if name == "size":
            return _size(domain, self, args, kwargs)
        if name == "numel":
            return _numel(domain, self)
        if name == "stride":
            return _stride(domain, self, args, kwargs)
        if name == "__len__":
            return domain.length(self)
        if name == "__getitem__":
            return domain.get_item(self, args[0])
        if name == "storage_offset" and not args and not kwargs:
            return domain.state.storage_offset(self)
        if name in _METADATA_CALLS:
            plain = [domain.constant_of(arg, name) for arg in args]
            named = {key: domain.constant_of(arg, name) for key, arg in kwargs.items()}
            return _number(getattr(self.fake, name)(*plain, **named), self, name)
        if self.hides_method(name):
            return domain.state.operator(getattr(torch.Tensor, name), [self, *args], kwargs)
        return domain.state.operator(name, [self, *args], kwargs, kind="call_method")

    def constant_index(self) -> int | None:
        """The index of a list that a tensor is whose value the program gives as a number, such as `torch.tensor(2)`."""
        held = self.fake.constant if isinstance(self.fake, FakeTensor) and self.source is None else None
        is_index = held is not None and held.numel() == 1 and held.dtype.is_signed and not held.dtype.is_floating_point
        return int(held) if is_index and held is not None else None

    def hides_method(self, name: str) -> bool:
        """Whether the class has another method of this name than torch.Tensor: a graph cannot call torch's by name."""
        return False

    def rebuilt(self, emitter: Any) -> str:
        if is_functorch_wrapped(self.fake):  # it belongs to a transform that the program has left
            raise GraphBreak("cannot_rebuild", kind="tensor of a torch.func transform").restarting_at(self.made_at)
        name = emitter.named(self, emitter.output(self.node))
        self.rebuild_attributes(emitter, name)
        return name

    def rebuild_attributes(self, emitter: Any, name: str) -> None:
        """Lines that assign the attributes of a tensor that the segment computed."""
        for attribute, content in self.attributes.items():
            place = f"{name}.grad" if attribute == "grad" else f"{name}.__dict__[{attribute!r}]"
            emitter.line(f"{place} = {emitter.expression(content)}")

    def iterator_rebuilt(self, emitter: Any, iterator: Any) -> str:
        name = emitter.named(iterator, f"iter([{emitter.listed(iterator.items)}])")
        if iterator.position:
            emitter.line(f"{name}.__setstate__({iterator.position})")
        return name

    def as_fake(self, state: Any, what: str) -> Any:
        return self.fake

    def as_argument(self, state: Any) -> Any:
        return self.node


def _operator(domain: SymbolicDomain, function: Any, left: Value, right: Value) -> Value:
    for operand in (left, right):
        if not operand.is_operand_of_tensors:
            unsupported("an operator on a tensor and it", operand)
    return domain.state.operator(function, [left, right], {})


def items_read_from(domain: SymbolicDomain, receiver: TensorValue) -> Value:
    """The elements of a small tensor as nested lists, each read on its own."""
    if any(isinstance(size, torch.SymInt) and not size.node.has_hint() for size in receiver.fake.shape):
        raise GraphBreak("data_dependent_read", what="Tensor.tolist()")
    shape = [int(size) for size in receiver.fake.shape]  # the nested lists have as many parts: guards
    if math.prod(shape) > _MOST_ITEMS:
        raise GraphBreak("data_dependent_read", what="Tensor.tolist()")
    if not shape:
        return domain.state.operator("item", [receiver], {}, kind="call_method")
    rows = [receiver.get_item(domain, ConstantValue(index)) for index in range(shape[0])]
    return SequenceValue(list, [items_read_from(domain, row) for row in rows])


def _number(found: Any, receiver: TensorValue, name: str) -> Value:
    return ConstantValue(found) if type(found) in (int, bool) else unsupported(f"method {name}", receiver)


def _size(domain: SymbolicDomain, receiver: TensorValue, args: list[Any], kwargs: dict[str, Any]) -> Any:
    given = [*args, *kwargs.values()]
    if not given or domain.constant_of(given[0], "size") is None:
        return receiver.shape(domain)
    dim, rank = domain.constant_of(given[0], "size"), receiver.fake.dim()
    if type(dim) is not int or not -rank <= dim < rank:
        raise GraphBreak("op_raises_on_fake", what="size", error="IndexError")
    return domain.state.size_of(receiver, dim % rank)


def _stride(domain: SymbolicDomain, receiver: TensorValue, args: list[Any], kwargs: dict[str, Any]) -> Any:
    given, rank = [*args, *kwargs.values()], receiver.fake.dim()
    dims = list(range(rank)) if not given else [domain.constant_of(given[0], "stride")]
    if any(type(dim) is not int or not -rank <= dim < rank for dim in dims):
        unsupported("method stride", receiver)
    steps = [_step(domain, receiver, dim % rank) for dim in dims]
    return steps[0] if given else SequenceValue(tuple, steps)


def _step(domain: SymbolicDomain, receiver: TensorValue, dim: int) -> Value:
    step = receiver.fake.stride()[dim]
    if is_nested_int(step):
        return domain.state.nested_int(receiver, "stride", dim, step)
    return ConstantValue(step) if type(step) is int else _computed(domain, receiver, "stride", step, dim)


def _numel(domain: SymbolicDomain, receiver: TensorValue) -> Value:
    found = receiver.fake.numel()
    return ConstantValue(found) if type(found) is int else _computed(domain, receiver, "numel", found)


def _computed(domain: SymbolicDomain, receiver: TensorValue, name: str, found: Any, *args: Any) -> Value:
    """A number that the graph computes by calling a method of the tensor."""
    node = domain.state.graph.call("call_method", name, (receiver.node, *args), {}, found)
    return NumberValue(found, node)


# ---------------------------------------------------------------------------------------------------------- gradients


class Progress(Protocol):
    """The part of the capture state that decides where a segment has to end."""

    written_at: int
    writes: dict[int, int]
    by_fake: dict[int, TensorValue]
    stops: frozenset[int]
    backward_of: tuple[type, ...]
    runs_at_many_levels: bool

    def position(self) -> int: ...

    def behind(self, position: int, /) -> int | None: ...

    def realize(self, value: Any) -> Any: ...


def apart(state: Progress, value: TensorValue, reason: GraphBreak) -> GraphBreak:
    """The reason, with an earlier end for the segment if the graph goes on using the tensor: directly after the tensor was
    computed.

    Gradients of all outputs of a graph arrive at once. Within one graph, the gradient that arrives through another output would
    not pass a hook on this tensor.
    """
    is_written = not value.fake.is_inference() and value.fake._version > 0
    made_at = state.written_at if is_written else value.made_at
    if made_at is None or not value.fake.requires_grad or not value.node.users:
        return reason
    behind = state.behind(made_at)
    if behind is None or behind in state.stops:  # None: computed in an inlined function that still runs
        return reason
    return reason.restarting_at(behind)


def before_the_view(state: Progress, value: TensorValue, reason: GraphBreak) -> GraphBreak:
    """The reason to end the segment at `register_hook`. For a view that the segment computed, the end is before the view (or
    before the first other view of its base) is computed.

    A graph returns the only view of an intermediate as a tensor of its own. For a real view, a write in place replaces the
    autograd history and drops its hooks; for a tensor of its own, the history goes on and keeps them.
    """
    base = None if value.fake.is_inference() else value.fake._base
    if base is not None and value.fake.requires_grad and value.made_at is not None:
        views = [other for other in state.by_fake.values() if other.fake._base is base and other.made_at is not None]
        made_at = min(view.made_at for view in (value, *views) if view.made_at is not None)
        if made_at not in state.stops:
            return reason.restarting_at(made_at)
    return apart(state, value, reason)


def before_watching(state: Progress, value: TensorValue, name: str) -> GraphBreak:
    """The reason to end the segment at `register_hook` or `retain_grad`."""
    reason = GraphBreak("unsupported_operation", what=f"method {name}", kind=value.kind)
    return before_the_view(state, value, reason) if name == "register_hook" else apart(state, value, reason)


def before_reading(state: Progress, value: TensorValue, name: str) -> GraphBreak:
    """The reason to end the segment at an attribute. For `grad_fn`, which may get hooks, the end is before the tensor is
    computed.
    """
    reason = GraphBreak("unsupported_operation", what=f"attribute {name}", kind=value.kind)
    is_made = name == "grad_fn" and value.fake.requires_grad and value.made_at is not None
    return reason.restarting_at(value.made_at) if is_made and value.made_at not in state.stops else reason


def before_the_write(state: Progress, value: TensorValue) -> GraphBreak:
    """The reason to end the segment at `detach_`; at the last write to the tensor if it has views that require grad.

    In eager, the history of such a view is made anew from the base when it is first read: here after `detach_`.
    """
    reason = GraphBreak("unsupported_operation", what="method detach_", kind=value.kind)
    if any(other.fake._base is value.fake and other.fake.requires_grad for other in state.by_fake.values()):
        return reason.restarting_at(state.writes.get(id(value.fake)))
    return reason


def unknown_gradient(state: Progress, value: TensorValue) -> str | None:
    """Why `requires_grad` is not known; None if it is.

    A view made in inference mode requires grad if its base does; fake tensors lose this.
    """
    if state.backward_of:
        return "in backward"
    if state.runs_at_many_levels:
        return "in a torch.autograd.Function in a transform of torch.func"
    if value.source is not None or not value.fake.is_inference():
        return None
    inputs = [one.fake for one in state.by_fake.values() if one.source is not None and one.fake.requires_grad]
    memories = [storage_key(fake) for fake in inputs if fake.layout is torch.strided]
    is_view = value.fake.layout is torch.strided and storage_key(value.fake) in memories
    return "of a view in inference mode" if is_view else None
