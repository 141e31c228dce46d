"""The options of a campaign, with a JSON round trip. Does not import torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from oracle.subjects.spec import SubjectSpec

BATCH_SIZE = 16  # programs in one compile, for subjects that call a C++ compiler
BATCHED_BLOCK = 480  # batches are formed among this many programs, enough of each kind of call plan
BATCHED_ROUND = 960
SINGLES_EVERY = 10  # for batched subjects each tenth program is compiled alone, since a batch is fused differently
_PROCESSES_A_WORKER = 10  # for inductor: with more processes, more kernels share a call of the C++ compiler
PROCESS_BYTES = 768 * 2**20  # memory of one process; there are fewer processes if the machine has less
INDUCTOR_CHUNK = 5  # programs of one task; small, so that all processes end at about the same time
TRIAL_PROGRAMS = 10  # judged first, one by one: does the subject work at all?


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignSettings:
    """All options of one campaign."""

    subject: SubjectSpec
    focus: str = "all"
    seed: int = 0
    max_statements: int = 6
    count: int | None = None  # programs in all, including earlier runs; None: no limit
    time_s: float | None = None  # of this run
    workers: int = 1
    threads: int = 1
    case_timeout_s: float = 60.0
    memory_bytes: int = 4 * 2**30
    reduces: bool = True
    reduction_s: float = 30.0
    batch_size: int = 1
    chunk: int = 20  # programs of one task
    round_size: int = 400  # programs drawn with the same weights
    block: int = 400  # programs begun at a time
    subjects_file: str = ""  # the file that defines the subject, for the commands that are printed

    @property
    def is_inductor(self) -> bool:
        return is_inductor(self.subject)

    @property
    def processes(self) -> int:
        """Worker processes; no more than `workers` of them run at a time, the others wait for their kernels."""
        if not self.is_inductor:
            return self.workers
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return max(self.workers, min(_PROCESSES_A_WORKER * self.workers, memory // PROCESS_BYTES))

    def is_scalar(self, number: int) -> bool:
        """Whether inductor compiles this program without vector instructions: true for every second block."""
        return self.is_inductor and number // self.block % 2 == 1

    def identity(self) -> dict[str, Any]:
        """The options that determine which programs are drawn and judged. A corpus belongs to one such set."""
        return {
            "subject": self.subject.name,
            "focus": self.focus,
            "seed": self.seed,
            "max_statements": self.max_statements,
            "round_size": self.round_size,
            "block": self.block,
        }

    def grammar_settings(self) -> dict[str, Any]:
        """Fields of `fuzz.draw.settings.Settings`, without the steering."""
        return {"focus": self.focus, "max_statements": self.max_statements}

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "subject": self.subject.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CampaignSettings:
        return cls(**{**data, "subject": SubjectSpec.from_json(data["subject"])})


def default_batch_size(subject: SubjectSpec) -> int:
    """More than 1 for inductor, where compiling is expensive."""
    return BATCH_SIZE if is_inductor(subject) else 1


def is_inductor(subject: SubjectSpec) -> bool:
    """Whether the subject compiles C++ kernels."""
    return subject.kind == "torch_compile" and subject.options.get("backend") == "inductor"
