"""Classes of tensors and modes for the tests of `__torch_function__` and of wrappers."""

# pyright: reportIncompatibleMethodOverride=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportAssignmentType=false

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import return_and_correct_aliasing

Tensor = torch.Tensor


class Plain(Tensor):
    """Overrides nothing."""


class PlusOne(Tensor):
    """Adds one to what torch.sum gives."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result + 1 if func is torch.sum else result


class WithMethods(Tensor):
    """Has methods, a property and attributes."""

    scale: Any

    def twice(self) -> Any:
        return self * 2

    @property
    def half(self) -> Any:
        return self / 2

    @staticmethod
    def three() -> int:
        return 3

    @classmethod
    def kind(cls) -> str:
        return cls.__name__


class Operators(Tensor):
    """Has operators written in Python."""

    def __add__(self, other: Any) -> Any:
        return self.as_subclass(Tensor) * 3

    def __len__(self) -> int:
        return 77

    def __getitem__(self, index: Any) -> Any:
        return "item"


class Tagged(Tensor):
    """Is made with a tag, and its results carry the tag of the first argument."""

    @staticmethod
    def __new__(cls, data: Tensor, tag: Any) -> Any:
        made: Any = Tensor._make_subclass(cls, data)
        made.tag = tag
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out: Any = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(out, cls):
            out.tag = getattr(args[0], "tag", None)
        return out


class Tenfold(Tensor):
    """Answers additions itself."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.add, Tensor.add):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {})) * 10
        return super().__torch_function__(func, types, args, kwargs or {})


class Second(Tenfold):
    """Derives from a class that answers: it is asked first."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return "second" if func is torch.add else super().__torch_function__(func, types, args, kwargs or {})


class Unasked(Tensor):
    """Is never asked, and its results are plain."""

    __torch_function__ = torch._C._disabled_torch_function_impl


class NoTensor:
    """Holds a tensor and answers for it."""

    def __init__(self, held: Tensor) -> None:
        self.held = held

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = tuple(arg.held if isinstance(arg, NoTensor) else arg for arg in args)
        return func(*plain, **(kwargs or {})) + 5


class Shaped(Tensor):
    """Says that its shape is another one."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == Tensor.shape.__get__:
            return (1, 2)
        return super().__torch_function__(func, types, args, kwargs or {})


class Scaled(Tensor):
    """A wrapper of a tensor and a factor, whose operators give plain tensors."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, data: Tensor, factor: Tensor) -> Any:
        return Tensor._make_wrapper_subclass(cls, data.shape, dtype=torch.float32, requires_grad=data.requires_grad)

    def __init__(self, data: Tensor, factor: Tensor) -> None:
        self.held, self.factor = data, factor

    def __tensor_flatten__(self) -> Any:
        return ["held", "factor"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return Scaled(inner["held"], inner["factor"])

    def product(self) -> Tensor:
        return self.held.float() * self.factor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kept = (torch.ops.aten.detach.default, torch.ops.aten.alias.default, torch.ops.aten.clone.default)
        if func in kept:
            out = Scaled(func(args[0].held), func(args[0].factor))
            return return_and_correct_aliasing(func, args, kwargs or {}, out)
        plain = pytree.tree_map_only(Scaled, Scaled.product, (args, kwargs or {}))
        return func(*plain[0], **plain[1])


class Placed(Tensor):
    """A wrapper of one tensor with a placement, like a distributed tensor."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, local: Tensor, placement: str) -> Any:
        return Tensor._make_wrapper_subclass(
            cls, local.shape, strides=local.stride(), dtype=local.dtype, requires_grad=local.requires_grad
        )

    def __init__(self, local: Tensor, placement: str) -> None:
        self.local, self.placement = local, placement

    def __tensor_flatten__(self) -> Any:
        return ["local"], {"placement": self.placement}

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return Placed(inner["local"], context["placement"])

    def moved(self, placement: str) -> Any:
        return Placed(self.local * 1, placement)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves = pytree.tree_leaves((args, kwargs))
        placement = next(leaf.placement for leaf in leaves if isinstance(leaf, Placed))
        plain = pytree.tree_map_only(Placed, lambda wrapper: wrapper.local, (args, kwargs or {}))
        out = pytree.tree_map_only(Tensor, lambda local: Placed(local, placement), func(*plain[0], **plain[1]))
        return return_and_correct_aliasing(func, args, kwargs or {}, out)


class AddsByMultiplying(TorchFunctionMode):
    """Calls torch.mul for torch.add."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return torch.mul(*args, **(kwargs or {})) if func is torch.add else func(*args, **(kwargs or {}))


class Counting(TorchFunctionMode):
    """Counts the calls, and notes their names."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


class DoublesItems(TorchFunctionMode):
    """Doubles what is read by an index."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return out * 2 if func is Tensor.__getitem__ else out


class InFloat64(TorchFunctionMode):
    """Makes ones of another dtype."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ones:
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)
