"""Subjects given by the user: a torch.compile backend `module:function`, or a compiler `compile:module:function`."""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from torch._dynamo.exc import BackendCompilerFailed

from oracle.errors import UsageError
from oracle.subjects.base import CompileRequest, Counters
from oracle.subjects.spec import SubjectSpec
from oracle.subjects.torch_compile import TorchCompile
from oracle.subjects.version import search_path

_SHOWN_SIGNATURE = 120  # characters


class GivenBackend(TorchCompile):
    """torch.compile with the user's backend `backend(gm, example_inputs) -> callable`, with `options` and `mode` as keywords.

    Raises UsageError for a backend with another signature.
    """

    def __init__(self, spec: SubjectSpec, backend: Callable[..., Any] | None = None) -> None:
        function = import_callable(spec) if backend is None else backend
        keywords = ["mode"] if spec.options.get("mode") not in (None, "default") else []
        keywords += ["options"] if any(key.startswith("options.") for key in spec.options) else []
        _check_signature(
            spec.name,
            function,
            ("graph_module", "example_inputs"),
            dict.fromkeys(keywords),
            do=f"let it take the keyword {' and '.join(keywords)}, or leave the options out"
            if keywords and _takes(function, ("graph_module", "example_inputs"), {})
            else "give a torch.compile backend; a whole compiler, compile(fn) -> callable, is named compile:module:function",
        )
        self.misuse: UsageError | None = None  # set if the backend returns something that is not callable
        super().__init__(spec, self._checked(spec.name, function))

    def _checked(self, name: str, backend: Callable[..., Any]) -> Callable[..., Any]:
        """The backend, with a clear error if it returns something that is not callable."""

        def call(*args: Any, **kwargs: Any) -> Any:
            compiled = backend(*args, **kwargs)
            if not callable(compiled):
                self.misuse = _not_callable(name, compiled)
                raise self.misuse
            return compiled

        functools.update_wrapper(call, backend, updated=())
        if not hasattr(backend, "__name__"):  # an instance or a partial; Dynamo's messages need a name
            call.__name__ = name
        return call

    def compile(self, request: CompileRequest) -> Callable[..., Any]:
        compiled = super().compile(request)

        @functools.wraps(request.target if not hasattr(request.target, "forward") else compiled, updated=())
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return compiled(*args, **kwargs)
            except BackendCompilerFailed as error:
                # Dynamo wraps exceptions of backends. A UsageError in there is the user's mistake, not a finding.
                inner = getattr(error, "inner_exception", None)
                if isinstance(inner, UsageError):
                    raise inner from error
                raise

        return call


class GivenCompiler:
    """The user's compiler `f(fn, *, dynamic=None, **options) -> compiled`, called once for each case."""

    def __init__(self, spec: SubjectSpec) -> None:
        self.spec = spec
        self._compiler = import_callable(spec)
        self.misuse: UsageError | None = None  # set if the compiler returns something that is not callable
        _check_signature(
            spec.name,
            self._compiler,
            ("fn",),
            {"dynamic": None, **spec.options},
            do="take `dynamic` (None, True or False) and the options as keywords; "
            "a torch.compile backend is named module:function",
        )
        self._compiled = 0

    def reset(self) -> None:
        """Calls the compiler's own `reset()` if it has one."""
        self._compiled = 0
        own_reset = getattr(self._compiler, "reset", None)
        if callable(own_reset):
            own_reset()

    def compile(self, request: CompileRequest) -> Callable[..., Any]:
        """Raises UsageError if the compiler returns something that is not callable."""
        options = {"dynamic": request.dynamic, **self.spec.options}
        compiled = self._compiler(request.target, **options)
        if not callable(compiled):
            self.misuse = _not_callable(self.spec.name, compiled)
            raise self.misuse
        self._compiled += 1
        return compiled

    def counters(self) -> Counters:
        """Nothing is known of the user's compiler."""
        return Counters()


def import_callable(spec: SubjectSpec) -> Callable[..., Any]:
    """The object at `spec.path`, which may be in the current directory or on PYTHONPATH.

    Raises UsageError if the module does not import, has no such attribute, or the attribute is not callable.
    """
    module_name, _, attribute = spec.path.partition(":")
    for entry in reversed(search_path(spec)):
        if entry not in sys.path:
            sys.path.insert(0, entry)
    importlib.invalidate_caches()
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # importing runs the user's code, which may raise anything
        raise UsageError(
            seen=f"subject {spec.name!r}: module {module_name!r} does not import: {type(error).__name__}: {error}",
            expected="a module that imports, in the current directory, on PYTHONPATH or installed",
            do=f"write {module_name.removesuffix('.py')}:{attribute}: a module's name, without .py"
            if module_name.endswith(".py")
            else f"try: python -c 'import {module_name}'",
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            names = [name for name in dir(found) if not name.startswith("_") and callable(getattr(found, name))]
            near = difflib.get_close_matches(part, names, n=3)
            at = getattr(sys.modules[module_name], "__file__", None)
            raise UsageError(
                seen=f"subject {spec.name!r}: {module_name!r}{f' ({at})' if at else ''} has no {attribute!r}",
                expected=f"one of its functions: {', '.join(names[:10]) or 'it has none'}",
                do=f"did you mean {' or '.join(near)}?" if near else "correct the part after the colon",
            )
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(
            seen=f"subject {spec.name!r} is of type {type(found).__name__}",
            expected="a function",
            do="name something that can be called",
        )
    return found


def _check_signature(
    name: str, function: Callable[..., Any], positions: tuple[str, ...], keywords: Mapping[str, Any], *, do: str
) -> None:
    """Raise UsageError unless the function takes these arguments. Functions of unknown signature are accepted."""
    if _takes(function, positions, keywords):
        return
    taken = ", ".join((*positions, *(f"{key}=..." for key in keywords)))
    shown = textwrap.shorten(str(inspect.signature(function)), _SHOWN_SIGNATURE, placeholder=" ...")
    raise UsageError(seen=f"subject {name!r} takes {shown}", expected=f"a function that is called as f({taken})", do=do)


def _takes(function: Callable[..., Any], positions: tuple[str, ...], keywords: Mapping[str, Any]) -> bool:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*positions, **keywords)
    except TypeError:
        return False
    return True


def _not_callable(name: str, value: object) -> UsageError:
    return UsageError(
        seen=f"subject {name!r} returned {'None' if value is None else f'a value of type {type(value).__name__}'}",
        expected="a callable with the calling convention of what it was given",
        do="correct the backend or compiler",
    )
