"""A record of each time that something is captured, or a backward graph compiled; the newest ones are kept.

Counterpart: torch/_dynamo/utils.py CompilationMetrics, BwdCompilationMetrics, record_compilation_metrics
Differs: fields of what is not here (inductor, code that is generated) are None; there is no restart that costs time of its own
but that of attempts that stop earlier.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections import deque
from dataclasses import dataclass, fields
from typing import Any

from refimpl.capture.config import config

_LOG = logging.getLogger("refimpl.capture")
LIMIT = 64
_IDS = itertools.count()


@dataclass(frozen=True, kw_only=True)
class CompilationMetrics:
    """One segment that was made, or could not be."""

    compile_id: int
    frame_key: str
    """The place in the code, as text: what `cache_size` counts."""
    co_name: str
    co_filename: str
    co_firstlineno: int
    cache_size: int
    """Segments of the same place there were before."""
    accumulated_cache_size: int
    """Segments of all places of the code there were before."""
    start_time: float
    """Seconds since the epoch."""
    entire_frame_compile_time_s: float
    backend_compile_time_s: float
    inductor_compile_time_s: float | None = None
    code_gen_time_s: float | None = None
    has_guarded_code: bool
    """Whether there is a segment."""
    guard_count: int = 0
    shape_env_guard_count: int = 0
    """Of these, relations between sizes that are symbols."""
    graph_op_count: int = 0
    graph_node_count: int = 0
    graph_input_count: int = 0
    fail_type: str | None = None
    fail_reason: str | None = None
    fail_user_frame_filename: str | None = None
    fail_user_frame_lineno: int | None = None
    non_compliant_ops: frozenset[str] = frozenset()
    """Operators of libraries in the graph that are not tagged to be fit for compilers."""
    compliant_custom_ops: frozenset[str] = frozenset()
    """Those that are."""
    restart_reasons: tuple[str, ...] = ()
    """Why the segment ends before the function does."""
    dynamo_time_before_restart_s: float = 0.0
    """Seconds of attempts that led to an earlier end."""

    def structured(self) -> dict[str, Any]:
        """The record for a structured trace: what JSON knows; sets are sorted lists."""
        return _structured(self)


@dataclass(frozen=True, kw_only=True)
class BwdCompilationMetrics:
    """One backward graph that was compiled, or could not be."""

    compile_id: int
    inductor_compile_time_s: float | None = None
    code_gen_time_s: float | None = None
    fail_type: str | None = None
    fail_reason: str | None = None

    def structured(self) -> dict[str, Any]:
        """The same, for a structured trace."""
        return _structured(self)


def _structured(metrics: CompilationMetrics | BwdCompilationMetrics) -> dict[str, Any]:
    values = {field.name: getattr(metrics, field.name) for field in fields(metrics)}
    return {
        name: sorted(value)
        if isinstance(value, (set, frozenset))
        else list(value)
        if isinstance(value, tuple)
        else value
        for name, value in values.items()
    }


Metrics = CompilationMetrics | BwdCompilationMetrics
_KEPT: deque[Metrics] = deque(maxlen=LIMIT)


def next_compile_id() -> int:
    """A number that no record has yet."""
    return next(_IDS)


def record_compilation_metrics(metrics: Metrics) -> None:
    """Keeps a record; the oldest goes where there are too many. Under `config.log_compilation_metrics` it is logged."""
    _KEPT.append(metrics)
    if config.log_compilation_metrics and _LOG.isEnabledFor(logging.DEBUG):
        _LOG.debug("compilation metrics: %s", json.dumps(metrics.structured(), default=str))


def get_compilation_metrics() -> list[Metrics]:
    """The records, oldest first."""
    return list(_KEPT)


def clear_compilation_metrics() -> None:
    """Forgets them."""
    _KEPT.clear()


def set_compilation_metrics_limit(new_size: int) -> None:
    """How many are kept from now on. The newest stay."""
    global _KEPT
    _KEPT = deque(list(_KEPT)[-new_size:] if new_size else [], maxlen=new_size)
