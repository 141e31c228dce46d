"""What an exported program is made of, and a log of exports: when one began, how long it took, how it failed.

Counterpart: torch/export/_trace.py get_ep_stats, _log_export_wrapper
Differs: events go to functions that listen, and to the logger `refimpl.export`; there is no service to send them to.
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
    """What of an ExportedProgram is counted."""

    @property
    def graph_module(self) -> fx.GraphModule: ...


@dataclass(frozen=True, kw_only=True)
class ExportEvent:
    """`name` is export.enter, export.time or export.error. `flags` say how the program is exported."""

    name: str
    flags: frozenset[str]
    data: Mapping[str, Any] = field(default_factory=dict)


Listener = Callable[[ExportEvent], None]
_LISTENERS: contextvars.ContextVar[tuple[Listener, ...]] = contextvars.ContextVar(
    "refimpl_export_listeners", default=()
)
_UNDER_WAY: contextvars.ContextVar[Export | None] = contextvars.ContextVar("refimpl_export_under_way", default=None)


@dataclass(frozen=True, kw_only=True)
class Export:
    """One that is under way: its flags, and the classes of the modules by their full names."""

    flags: frozenset[str]
    hierarchy: Mapping[str, str]


def get_ep_stats(program: Program) -> dict[str, Any]:
    """`op_count`, the number of calls in all graphs, and `op_set`, the names of what is called, as module.name."""
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
    """Within it the function is told of every event of exports in this thread."""
    token = _LISTENERS.set((*_LISTENERS.get(), listener))
    try:
        yield
    finally:
        _LISTENERS.reset(token)


def export_under_way() -> Export | None:
    """The innermost export that this thread is in the middle of."""
    return _UNDER_WAY.get()


@contextlib.contextmanager
def logged(mod: torch.nn.Module, flags: frozenset[str]) -> Iterator[Callable[[Program], None]]:
    """Within it an export is under way. Gives what is to be told of the program. Errors are logged and go on."""
    modules = mod.named_modules(remove_duplicate=False) if isinstance(mod, torch.nn.Module) else ()
    hierarchy = {name: type(module).__name__ for name, module in modules}
    token = _UNDER_WAY.set(Export(flags=flags, hierarchy=hierarchy))
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
        _UNDER_WAY.reset(token)


def _tell(name: str, flags: frozenset[str], **data: Any) -> None:
    listeners = _LISTENERS.get()
    if not listeners and not _LOG.isEnabledFor(logging.DEBUG):
        return
    event = ExportEvent(name=name, flags=flags, data=data)
    _LOG.debug("%s %s %s", name, sorted(flags), data)
    for listener in listeners:
        listener(event)
