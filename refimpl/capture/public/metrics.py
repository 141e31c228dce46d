"""A record of each time that something is captured, the newest ones kept.

Counterpart: torch/_dynamo/utils.py CompilationMetrics, record_compilation_metrics, get_compilation_metrics
Differs: the fields that capture here has something to say of.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass

LIMIT = 64
_IDS = itertools.count()


@dataclass(frozen=True, kw_only=True)
class CompilationMetrics:
    """One segment that was made, or could not be."""

    compile_id: int
    co_name: str
    co_filename: str
    co_firstlineno: int
    cache_size: int
    """Segments of the same place there were before."""
    start_time: float
    """Seconds since the epoch."""
    entire_frame_compile_time_s: float
    backend_compile_time_s: float
    has_guarded_code: bool
    """Whether there is a segment."""
    guard_count: int = 0
    graph_op_count: int = 0
    graph_node_count: int = 0
    graph_input_count: int = 0
    fail_type: str | None = None
    fail_reason: str | None = None
    restart_reasons: tuple[str, ...] = ()
    """Why the segment ends before the function does."""


_KEPT: deque[CompilationMetrics] = deque(maxlen=LIMIT)


def next_compile_id() -> int:
    """A number that no record has yet."""
    return next(_IDS)


def record_compilation_metrics(metrics: CompilationMetrics) -> None:
    """Keeps a record; the oldest goes where there are too many."""
    _KEPT.append(metrics)


def get_compilation_metrics() -> list[CompilationMetrics]:
    """The records, oldest first."""
    return list(_KEPT)


def clear_compilation_metrics() -> None:
    """Forgets them."""
    _KEPT.clear()


def set_compilation_metrics_limit(new_size: int) -> None:
    """How many are kept from now on. The newest stay."""
    global _KEPT
    _KEPT = deque(list(_KEPT)[-new_size:] if new_size else [], maxlen=new_size)
