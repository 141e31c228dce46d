"""What a trace knows of its tensors and script objects: their nodes, which are constants, and which are ZeroTensors.

Counterpart: torch/fx/experimental/proxy_tensor.py set_proxy_slot, get_proxy_slot, _ProxyTensor;
  torch/export/_trace.py _export_to_aten_ir_make_fx custom_getattribute; torch/export/custom_ops.py access_subclass_inner_tensor
Differs: maps to nodes, not to proxies: the dispatch mode records calls itself, and never computes on a proxy. Classes of wrappers
are left as they are; upstream replaces their `__getattribute__` while an export runs.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from refimpl._torch import (
    SYMBOLIC_TYPES,
    FakeTensor,
    FakeTensorMode,
    OpOverload,
    WeakTensorKeyDictionary,
    is_traceable_wrapper_subclass,
    pytree,
    registered_effect,
    set_wrapped_number,
    storage_key,
    without_fake_mode,
)
from refimpl.trace.refusals import numbers_fit


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tracked:
    """A tensor's node, its value if that does not depend on the inputs, and its metadata as a key of the fake kernels' cache."""

    node: torch.fx.Node
    constant: torch.Tensor | None = None
    signature: Hashable = None  # None: results of ops on this tensor are not cached (refimpl.trace.fake_kernels)
    memory: Hashable = None  # its storage and geometry, if the trace checks whether they change (`on_moved`)


class TrackerState:
    """A weak map keyed by tensor identity. A later entry of a tensor replaces an earlier one, which in-place ops rely on."""

    def __init__(self) -> None:
        self._entries = WeakTensorKeyDictionary()

    def track(
        self,
        tensor: torch.Tensor,
        node: torch.fx.Node,
        *,
        constant: torch.Tensor | None = None,
        signature: Hashable = None,
        memory: Hashable = None,
    ) -> None:
        self._entries[tensor] = Tracked(node=node, constant=constant, signature=signature, memory=memory)

    def find(self, tensor: torch.Tensor) -> Tracked | None:
        return self._entries.get(tensor)

    def items(self) -> list[tuple[torch.Tensor, Tracked]]:
        """All tracked tensors that are still alive."""
        return list(self._entries.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerTensor:
    """The tensor is `wrapper.name`. `node` is that of the wrapper, or None if the wrapper itself is inside of another one."""

    wrapper: torch.Tensor
    name: str
    node: torch.fx.Node | None


class InnerTensorsState:
    """A map from the tensors inside of tracked wrappers to their wrappers.

    The first entry of a tensor is kept: a write to a wrapper may put other tensors into it, and the program may have the former
    ones still. A tensor is recognised when an operator uses it, so that one which the program reads in another way than by the
    attribute gets a node too, and one that is not used gets none.
    """

    def __init__(self) -> None:
        self._entries = WeakTensorKeyDictionary()
        self._now = (
            WeakTensorKeyDictionary()
        )  # the tensors inside of each wrapper, as the operators so far have left them

    def add(self, wrapper: torch.Tensor, node: torch.fx.Node | None) -> None:
        """Note the tensors inside of a wrapper, and those inside of wrappers among them."""
        self.settle(wrapper)
        for name, part in inner_tensors(wrapper):
            if part not in self._entries:
                self._entries[part] = InnerTensor(wrapper=wrapper, name=name, node=node)
                if is_traceable_wrapper_subclass(part):
                    self.add(part, None)

    def settle(self, wrapper: torch.Tensor) -> None:
        """Note which tensors are inside of a wrapper now, and their storages; none where each reading makes new ones."""
        parts, again = ([part for _, part in inner_tensors(wrapper)] for _ in range(2))
        is_kept = all(map(operator.is_, parts, again))
        self._now[wrapper] = [(part, _storage_of(part)) for part in parts] if is_kept else None

    def is_known(self, wrapper: torch.Tensor) -> bool:
        return wrapper in self._now

    def is_settled(self, wrapper: torch.Tensor) -> bool:
        """Whether the tensors inside of a wrapper are those that were noted last: the program has assigned no other tensor, and
        no other data."""
        noted = self._now.get(wrapper)
        return noted is None or all(
            part is known and _storage_of(part) == storage
            for (_, part), (known, storage) in zip(inner_tensors(wrapper), noted, strict=True)
        )

    def find(self, tensor: torch.Tensor) -> InnerTensor | None:
        return self._entries.get(tensor)


def _storage_of(tensor: torch.Tensor) -> Any:
    return None if is_traceable_wrapper_subclass(tensor) or tensor.layout is not torch.strided else storage_key(tensor)


def inner_tensors(wrapper: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors directly inside of a wrapper, with their attributes' names. A DTensor's mesh is none."""
    names, _ = wrapper.__tensor_flatten__()
    for name in names:
        part = getattr(wrapper, name)
        if isinstance(part, torch.Tensor):
            yield name, part


