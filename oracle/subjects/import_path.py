"""Subjects given by the user: a torch.compile backend `module:function`, or a whole compiler `compile:module:function`."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from torch._dynamo.exc import BackendCompilerFailed

from oracle.errors import UsageError
from oracle.subjects.base import CompileRequest, Counters
from oracle.subjects.spec import SubjectSpec
from oracle.subjects.torch_compile import TorchCompile


class GivenBackend(TorchCompile):
    """torch.compile with the user's backend: `backend(gm, example_inputs) -> callable`, `options` and `mode` as keywords."""

    def __init__(self, spec: SubjectSpec, backend: Callable[..., Any] | None = None) -> None:
        function = import_callable(spec) if backend is None else backend
        super().__init__(spec, _checked(spec.name, function))

    def compile(self, request: CompileRequest) -> Callable[..., Any]:
        compiled = super().compile(request)

        @functools.wraps(request.target if not hasattr(request.target, "forward") else compiled, updated=())
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return compiled(*args, **kwargs)
            except BackendCompilerFailed as error:
                # Dynamo wraps what a backend raises; a misuse of ours by the user's backend is not a finding.
                inner = getattr(error, "inner_exception", None)
                if isinstance(inner, UsageError):
                    raise inner from error
                raise

        return call


class GivenCompiler:
    """The user's compiler `f(fn, *, dynamic=None, **options) -> compiled`, called once per case."""

    def __init__(self, spec: SubjectSpec) -> None:
        self.spec = spec
        self._compiler = import_callable(spec)
        self._compiled = 0

    def reset(self) -> None:
        """Calls the compiler's own `reset()` attribute where it has one."""
        self._compiled = 0
        own_reset = getattr(self._compiler, "reset", None)
        if callable(own_reset):
            own_reset()

    def compile(self, request: CompileRequest) -> Callable[..., Any]:
        """Raises UsageError if the compiler returns something that cannot be called."""
        options = {"dynamic": request.dynamic, **self.spec.options}
        compiled = self._compiler(request.target, **options)
        if not callable(compiled):
            raise _not_callable(self.spec.name, compiled)
        self._compiled += 1
        return compiled

    def counters(self) -> Counters:
        """Unknown: what a compiler does inside is its own affair."""
        return Counters()


def import_callable(spec: SubjectSpec) -> Callable[..., Any]:
    """The object at `spec.path`, looked for in the current directory and PYTHONPATH too.

    Raises UsageError if the module does not import, has no such attribute, or the attribute is not callable.
    """
    module_name, _, attribute = spec.path.partition(":")
    for entry in reversed(_search_path(spec)):
        if entry not in sys.path:
            sys.path.insert(0, entry)
    importlib.invalidate_caches()
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # a module may raise anything while it is imported; all of it is the user's to mend
        raise UsageError(
            seen=f"subject {spec.name!r}: module {module_name!r} does not import: {type(error).__name__}: {error}",
            expected="a module that imports, in the current directory, on PYTHONPATH or installed",
            do=f"try: python -c 'import {module_name}'",
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = [name for name in dir(found) if not name.startswith("_") and callable(getattr(found, name))][:10]
            raise UsageError(
                seen=f"subject {spec.name!r}: {module_name!r} has no {attribute!r}",
                expected=f"one of its functions: {', '.join(near) or 'it has none'}",
                do="mend the part after the colon",
            )
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(
            seen=f"subject {spec.name!r} is a {type(found).__name__}",
            expected="a function",
            do="name something that can be called",
        )
    return found


def _search_path(spec: SubjectSpec) -> list[str]:
    """As for `python -m`: the current directory, then PYTHONPATH; a worker was started with other ones."""
    paths = [os.getcwd()]
    for value in (spec.env.get("PYTHONPATH"), os.environ.get("PYTHONPATH")):
        paths.extend(path for path in (value or "").split(os.pathsep) if path)
    return list(dict.fromkeys(os.path.abspath(path) for path in paths))


def _checked(name: str, backend: Callable[..., Any]) -> Callable[..., Any]:
    """The same backend, with a clear word when it returns something that cannot be called."""

    @functools.wraps(backend, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        compiled = backend(*args, **kwargs)
        if not callable(compiled):
            raise _not_callable(name, compiled)
        return compiled

    return call


def _not_callable(name: str, value: object) -> UsageError:
    return UsageError(
        seen=f"subject {name!r} returned a {type(value).__name__}",
        expected="a callable with the calling convention of what it was given",
        do="mend the backend or compiler",
    )
