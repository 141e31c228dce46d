"""The objects that `optimize`, `run` and `disable` return: decorators for functions, modules and classes.

Counterpart: torch/_dynamo/eval_frame.py _TorchDynamoContext and its subclasses; mutation_guard.py GenerationTracker
Differs: nothing is hooked into CPython. The wrapper that a context makes reads the thread's mode (public/running.py), which a
`with` block sets. Code that is not called through a wrapper is never captured. Modules are
not tagged with a generation.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from enum import Enum
from types import FunctionType, MethodType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch

from refimpl.capture.captured import CaptureOptions
from refimpl.capture.config import config
from refimpl.capture.entry_points.compiled_autograd import CompiledBackward, enable
from refimpl.capture.entry_points.optimized_module import OptimizedModule
from refimpl.capture.entry_points.options_table import hold, live_options, options_for
from refimpl.capture.entry_points.torch_patcher import TorchPatcher
from refimpl.capture.public.running import DISABLED, RUN_ONLY, in_mode
from refimpl.capture.recognition import CAPTURES, captured_original
from refimpl.errors import BadParameter

ORIGINAL = "_torchdynamo_orig_callable"  # upstream's name, which users of the wrappers read
_WRAPPER_ID = "_torchdynamo_wrapper_id"  # upstream's name


class Hooks(NamedTuple):
    """Functions to call with the guards of each new segment, with the guard that failed before it, and to choose guards."""

    guard_export_fn: Callable[[Any], None] | None = None
    guard_fail_fn: Callable[[Any], None] | None = None
    guard_filter_fn: Callable[[Any], Any] | None = None


class Unset(Enum):
    """What a field has that holds nothing yet, where None is a value of its own; upstream's name."""

    token = 0


unset = Unset.token


def nothing() -> None:
    """Does nothing."""


def _entering(make: Callable[[], contextlib.AbstractContextManager[Any]]) -> Callable[[], Any]:
    """Enters a context manager, and gives what leaves it."""
    manager = make()
    manager.__enter__()
    return functools.partial(manager.__exit__, None, None, None)


def _sizes(dynamic: bool) -> contextlib.AbstractContextManager[None]:
    """The settings that `dynamic` implies."""
    settings = {"assume_static_by_default": not dynamic} | ({} if dynamic else {"automatic_dynamic_shapes": False})
    return config.patch(settings)


def _entered_all(hooks: Sequence[Callable[[], Callable[[], Any]]]) -> contextlib.ExitStack:
    """A block that the hooks have entered. It leaves them in the order in which they were entered, as upstream does."""
    leaving: list[Callable[[], Any]] = []
    stack = contextlib.ExitStack()
    stack.callback(lambda: [leave() for leave in leaving])
    try:
        for hook in hooks:
            leaving.append(hook())
    except BaseException:
        stack.close()
        raise
    return stack


def innermost_fn(fn: Any) -> Any:
    """The function inside nested wrappers of optimize, run and disable. Raises AssertionError where that is not callable."""
    while True:
        inner = getattr(fn, ORIGINAL, None)
        is_copied = getattr(fn, _WRAPPER_ID, id(fn)) != id(fn)  # functools.wraps has copied the attributes of a wrapper
        if inner is None or is_copied or isinstance(fn, MethodType):
            return fn
        assert callable(inner), f"{ORIGINAL} of {fn!r} is {inner!r}\n  expected: what it wraps, a callable"
        fn = inner


