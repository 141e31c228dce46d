"""Planned cases and records: the rows every run consists of. Torch-free.

Every planned case ends as exactly one record. The planned set is written before the first case runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Protocol

from oracle.errors import UsageError
from oracle.verdict import Verdict

SCHEMA_VERSION = 1  # raised with every change of the columns; a newer version is refused


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCase:
    """One program on one subject, before it has run.

    `case_id` is "<suite>/<program name>@<subject>": stable across runs, so that two runs can be compared.
    """

    case_id: str
    suite: str
    group: str  # what the rows of a table are: the operator's or the model's name
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
    bare_s: float | None = None  # the calls themselves: eager twice, fp64 and noise runs, subject
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
    graphs: int | None = None  # graphs handed to the backend, all calls
    graph_breaks: int | None = None
    recompiles: int | None = None
    kernels: int | None = None  # of subjects that make kernels, as are the next two
    lowered: int | None = None  # calls of operators that became kernels
    fallbacks: int | None = None  # calls of operators that did not


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One case as it ended: the row that tables, comparisons and gates are made of."""

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
    traceback: str = ""  # of the subject's exception or crash, the tail
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
    """Where a run writes. `results.store.Store` is the one for SQLite and PostgreSQL."""

    def begin_run(self, *, run_id: str, environment: Mapping[str, Any], arguments: Mapping[str, Any]) -> None: ...

    def plan(self, run_id: str, cases: Iterable[PlannedCase]) -> None:
        """Add to the planned set; all or nothing. Case ids are unique within a run."""
        ...

    def finish_planning(self, run_id: str) -> None:
        """The planned set is complete: from here on a run can be resumed."""
        ...

    def plan_further(self, run_id: str, cases: Iterable[PlannedCase]) -> None:
        """Add cases that follow from records to the planned set of a run that goes on; all or nothing."""
        ...

    def unfinished(self, run_id: str) -> list[PlannedCase]:
        """Planned cases without a record, in planned order."""
        ...

    def append(self, records: Iterable[Record]) -> None:
        """Write records durably. A second record of one case in one run is refused."""
        ...

    def end_run(self, run_id: str, *, state: str) -> None:
        """`state` is "complete" or "interrupted"."""
        ...
