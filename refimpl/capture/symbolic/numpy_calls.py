"""Calls of functions of numpy, and of the functions of torch that take arrays of numpy.

Counterpart: torch/_dynamo/variables/misc.py NumpyVariable
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.public import numpy_interop as interop
from refimpl.capture.values import ArrayValue, Value
from refimpl.capture.values.array import numpy_node, tensor_of_array

Rule = Callable[[Any, FrameState, list[Any], dict[str, Any]], Any]


def is_array_call(function: Any) -> bool:
    """Whether it is a function of numpy that has a counterpart on tensors."""
    return interop.counterpart_of(function) is not None


def call_numpy(domain: Any, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
    """A call of a function of numpy."""
    counterpart = interop.counterpart_of(function)
    assert counterpart is not None
    return numpy_node(domain, interop.numpy_to_tensor_wrapper(counterpart), function, args, kwargs)


def _from_numpy(domain: Any, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    array = domain.state.see(args[0]) if len(args) == 1 and not kwargs else None
    if not isinstance(array, ArrayValue):
        raise GraphBreak("call_of_native_code", what="torch.from_numpy")
    return tensor_of_array(domain, array)


def _as_tensor_rule(domain: Any, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    array = domain.state.see(args[0]) if args else None
    if isinstance(array, ArrayValue):
        return _from_numpy(domain, frame, args, kwargs)
    return domain.state.operator(torch.as_tensor, args, kwargs)


NUMPY_RULES: dict[int, Rule] = {id(torch.from_numpy): _from_numpy, id(torch.as_tensor): _as_tensor_rule}
