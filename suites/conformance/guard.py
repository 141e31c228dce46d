"""Forbids calls from frames of refimpl into the code that it is compared with.

The rule is docs/adr/0001-independence.md. Only calls made directly by a frame of refimpl's source count; calls made by torch's
public functions, `FakeTensorMode` or the test itself do not. Allowed, each with its reason:

* constructing exception types of upstream, since callers catch them by type;
* methods of public classes that live elsewhere: the operators of `torch.SymInt`, `SymFloat` and `SymBool` are functions of
  `sym_node.py`, and `torch.nn.Module` has a constructor of `torch._dynamo` once a test has used that; and those of the nodes
  of symbolic numbers, where a test makes fake tensors with upstream's `ShapeEnv` and hands them over;
* single public functions that the runner names: `torch.func.functional_call`, which swaps a module's parameters and is
  nothing that refimpl has a counterpart of; and what a test hands over: compilers such as `functorch.compile.nop`, and as a
  program what a transform of `torch.func` returned (the transforms themselves are forbidden);
* the modules of the harness that a suite names: they are part of the tests, which hand over compilers of theirs;
* finalisers and weak reference callbacks, which the garbage collector may call between any two instructions;
* `__torch_dispatch__` and `__torch_function__` of a mode or subclass, which the dispatcher calls, not refimpl.

A breach raises in the frame that is about to run, and is noted, in case something catches it: the test ends as `breach`.

From Python 3.12 on `sys.monitoring` watches function starts and drops every code object that is not forbidden after its
first start. Before that it is a profile function, which sees every call; that costs CPU time.
"""

from __future__ import annotations

import inspect
import sys
import types
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_FORBIDDEN = (
    "_dynamo/",
    "_functorch/",
    "_inductor/",
    "_export/",
    "export/",
    "compiler/",
    "fx/experimental/",
    "_subclasses/functional_tensor.py",
    "_subclasses/functional_tensor/",
)
_TRANSFORMS = ("_functorch/apis.py", "_functorch/eager_transforms.py")
_CALLED_BY_OTHERS = ("__torch_dispatch__", "__torch_function__", "__del__")


class IndependenceBreach(Exception):
    """A frame of refimpl called into what refimpl is compared with."""

    def __init__(self, caller: types.FrameType, called: types.CodeType) -> None:
        super().__init__(
            f"refimpl calls {_place(called)}, from {caller.f_code.co_name} in "
            f"{caller.f_code.co_filename}:{caller.f_lineno}; docs/adr/0001-independence.md forbids it"
        )


class IndependenceGuard:
    """Watches this thread. `breaches` holds what was seen since `watch` was last entered."""

    def __init__(
        self,
        *,
        torch_folder: Path,
        refimpl_folder: Path,
        forbidden_functions: tuple[Any, ...] = (),
        allowed_functions: tuple[Any, ...] = (),
        allowed_files: tuple[str, ...] = (),
        public_classes: tuple[type, ...] = (),
    ) -> None:
        """
        forbidden_functions: single functions of modules that are not forbidden, such as `torch.compile`.
        allowed_functions: single functions of modules that are.
        allowed_files: whole modules, of those that are.
        public_classes: whose methods are allowed, wherever they are written.
        """
        self._transforms = tuple(f"{torch_folder}/{file}" for file in _TRANSFORMS)
        self._forbidden = tuple(f"{torch_folder}/{part}" for part in _FORBIDDEN)
        self._allowed_files = frozenset(allowed_files)
        self._public_classes = public_classes
        self._refimpl = f"{refimpl_folder}/"
        self._codes = {function.__code__ for function in forbidden_functions}
        self._is_forbidden: dict[types.CodeType, bool] = {function.__code__: False for function in allowed_functions}
        self.breaches: list[str] = []

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Raises IndependenceBreach into the code under it."""
        self.breaches = []
        if sys.version_info >= (3, 12):
            with self._monitored():
                yield
            return
        sys.setprofile(self._on_profile_event)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _on_profile_event(self, frame: types.FrameType, event: str, argument: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        forbidden = self._is_forbidden.get(code)
        if forbidden is None:
            forbidden = self._judge(code)
        if forbidden:
            self._check(frame)

    @contextmanager
    def _monitored(self) -> Iterator[None]:
        monitoring: Any = getattr(sys, "monitoring")  # Python 3.12 has it, the type checker's oldest version has not

        def on_start(code: types.CodeType, offset: int) -> object:
            forbidden = self._is_forbidden.get(code)
            if forbidden is None:
                forbidden = self._judge(code)
            if not forbidden:
                return monitoring.DISABLE
            self._check(sys._getframe(1))
            return None

        tool = monitoring.PROFILER_ID
        monitoring.use_tool_id(tool, "torch-oracle conformance")
        monitoring.register_callback(tool, monitoring.events.PY_START, on_start)
        monitoring.set_events(tool, monitoring.events.PY_START)
        monitoring.restart_events()  # what the last guard of this tool allowed is not reported otherwise
        try:
            yield
        finally:
            monitoring.set_events(tool, 0)
            monitoring.register_callback(tool, monitoring.events.PY_START, None)
            monitoring.free_tool_id(tool)

    def _judge(self, code: types.CodeType) -> bool:
        name = code.co_filename
        if name.startswith("<"):  # generated, such as a graph's forward: there is no end to them, so none is kept
            return False
        forbidden = (name.startswith(self._forbidden) and name not in self._allowed_files) or code in self._codes
        if forbidden and (code.co_name in _CALLED_BY_OTHERS or self._is_public_method(code)):
            forbidden = False
        if (
            name in self._transforms and code.co_flags & inspect.CO_NESTED
        ):  # what a transform returns, not the transform
            forbidden = False
        self._is_forbidden[code] = forbidden
        return forbidden

    def _is_public_method(self, code: types.CodeType) -> bool:
        methods = (method for kind in self._public_classes for method in vars(kind).values())
        functions = (method.fget if isinstance(method, property) else method for method in methods)
        return any(getattr(function, "__code__", None) is code for function in functions)

    def _check(self, frame: types.FrameType) -> None:
        caller = frame.f_back
        if caller is None or not caller.f_code.co_filename.startswith(self._refimpl):
            return
        first = frame.f_locals.get(frame.f_code.co_varnames[0]) if frame.f_code.co_varnames else None
        if isinstance(first, BaseException) or (isinstance(first, weakref.ref) and first() is None):
            return
        breach = IndependenceBreach(caller, frame.f_code)
        self.breaches.append(str(breach))
        raise breach


def _place(code: types.CodeType) -> str:
    path = Path(code.co_filename)
    return f"{getattr(code, 'co_qualname', code.co_name)} in {'/'.join(path.parts[-3:])}"
