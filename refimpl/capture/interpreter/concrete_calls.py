"""Calls, definitions and imports in the concrete domain: which functions are interpreted, and how the others are called."""

from __future__ import annotations

import builtins
import sys
import types
import typing
from collections.abc import Callable
from types import CellType, CodeType, FunctionType, GeneratorType, MethodType
from typing import Any

from refimpl.capture.bytecode.errors import UnsupportedCode
from refimpl.capture.bytecode.normalize import normalize
from refimpl.capture.interpreter import native_helpers
from refimpl.capture.interpreter.arguments import bind, surplus_slots
from refimpl.capture.interpreter.domain import Domain
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.interpreter.frame_builtins import special_call, super_arguments
from refimpl.capture.interpreter.generators import make_generator
from refimpl.capture.interpreter.machine import Machine
from refimpl.capture.interpreter.signals import Enter, Returned, Yielded
from refimpl.capture.interpreter.tracebacks import caller

_BUILD_CLASS = getattr(builtins, "__build_class__")
_TYPE_VARIABLES = frozenset({"typevar", "paramspec", "typevartuple"})


def never(function: FunctionType) -> bool:
    """Interprets no function: CPython runs each call."""
    return False


class ConcreteCalls(Domain):
    """Calls functions. `enters` decides whether a function written in Python is interpreted too."""

    def __init__(self, enters: Callable[[FunctionType], bool] = never) -> None:
        self.enters = enters

    def run(self, frame: FrameState, thrown: Any = None) -> Returned | Yielded:
        """Run a frame in a machine of its own."""
        try:
            return Machine(self).run(frame, thrown)
        finally:
            del thrown  # its traceback may keep this frame alive

    def call_function(self, function: FunctionType, args: Any, kwargs: dict[str, Any]) -> Any:
        """The result of an interpreted call. Raises UnsupportedCode, and the function's errors."""
        frame = frame_of(function, args, kwargs)
        if frame is None:
            return function(*args, **kwargs)  # raises
        if frame.code.is_generator:
            return self.generator(frame, function)
        return self.run(frame).value

    def generator(self, frame: FrameState, function: FunctionType) -> Any:
        """The generator object that a call of a generator function returns."""
        return make_generator(frame, self.run, function.__name__, function.__qualname__)

    # ------------------------------------------------------------------------------------------------------------- calls

    def call(self, frame: FrameState, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        target = function
        if type(target) is MethodType:
            target = target.__func__
        if type(target) is FunctionType and self.enters(target):
            entered = self._enter(target, args if target is function else [function.__self__, *args], kwargs)
            if entered is not None:
                return entered
        elif function is _BUILD_CLASS and len(args) > 1 and self._enters_body(args[0]):
            return self._build_class(args[0], args[1], tuple(args[2:]), kwargs)
        special = special_call(frame, function, args, kwargs)
        if special is not None:
            return special()
        return caller(frame)(function, args, kwargs)

    def _enter(self, function: FunctionType, args: list[Any], kwargs: dict[str, Any]) -> Any:
        try:
            entered = frame_of(function, args, kwargs)
        except UnsupportedCode:
            return None
        if entered is None:
            return None
        if entered.code.is_generator:
            return self.generator(entered, function)
        return Enter(entered)

    def _enters_body(self, body: Any) -> bool:
        if type(body) is not FunctionType or not self.enters(body):
            return False
        try:
            normalize(body.__code__)
        except UnsupportedCode:
            return False
        return True

    def _build_class(self, body: FunctionType, name: str, bases: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        def run_body(names: Any) -> Any:
            frame = frame_of(body, (), {})
            assert frame is not None
            frame.names = names
            return self.run(frame).value

        return build_class(run_body, name, bases, keywords)

    def keyword_names(self, names: Any) -> tuple[str, ...]:
        return names

    def call_ex(self, frame: FrameState, function: Any, args: Any, kwargs: Any) -> Any:
        if type(args) in (tuple, list) and (
            kwargs is None or (type(kwargs) is dict and all(type(key) is str for key in kwargs))
        ):
            return self.call(frame, function, list(args), dict(kwargs) if kwargs else {})
        return caller(frame)(function, args, {} if kwargs is None else kwargs)

    def load_super_attr(self, frame: FrameState, super_: Any, class_: Any, self_: Any, name: str, given: bool) -> Any:
        if super_ is super:
            if not given:
                class_, self_ = super_arguments(frame)
            return getattr(super(class_, self_), name)
        return getattr(super_(class_, self_) if given else super_(), name)

    # ------------------------------------------------------------------------------------------------------- definitions

    def make_function(self, frame: FrameState, code: CodeType, qualname: Any) -> Any:
        empty = None if not code.co_freevars else tuple(CellType() for _ in code.co_freevars)
        function = FunctionType(code, frame.globals, None, None, empty)
        if qualname is not None:
            function.__qualname__ = qualname
        return function

    def set_function_attribute(self, function: Any, which: str, value: Any) -> Any:
        match which:
            case "defaults":
                function.__defaults__ = value
            case "kwdefaults":
                function.__kwdefaults__ = value
            case "annotations":
                pairs = zip(value[::2], value[1::2], strict=True)
                function.__annotations__ = dict(pairs) if isinstance(value, tuple) else value
            case "closure":
                made = FunctionType(
                    function.__code__, function.__globals__, function.__name__, function.__defaults__, value
                )
                made.__qualname__ = function.__qualname__
                made.__kwdefaults__ = function.__kwdefaults__
                made.__annotations__ = function.__annotations__
                return made
            case _:
                raise AssertionError(which)
        return function

    def load_build_class(self, frame: FrameState) -> Any:
        try:
            return frame.builtins["__build_class__"]
        except KeyError:
            raise NameError("__build_class__ not found") from None

    # ----------------------------------------------------------------------------------------------------- imports, others

    def import_name(self, frame: FrameState, name: str, names: Any, level: Any) -> Any:
        try:
            import_ = frame.builtins["__import__"]
        except KeyError:
            raise ImportError("__import__ not found") from None
        return caller(frame)(import_, (name, frame.globals, frame.names, names, level), {})

    def import_from(self, module: Any, name: str) -> Any:
        return native_helpers.import_from(module, name)

    def yield_from_iter(self, frame: FrameState, value: Any) -> Any:
        return value if type(value) is GeneratorType else iter(value)

    def intrinsic(self, frame: FrameState, name: str, *operands: Any) -> Any:
        match name, *operands:
            case ["annotations"]:
                if "__annotations__" not in frame.names:
                    frame.names["__annotations__"] = {}
                return None
            case ["print", value]:
                return sys.displayhook(value)
            case ["import_star", module]:
                return native_helpers.import_star(module, frame.names)
            case [kind, variable] if kind in _TYPE_VARIABLES:
                return native_helpers.type_variable(variable, kind, is_bounded=False)(None)
            case ["typevar_with_bound", variable, evaluate]:
                return native_helpers.type_variable(variable, "typevar", is_bounded=True)(evaluate)
            case ["set_function_type_params", function, parameters]:
                function.__type_params__ = parameters
                return function
            case ["subscript_generic", parameters]:
                return typing.Generic[tuple(_unpacked(parameter) for parameter in parameters)]  # pyright: ignore
            case _:
                raise AssertionError(name)


def _unpacked(parameter: Any) -> Any:
    unpack, kind = getattr(typing, "Unpack"), getattr(typing, "TypeVarTuple")
    return unpack[parameter] if isinstance(parameter, kind) else parameter


def frame_of(function: FunctionType, args: Any, kwargs: dict[str, Any]) -> FrameState | None:
    """A frame for a call of the function; None if the arguments do not fit. Raises UnsupportedCode."""
    code = normalize(function.__code__)
    bound = bind(code, function.__defaults__ or (), function.__kwdefaults__ or {}, args, kwargs)
    if bound is None:
        return None
    slots, rest, surplus = bound
    args_slot, kwargs_slot = surplus_slots(code)
    if args_slot is not None:
        slots[args_slot] = rest
    if kwargs_slot is not None:
        slots[kwargs_slot] = surplus
    slots[code.first_free :] = function.__closure__ or ()
    return FrameState(
        code=code, slots=slots, globals=function.__globals__, builtins=getattr(function, "__builtins__"), names=None
    )


# Class statements with interpreted bodies: `__build_class__`, with a body that the caller runs.


def build_class(run_body: Callable[[Any], Any], name: str, bases: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Makes the class. `run_body` fills a mapping of names and returns the `__class__` cell, or None. Raises the errors of a
    class statement.
    """
    resolved = types.resolve_bases(bases)
    meta, namespace, rest = types.prepare_class(name, resolved, keywords)
    if not hasattr(type(namespace), "__getitem__"):
        kind = meta.__name__ if isinstance(meta, type) else "<metaclass>"
        raise TypeError(f"{kind}.__prepare__() must return a mapping, not {type(namespace).__name__}")
    cell = run_body(namespace)
    if resolved is not bases:
        namespace["__orig_bases__"] = bases
    made = meta(name, resolved, namespace, **rest)
    if isinstance(made, type) and isinstance(cell, types.CellType):
        try:
            contents = cell.cell_contents
        except ValueError:
            raise RuntimeError(
                f"__class__ not set defining {name!r} as {made!r}. Was __classcell__ propagated to type.__new__?"
            ) from None
        if contents is not made:
            raise TypeError(f"__class__ set to {contents!r} defining {name!r} as {made!r}")
    return made
