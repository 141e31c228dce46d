"""`with torch.device(...)`: a mode that gives the device to functions that make tensors.

Counterpart: torch/_dynamo/variables/torch_function.py TorchFunctionModeVariable; torch/csrc/Device.cpp
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from refimpl._torch import DeviceContext, device_constructors
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.rules.rule_table import RuleTable
from refimpl.capture.values import ConstantValue, InstanceValue, NativeMethodValue, Value

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

DEVICE_RULES = RuleTable()


@DEVICE_RULES.of(device_constructors)
def _constructors(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The functions that take a device: torch's own, which need no guard."""
    return domain.build("set", [domain.object(function) for function in device_constructors()])


def enter_device(domain: SymbolicDomain, device: ConstantValue) -> tuple[Any, Any]:
    """Enters the device: the bound `__exit__`, and the device."""
    mode = InstanceValue(DeviceContext)
    mode.attributes.update(device=device, prev_mode=ConstantValue(None))
    domain.state.overrides.push(mode, domain.state.position())
    return NativeMethodValue(device, "__exit__"), device


def leave_device(domain: SymbolicDomain) -> Value:
    """`device.__exit__(...)`."""
    modes = domain.state.overrides.modes
    if not modes or modes[-1].class_of() is not DeviceContext:
        raise GraphBreak("unsupported_operation", what="__exit__", kind="device")
    domain.state.overrides.pop(domain.state.position())
    return ConstantValue(None)
