"""Writes the rows of a pytest run into a results database: a record for each test, target and subject. Imports no torch."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Final

from oracle.environment import fingerprint
from oracle.records import Measurements, PlannedCase, Record
from oracle.subjects.registry import resolve, split_names
from oracle.subjects.version import recorded_versions
from oracle.verdict import Status, Verdict
from results.store import Store

SUITE: Final = "pytest"
_AGREES: Final = (Status.PASS, Status.KNOWN, Status.XPASS)
_SHOWN: Final = 5


class Recorder:
    """A run of a results database. It begins with the first row. Mutable."""

    def __init__(self, location: str, options: Mapping[str, Any]) -> None:
        self._location, self._options = location, options
        self._store: Store | None = None
        self._run_id = f"pytest-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:6]}"
        self._written: set[str] = set()
        self._statuses: Counter[Status] = Counter()
        self._not_compared: Counter[str] = Counter()
        self.calls = 0
        """Calls that were judged."""
        self._left_out = 0

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write the rows of one test. A test that is run a second time (by a plugin for flaky tests) keeps its first rows."""
        new = [row for row in rows if _case_id(row) not in self._written]
        if not new:
            return
        records = [self._record(row) for row in new]
        if self._store is None:
            self._store = self._begin()
        self._written.update(record.case_id for record in records)
        self._store.plan_further(self._run_id, [_planned(record) for record in records])
        self._store.append(records)

    def _begin(self) -> Store:
        from oracle.environment import torch_fingerprint  # noqa: PLC0415 - torch takes seconds

        store = Store.open(self._location, create=True)
        versions = recorded_versions(map(resolve, split_names(self._options["subjects"])))
        environment = {**fingerprint(), "worker": torch_fingerprint(), **versions}
        arguments = {"suites": [SUITE], "subjects": [self._options["subjects"]], "pytest": dict(self._options)}
        store.begin_run(run_id=self._run_id, environment=environment, arguments=arguments)
        store.finish_planning(self._run_id)
        return store

    def _record(self, row: Mapping[str, Any]) -> Record:
        verdict = Verdict.from_json(row["verdict"])
        self.calls += row["calls"]
        self._left_out += row["left_out"]
        self._statuses[verdict.status] += 1
        if not verdict.status.is_finding and verdict.status not in _AGREES:
            self._not_compared[f"{verdict.status.value}: {verdict.symptom}"] += 1
        return Record(
            run_id=self._run_id,
            case_id=_case_id(row),
            suite=SUITE,
            group=row["target"],
            name=_name(row),
            subject=row["subject"],
            dtype=row["dtype"],
            direction=row["direction"],
            device=row["device"],
            verdict=verdict,
            measurements=Measurements(wall_s=row["wall_s"]),
            repro=row["repro"],
            started_at=row["started_at"],
        )

    def end(self, *, is_complete: bool) -> None:
        """End the run, if there is one."""
        if self._store is not None:
            self._store.end_run(self._run_id, state="complete" if is_complete else "interrupted")
            self._store.close()
            self._store = None

    def summary(self) -> Sequence[str]:
        """A summary: what was judged, what was not and why, and where the rows are."""
        if not self.calls and not self._left_out:
            return ["no call was judged: mark tests with @pytest.mark.oracle, or name a --torch-oracle-target"]
        findings = sum(count for status, count in self._statuses.items() if status.is_finding)
        agree = sum(self._statuses[status] for status in _AGREES)
        others = sum(self._statuses.values()) - findings - agree
        lines = [
            f"{self.calls} calls judged in {len(self._written)} rows (test, target and compiler): {agree} agree,"
            f" {findings} differ, {others} not compared"
        ]
        if self._left_out:
            lines.append(f"{self._left_out} further calls were not judged (--torch-oracle-calls)")
        lines += [f"  {count} x {reason}" for reason, count in self._not_compared.most_common(_SHOWN)]
        lines.append(f"torch-oracle show --db {self._location} --run {self._run_id}")
        return lines


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['test']}::{row['target']}"


def _case_id(row: Mapping[str, Any]) -> str:
    return f"{SUITE}/{_name(row)}@{row['subject']}"


def _planned(record: Record) -> PlannedCase:
    return PlannedCase(
        case_id=record.case_id,
        suite=record.suite,
        group=record.group,
        name=record.name,
        subject=record.subject,
        dtype=record.dtype,
        direction=record.direction,
        device=record.device,
    )
