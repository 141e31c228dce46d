"""`compile`: a function or a module whose calls are captured.

Counterpart: torch/__init__.py compile, torch/_dynamo/eval_frame.py optimize
Differs: nothing is hooked into the interpreter; only calls through what is returned are captured.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import torch

from refimpl.backends.registry import Backend, lookup_backend
from refimpl.capture.captured import CaptureOptions
from refimpl.capture.recognition import CAPTURES
from refimpl.errors import BadParameter


def compile(
    model: Callable[..., Any] | None = None,
    *,
    fullgraph: bool = False,
    backend: str | Backend = "eager",
    recompile_limit: int = 8,
) -> Callable[..., Any]:
    """The model, captured when it is called.

    model: a function, a bound method, or a torch.nn.Module; None: gives a decorator.
    fullgraph: raise GraphBreak where capture would stop.
    backend: a name of `refimpl.list_backends()`, "module:function", or a callable that gets the graph of every segment with its
        inputs and returns what runs it.
    recompile_limit: segments of one place, after which calls that fit none of them are run without.

    Raises BadParameter for a backend that is none, and for what is no function or module.
    """
    if model is None:
        return functools.partial(compile, fullgraph=fullgraph, backend=backend, recompile_limit=recompile_limit)
    found: Any = lookup_backend(backend)
    return with_options(model, CaptureOptions(backend=found, fullgraph=fullgraph, recompile_limit=recompile_limit))


def with_options(model: Callable[..., Any], options: CaptureOptions) -> Callable[..., Any]:
    """The same with options that the caller keeps."""
    function, receiver = _function_of(model)
    captured = options.captured(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return captured(*receiver, *args, **kwargs)

    setattr(call, CAPTURES, (function, receiver))
    return call


def _function_of(model: Any) -> tuple[FunctionType, list[Any]]:
    if isinstance(model, torch.nn.Module):
        return _call_module, [model]
    if isinstance(model, MethodType) and isinstance(model.__func__, FunctionType):
        return model.__func__, [model.__self__]
    if isinstance(model, FunctionType):
        return model, []
    for class_ in type(model).__mro__:
        special = class_.__dict__.get("__call__")
        if isinstance(special, FunctionType):
            return special, [model]
    raise BadParameter(seen=f"model={model!r}, a {type(model).__name__}", expected="a function or a torch.nn.Module")


def _call_module(module: Any, *args: Any, **kwargs: Any) -> Any:
    return module(*args, **kwargs)
