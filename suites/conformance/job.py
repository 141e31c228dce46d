"""The job of a worker process: which tests of which tree to run, and which substitutes to use."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

JOB_VARIABLE = "TORCH_ORACLE_CONFORMANCE_JOB"
STOCK, STAND_IN, REFIMPL = "torch", "stand-in", "refimpl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One pass over one suite; passed to the workers in their environment."""

    tests_folder: str
    suite: str
    subject: str
    is_guarded: bool

    def to_variable(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_variable(cls, text: str) -> Job:
        return cls(**json.loads(text))
