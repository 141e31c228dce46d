"""A case of `torch-oracle traces`, and its result row. Does not import torch, since the parent writes rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

# Outcomes of a case. All except the first four are findings.
EQUAL = "equal"  # the graph has eager's results and torch's operators, also at a second size if there was one
EXPLAINED = "explained"  # it differs, and every difference has a row in the table of explanations
BOTH_REFUSE = "both_refuse"  # neither tracer can trace it: nothing to compare
NOT_COMPARABLE = "not_comparable"  # eager itself raises, or is not the same twice
DIFFERS = "differs"
CRASH = "crash"
TIMEOUT = "timeout"
OOM = "OOM"
MISSING = "missing"
STATUSES = (EQUAL, EXPLAINED, BOTH_REFUSE, NOT_COMPARABLE, DIFFERS, CRASH, TIMEOUT, OOM, MISSING)
NOT_FINDINGS = frozenset({EQUAL, EXPLAINED, BOTH_REFUSE, NOT_COMPARABLE})

# Aspects in which two traces can differ, in the order of the checks.
ASPECTS: Mapping[str, str] = {
    "refusal": "our tracer raises where torch's gives a graph",
    "torch_refuses": "torch's tracer raises where ours gives a graph",
    "values": "our graph does not give what eager gives (the judge's status and symptom)",
    "malformed": "our graph does not pass fx's own checks",
    "ops": "the live nodes of the two graphs call other aten overloads, or as often as not",
    "second_size": "our graph is wrong at a second size that its guards accept",
    "guards": "our guards refuse a second size that torch's accept, or accept one that torch's refuse",
}

# Outcomes of the second size.
SECOND_EQUAL = "equal"
SECOND_DIFFERS = "differs"
SECOND_REFUSED = "guards_refuse"  # eager accepts every size that was tried, our guards none
SECOND_NONE = "no_size"  # eager accepts none, or the inputs have no size to change
SECOND_NOT_ASKED = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing in which the two traces differ. `reason` names a row of the explanations, "" if there is none."""

    aspect: str  # key of ASPECTS
    detail: str  # one line
    torch_too: bool = False  # torch's graph differs from eager in the same way: same status word on the same input
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceCase:
    """One planned comparison: a program in one tracing mode."""

    case_id: str  # "opinfo/add/float32/forward/sample-0@symbolic"
    suite: str
    group: str
    name: str
    dtype: str
    direction: str
    mode: str
    program: Mapping[str, Any]  # JSON of oracle.program.Program

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TraceCase:
        return cls(**data)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """The one row that a case ends as."""

    case_id: str
    suite: str
    group: str
    name: str
    dtype: str
    direction: str
    mode: str
    status: str
    differences: tuple[Difference, ...] = ()
    verdict: str = ""  # the judge's status for our graph
    symptom: str = ""
    aten_calls: int | None = None  # live calls of aten overloads in our graph
    only_ours: Mapping[str, int] = field(default_factory=dict)  # overload -> how often more than in torch's graph
    only_torch: Mapping[str, int] = field(default_factory=dict)
    whole_slices_ours: int = 0  # live slices that take the whole of a dimension
    whole_slices_torch: int = 0
    nodes_ours: int | None = None  # nodes of the whole recorded graph
    nodes_torch: int | None = None
    guards_ours: int | None = None
    guards_torch: int | None = None
    second: str = SECOND_NOT_ASKED
    second_input: str = ""  # "sample 3", "5->10"
    second_tried: int = 0  # inputs that eager accepts and that were checked with the guards
    guards_differ: tuple[str, ...] = ()  # both lists of guards, if they differ on a second size
    error_ours: str = ""
    error_torch: str = ""
    seconds: float = 0.0

    @classmethod
    def of(cls, case: TraceCase, *, status: str, **fields: Any) -> TraceRow:
        return cls(
            case_id=case.case_id, suite=case.suite, group=case.group, name=case.name, dtype=case.dtype,
            direction=case.direction, mode=case.mode, status=status, **fields,
        )  # fmt: skip

    @property
    def is_finding(self) -> bool:
        return self.status not in NOT_FINDINGS

    def with_reasons(self, reason_of: Any) -> TraceRow:
        """The row with the reasons of its differences, from `reason_of(row, difference)`."""
        differences = tuple(replace(one, reason=reason_of(self, one) or "") for one in self.differences)
        if self.status not in (DIFFERS, EXPLAINED):
            return replace(self, differences=differences)
        is_explained = all(one.reason for one in differences)
        return replace(self, differences=differences, status=EXPLAINED if is_explained else DIFFERS)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TraceRow:
        differences = tuple(Difference(**one) for one in data.get("differences", ()))
        guards = tuple(data.get("guards_differ", ()))
        return cls(**{**data, "differences": differences, "guards_differ": guards})
