"""Compilation metrics: a record of each capture of a segment and each compiled backward graph. The newest are kept.

Counterpart: torch/_dynamo/utils.py CompilationMetrics, BwdCompilationMetrics, record_compilation_metrics
Differs: fields about inductor and generated code are None. The only restarts are attempts that end earlier.
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
    """One attempt to capture a segment, successful or not."""

    compile_id: int
    frame_key: str
    """The place in the code, as text; `cache_size` counts its segments."""
    co_name: str
    co_filename: str
    co_firstlineno: int
    cache_size: int
    """Segments of this place before this one."""
    accumulated_cache_size: int
    """Segments of all places of the code before this one."""
    start_time: float
    """Seconds since the epoch."""
    entire_frame_compile_time_s: float
    backend_compile_time_s: float
    inductor_compile_time_s: float | None = None
    code_gen_time_s: float | None = None
    has_guarded_code: bool
    """Whether a segment was captured."""
    guard_count: int = 0
    shape_env_guard_count: int = 0
    """How many of these are relations between symbols."""
    graph_op_count: int = 0
    graph_node_count: int = 0
    graph_input_count: int = 0
    fail_type: str | None = None
    fail_reason: str | None = None
    fail_user_frame_filename: str | None = None
    fail_user_frame_lineno: int | None = None
    non_compliant_ops: frozenset[str] = frozenset()
    """Custom operators in the graph without the tag `pt2_compliant_tag`."""
    compliant_custom_ops: frozenset[str] = frozenset()
    """Custom operators with that tag."""
    restart_reasons: tuple[str, ...] = ()
    """Reasons for the graph breaks."""
    dynamo_time_before_restart_s: float = 0.0
    """Time of attempts that only found out where the segment has to end."""

    def structured(self) -> dict[str, Any]:
        """The record as JSON values; sets become sorted lists."""
        return _structured(self)


@dataclass(frozen=True, kw_only=True)
class BwdCompilationMetrics:
    """One attempt to compile a backward graph."""

    compile_id: int
    inductor_compile_time_s: float | None = None
    code_gen_time_s: float | None = None
    fail_type: str | None = None
    fail_reason: str | None = None

    def structured(self) -> dict[str, Any]:
        """The record as JSON values."""
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
    """The next unused id."""
    return next(_IDS)


def record_compilation_metrics(metrics: Metrics) -> None:
    """Adds a record and drops the oldest if there are too many. Under `config.log_compilation_metrics` it is logged."""
    _KEPT.append(metrics)
    if config.log_compilation_metrics and _LOG.isEnabledFor(logging.DEBUG):
        _LOG.debug("compilation metrics: %s", json.dumps(metrics.structured(), default=str))


def get_compilation_metrics() -> list[Metrics]:
    """The records, oldest first."""
    return list(_KEPT)


def clear_compilation_metrics() -> None:
    """Removes all records."""
    _KEPT.clear()


def set_compilation_metrics_limit(new_size: int) -> None:
    """Sets how many records are kept; the newest stay."""
    global _KEPT
    _KEPT = deque(list(_KEPT)[-new_size:] if new_size else [], maxlen=new_size)