def fake_mode_of(value: Any) -> FakeTensorMode | None:
    """The mode of a fake tensor, or of the first fake tensor inside of a wrapper; None for another value."""
    if isinstance(value, FakeTensor):
        return value.fake_mode
    if isinstance(value, torch.Tensor) and is_traceable_wrapper_subclass(value):
        for _, part in inner_tensors(value):
            mode = fake_mode_of(part)
            if mode is not None:
                return mode
    return None


class ObjectTrackerState:
    """Maps script and opaque objects to nodes. A script object is known by its C++ object: its Python wrappers come and go."""

    def __init__(self) -> None:
        self._entries: dict[tuple[bool, int], tuple[object, torch.fx.Node]] = {}

    def track(self, value: object, node: torch.fx.Node) -> None:
        """A later node of an object replaces an earlier one. The object is kept alive, so that its id is not used again."""
        self._entries[_identity(value)] = value, node

    def find(self, value: object) -> torch.fx.Node | None:
        entry = self._entries.get(_identity(value))
        return None if entry is None else entry[1]


def _identity(value: Any) -> tuple[bool, int]:
    is_script_object = isinstance(value, torch.ScriptObject)
    return is_script_object, hash(value) if is_script_object else id(value)


NUMEL_LIMIT = 1  # most elements of a constant, since each op on constants is computed twice


