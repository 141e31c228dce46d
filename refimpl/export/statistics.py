"""Statistics of exported programs, and events of exports: start, duration, error.

Counterpart: torch/export/_trace.py get_ep_stats, _log_export_wrapper
Differs: events go to registered listeners and to the logger `refimpl.export`.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import fx

_LOG = logging.getLogger("refimpl.export")


class Program(Protocol):
    """The part of ExportedProgram that this module uses."""

    @property
    def graph_module(self) -> fx.GraphModule: ...


@dataclass(frozen=True, kw_only=True)
class ExportEvent:
    """`name` is export.enter, export.time or export.error. `flags` are the mode of the export."""

    name: str
    flags: frozenset[str]
    data: Mapping[str, Any] = field(default_factory=dict)


Listener = Callable[[ExportEvent], None]
_LISTENERS: contextvars.ContextVar[tuple[Listener, ...]] = contextvars.ContextVar(
    "refimpl_export_listeners", default=()
)
_RUNNING: contextvars.ContextVar[Export | None] = contextvars.ContextVar("refimpl_running_export", default=None)


@dataclass(frozen=True, kw_only=True)
class Export:
    """A running export: its flags, and the class of each module by its full name."""

    flags: frozenset[str]
    hierarchy: Mapping[str, str]


def get_ep_stats(program: Program) -> dict[str, Any]:
    """`op_count`, the number of calls in all graphs, and `op_set`, the names of their targets as module.name."""
    calls = [
        node.target
        for module in program.graph_module.modules()
        if isinstance(module, fx.GraphModule)
        for node in module.graph.nodes
        if node.op == "call_function"
    ]
    return {"op_count": len(calls), "op_set": {f"{target.__module__}.{target.__name__}" for target in calls}}


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """A context in which the listener is called for every export event of this thread."""
    token = _LISTENERS.set((*_LISTENERS.get(), listener))
    try:
        yield
    finally:
        _LISTENERS.reset(token)


def running_export() -> Export | None:
    """The innermost running export of this thread."""
    return _RUNNING.get()


@contextlib.contextmanager
def logged(mod: torch.nn.Module, flags: frozenset[str]) -> Iterator[Callable[[Program], None]]:
    """A context for a running export. Yields a function to call with the program. Logs errors and raises them again."""
    modules = mod.named_modules(remove_duplicate=False) if isinstance(mod, torch.nn.Module) else ()
    hierarchy = {name: type(module).__name__ for name, module in modules}
    token = _RUNNING.set(Export(flags=flags, hierarchy=hierarchy))
    start = time.perf_counter()

    def done(program: Program) -> None:
        _tell("export.time", flags, seconds=time.perf_counter() - start, **get_ep_stats(program))

    try:
        _tell("export.enter", flags)
        yield done
    except Exception as error:
        kind = type(error)
        _tell("export.error", flags, type=f"{kind.__module__}.{kind.__qualname__}", message=str(error))
        raise
    finally:
        _RUNNING.reset(token)


def _tell(name: str, flags: frozenset[str], **data: Any) -> None:
    listeners = _LISTENERS.get()
    if not listeners and not _LOG.isEnabledFor(logging.DEBUG):
        return
    event = ExportEvent(name=name, flags=flags, data=data)
    _LOG.debug("%s %s %s", name, sorted(flags), data)
    for listener in listeners:
        listener(event)
