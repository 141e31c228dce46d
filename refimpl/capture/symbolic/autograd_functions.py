"""`torch.autograd.Function.apply` where nothing is differentiated: the function's `forward`, interpreted.

Counterpart: torch/_dynamo/variables/misc.py AutogradFunctionVariable
Differs: with gradients it is a graph break; upstream makes a higher-order operator of forward and backward.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.sources import AttributeSource, KeptSource
from refimpl.capture.symbolic import polyfills
from refimpl.capture.symbolic.builtin_calls import Rule
from refimpl.capture.symbolic.classes import in_mro
from refimpl.capture.symbolic.raising import unsupported
from refimpl.capture.symbolic.values import (
    ConstantValue,
    InstanceValue,
    ObjectValue,
    SequenceValue,
    TensorValue,
    Value,
)

_FUNCTION: Any = torch.autograd.Function
_CHANGES_MORE = frozenset(["mark_dirty", "save_for_forward", "set_materialize_grads", "mark_shared_storage"])


def _apply(domain: Any, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    function = domain.state.see(args[0])
    class_ = function.object if isinstance(function, ObjectValue) else None
    forward = in_mro(class_, "forward") if isinstance(class_, type) else None
    plain = forward.__func__ if isinstance(forward, staticmethod) else None
    if not isinstance(plain, FunctionType) or kwargs or getattr(class_, "setup_context") is not _FUNCTION.setup_context:
        raise GraphBreak("call_of_native_code", what="torch.autograd.Function.apply")
    given = [domain.state.see(arg) for arg in args[1:]]
    if torch.is_grad_enabled() and any(isinstance(arg, TensorValue) and arg.fake.requires_grad for arg in given):
        raise GraphBreak("call_of_native_code", what="torch.autograd.Function.apply with gradients")
    if _CHANGES_MORE & {*plain.__code__.co_names}:
        raise GraphBreak("call_of_native_code", what="torch.autograd.Function.apply")
    context = InstanceValue(polyfills.FunctionContext)
    needed: list[Value] = [ConstantValue(False) for _ in given]
    context.attributes["needs_input_grad"] = SequenceValue(tuple, needed)
    kept = KeptSource(class_, class_.__qualname__)  # pyright: ignore[reportOptionalMemberAccess]
    way = AttributeSource(kept, "forward")
    polyfill = polyfills.applied_under if torch.is_grad_enabled() else polyfills.applied
    manager = [ObjectValue(torch.no_grad)] if torch.is_grad_enabled() else []
    outputs = ObjectValue(polyfills.outputs_of)
    return domain.enter_polyfill(
        polyfill, [*manager, domain.state.wrap(plain, way), context, SequenceValue(tuple, given), outputs]
    )


def _outputs_of(domain: Any, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """What `forward` gives. An argument that it gives back comes out as another tensor, which is not modelled."""
    result, given = domain.state.see(args[0]), [domain.state.see(arg) for arg in domain.elements(args[1])]
    parts = [domain.state.see(part) for part in result.items] if isinstance(result, SequenceValue) else [result]
    for part in parts:
        if isinstance(part, TensorValue) and any(part is arg for arg in given):
            unsupported("torch.autograd.Function that gives its argument", part)
    return result


AUTOGRAD_RULES: dict[int, Rule] = {
    id(_FUNCTION.apply.__func__): _apply,
    id(polyfills.outputs_of): _outputs_of,
}