class ConstantsState:
    """Small tensors whose values do not depend on the inputs, so that the program may read them: `torch.tensor(3).item()`.

    Mutable: remembers which constants were overwritten.

    Counterpart: the constant propagation in torch/fx/experimental/proxy_tensor.py proxy_call
    Differs: a constant that is overwritten with an unknown value is forgotten, and all its views with it; upstream goes on to
    return the old value for `.item()` on the views.
    """

    def __init__(self) -> None:
        self._stale: dict[int, torch.Tensor] = {}  # overwritten storages, each with a tensor that keeps it alive

    def value_of(self, tracked: Tracked | None) -> torch.Tensor | None:
        """The tracked tensor's constant value; None if it has none."""
        if tracked is None or tracked.constant is None or storage_key(tracked.constant) in self._stale:
            return None
        return tracked.constant

    def forget(self, tracked: Tracked | None) -> None:
        """The tensor was overwritten with an unknown value: it and its views are no longer constants."""
        if tracked is not None and tracked.constant is not None:
            self._stale[storage_key(tracked.constant)] = tracked.constant

    def of_literal(self, literal: torch.Tensor) -> torch.Tensor | None:
        """The constant of a literal, `torch.tensor(3)`."""
        with without_fake_mode():
            return literal.clone() if literal.numel() <= NUMEL_LIMIT else None

    def of_number(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
        """The constant of an `aten.scalar_tensor` call, which composite kernels make for literals, or of an `aten.full` call,
        which decompositions make."""
        *shape, number = args
        sizes = shape[0] if shape else []
        device = kwargs.get("device")
        if type(number) not in (bool, int, float, complex) or (
            device is not None and torch.device(device).type != "cpu"
        ):
            return None
        if not all(type(size) is int for size in sizes) or math.prod(sizes) > NUMEL_LIMIT:
            return None
        if not numbers_fit(func, args, kwargs):
            return None  # it raises when the program runs
        with without_fake_mode():
            return func(*args, **kwargs)

    def compute(self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> Any:
        """Run an op on constants on real tensors; None if the result is too large or depends on a symbolic number, or if the
        op is random or has side effects. For a symbolic number a kernel of C++ takes a number that stands for it.
        """
        if isinstance(func, OpOverload) and torch.Tag.nondeterministic_seeded in func.tags:
            return None
        if registered_effect(func) is not None:
            return None
        if any(isinstance(leaf, SYMBOLIC_TYPES) for leaf in pytree.tree_leaves((args, kwargs))):
            return None
        tensors = [
            t for t in (result if isinstance(result, (list, tuple)) else [result]) if isinstance(t, torch.Tensor)
        ]
        if not tensors or any(t.numel() > NUMEL_LIMIT for t in tensors):
            return None
        with without_fake_mode():
            return func(*args, **kwargs)


# ZeroTensors: zeros without memory, which autograd makes for constant zero gradients (sgn). Their product with inf or NaN is 0.

aten = torch.ops.aten
MAKES_ZEROS = aten._efficientzerotensor.default
_PRODUCTS = (aten.mul.Tensor, aten.mul.Scalar)
_QUOTIENTS = (aten.div.Tensor, aten.div.Scalar)


class _ZeroFloat(float):
    """The ZeroTensor tangent of a Python number in forward-mode AD: products with it are 0; elsewhere it is the number 0."""

    plain = 0.0


class _ZeroInt(int):
    plain: int = 0


class _ZeroBool(int):
    plain = False


class _ZeroComplex(complex):
    plain = 0j


_NUMBERS = {
    torch.float64: _ZeroFloat(),
    torch.int64: _ZeroInt(),
    torch.bool: _ZeroBool(),
    torch.complex128: _ZeroComplex(),
}  # keyed by the dtypes of tensors that are wrapped numbers
_KINDS = tuple(map(type, _NUMBERS.values()))


def with_plain_numbers(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with ordinary numbers in place of ZeroTensor tangents."""
    if not any(isinstance(arg, _KINDS) for arg in args):
        return args
    return tuple(arg.plain if isinstance(arg, _KINDS) else arg for arg in args)


def as_tangent_of_number(zeros: torch.Tensor) -> torch.Tensor:
    """The zeros, with the number set that forward-mode AD reads from a 0-dim tensor, since a fake tensor has no data."""
    number = _NUMBERS.get(zeros.dtype)
    if number is not None and not zeros.ndim:
        set_wrapped_number(zeros, number)
    return zeros


class ZeroTensorsState:
    """The ZeroTensors of one trace, and views and products of them, each until it is mutated.

    Counterpart: aten/src/ATen/ZeroTensorFallback.cpp, mul_zerotensor and div_zerotensor of aten/src/ATen/native/BinaryOps.cpp
    Differs: a trace records ordinary zeros and remembers which they are, because fake tensors lose the ZeroTensor dispatch key or
    the device. Products and quotients of these become zeros as well.
    """

    def __init__(self) -> None:
        self._versions = WeakTensorKeyDictionary()

    def add(self, tensor: torch.Tensor) -> None:
        if not tensor.is_inference():
            self._versions[tensor] = tensor._version

    def make_it_zero(self, func: Any, args: Any) -> bool:
        """Whether the call is a product or quotient with a ZeroTensor, which is zero even if the other operand is inf or NaN."""
        if func not in (*_PRODUCTS, *_QUOTIENTS):
            return False
        zeros = [self._holds(arg) for arg in args[:2]]
        return any(zeros) if func in _PRODUCTS else zeros == [True, False]

    def are_viewed(self, func: Any, args: Any) -> bool:
        """Whether the result is a view of a ZeroTensor."""
        return bool(self._versions) and bool(args) and getattr(func, "is_view", False) and self._holds(args[0])

    def _holds(self, value: Any) -> bool:
        if isinstance(value, _KINDS):
            return True
        if not self._versions or not isinstance(value, torch.Tensor) or value.is_inference():
            return False
        return self._versions.get(value) == value._version


def zeros_of_product(left: Any, right: Any) -> torch.Tensor:
    """Ordinary zeros of the shape and dtype of a product or quotient."""
    tensors = [operand for operand in (left, right) if isinstance(operand, torch.Tensor)]
    shape = list(torch.broadcast_shapes(*(tensor.shape for tensor in tensors)))
    device = tensors[0].device if tensors else torch.device("cpu")
    return aten.zeros.default(shape, dtype=torch.result_type(left, right), device=device)
