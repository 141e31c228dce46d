"""The output of `torch-oracle metadata`: a row for each case, and a table by operator and field. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from suites.traces.records import TraceCase

AGREES = "agrees"
DIFFERS = "differs"
NOT_COMPARABLE = "not_comparable"  # eager raises
NOT_FINDINGS = frozenset({AGREES, NOT_COMPARABLE})

# Kinds of differences.
FIELDS: Mapping[str, str] = {
    "raises": "the fake kernel raises where the real one returns",
    "results": "another number of tensors",
    "shape": "another shape",
    "dtype": "another dtype",
    "stride": "other strides, along dimensions of two elements or more",
    "stride_unused": "other strides, but only where they address nothing: along sizes of one, or in empty tensors",
    "storage_offset": "another storage offset",
    "device": "another device",
    "layout": "another layout",
    "bits": "another conjugate or negative bit",
    "aliases": "a storage shared with other arguments or results",
    "is_argument": "an argument returned, or not, as the result itself",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataDifference:
    """One field in which one aten call differs."""

    shapes: str  # "static" or "symbolic" sizes in the fake run
    op: str
    field: str  # key of FIELDS
    where: str  # "result 0", "argument 0 after the call"
    arguments: str
    real: str
    fake: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRow:
    """The one row that a case ends as."""

    case_id: str
    group: str
    dtype: str
    direction: str
    shapes: str
    status: str
    symptom: str = ""
    calls: int = 0
    compared: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)  # "aten.item: why" -> how often
    differences: tuple[MetadataDifference, ...] = ()

    @classmethod
    def of(cls, case: TraceCase, *, status: str, **fields: Any) -> MetadataRow:
        return cls(
            case_id=case.case_id, group=case.group, dtype=case.dtype, direction=case.direction, shapes=case.mode,
            status=status, **fields,
        )  # fmt: skip

    @property
    def is_finding(self) -> bool:
        return self.status not in NOT_FINDINGS

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MetadataRow:
        differences = tuple(MetadataDifference(**one) for one in data.get("differences", ()))
        return cls(**{**data, "differences": differences})


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataGroup:
    """All differences of one operator in one field."""

    shapes: str
    op: str
    field: str
    calls: int  # distinct by arguments
    cases: int
    dtypes: tuple[str, ...]
    first_case: str
    example: MetadataDifference


def grouped(rows: Sequence[MetadataRow]) -> list[MetadataGroup]:
    """Rows sorted by kind of sizes, operator and field."""
    found: dict[tuple[str, str, str], list[tuple[MetadataRow, MetadataDifference]]] = {}
    for row in rows:
        for one in row.differences:
            found.setdefault((one.shapes, one.op, one.field), []).append((row, one))
    return [
        MetadataGroup(
            shapes=shapes,
            op=op,
            field=what,
            calls=len({(one.arguments, one.where) for _, one in members}),
            cases=len({row.case_id for row, _ in members}),
            dtypes=tuple(sorted({row.dtype for row, _ in members})),
            first_case=members[0][0].case_id,
            example=min((one for _, one in members), key=lambda one: len(one.arguments)),
        )
        for (shapes, op, what), members in sorted(found.items())
    ]
