"""Rules for the functions around `__torch_function__`: the default one, the stack of modes, the questions whether it applies.

Counterpart: torch/_dynamo/variables/torch_function.py, torch.py handle_has_torch_function
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import get_default_nowrap_functions, handle_torch_function

from refimpl._torch import (
    TORCH_FUNCTION_QUESTIONS,
    function_mode_at,
    function_modes_on,
    no_torch_function,
    pop_function_mode,
    push_function_mode,
    with_overrides,
    without_overrides,
    without_torch_function,
)
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.rules.rule_table import RuleTable, wrong
from refimpl.capture.state.overrides import Off
from refimpl.capture.torch_functions.dispatch import answer, asked_among
from refimpl.capture.values import (
    ConstantValue,
    DictValue,
    NativeMethodValue,
    ObjectValue,
    SequenceValue,
    SubclassTensorValue,
    TensorValue,
    Value,
    polyfills,
)
from refimpl.capture.values.value import unsupported

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

TORCH_FUNCTION_RULES = RuleTable()
_DEFAULT: Any = torch.Tensor.__dict__["__torch_function__"].__func__
_SWITCHES = {
    id(without_torch_function): Off.CLASSES,
    id(without_overrides): Off.EVERYTHING,
    id(with_overrides): Off.NOTHING,
}


class SwitchValue(Value):
    """`DisableTorchFunctionSubclass()` and the like, as a context manager."""

    __slots__ = ("before", "context", "off")

    def __init__(self, off: Off) -> None:
        super().__init__()
        self.off, self.before, self.context = off, Off.NOTHING, None

    @property
    def kind(self) -> str:
        return "switch of __torch_function__"

    def exit(self, context: None) -> None:
        """Does nothing: the switch of torch itself was never moved."""

    def load_attr(self, domain: SymbolicDomain, name: str) -> Any:
        is_end = name in ("__enter__", "__exit__")
        return NativeMethodValue(self, name) if is_end else super().load_attr(domain, name)

    def call_method(
        self, domain: SymbolicDomain, frame: Any, name: str, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        return self._enter(domain) if name == "__enter__" else self._leave(domain)

    def enter_context(self, domain: SymbolicDomain) -> tuple[Any, Any]:
        return NativeMethodValue(self, "__exit__"), self._enter(domain)

    def _enter(self, domain: SymbolicDomain) -> Value:
        state = domain.state
        self.before, state.overrides.off = state.overrides.off, self.off
        state.open_regions.append((self, state.position()))
        return ConstantValue(None)

    def _leave(self, domain: SymbolicDomain) -> Value:
        state = domain.state
        if not state.open_regions or state.open_regions[-1][0] is not self:
            unsupported("__exit__", self)
        state.open_regions.pop()
        state.overrides.off = self.before
        return ConstantValue(None)


def switch_of(class_: Any) -> SwitchValue | None:
    """A call of one of torch's switches of `__torch_function__`; None for other classes."""
    off = _SWITCHES.get(id(class_))
    return None if off is None else SwitchValue(off)


@TORCH_FUNCTION_RULES.of(_DEFAULT)
def _default(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`torch.Tensor.__torch_function__(cls, func, types, args=(), kwargs=None)`."""
    given = dict(zip(("cls", "func", "types", "args", "kwargs"), args, strict=False)) | kwargs
    if len(given) != len(args) + len(kwargs) or not {"cls", "func", "types"} <= given.keys():
        wrong("__torch_function__")
    named = given.get("kwargs")
    parts = [
        given["cls"], given["func"], given["types"], given.get("args", SequenceValue(tuple, [])),
        DictValue({}) if named is None or domain.is_none(named) else named,
    ]  # fmt: skip
    marks = [SwitchValue(Off.CLASSES), ObjectValue(_converted)]
    return domain.enter_polyfill(polyfills.answered_by_default, [*parts, *marks])


@TORCH_FUNCTION_RULES.of(no_torch_function)
def _disabled(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`_disabled_torch_function_impl(cls, func, types, args, kwargs)`, which converts nothing."""
    if kwargs or len(args) not in (4, 5):
        wrong("__torch_function__")
    function, _, given, *named = args[-4:] if len(args) == 4 else args[1:]
    parts = [function, given, named[0] if named else DictValue({}), SwitchValue(Off.CLASSES)]
    return domain.enter_polyfill(polyfills.called_within, parts)


def _converted() -> None:
    """A mark: the rule below stands for what `torch.Tensor.__torch_function__` does with a result."""


@TORCH_FUNCTION_RULES.of(_converted)
def _convert(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The result of a function as tensors of the class."""
    result, class_, function = (domain.state.realize(arg) for arg in args)
    is_kept = isinstance(function, ObjectValue) and function.object in get_default_nowrap_functions()
    return result if is_kept or class_.object is torch.Tensor else _as_class(domain, result, class_.object)


def _as_class(domain: SymbolicDomain, result: Any, class_: type) -> Value:
    result = domain.state.realize(result)
    if (
        isinstance(result, SequenceValue)
        and issubclass(result.class_, (tuple, list))
        and result.class_ is not torch.Size
    ):
        return SequenceValue(result.class_, [_as_class(domain, item, class_) for item in result.items])
    if not isinstance(result, TensorValue) or issubclass(result.class_of(), class_):
        return result
    made = SubclassTensorValue(result.node, result.fake, class_)
    made.made_at = result.made_at
    if domain.state.by_fake.get(id(result.fake)) is result:
        domain.state.by_fake[id(result.fake)] = made  # a write to the tensor returns this one
    domain.state.hides_overrides = True
    return made


@TORCH_FUNCTION_RULES.of(push_function_mode)
def _push(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    domain.state.overrides.push(domain.state.realize(args[0]), domain.state.position())
    return ConstantValue(None)


@TORCH_FUNCTION_RULES.of(pop_function_mode)
def _pop(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if not domain.state.overrides.modes:
        raise GraphBreak("op_raises_on_fake", what="_pop_torch_function_stack", error="AssertionError")
    return domain.state.overrides.pop(domain.state.position())


@TORCH_FUNCTION_RULES.of(function_modes_on)
def _count(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return ConstantValue(len(domain.state.overrides.modes))


@TORCH_FUNCTION_RULES.of(function_mode_at)
def _at(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    index = domain.constant_of(args[0], "a place of the stack")
    modes = domain.state.overrides.modes
    if type(index) is not int or not 0 <= index < len(modes):
        raise GraphBreak("op_raises_on_fake", what="_get_function_stack_at", error="IndexError")
    return modes[index]


@TORCH_FUNCTION_RULES.of(*TORCH_FUNCTION_QUESTIONS)
def _has(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`has_torch_function((x, y))` and its forms for one and for several arguments."""
    overrides = domain.state.overrides
    if kwargs:
        wrong("has_torch_function")
    if overrides.off is Off.NOTHING and asked_among(domain, args, depth=1):  # unlike a call, lists are not searched
        return ConstantValue(True)
    return ConstantValue(overrides.has_modes)


@TORCH_FUNCTION_RULES.of(handle_torch_function)
def _handle(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`handle_torch_function(public_api, relevant_args, *args, **kwargs)`."""
    function, relevant, *given = args
    function = domain.state.realize(function)
    if not isinstance(function, ObjectValue):
        unsupported("handle_torch_function", function)
    asked = [] if domain.state.overrides.off is not Off.NOTHING else asked_among(domain, [relevant])
    return answer(domain, function.object, asked, SequenceValue(tuple, given), domain.named(kwargs))
