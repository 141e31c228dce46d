"""The effect of each instruction on a frame, expressed in operations of the domain: `operation(domain, frame, argument)`.

Counterpart: torch/_dynamo/symbolic_convert.py InstructionTranslatorBase.LOAD_FAST, ... (one method an opcode)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refimpl.capture.bytecode.instructions import Op
from refimpl.capture.interpreter.call_operations import CALL_OPERATIONS
from refimpl.capture.interpreter.exception_operations import EXCEPTION_OPERATIONS
from refimpl.capture.interpreter.signals import Signal
from refimpl.capture.interpreter.value_operations import VALUE_OPERATIONS
from refimpl.capture.interpreter.variable_operations import VARIABLE_OPERATIONS

Operation = Callable[[Any, Any, Any], Signal | None]

OPERATIONS: dict[Op, Operation] = {
    **VARIABLE_OPERATIONS,
    **VALUE_OPERATIONS,
    **CALL_OPERATIONS,
    **EXCEPTION_OPERATIONS,
}
assert len(OPERATIONS) == len(Op), sorted(set(Op) - set(OPERATIONS))
