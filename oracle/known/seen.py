"""Measured results of the programs of known issues, by version of torch and rung. Does not import torch.

`docs/tools/known_issues.py --measure` writes `seen.json` from a sweep's database; it is never edited:

    {"2.13": {"regressions/197829/shifted_slice_copy": {"inductor": [["fail_accuracy", "output: number", "..."]]}}}

An ending is a status, the kind of the difference (`oracle.symptom`) and the symptom as it was printed. A subject has several
endings if a program's result varies.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from oracle.errors import UsageError
from oracle.symptom import symptom_of
from oracle.verdict import Status, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """A measured result of a case."""

    status: Status
    kind: str  # kind of the symptom; "" for a case that agrees
    symptom: str = ""

    @classmethod
    def of(cls, verdict: Verdict) -> Ending:
        seen = symptom_of(verdict)
        return cls(status=verdict.status, kind=seen.kind, symptom=verdict.symptom if seen.kind else "")

    def is_like(self, other: Ending) -> bool:
        """Whether status and kind are the same; numbers and places may differ."""
        return (self.status, self.kind) == (other.status, other.kind)


Endings = Mapping[str, tuple[Ending, ...]]  # by subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Endings by minor version of torch, by case without its subject ("suite/name"), by subject."""

    by_torch: Mapping[str, Mapping[str, Endings]] = field(default_factory=dict)

    @property
    def versions(self) -> tuple[str, ...]:
        """Minor versions of torch that were measured, oldest first: ("2.12", "2.13")."""
        return tuple(sorted(self.by_torch, key=_version_key))

    def measured(self, case: str, torch_version: str) -> Endings:
        """How a case ended on each subject with this version of torch ("2.13.0+cpu"), as far as it was measured."""
        return self.by_torch.get(minor_of(torch_version), {}).get(case, {})

    def endings(self, case: str, torch_version: str) -> Endings:
        """Endings of a case with this version of torch. What the newest measured version showed stands in for other subjects."""
        newest = self.measured(case, self.versions[-1]) if self.versions else {}
        return {**newest, **self.measured(case, torch_version)}

    def has(self, case: str) -> bool:
        """Whether the case was measured with any version of torch."""
        return any(case in by_case for by_case in self.by_torch.values())

    def to_json(self) -> dict[str, dict[str, object]]:
        return {
            minor: {
                case: {
                    subject: [[e.status.value, e.kind, e.symptom] for e in endings]
                    for subject, endings in sorted(by_subject.items())
                }
                for case, by_subject in sorted(by_case.items())
            }
            for minor, by_case in sorted(self.by_torch.items(), key=lambda item: _version_key(item[0]))
        }


def minor_of(torch_version: str) -> str:
    """ "2.13.0+cpu" -> "2.13"."""
    return ".".join(torch_version.split(".")[:2])


def _version_key(minor: str) -> tuple[int, ...]:
    return tuple(int(part) for part in minor.split(".") if part.isdigit())


def load_seen(path: Path) -> Seen:
    """Read the file. Raises UsageError if it does not have the form above."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return Seen(
            by_torch={
                minor: {
                    case: {
                        subject: tuple(
                            Ending(status=Status(word), kind=str(kind), symptom=str(text))
                            for word, kind, text in endings
                        )
                        for subject, endings in by_subject.items()
                    }
                    for case, by_subject in by_case.items()
                }
                for minor, by_case in data.items()
            }
        )
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(
            seen=f"{path}: {error}",
            expected="what docs/tools/known_issues.py --measure writes",
            do="write it again, or restore it from version control",
        ) from error
