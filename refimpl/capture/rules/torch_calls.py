"""Rules for functions of torch that are not nodes themselves, and calls of numpy functions.

Counterpart: torch/_dynamo/variables/torch.py, misc.py NumpyVariable
Differs: `torch._check` becomes a node without its message, because a message may be a function of the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from refimpl._torch import set_grad_enabled, torch_checks
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.config import config
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.public import numpy_interop as interop
from refimpl.capture.rules.rule_table import Rule, RuleTable, wrong
from refimpl.capture.values import ArrayValue, ConstantValue, NumberValue, ObjectValue, TensorValue, Value
from refimpl.capture.values.array import numpy_node, tensor_of_array

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

TORCH_RULES = RuleTable()


@TORCH_RULES.of(set_grad_enabled)
def _set_grad_enabled(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    mode = domain.constant_of(args[0], "set_grad_enabled") if len(args) == 1 and not kwargs else None
    if type(mode) is not bool:
        wrong("set_grad_enabled")
    domain.state.set_grad_mode(mode)
    return ConstantValue(None)


@TORCH_RULES.of(torch.is_tensor)
def _is_tensor(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return ConstantValue(isinstance(domain.state.realize(args[0]), TensorValue))


def _check_rule(function: Any) -> Rule:
    def checked(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
        asked = domain.state.realize(args[0]) if args else None
        is_known = len(args) <= 2 and set(kwargs) <= {"message"}
        if isinstance(asked, NumberValue) and is_known:
            return domain.state.operator(function, [asked], {})
        return domain.enter_function(ObjectValue(function), args, kwargs)

    return checked


TORCH_RULES.update({id(function): _check_rule(function) for function in torch_checks})


# ------------------------------------------------------------------------------------------------------------- numpy


def is_array_call(function: Any) -> bool:
    """Whether this is a numpy function that has a counterpart on tensors."""
    return config.trace_numpy and interop.counterpart_of(function) is not None


def call_numpy(domain: SymbolicDomain, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
    """Calls a numpy function."""
    counterpart = interop.counterpart_of(function)
    assert counterpart is not None
    return numpy_node(domain, interop.numpy_to_tensor_wrapper(counterpart), function, args, kwargs)


@TORCH_RULES.of(torch.from_numpy)
def _from_numpy(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    array = domain.state.realize(args[0]) if len(args) == 1 and not kwargs else None
    if not isinstance(array, ArrayValue):
        raise GraphBreak("call_of_native_code", what="torch.from_numpy")
    return tensor_of_array(domain, array)


@TORCH_RULES.of(torch.as_tensor)
def _as_tensor(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    array = domain.state.realize(args[0]) if args else None
    if isinstance(array, ArrayValue):
        return _from_numpy(domain, frame, args, kwargs)
    return domain.state.operator(torch.as_tensor, args, kwargs)
