"""Numpy on tensors: the functions that nodes call in place of numpy's, and conversions.

Counterpart: torch/_dynamo/utils.py NP_TO_TNP_MODULE, to_numpy_helper, numpy_to_tensor and the wrappers around functions of
numpy
Differs: functions of `numpy.random` are no nodes, because their counterparts would draw other numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch

from refimpl._torch import FakeTensor, torch_numpy

# numpy module -> the module with the same functions on tensors
NP_TO_TNP_MODULE: dict[ModuleType, Any] = {
    np: torch_numpy,
    np.fft: torch_numpy.fft,
    np.linalg: torch_numpy.linalg,
    np.random: torch_numpy.random,
}
NP_SUPPORTED_MODULES: tuple[ModuleType, ...] = tuple(NP_TO_TNP_MODULE)
_ARRAY: type[Any] = torch_numpy.ndarray
_RANDOM = np.random


def _functions() -> dict[int, tuple[Any, Any]]:
    found: dict[int, tuple[Any, Any]] = {}
    for module, of_tensors in NP_TO_TNP_MODULE.items():
        if module is _RANDOM:
            continue
        for name, counterpart in vars(of_tensors).items():
            function = getattr(module, name, None)
            is_scalar = isinstance(function, type) and issubclass(function, np.generic)
            is_kind = isinstance(function, (type, ModuleType)) or isinstance(counterpart, (type, ModuleType))
            is_kind &= not is_scalar
            if not name.startswith("_") and callable(function) and callable(counterpart) and not is_kind:
                found[id(function)] = function, counterpart
    return found


_FUNCTIONS = _functions()  # by id; the value keeps the function alive, so that its id stays unique


def counterpart_of(function: Any) -> Callable[..., Any] | None:
    """The tensor counterpart of a numpy function; None if there is none."""
    found = _FUNCTIONS.get(id(function))
    return None if found is None else found[1]


def to_numpy_helper(value: Any) -> Any:
    """Converts tensors to arrays, also in lists and tuples. Fake tensors and other values stay."""
    if isinstance(value, FakeTensor):
        return value
    if isinstance(value, _ARRAY):
        return to_numpy_helper(value.tensor)
    if isinstance(value, torch.Tensor):
        return value.numpy(force=True)
    return _mapped(to_numpy_helper, value)


def to_numpy_scalar(value: torch.Tensor) -> Any:
    """The numpy scalar of a one-element tensor."""
    return to_numpy_helper(value)[()]


def numpy_to_tensor(value: Any) -> Any:
    """Converts arrays to tensors that share memory, also in lists and tuples; other values stay."""
    if isinstance(value, _ARRAY):
        return value.tensor
    return torch.as_tensor(value) if isinstance(value, np.ndarray) else _mapped(numpy_to_tensor, value)


def tensor_of_numpy(found: np.ndarray[Any, Any] | np.generic) -> torch.Tensor:
    """The tensor of an array, whose memory it shares, or of a numpy scalar: torch refuses scalars of uint64."""
    return torch.as_tensor(np.asarray(found))


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    if not isinstance(value, (tuple, list)):
        return value
    items = [function(item) for item in value]
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def _as_array(value: Any) -> Any:
    """A tensor as torch._numpy's ndarray, which has numpy's methods and operators."""
    return _ARRAY(value) if isinstance(value, torch.Tensor) else value


class _Wrapped:
    """A callable that prints as the numpy function it replaces."""

    kind = ""

    def __init__(self, original: str) -> None:
        self._original = original
        self.__name__ = f"wrapped_{original}"

    def __repr__(self) -> str:
        return f"<Wrapped {self.kind} <original {self._original}>>"


class numpy_to_tensor_wrapper(_Wrapped):  # noqa: N801 - upstream's name
    """The counterpart of a numpy function, on tensors."""

    kind = "function"

    def __init__(self, f: Callable[..., Any]) -> None:
        super().__init__(f.__name__)
        self.f = f

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return numpy_to_tensor(self.f(*args, **kwargs))


def numpy_attr_wrapper(obj: Any, name: str) -> Any:
    """`obj.name` of an array that is a tensor; an array result becomes a tensor."""
    return numpy_to_tensor(getattr(_as_array(obj), name))


class numpy_method_wrapper(_Wrapped):  # noqa: N801 - upstream's name
    """A method of arrays, on tensors."""

    kind = "method"

    def __init__(self, method: str) -> None:
        super().__init__(method)
        self.method = method

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        array, *others = args
        return numpy_to_tensor(getattr(_as_array(array), self.method)(*others, **kwargs))


class numpy_operator_wrapper(_Wrapped):  # noqa: N801 - upstream's name
    """An operator of arrays, on tensors. Raises AssertionError for keyword arguments."""

    kind = "operator"

    def __init__(self, op: Callable[..., Any]) -> None:
        super().__init__(op.__name__)
        self.op = op

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        assert not kwargs, f"{self.__name__} is given {kwargs}\n  expected: operands alone"
        return numpy_to_tensor(self.op(*map(_as_array, args)))


def is_tensor_like(array: np.ndarray[Any, Any] | np.generic) -> bool:
    """Whether a tensor can share the array's memory: dtype, strides and byte order fit, and it is writable."""
    if isinstance(array, np.generic):
        array = np.asarray(array)
    elif not array.flags.writeable:
        return False
    try:
        return torch.as_tensor(array).numpy().dtype == array.dtype
    except (TypeError, ValueError, RuntimeError):
        return False
