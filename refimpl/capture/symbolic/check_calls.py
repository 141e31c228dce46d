"""`torch._check` of sizes and of numbers out of tensors: a node, and from there on known.

Counterpart: torch/_dynamo/variables/torch.py handle_check
Differs: the message is left out of the graph: it may be a function of the program's.
"""

from __future__ import annotations

from typing import Any

from refimpl._torch import torch_checks
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.symbolic.builtin_calls import Rule
from refimpl.capture.values import NumberValue, ObjectValue


def _rule(function: Any) -> Rule:
    def checked(domain: Any, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
        asked = domain.state.see(args[0]) if args else None
        is_known = len(args) <= 2 and set(kwargs) <= {"message"}
        if isinstance(asked, NumberValue) and is_known:
            return domain.state.operator(function, [asked], {})
        return domain.enter_function(ObjectValue(function), args, kwargs)

    return checked


CHECK_RULES: dict[int, Rule] = {id(function): _rule(function) for function in torch_checks}