class CaptureContext:
    """The base class. `callback`: a backend; False to use existing segments only; None to capture nothing."""

    def __init__(
        self,
        callback: Any,
        on_enter: Callable[[], Any] = nothing,
        backend_ctx_ctor: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
        patch_fn: Callable[[], Any] = nothing,
        first_ctx: bool = False,
        *,
        export: bool = False,
        dynamic: bool | None = None,
        compiler_config: Any = None,
    ) -> None:
        """Raises AssertionError for any other callback, and for a `dynamic` that is neither a bool nor None."""
        assert callable(callback) or callback is False or callback is None, (
            f"callback={callback!r}\n  expected: a backend, False to capture nothing new, or None to capture nothing"
        )
        assert dynamic is None or isinstance(dynamic, bool), f"dynamic={dynamic!r}\n  expected: True, False or None"
        self.callback = callback
        self.first_ctx = first_ctx
        self.export = export
        self.dynamic = dynamic
        self.compiler_config = compiler_config
        self._on_enter = on_enter
        self._backend_ctx_ctor = backend_ctx_ctor
        self._stack: contextlib.ExitStack | Unset = unset
        # What a `with` block enters, in order; each gives what leaves it again.
        self.enter_exit_hooks: list[Callable[[], Callable[[], Any]]] = []
        if dynamic is not None:
            self.enter_exit_hooks.append(functools.partial(_entering, functools.partial(_sizes, dynamic)))
        if on_enter is not nothing:
            self.enter_exit_hooks.append(self._call_on_enter)
        if backend_ctx_ctor is not contextlib.nullcontext:
            self.enter_exit_hooks.append(functools.partial(_entering, backend_ctx_ctor))
        patch_fn()

    def _call_on_enter(self) -> Callable[[], Any]:
        leave = self._on_enter()
        return leave if callable(leave) else nothing

    def mode(self) -> contextlib.AbstractContextManager[Any]:
        """Sets the thread's mode, for a `with` block or a call."""
        return contextlib.nullcontext()

    def _around(self) -> contextlib.AbstractContextManager[Any] | None:
        """A context manager for each call; None where none is needed, which saves time. `dynamic` is an option of the call."""
        hooks = self.enter_exit_hooks if self.dynamic is None else self.enter_exit_hooks[1:]
        return _entered_all(hooks) if hooks else None

    def __enter__(self) -> None:
        """Raises RuntimeError while `config.raise_on_ctx_manager_usage` is set: a `with` block captures nothing."""
        if config.raise_on_ctx_manager_usage:
            raise RuntimeError(
                "torch._dynamo.optimize(...) is used with a context manager\n"
                "  expected: opt_fn = torch._dynamo.optimize(...)(fn), or the decorator\n"
                "  what to do: decorate the function; a with block captures nothing"
            )
        stack = contextlib.ExitStack()
        stack.enter_context(_entered_all(self.enter_exit_hooks))
        stack.enter_context(self.mode())
        self._stack = stack

    def __exit__(self, *error: Any) -> None:
        assert not isinstance(self._stack, Unset), (
            f"{type(self).__name__} is left and was not entered\n  expected: a with block"
        )
        stack, self._stack = self._stack, unset
        stack.close()

    def __call__(self, fn: Any) -> Any:
        """`fn` under this context: a module becomes an OptimizedModule, a class gets its `__call__` replaced, else a function."""
        fn = innermost_fn(fn)
        if isinstance(fn, torch.nn.Module):
            return self._of_module(fn)
        if isinstance(fn, type):
            return self._of_class(fn)
        if not callable(fn):
            raise BadParameter(
                seen=f"{fn!r}, a {type(fn).__name__}",
                expected="a function, a torch.nn.Module, or an object with __call__",
            )
        return self._marked(self.wrapped(fn), fn)

    def wrapped(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """A function that calls `fn` under this context."""
        raise NotImplementedError

    def _of_module(self, module: torch.nn.Module) -> torch.nn.Module:
        made = OptimizedModule(module, self)
        object.__setattr__(made, ORIGINAL, module.forward)
        made.get_compiler_config = lambda: self.compiler_config
        return made

    def _of_class(self, class_: type) -> type:
        for name in ("__call__", "_call_impl"):
            method = getattr(class_, name, None)
            if isinstance(method, FunctionType):
                setattr(class_, name, self(method))
        return class_

    def _marked(self, call: Any, fn: Any) -> Any:
        setattr(call, ORIGINAL, fn)
        setattr(call, _WRAPPER_ID, id(call))
        call._torchdynamo_inline = fn
        call.get_compiler_config = lambda: self.compiler_config
        return call


class OptimizeContext(CaptureContext):
    """Captures calls and compiles the graphs with a backend."""

    def __init__(
        self,
        callback: Callable[..., Any],
        backend_ctx_ctor: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
        first_ctx: bool = False,
        *,
        fullgraph: bool = False,
        export: bool = False,
        dynamic: bool | None = None,
        compiler_config: Any = None,
        rebuild_ctx: Callable[[], OptimizeContext | NullDecorator] | None = None,
        hooks: Hooks = Hooks(),  # noqa: B008 - a tuple
        recompile_limit: int | None = None,
    ) -> None:
        """`rebuild_ctx` makes a context like this one; under `config.compiled_autograd` its backend compiles backward passes.

        Raises AssertionError where that is set and `rebuild_ctx` is None.
        """
        backward = None
        if config.compiled_autograd:
            assert rebuild_ctx is not None, (
                "config.compiled_autograd is set, and rebuild_ctx is None\n  expected: what makes a context for backward graphs"
            )
            rebuilt = rebuild_ctx()
            assert isinstance(rebuilt, OptimizeContext), f"rebuild_ctx gave {rebuilt!r}\n  expected: an OptimizeContext"
            backward = CompiledBackward(rebuilt.options.backend)
        super().__init__(
            callback, nothing if backward is None else functools.partial(_entered, backward), backend_ctx_ctor,
            TorchPatcher.patch, first_ctx, export=export, dynamic=dynamic, compiler_config=compiler_config,
        )  # fmt: skip
        self.options: CaptureOptions = options_for(
            callback, fullgraph=fullgraph, dynamic=dynamic, recompile_limit=recompile_limit, hooks=hooks
        )
        self._arguments = (callback, backend_ctx_ctor, first_ctx), {
            "fullgraph": fullgraph, "export": export, "dynamic": dynamic, "compiler_config": compiler_config,
            "hooks": hooks, "recompile_limit": recompile_limit, "rebuild_ctx": rebuild_ctx,
        }  # fmt: skip

    def __reduce__(self) -> Any:
        args, kwargs = self._arguments
        return functools.partial(type(self), **kwargs), args

    def wrapped(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        call = captured_call(fn, self.options)
        # a closure must not be kept alive, because it keeps other objects alive
        if isinstance(fn, FunctionType) and fn.__closure__ is None:
            hold(fn.__code__, self.options)
        around = self._around
        if self._on_enter is nothing and self._backend_ctx_ctor is contextlib.nullcontext:
            return call

        @functools.wraps(call)
        def call_within(*args: Any, **kwargs: Any) -> Any:
            with around() or contextlib.nullcontext():
                return call(*args, **kwargs)

        return call_within


def _entered(backward: CompiledBackward) -> Callable[[], None]:
    """Enters a block in which backward passes are compiled. Returns the function that leaves it."""
    stack = contextlib.ExitStack()
    stack.enter_context(enable(backward))
    return stack.close


class GenerationTracker:
    """What belongs to one generation may be reused within it: the memory of CUDA graphs, for example."""

    generation = 0

    @classmethod
    def begin(cls) -> None:
        """Begins a new generation."""
        cls.generation += 1


class RunOnlyContext(CaptureContext):
    """Uses existing segments and captures nothing new."""

    def __init__(self) -> None:
        super().__init__(callback=False, on_enter=GenerationTracker.begin)

    def __reduce__(self) -> Any:
        return type(self), ()

    def mode(self) -> contextlib.AbstractContextManager[Any]:
        return in_mode(RUN_ONLY)

    def __call__(self, fn: Any) -> Any:
        captured = _captured_form(fn)
        return super().__call__(fn) if captured is None else self._marked(self.wrapped(captured), innermost_fn(fn))

    def wrapped(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        captured = _captured_form(fn) or fn

        @functools.wraps(fn)
        def run_only(*args: Any, **kwargs: Any) -> Any:
            with self._around() or contextlib.nullcontext(), in_mode(RUN_ONLY):
                return captured(*args, **kwargs)

        # inside a captured function, calling it is calling the original
        setattr(run_only, CAPTURES, function_of(innermost_fn(fn)))
        return run_only


def _captured_form(fn: Any) -> Callable[..., Any] | None:
    """The wrapper that holds the segments of a function: `fn` itself, or one that is still alive."""
    if isinstance(fn, FunctionType) and captured_original(fn) is not None:
        return fn
    for options in live_options():
        if isinstance(fn, FunctionType) and any(
            captured.code is fn.__code__ for captured in options.functions.values()
        ):
            return captured_call(fn, options)
    return None


class DisableContext(CaptureContext):
    """Captures neither a call nor the functions it calls."""

    def __init__(self, msg: str | None = None, wrapping: bool = True) -> None:
        super().__init__(callback=None)
        self._options = (msg, wrapping)

    def __reduce__(self) -> Any:
        return type(self), self._options

    def mode(self) -> contextlib.AbstractContextManager[Any]:
        return in_mode(DISABLED)

    def __call__(self, fn: Any) -> Any:
        fn = innermost_fn(fn)
        if isinstance(fn, type):
            return self._of_class(fn)
        made = super().__call__(fn)
        self._mark(made)
        return made

    def _mark(self, made: Any) -> None:
        object.__setattr__(made, "_torchdynamo_disable", True)
        object.__setattr__(made, "_torchdynamo_disable_msg", self._options[0])

    def _of_class(self, class_: type) -> type:
        """Changes the class in place: constructing and calling its objects is excluded from capture."""
        for name in ("__init__", "__call__", "_call_impl"):
            method = getattr(class_, name, None)
            if isinstance(method, FunctionType):
                setattr(class_, name, self(method))
        return class_

    def wrapped(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def disabled(*args: Any, **kwargs: Any) -> Any:
            with in_mode(DISABLED):
                return fn(*args, **kwargs)

        disabled.__dict__.pop(CAPTURES, None)
        self._mark(disabled)  # also where it is the forward of a wrapper
        return disabled


class NullDecorator(contextlib.nullcontext[None]):
    """A decorator that returns the function unchanged."""

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        assert callable(fn), f"{fn!r} is no callable\n  expected: a function or module"
        return fn


def captured_call(model: Callable[..., Any], options: CaptureOptions) -> Callable[..., Any]:
    """A function that calls the captured form of a function, method, module or callable object."""
    function, receiver = function_of(model)
    captured = options.captured(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return captured(*receiver, *args, **kwargs)

    call.__dict__.pop(ORIGINAL, None)
    setattr(call, CAPTURES, (function, receiver))
    return call


def function_of(model: Any) -> tuple[FunctionType, Sequence[Any]]:
    """A Python function and the arguments to put before those of a call. Raises BadParameter for a model without one."""
    if isinstance(model, torch.nn.Module):
        return _caller_of(type(model)), [model]
    if isinstance(model, MethodType) and isinstance(model.__func__, FunctionType):
        return model.__func__, [model.__self__]
    if isinstance(model, FunctionType):
        return model, []
    for class_ in type(model).__mro__:
        special = class_.__dict__.get("__call__")
        if isinstance(special, FunctionType):
            return special, [model]
    if callable(model):  # a callable written in C gets a Python frame around it
        return _call, [model]
    raise BadParameter(seen=f"model={model!r}, a {type(model).__name__}", expected="a function or a torch.nn.Module")


# Modules of one class share segments where their guards allow it, as equal layers that are compiled one by one do. Each class has
# its own function, with code of its own.
_CALLERS: WeakKeyDictionary[type, FunctionType] = WeakKeyDictionary()


def _caller_of(class_: type) -> FunctionType:
    known = _CALLERS.get(class_)
    if known is None:
        plain = _call_module
        known = _CALLERS[class_] = FunctionType(plain.__code__.replace(), plain.__globals__, plain.__name__)
        known.__module__ = __name__
    return known


def _call_module(self: Any, *args: Any, **kwargs: Any) -> Any:
    return self(*args, **kwargs)


def _call(function: Any, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)
