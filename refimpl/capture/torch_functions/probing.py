"""Finds out what torch passes to `__torch_function__` for a call: runs the call on stand-ins under a mode that stops it.

Counterpart: torch/_dynamo/variables/torch_function.py get_dispatch_tensor_handler_functions
Differs: upstream has tables from operators to methods; here torch is asked. `x + 1` gives `torch.Tensor.add`, `x.shape` gives
`torch.Tensor.shape.__get__`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from refimpl._torch import SYMBOLIC_TYPES, DispatchMode, OpOverload, OpOverloadPacket, with_overrides
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.values import ConstantValue, DictValue, ObjectValue, SequenceValue, TensorValue, Value
from refimpl.capture.values.subclass_tensor import is_overriding

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain


@dataclass(frozen=True, slots=True)
class Reached:
    """What torch passes on: the function, and its arguments as values."""

    function: Any
    args: list[Value]
    kwargs: dict[str, Value]


class _Stopped(BaseException):
    """Carries the first call of `__torch_function__` out. No handler of exceptions may stop it."""

    def __init__(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        super().__init__()
        self.function, self.given, self.named = function, args, kwargs


class _Stopping(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _Stopped(func, args, kwargs or {})


class _Ran(BaseException):
    """An operator runs: nobody was asked."""


class _Dispatching(DispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _Ran


class _StandIn:
    """Stands for an object of the program that is no tensor and has `__torch_function__`."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return NotImplemented


def reached(
    domain: SymbolicDomain, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, is_method: bool = False
) -> Reached | None:
    """What torch passes to `__torch_function__` for the call; None where it asks nobody, or raises before."""
    stand_ins = _StandIns(domain)
    try:
        given = [stand_ins.of(arg) for arg in args]
        named = {name: stand_ins.of(arg) for name, arg in kwargs.items()}
    except GraphBreak:
        return None
    call: Callable[..., Any] = getattr(given.pop(0), target) if is_method else target
    try:
        with with_overrides(), _Dispatching(), _Stopping():
            call(*given, **named)
    except _Ran:
        return None
    except _Stopped as stopped:
        if isinstance(stopped.function, OpOverload) and not isinstance(target, (OpOverload, OpOverloadPacket)):
            return None  # an operator runs within the call
        passed = {name: stand_ins.value(item) for name, item in stopped.named.items()}
        return Reached(stopped.function, [stand_ins.value(item) for item in stopped.given], passed)
    except Exception:  # the call is wrong: running it tells the program
        return None
    return None


class _StandIns:
    """Arguments for a call that does not run, and the way back to the values."""

    def __init__(self, domain: SymbolicDomain) -> None:
        self._domain = domain
        self._values: dict[int, Value] = {}
        self._alive: list[Any] = []

    def of(self, arg: Any) -> Any:
        value = self._domain.state.realize(arg)
        made = self._made(value)
        if isinstance(made, (torch.Tensor, tuple, list, dict, _StandIn, *SYMBOLIC_TYPES)):
            if self._values.get(id(made), value) is not value and isinstance(made, torch.Tensor):
                made = made.detach()
            self._values[id(made)] = value
            self._alive.append(made)
        return made

    def _made(self, value: Value) -> Any:
        match value:
            case TensorValue():
                return value.fake
            case SequenceValue():
                return value.class_([self.of(item) for item in value.items])
            case ObjectValue() if value.is_class or not is_overriding(value.class_of()):
                return value.object
            case _ if value.is_object and is_overriding(value.class_of()):
                return _StandIn()
            case _:
                return value.as_fake(self._domain.state, "a function that may be overridden")

    def value(self, found: Any) -> Value:
        """The value of an argument that torch passes on."""
        known = self._values.get(id(found))
        if known is not None:
            return known
        if type(found) in (tuple, list):
            return SequenceValue(type(found), [self.value(item) for item in found])
        if type(found) is dict:
            return DictValue({key: (ConstantValue(key), self.value(item)) for key, item in found.items()})
        if self._domain.is_constant(found):
            return ConstantValue(found)
        return ObjectValue(found)
