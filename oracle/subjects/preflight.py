"""Preflight: load a subject given by path and compile a tiny function with it, before a run is planned.

A path that does not import, that names nothing callable, or whose function returns nothing callable is a mistake in the command
line. It is reported once at the start, instead of one failed case for each program. A subject that crashes, hangs or raises is
a finding, which the run reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from oracle.errors import UsageError
from oracle.subjects.base import CompileRequest
from oracle.subjects.registry import load
from oracle.subjects.spec import SubjectSpec


def probe(payload: Mapping[str, Any], progress: Callable[[str], None]) -> dict[str, Any]:
    """Task function: {"subject": SubjectSpec} -> {} or {"usage_error": {...}}."""
    progress("preflight")
    spec = SubjectSpec.from_json(payload["subject"])
    try:
        subject = load(spec)
        subject.reset()
        x = torch.ones(2)
        subject.compile(CompileRequest(target=_tiny, args=(x,)))(x)
    except Exception as error:  # the process edge; errors that are not the user's mistake are left to the run
        for cause in _chain(error):
            if isinstance(cause, UsageError):
                return {"usage_error": {"seen": cause.seen, "expected": cause.expected, "do": cause.do}}
    return {}


def _tiny(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes; torch stores a backend's own error in `inner_exception`."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        found = waiting.pop(0)
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        waiting += [found.__cause__, found.__context__, getattr(found, "inner_exception", None)]
