"""Usage events of the public functions.

Counterpart: torch._C._log_api_usage_once; torch/_utils_internal.py log_export_usage
Differs: sinks can be added. Without one, events go where torch's own go: nowhere, except in builds that collect them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from refimpl._torch import log_torch_api_usage_once

_UPSTREAM = ("torch", "_dynamo")
Sink = Callable[[str], object]
# Called with the name of each event, in order.
usage_sinks: list[Sink] = [log_torch_api_usage_once]


def log_api_usage(entry_point: str) -> None:
    """Reports a call to every sink, under upstream's name of the function. Errors of a sink are raised."""
    _tell(".".join((*_UPSTREAM, entry_point)))


def log_export_usage(*, event: str, flags: Iterable[str] = ()) -> None:
    """Reports an export: the event, and the flags that say how it was reached."""
    _tell(":".join([event, *sorted(flags)]))


def _tell(event: str) -> None:
    for sink in usage_sinks:
        sink(event)
