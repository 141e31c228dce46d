"""Backends as `get_compiler_fn` gives them: under `config.repro_after == "dynamo"`, a script is written where one fails.

Counterpart: torch/_dynamo/repro/after_dynamo.py wrap_backend_debug, WrapBackendDebug
Differs: the backend gets a copy of the graph that has the same parameters and constants. Trying a graph draws no random numbers.
If a script cannot be written, the log says so, and the backend's error is raised.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from refimpl.capture.config import config
from refimpl.capture.public.cloning import preserve_rng_state
from refimpl.capture.repro.accuracy import AccuracyError, backend_accuracy_fails, run_fwd_maybe_bwd
from refimpl.capture.repro.minifier import copied_graph
from refimpl.capture.repro.scripts import launcher, write_launcher, write_repro

_LOG = logging.getLogger("refimpl.capture")
_STAGES = (None, "dynamo", "aot")
_DUMP, _MINIFY_ON_ERROR, _ALWAYS_MINIFY, _MINIFY_ON_DIFFERENCE = 1, 2, 3, 4  # values of config.repro_level


class DebuggedBackend:
    """A backend and its name. It has the attributes of the backend, such as `reset` and `backend_ctx_ctor`."""

    def __init__(self, backend: Callable[..., Any], compiler_name: str | None) -> None:
        self._torchdynamo_orig_backend = backend
        self.compiler_name = compiler_name
        functools.update_wrapper(self, backend, updated=())
        if isinstance(name := getattr(backend, "compiler_name", None), str):
            self.__name__ = name

    def __getattr__(self, name: str) -> Any:
        if name in ("_torchdynamo_orig_backend", "__setstate__"):  # not there yet, while a copy is made
            raise AttributeError(name)
        return getattr(self._torchdynamo_orig_backend, name)

    def __eq__(self, other: object) -> bool:
        """Whether it is the same backend by the same name."""
        if not isinstance(other, DebuggedBackend):
            return NotImplemented
        return (id(self._torchdynamo_orig_backend), self.compiler_name) == (
            id(other._torchdynamo_orig_backend),
            other.compiler_name,
        )

    def __hash__(self) -> int:
        return hash((id(self._torchdynamo_orig_backend), self.compiler_name))

    def __reduce__(self) -> Any:
        return type(self), (self._torchdynamo_orig_backend, self.compiler_name)

    def __repr__(self) -> str:
        return repr(self._torchdynamo_orig_backend)

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
        """What the backend makes of the graph. Raises AssertionError for an unknown value of `config.repro_after`."""
        compiler: Callable[..., Any] = functools.partial(self._torchdynamo_orig_backend, **options)
        stage = config.repro_after
        assert stage in _STAGES, f"repro_after must be 'dynamo', 'aot', or None, got {stage!r}"
        if stage != "dynamo":
            return compiler(gm, example_inputs)
        if config.repro_level == _MINIFY_ON_DIFFERENCE:
            return self._compared(gm, example_inputs, compiler)
        return self._tried(gm, example_inputs, compiler)

    def _tried(self, gm: fx.GraphModule, example_inputs: Sequence[Any], compiler: Callable[..., Any]) -> Any:
        """Compiles the graph and runs it once. An error is written to a script, as `config.repro_level` says, and raised."""
        if config.repro_level == _ALWAYS_MINIFY:
            self._write(write_launcher, gm, example_inputs)
        try:
            compiled = compiler(copied_graph(gm), example_inputs)
            with preserve_rng_state():
                run_fwd_maybe_bwd(compiled, example_inputs)
        except Exception as error:
            if config.repro_level == _DUMP:
                self._write(write_repro, gm, example_inputs)
            elif config.repro_level == _MINIFY_ON_ERROR:
                self._write(write_launcher, gm, example_inputs)
            setattr(error, "minifier_path", launcher())
            raise
        return compiled

    def _compared(self, gm: fx.GraphModule, example_inputs: Sequence[Any], compiler: Callable[..., Any]) -> Any:
        """Compiles the graph. Raises AccuracyError if that computes other values, after a script for it is written."""
        compiled = compiler(copied_graph(gm), example_inputs)
        with preserve_rng_state():
            is_wrong = backend_accuracy_fails(
                gm, example_inputs, compiler, only_fwd=config.repro_forward_only,
                ignore_non_fp=config.repro_ignore_non_fp,
            )  # fmt: skip
        if is_wrong:
            self._write(functools.partial(write_launcher, is_accuracy=True), gm, example_inputs)
            error = AccuracyError(
                f"Bad accuracy detected: the backend {self.__name__!r} computes other values than the graph"
            )
            setattr(error, "minifier_path", launcher())
            raise error
        return compiled

    def _write(self, write: Callable[..., str], gm: fx.GraphModule, example_inputs: Sequence[Any]) -> None:
        try:
            path = write(copied_graph(gm), example_inputs, self.compiler_name)
        except Exception:  # must not hide the backend's error
            _LOG.exception("the script that shows the failure of a graph cannot be written")
        else:
            _LOG.warning("a script that shows the failure of a graph is written to %s", path)


def innermost_backend(backend: Any) -> Any:
    """The backend as it was given to `compile`."""
    while isinstance(backend, DebuggedBackend):
        backend = backend._torchdynamo_orig_backend
    return backend


def wrap_backend_debug(unconfigured_compiler_fn: Callable[..., Any], compiler_name: str | None) -> DebuggedBackend:
    """The backend, watched as `config.repro_after` says; upstream's name for it."""
    return DebuggedBackend(innermost_backend(unconfigured_compiler_fn), compiler_name)
