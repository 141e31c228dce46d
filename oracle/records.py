"""Planned cases and records, the rows of every run. Does not import torch.

Every planned case ends as exactly one record. All planned cases are written before the first one runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Protocol

from oracle.errors import UsageError
from oracle.verdict import Verdict

SCHEMA_VERSION = 1  # incremented with every change of the columns; newer versions are refused


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCase:
    """One program on one subject, before it has run.

    `case_id` is "<suite>/<program name>@<subject>", the same in every run, so that runs can be compared.
    """

    case_id: str
    suite: str
    group: str  # row of a table: the operator's or the model's name
    name: str  # the program's name, unique in its suite
    subject: str
    dtype: str = ""
    direction: str = "forward"  # "forward" | "backward"
    device: str = "cpu"
    tags: tuple[str, ...] = ()
    program: Mapping[str, Any] = field(default_factory=dict)  # Program.to_json()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PlannedCase:
        return cls(**{**data, "tags": tuple(data.get("tags", ()))})


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """Times in seconds, memory in bytes. None where not measured."""

    wall_s: float | None = None  # the whole case in the worker
    bare_s: float | None = None  # the calls alone, of all runs of eager and of the subject
    eager_s: float | None = None  # median of the interleaved eager calls
    subject_s: float | None = None  # median of the interleaved compiled calls
    speedup: float | None = None  # median of eager_i / subject_i over the interleaved pairs
    speedup_low: float | None = None  # 95 % confidence interval of that median (bootstrap)
    speedup_high: float | None = None
    repeats: int | None = None
    compile_cold_s: float | None = None  # first call, minus one warm call
    compile_warm_s: float | None = None  # first call after a reset, caches on disk kept
    peak_memory: int | None = None  # of the subject's warm call
    eager_peak_memory: int | None = None
    graphs: int | None = None  # graphs passed to the backend in all calls
    graph_breaks: int | None = None
    recompiles: int | None = None
    kernels: int | None = None  # this and the next two only for subjects that generate kernels
    lowered: int | None = None  # operator calls that became kernels
    fallbacks: int | None = None  # operator calls that did not
    # The measurements behind verdicts on changes (`results.speed`): one entry for each process that measured the case.
    costs: tuple[tuple[float, ...], ...] = ()  # log(subject's time / eager's) of blocks of calls, in order
    compile_cpu_s: tuple[float, ...] = ()  # processor seconds of a cold compilation, of this process and its children
    peak_memories: tuple[int, ...] = ()  # as peak_memory
    code: str | None = None  # digest of the code that the subject generated; None if it generates none, or tells none

    def __post_init__(self) -> None:
        # JSON has lists only.
        object.__setattr__(self, "costs", tuple(map(tuple, self.costs)))
        object.__setattr__(self, "compile_cpu_s", tuple(self.compile_cpu_s))
        object.__setattr__(self, "peak_memories", tuple(self.peak_memories))


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The result of one case, a row for tables, comparisons and gates."""

    run_id: str
    case_id: str
    suite: str
    group: str
    name: str
    subject: str
    dtype: str
    direction: str
    device: str
    tags: tuple[str, ...] = ()
    verdict: Verdict
    measurements: Measurements = Measurements()
    seed: int = 0
    repro: str = ""  # a command that runs this case alone
    started_at: str = ""  # ISO 8601, UTC
    traceback: str = ""  # tail of the traceback of the subject's exception or crash
    schema_version: int = SCHEMA_VERSION

    @classmethod
    def of(
        cls,
        case: PlannedCase,
        *,
        run_id: str,
        verdict: Verdict,
        measurements: Measurements | None = None,
        seed: int = 0,
        repro: str = "",
        started_at: str = "",
        traceback: str = "",
    ) -> Record:
        return cls(
            run_id=run_id,
            case_id=case.case_id,
            suite=case.suite,
            group=case.group,
            name=case.name,
            subject=case.subject,
            dtype=case.dtype,
            direction=case.direction,
            device=case.device,
            tags=case.tags,
            verdict=verdict,
            measurements=measurements or Measurements(),
            seed=seed,
            repro=repro,
            started_at=started_at,
            traceback=traceback,
        )

    def to_json(self) -> dict[str, Any]:
        """Nested JSON. `measurements` and `verdict` are objects."""
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        data["verdict"] = self.verdict.to_json()
        data["measurements"] = asdict(self.measurements)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        """Raises UsageError for a record of a newer schema."""
        version = data.get("schema_version", 0)
        if version > SCHEMA_VERSION:
            raise UsageError(
                seen=f"a record with schema_version {version}",
                expected=f"at most {SCHEMA_VERSION}",
                do="upgrade torch-oracle to the version that wrote it",
            )
        return cls(
            **{
                **data,
                "tags": tuple(data.get("tags", ())),
                "verdict": Verdict.from_json(data["verdict"]),
                "measurements": Measurements(**data.get("measurements", {})),
            }
        )


class RecordSink(Protocol):
    """The store that a run writes to. `results.store.Store` implements it for SQLite and PostgreSQL."""

    def begin_run(self, *, run_id: str, environment: Mapping[str, Any], arguments: Mapping[str, Any]) -> None: ...

    def plan(self, run_id: str, cases: Iterable[PlannedCase]) -> None:
        """Add all these cases to the planned ones, or none. Case ids are unique within a run."""
        ...

    def finish_planning(self, run_id: str) -> None:
        """Mark the plan as complete, so that the run can be resumed."""
        ...

    def plan_further(self, run_id: str, cases: Iterable[PlannedCase]) -> None:
        """Add all these cases, which follow from earlier records, to the plan of a running run, or none."""
        ...

    def unfinished(self, run_id: str) -> list[PlannedCase]:
        """Planned cases without a record, in planned order."""
        ...

    def append(self, records: Iterable[Record]) -> None:
        """Write records durably. Refuses a second record of a case."""
        ...

    def end_run(self, run_id: str, *, state: str) -> None:
        """`state` is "complete" or "interrupted"."""
        ...
