"""The subject `eager`: the program as it is. Judged against eager's own runs, it shows what the judge says of noise."""

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
        """Nothing is kept between cases."""

    def compile(self, request: CompileRequest) -> Callable[..., Any]:
        return request.target

    def counters(self) -> Counters:
        return Counters()
