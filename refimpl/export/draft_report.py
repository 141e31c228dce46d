"""The report of a draft export: the assumptions it made.

Counterpart: torch/export/_draft_export.py DraftExportReport, FailureReport, FailureType
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any


class FailureType(IntEnum):
    """The reason why `export` refuses the program, or exports it wrongly."""

    MISSING_FAKE_KERNEL = 1
    DATA_DEPENDENT_ERROR = 2
    GUARD_ADDED = 3
    MISMATCHED_FAKE_KERNEL = 4

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, kw_only=True)
class FailureReport:
    """One assumption. `place` is a line of the program; `data` has the values for the text."""

    failure_type: FailureType
    place: str
    data: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        times = self.data.get("occurrences", 1)
        again = f" ({times} times; the text is of the first)" if times > 1 else ""
        return f"{_TEXTS[self.failure_type].format(**self.data)}\n  at {self.place}{again}"


_TEXTS = {
    FailureType.MISSING_FAKE_KERNEL: (
        "{op} has no fake kernel. The sizes of its results are unbacked symbols.\n"
        "  what to do: register one with torch.library.register_fake"
    ),
    FailureType.DATA_DEPENDENT_ERROR: (
        "The program depends on data: {expr} is {value} for the example inputs. The graph asserts this value.\n"
        "  what to do: call torch._check before it if that always holds, use torch.where or torch.cond if not"
    ),
    FailureType.GUARD_ADDED: (
        "The program violates the constraints of dynamic_shapes, which were ignored:\n{reason}\n"
        "  what to do: change dynamic_shapes to what the program needs, or change the program"
    ),
    FailureType.MISMATCHED_FAKE_KERNEL: (
        "The fake kernel of {op} is wrong: {reason}. The result of the real kernel was taken.\n"
        "  what to do: fix the function registered by torch.library.register_fake"
    ),
}


@dataclass(frozen=True, kw_only=True)
class DraftExportReport:
    """All assumptions, in the order they were made."""

    failures: Sequence[FailureReport]
    op_profiles: Mapping[str, set[Any]] = field(default_factory=dict)
    """What operators without a right fake kernel were called with and returned, for
    torch._library.fake_profile.unsafe_generate_fake_kernels."""

    def successful(self) -> bool:
        """Whether there are none: `export` takes the program as it is."""
        return not self.failures

    def __str__(self) -> str:
        if self.successful():
            return "No assumptions: the program can be exported with refimpl.export.export."
        count = len(self.failures)
        listed = "\n\n".join(f"{number}. {failure}" for number, failure in enumerate(self.failures, 1))
        return f"The export made {count} assumption{'s' if count > 1 else ''}:\n\n{listed}\n"
