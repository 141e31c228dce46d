"""Backends under upstream's names: `register_backend` as a decorator, `lookup_backend`, and `aot_autograd` around compilers.

Counterpart: torch/_dynamo/backends/registry.py register_backend, lookup_backend; torch/_dynamo/backends/common.py aot_autograd
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from refimpl import backend_registry
from refimpl.aot_entry_points import aot_module_simplified
from refimpl.capture.public.errors import InvalidBackend
from refimpl.errors import BadParameter


def register_backend(
    compiler_fn: Callable[..., Any] | None = None, name: str | None = None, tags: Sequence[str] = ()
) -> Any:
    """Registers a backend under a name, which is that of the function unless it is given. Without a function, a decorator.

    Raises AssertionError for what is not callable and for a name that is taken.
    """
    if compiler_fn is None:
        return functools.partial(register_backend, name=name, tags=tags)
    assert callable(compiler_fn), f"{compiler_fn!r}\n  expected: a function of a graph module and example inputs"
    try:
        backend_registry.register_backend(name or compiler_fn.__name__, compiler_fn)
    except BadParameter as error:
        raise AssertionError(str(error)) from error
    setattr(compiler_fn, "_tags", tuple(tags))
    return compiler_fn


def lookup_backend(compiler_fn: Any) -> Callable[..., Any]:
    """The backend of this name; a function is returned as it is. Raises InvalidBackend."""
    try:
        return backend_registry.lookup_backend(compiler_fn)
    except BadParameter as error:
        names = ", ".join(backend_registry.list_backends())
        raise InvalidBackend(
            seen=f"backend={compiler_fn!r}", expected=f"one of {names}, or `module:function`"
        ) from error


class AotAutograd:
    """A backend that gives the forward and the backward graph of a captured one to compilers."""

    def __init__(self, **options: Any) -> None:
        self.__name__ = "compiler_fn"
        self.kwargs = options

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
        options = dict(self.kwargs)
        table = options.get("decompositions")
        if callable(table):
            options["decompositions"] = table()
        return aot_module_simplified(gm, example_inputs, **options)


def aot_autograd(**kwargs: Any) -> AotAutograd:
    """A backend for capture made of compilers of graphs of aten operators; see `aot_module_simplified` for the options."""
    return AotAutograd(**kwargs)
