"""Regions that change a mode of torch: `with torch.autocast(...)` and `with torch.inference_mode()`, as a node at each end.

Counterpart: torch/_dynamo/variables/ctx_manager.py AutocastModeVariable, InferenceModeVariable
Differs: if the graph breaks within a region, the segment ends before the region; segments inside it begin in its mode.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from refimpl._torch import enter_autocast, enter_inference_mode, exit_autocast, exit_inference_mode
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards.sources import AttributeSource, KeptSource
from refimpl.capture.values.bound import MethodValue, NativeMethodValue
from refimpl.capture.values.classes import in_mro
from refimpl.capture.values.constant import ConstantValue
from refimpl.capture.values.value import Value

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

Arguments = Callable[..., tuple[Any, ...]]


def _of_autocast(
    device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None
) -> tuple[Any, ...]:
    return device_type, dtype, enabled, cache_enabled


def _of_cpu_autocast(
    enabled: bool = True, dtype: Any = torch.bfloat16, cache_enabled: bool | None = True
) -> tuple[Any, ...]:
    return "cpu", dtype, enabled, cache_enabled


def _of_cuda_autocast(
    enabled: bool = True, dtype: Any = torch.float16, cache_enabled: bool | None = True
) -> tuple[Any, ...]:
    return "cuda", dtype, enabled, cache_enabled


def _of_inference_mode(mode: bool = True) -> tuple[Any, ...]:
    return (mode,)


_AUTOCAST = (enter_autocast, exit_autocast)
_REGIONS: dict[int, tuple[Arguments, Any, Any]] = {
    id(torch.autocast): (_of_autocast, *_AUTOCAST),
    id(torch.cpu.amp.autocast): (_of_cpu_autocast, *_AUTOCAST),
    id(torch.cuda.amp.autocast): (_of_cuda_autocast, *_AUTOCAST),
    id(torch.inference_mode): (_of_inference_mode, enter_inference_mode, exit_inference_mode),
}


# The attributes of an object of these classes that hold the arguments of entering it.
_ATTRIBUTES = {
    enter_autocast: ("device", "fast_dtype", "_enabled", "_cache_enabled"),
    enter_inference_mode: ("mode",),
}


def _attributes_of(class_: type) -> tuple[str, ...]:
    found = _REGIONS.get(id(class_))
    return () if found is None else _ATTRIBUTES[found[1]]


class RegionValue(Value):
    """A context manager of torch that changes a mode. `context`: the result of entering the real one, while it is active.

    `origin`: the object, if it was made before the segment.
    """

    __slots__ = ("args", "class_", "context", "enter", "exit", "node", "origin")

    def __init__(self, class_: type, args: tuple[Any, ...], enter: Any, exit_: Any) -> None:
        super().__init__()
        self.class_ = class_
        self.args = args
        self.enter = enter
        self.exit = exit_
        self.context: Any = None
        self.origin: Value | None = None
        self.node: Any = None

    @property
    def kind(self) -> str:
        return self.class_.__name__

    def class_of(self) -> type:
        return self.class_

    def load_attr(self, domain: SymbolicDomain, name: str) -> Any:
        found = in_mro(self.class_, name)
        if name in ("__enter__", "__exit__"):
            return NativeMethodValue(self, name)
        if name == "__class__":
            return domain.object(self.class_)
        if name in _attributes_of(self.class_):
            return ConstantValue(self.args[_attributes_of(self.class_).index(name)])
        if isinstance(found, FunctionType):
            way = AttributeSource(KeptSource(self.class_, self.class_.__qualname__), name)
            return MethodValue(domain.state.wrap(found, way), self)
        return super().load_attr(domain, name)

    def call(self, domain: SymbolicDomain, frame: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """The region as a decorator: `__call__` of its class is interpreted."""
        return domain.call(frame, self.load_attr(domain, "__call__"), args, kwargs)

    def rebuilt(self, emitter: Any) -> str:
        if self.context is not None or self.class_ not in (torch.autocast, torch.inference_mode):
            return super().rebuilt(emitter)
        given = ", ".join(emitter.constant(arg) for arg in self.args)
        return emitter.named(self, f"{emitter.constant(self.class_)}({given})")

    def call_method(
        self, domain: SymbolicDomain, frame: Any, name: str, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        return self._enter(domain) if name == "__enter__" else self._leave(domain)

    def enter_context(self, domain: SymbolicDomain) -> tuple[Any, Any]:
        return NativeMethodValue(self, "__exit__"), self._enter(domain)

    def _enter(self, domain: SymbolicDomain) -> Value:
        """`__enter__`: changes torch's mode, and adds a node."""
        if self.context is not None:
            raise GraphBreak("unsupported_operation", what="a second `with`", kind=self.kind)
        if domain.state.inference_mode and self.enter is enter_inference_mode and not self.args[0]:
            # Results of a graph that runs in inference mode have no gradient, so the graph breaks, and the code within the region
            # begins a segment in normal mode.
            raise GraphBreak("unsupported_operation", what="leaving inference mode", kind=self.kind)
        try:
            self.context = self.enter(*self.args)
        except Exception as error:
            raise GraphBreak("op_raises_on_fake", what=self.kind, error=type(error).__name__) from error
        self.node = domain.state.enter_region(self)
        return self if self.enter is enter_autocast else ConstantValue(None)

    def _leave(self, domain: SymbolicDomain) -> Value:
        """`__exit__`, with any arguments."""
        if self.context is None or domain.state.open_regions[-1][0] is not self:
            raise GraphBreak("unsupported_operation", what="__exit__", kind=self.kind)
        domain.state.leave_region()
        return ConstantValue(None)


