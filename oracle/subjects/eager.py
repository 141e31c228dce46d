"""The subject `eager`: the program itself. Its findings are false alarms of the judge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oracle.subjects.base import CompileRequest, Counters
from oracle.subjects.spec import SubjectSpec


class Eager:
    """Returns the target unchanged."""

    def __init__(self, spec: SubjectSpec) -> None:
        self.spec = spec

    def reset(self) -> None:
        """Does nothing: no state is kept between cases."""

    def compile(self, request: CompileRequest) -> Callable[..., Any]:
        return request.target

    def counters(self) -> Counters:
        return Counters()
