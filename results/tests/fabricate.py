"""Made-up cases, records and runs for tests of whatever reads or writes results. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from oracle.records import Measurements, PlannedCase, Record
from oracle.verdict import Compared, Status, Verdict, WorstElement
from results.store import Store

ENVIRONMENT: Mapping[str, Any] = {"torch": "2.13.0+cpu", "python": "3.11.7", "platform": "Linux-x86_64"}
ARGUMENTS: Mapping[str, Any] = {"suite": ["opinfo"], "subject": ["inductor"], "shard": {"index": 1, "count": 1}}
WORST = WorstElement(
    where="call 0: output[1]",
    index=(0, 3),
    eager="1.5",
    subject="4.5",
    truth="1.4999999",
    eager_error=1e-7,
    subject_error=3.0,
    allowed_error=1e-5,
    ulp=2.5e7,
)


def case(
    name: str = "add/float32/forward/0",
    *,
    suite: str = "opinfo",
    subject: str = "inductor",
    group: str | None = None,
    dtype: str = "float32",
    direction: str = "forward",
    tags: tuple[str, ...] = ("elementwise",),
    source: str = "def program(x):\n    return x + 1\n",
) -> PlannedCase:
    """A planned case with a small program; its id is made as a sweep makes it."""
    return PlannedCase(
        case_id=f"{suite}/{name}@{subject}",
        suite=suite,
        group=group or name.split("/", 1)[0],
        name=name,
        subject=subject,
        dtype=dtype,
        direction=direction,
        tags=tags,
        program={"format": 1, "name": name, "source": source, "calls": [{}]},
    )


def verdict(status: Status = Status.PASS, symptom: str | None = None) -> Verdict:
    """A verdict as the judge would give it: a symptom and a worst element where the status calls for them."""
    is_numeric = status in (Status.FAIL_ACCURACY, Status.FAIL_GRAD)
    text = {Status.PASS: "", Status.KNOWN: "accepted: see the link"}.get(status, f"call 0: a made-up {status.value}")
    return Verdict(
        status=status,
        symptom=text if symptom is None else symptom,
        call=0 if status.is_silent else None,
        worst=WORST if is_numeric else None,
        compared=Compared() if status is Status.PASS_DUE_TO_SKIP else Compared(tensors=2, elements=24, others=1),
        max_ulp=2.5e7 if is_numeric else 0.5,
        issue="made-up-issue" if status in (Status.KNOWN, Status.XPASS) else "",
        observed="fail_accuracy" if status is Status.KNOWN else "",
    )


def measurements(speedup: float | None = None, *, spread: float = 0.02, compile_cold_s: float = 1.25) -> Measurements:
    """Measurements; timed in five processes when a speedup is given, with an interval of ± `spread`."""
    plain = Measurements(wall_s=0.5, bare_s=0.42, compile_cold_s=compile_cold_s, graphs=1, graph_breaks=0, recompiles=0)
    if speedup is None:
        return plain
    return replace(
        plain,
        eager_s=0.002,
        subject_s=0.002 / speedup,
        speedup=speedup,
        speedup_low=speedup * (1 - spread),
        speedup_high=speedup * (1 + spread),
        repeats=30,
        compile_warm_s=0.25,
        peak_memory=1_000_000,
        eager_peak_memory=1_500_000,
        costs=tuple((step * spread / 5 - math.log(speedup),) for step in (-1, 0, 2, -1, 0)),
    )


def record(
    planned: PlannedCase,
    status: Status = Status.PASS,
    *,
    run_id: str = "run-1",
    symptom: str | None = None,
    speedup: float | None = None,
    compile_cold_s: float = 1.25,
) -> Record:
    """The record of a planned case."""
    return Record.of(
        planned,
        run_id=run_id,
        verdict=verdict(status, symptom),
        measurements=measurements(speedup, compile_cold_s=compile_cold_s),
        seed=1234,
        repro=f"torch-oracle sweep --suite {planned.suite} --match '{planned.name}' --subject {planned.subject}",
        started_at="2026-01-02T03:04:05+00:00",
        traceback="Traceback (most recent call last):\nRuntimeError: boom" if status is Status.FAIL_TO_RUN else "",
    )


def record_of_every_status(*, run_id: str = "run-1") -> list[Record]:
    """One record per status, each of its own program."""
    return [record(case(f"{status.value}/float32/forward/0"), status, run_id=run_id) for status in Status]


def cases_of(records: Iterable[Record]) -> list[PlannedCase]:
    """Planned cases for records made without `case`."""
    return [
        replace(
            case(r.name, suite=r.suite, subject=r.subject, group=r.group),
            dtype=r.dtype,
            direction=r.direction,
            tags=r.tags,
        )
        for r in records
    ]


def write_run(
    store: Store,
    records: Iterable[Record],
    *,
    run_id: str = "run-1",
    unrecorded: Iterable[PlannedCase] = (),
    arguments: Mapping[str, Any] = ARGUMENTS,
    environment: Mapping[str, Any] = ENVIRONMENT,
) -> str:
    """Write a run as a sweep would: complete, or interrupted if some planned cases have no record."""
    records = [replace(r, run_id=run_id) for r in records]
    unrecorded = list(unrecorded)
    store.begin_run(run_id=run_id, environment=environment, arguments=arguments)
    store.plan(run_id, [*cases_of(records), *unrecorded])
    store.finish_planning(run_id)
    store.append(records)
    store.end_run(run_id, state="interrupted" if unrecorded else "complete")
    return run_id


def database(path: Path, records: Iterable[Record], **options: Any) -> Path:
    """A database file with one run (options of `write_run`); returns the path."""
    with Store.open(path, create=True) as store:
        write_run(store, records, **options)
    return path
