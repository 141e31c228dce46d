"""Writes benchmarks as records of a results database, so that `torch-oracle compare` and the verdicts on speed apply to them.

A record is one case with one peer: the suite is "benchmarks", the group the benchmark, the subject our side. The speedup is the
peer's time over ours, as everywhere: above 1 ours is faster. Each process that ran the benchmark gives one entry of the costs.
"""

from __future__ import annotations

import math
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.harness import Row
from oracle.again import together
from oracle.environment import fingerprint, torch_fingerprint
from oracle.records import Measurements, PlannedCase, Record
from oracle.verdict import Status, Verdict
from results.store import Store

SUITE = "benchmarks"
_NO_PEER = "alone"  # the peer's place in the name of a case that has none


def write_run(location: str, processes: Sequence[Sequence[Row]], *, commit: str = "") -> str:
    """Add a run with the rows that each process measured. Returns its id. `commit`: of what was measured; "": the checkout's."""
    by_name = [{(row.benchmark, row.case): row for row in rows} for rows in processes]
    run_id = f"benchmarks-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:6]}"
    records = [
        record for name in by_name[0] for record in _records([rows[name] for rows in by_name if name in rows], run_id)
    ]
    environment = {**fingerprint(), **torch_fingerprint(), **checkout(commit)}
    with Store.open(location, create=True) as store:
        store.begin_run(
            run_id=run_id, environment=environment, arguments={"suites": [SUITE], "options": {"speed": True}}
        )
        store.plan(run_id, [planned(record) for record in records])
        store.finish_planning(run_id)
        store.append(records)
        store.end_run(run_id, state="complete")
    return run_id


def planned(record: Record) -> PlannedCase:
    return PlannedCase(
        case_id=record.case_id, suite=record.suite, group=record.group, name=record.name, subject=record.subject
    )


def checkout(commit: str = "") -> dict[str, Any]:
    """The commit, its time (ISO 8601), and whether files differ from it. Empty where git does not tell."""
    found = _git("show", "-s", "--format=%H %cI", commit or "HEAD")
    if not found:
        return {}
    name, time = found.split()
    return {
        "commit": name,
        "commit_time": time,
        "has_changes": not commit and bool(_git("status", "--porcelain", "-uno")),
    }


def _git(*words: str) -> str:
    try:
        done = subprocess.run(
            ["git", *words], capture_output=True, text=True, check=False, cwd=Path(__file__).parent, timeout=30
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _records(rows: Sequence[Row], run_id: str) -> Iterator[Record]:
    """The records of one case: one for each peer, or one without ratio."""
    first = rows[0]
    ours, error = first.ours or "refimpl", first.errors.get(first.ours or "all") or first.errors.get("set-up", "")
    for peer in first.ratios() or [_NO_PEER]:
        name = f"{first.benchmark}/{first.case}/{peer}"
        each = [_measured(row, peer) for row in rows if peer == _NO_PEER or peer in row.ratios()]
        yield Record(
            run_id=run_id,
            case_id=f"{SUITE}/{name}@{ours}",
            suite=SUITE,
            group=first.benchmark,
            name=name,
            subject=ours,
            dtype="",
            direction="forward",
            device="cpu",
            verdict=Verdict(status=Status.FAIL_TO_RUN, symptom=error) if error else Verdict(status=Status.PASS),
            measurements=together(each[0], each if len(each) > 1 else ()),  # no process judged
            repro=f"python -m benchmarks {first.benchmark} --only '{first.case}'",
            started_at=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        )


def _measured(row: Row, peer: str) -> Measurements:
    """What one process measured of our side against a peer."""
    speed = row.ratios().get(peer)
    if speed is None:
        return Measurements(subject_s=row.medians().get(row.ours))
    pairs = zip(row.seconds(row.ours), row.seconds(peer), strict=False)
    return Measurements(
        eager_s=speed.eager_s,
        subject_s=speed.subject_s,
        speedup=speed.speedup,
        speedup_low=speed.speedup_low,
        speedup_high=speed.speedup_high,
        repeats=speed.repeats,
        costs=(tuple(round(math.log(ours / theirs), 4) for ours, theirs in pairs),),
    )


def rows_of(report: Mapping[str, Any]) -> list[Row]:
    """The rows of a file that --json wrote."""
    return [Row.from_json(row) for row in report["rows"]]
