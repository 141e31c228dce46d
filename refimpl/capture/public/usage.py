"""Events of public calls, for whoever wants to know which entry points are used.

Counterpart: torch._C._log_api_usage_once; torch/_utils_internal.py log_export_usage
Differs: sinks can be put in. Without one, events go where torch's own go, which is nowhere but in builds that collect them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from refimpl._torch import log_torch_api_usage_once

_UPSTREAM = ("torch", "_dynamo")
Sink = Callable[[str], object]
# Called with the name of each event, in order.
usage_sinks: list[Sink] = [log_torch_api_usage_once]


def log_api_usage(entry_point: str) -> None:
    """Tells every sink of a call, by upstream's name of what is called. What a sink raises comes out."""
    _tell(".".join((*_UPSTREAM, entry_point)))


def log_export_usage(*, event: str, flags: Iterable[str] = ()) -> None:
    """Tells of an export: the event, with the ways that led to it."""
    _tell(":".join([event, *sorted(flags)]))


def _tell(event: str) -> None:
    for sink in usage_sinks:
        sink(event)
