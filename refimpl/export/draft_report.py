"""What had to be assumed or made up so that a program could be exported as a draft.

Counterpart: torch/export/_draft_export.py DraftExportReport, FailureReport, FailureType
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any


class FailureType(IntEnum):
    """Why the program cannot be exported as it is, or only wrongly."""

    MISSING_FAKE_KERNEL = 1
    DATA_DEPENDENT_ERROR = 2
    GUARD_ADDED = 3
    MISMATCHED_FAKE_KERNEL = 4

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, kw_only=True)
class FailureReport:
    """One of them. `place` is a line of the program; `data` has what the text is made of."""

    failure_type: FailureType
    place: str
    data: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{_TEXTS[self.failure_type].format(**self.data)}\n  at {self.place}"


_TEXTS = {
    FailureType.MISSING_FAKE_KERNEL: (
        "{op} does not say what its results look like. Their sizes were taken for numbers that are known only at run time.\n"
        "  what to do: torch.library.register_fake for it"
    ),
    FailureType.DATA_DEPENDENT_ERROR: (
        "The program's course depends on data: {expr} is {value} for the example inputs. The graph asserts that it is.\n"
        "  what to do: torch._check before it if that always holds, torch.where or torch.cond if not"
    ),
    FailureType.GUARD_ADDED: (
        "What dynamic_shapes promises of sizes does not hold, and was left out of account:\n{reason}\n"
        "  what to do: say what the program asks for, or change the program"
    ),
    FailureType.MISMATCHED_FAKE_KERNEL: (
        "{op} gives something else than it says its results look like: {reason}. What it gives was taken.\n"
        "  what to do: mend the function registered by torch.library.register_fake"
    ),
}


@dataclass(frozen=True, kw_only=True)
class DraftExportReport:
    """All of them, in the order they were met with."""

    failures: Sequence[FailureReport]

    def successful(self) -> bool:
        """Whether the program can be exported as it is."""
        return not self.failures

    def __str__(self) -> str:
        if self.successful():
            return "Nothing had to be assumed: the program can be exported with refimpl.export.export."
        count = len(self.failures)
        listed = "\n\n".join(f"{number}. {failure}" for number, failure in enumerate(self.failures, 1))
        return f"{count} thing{'s' if count > 1 else ''} had to be assumed to export the program:\n\n{listed}\n"