class UnrecordedValue(Value):
    """A context manager that names a part of the program for a profiler. It is left out, as upstream does.

    Code that runs after a graph break within the block gets one that does nothing: the real one was never entered.
    """

    __slots__ = ("is_entered", "name")

    def __init__(self, name: Any) -> None:
        super().__init__()
        self.name = name
        self.is_entered = False

    @property
    def kind(self) -> str:
        return "record_function"

    def load_attr(self, domain: SymbolicDomain, name: str) -> Any:
        is_end = name in ("__enter__", "__exit__")
        return NativeMethodValue(self, name) if is_end else super().load_attr(domain, name)

    def call_method(
        self, domain: SymbolicDomain, frame: Any, name: str, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        self.is_entered = name == "__enter__"
        return self if self.is_entered else ConstantValue(None)

    def enter_context(self, domain: SymbolicDomain) -> tuple[Any, Any]:
        self.is_entered = True
        return NativeMethodValue(self, "__exit__"), self

    def rebuilt(self, emitter: Any) -> str:
        if self.is_entered:
            return emitter.named(self, f"{emitter.constant(contextlib.nullcontext)}()")
        class_ = emitter.constant(torch.autograd.profiler.record_function)
        return emitter.named(self, f"{class_}({emitter.constant(self.name)})")


def region_of_object(domain: SymbolicDomain, value: Value) -> RegionValue | None:
    """The region that `with value` enters, for an object of these classes that was made before the segment; None for others.

    Breaks the graph for an object that is entered already: it has forgotten the state before, and its end restores another one.
    """
    class_ = value.class_of()
    names = _attributes_of(class_)
    if not names:
        return None
    args = [domain.constant_of(value.load_attr(domain, name), f"attribute {name}") for name in names]
    for region, _ in domain.state.open_regions:
        if isinstance(region, RegionValue) and region.origin is value:
            raise GraphBreak("unsupported_operation", what="a second `with`", kind=class_.__name__)
    made = RegionValue(class_, tuple(args), *_REGIONS[id(class_)][1:])
    made.origin = value
    if made.enter is enter_autocast:
        domain.state.guard_autocast()
        before = {
            "prev_cache_enabled": torch.is_autocast_cache_enabled(),
            "prev": torch.is_autocast_enabled(args[0]),
            "prev_fastdtype": torch.get_autocast_dtype(args[0]),
        }
        for name, content in before.items():
            value.store_attr(domain, name, ConstantValue(content))
    return made


def region_of(domain: SymbolicDomain, class_: Any, args: list[Any], kwargs: dict[str, Any]) -> Value | None:
    """A call of one of these context manager classes; None for other classes."""
    if class_ is torch.autograd.profiler.record_function:
        name = args[0] if args else kwargs.get("name", ConstantValue(""))
        return UnrecordedValue(domain.constant_of(name, class_.__name__))
    found = _REGIONS.get(id(class_))
    if found is None:
        return None
    arguments, enter, exit_ = found
    plain = [domain.constant_of(arg, class_.__name__) for arg in args]
    named = {name: domain.constant_of(arg, class_.__name__) for name, arg in kwargs.items()}
    try:
        inspect.signature(arguments).bind(*plain, **named)
    except TypeError as error:
        raise GraphBreak("op_raises_on_fake", what=class_.__name__, error="TypeError") from error
    return RegionValue(class_, arguments(*plain, **named), enter, exit_)
