"""Calls `__torch_function__` in torch's order: the innermost mode, then the arguments, classes before their bases.

Counterpart: torch/_dynamo/variables/torch_function.py dispatch_torch_function, can_dispatch_torch_function
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

from refimpl._torch import pop_function_mode, push_function_mode
from refimpl.capture.recognition import Treatment, treatment
from refimpl.capture.state.overrides import Off
from refimpl.capture.torch_functions.probing import reached
from refimpl.capture.values import (
    DictValue,
    ObjectValue,
    SequenceValue,
    SubclassTensorValue,
    Value,
    polyfills,
)
from refimpl.capture.values.subclass_tensor import is_overriding, runs_below

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

_DEPTH = 3  # how deep lists of arguments are searched, as torch does for lists of tensors


def overridden(
    domain: SymbolicDomain, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, is_method: bool = False
) -> Any:
    """The answer of a mode or of an argument to the call; None where nobody is asked."""
    state = domain.state.overrides
    asked = [] if state.off is not Off.NOTHING else asked_among(domain, [*args, *kwargs.values()])
    if not asked and not state.has_modes:
        return None
    if not is_method and isinstance(target, FunctionType) and treatment(target) is not Treatment.NODE:
        return None  # its code asks
    found = reached(domain, target, args, kwargs, is_method=is_method)
    if found is None:
        return None
    if not is_method and isinstance(target, FunctionType) and found.function is not target:
        return domain.enter_function(ObjectValue(target), list(args), dict(kwargs))
    return answer(domain, found.function, asked, SequenceValue(tuple, found.args), domain.named(found.kwargs))


def asked_among(domain: SymbolicDomain, args: Sequence[Any], depth: int = _DEPTH) -> list[Value]:
    """The arguments with `__torch_function__`, one of each class, in the order in which torch asks them."""
    asked: list[Value] = []
    for value in _overriding(domain, args, depth):
        class_ = value.class_of()
        if any(other.class_of() is class_ for other in asked):
            continue
        place = next((i for i, other in enumerate(asked) if issubclass(class_, other.class_of())), len(asked))
        asked.insert(place, value)
    return asked


def _overriding(domain: SymbolicDomain, args: Sequence[Any], depth: int) -> Iterator[Value]:
    for arg in args:
        value = domain.state.realize(arg)
        match value:
            case SubclassTensorValue():
                if is_overriding(value.class_) and not (value.is_wrapper and runs_below(value.class_)):
                    yield value
            case SequenceValue():
                if depth:
                    yield from _overriding(domain, value.items, depth - 1)
            case _:
                if value.is_object and is_overriding(value.class_of()):
                    yield value


def answer(domain: SymbolicDomain, function: Any, asked: list[Value], args: SequenceValue, kwargs: DictValue) -> Any:
    """Calls the handlers of the innermost mode and of the arguments, until one gives something else than NotImplemented."""
    types = SequenceValue(tuple, [domain.object(value.class_of()) for value in asked])
    handlers = SequenceValue(list, [domain.load_attr(value, "__torch_function__") for value in asked])
    called = [ObjectValue(function), types, args, kwargs]
    state = domain.state.overrides
    if not state.has_modes:
        return domain.enter_polyfill(polyfills.answered, [handlers, *called])
    stack = [ObjectValue(pop_function_mode), ObjectValue(push_function_mode)]
    return domain.enter_polyfill(polyfills.answered_by_mode, [*stack, handlers, *called])
