"""A simulated night of many cases on many devices: `python -m benchmarks.measurements.scale [--csv FILE] [--measured FILE]`.

Simulated, by discrete events: devices that take batches of cases, with the sizes of `oracle.cluster.pool.batch_size` or fixed
ones, until all cases of a run have ended; devices that are lost and come back; cases that hang, which run again at the end of
their run. Nothing of this was run on 1 000 devices. `Night` holds what is assumed.

Measured on this machine (`--measured`): how many tasks a second the driver of a cluster hands out and takes back, with no network
and no work in between, and how many bytes a record takes in SQLite. How fast records are written and read is in
`store-scale.csv`.
"""

from __future__ import annotations

import heapq
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.measurements.frame import options_of, shown
from benchmarks.measurements.store_scale import write
from oracle.cluster import ClusterPool, Resources, SlotSettings
from oracle.cluster.pool import batch_size
from oracle.isolate import Task
from oracle.records import PlannedCase
from oracle.sweep import CONFIRMATION_FACTOR

HOUR = 3600.0
Sizes = Callable[[int, int, int], int]  # of the next batch, by cases left, devices and workers of a device


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """What is assumed: the work, the devices, and what goes wrong."""

    devices: int = 1000
    cases: int = 10**8
    workers: int = 4  # of a device; each runs one case at a time, and they do not slow each other down
    mean_case_s: float = 1.0
    spread: float = 1.2  # of the logarithm of a case's seconds: the longest of a million takes 150 times the mean
    hangs: float = 1e-5  # share of cases
    limit_s: float = 120.0  # of a case; a hang runs again with three times of it
    losses_per_hour: float = 0.002  # of one device: 16 of 1 000 in a night
    back_after_s: float = 1800.0
    notice_s: float = 15.0  # until the driver knows
    start_s: float = 15.0  # of a slot, with torch
    plan_s: float = 60.0  # of a run, before its first case


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the night is cut into runs: each with its own driver and its own database."""

    runs: int
    at_once: int
    sizes: Sizes
    batches: str  # says what `sizes` does
    is_alone_in_turn: bool = False  # hangs run again one at a time, and not one on each device


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """One row. Hours are of the wall; device-hours count every device from the start to the end of the night."""

    batches: str
    runs: int
    at_once: int
    devices_of_a_run: int
    mean_case_s: float
    hours: float
    device_hours: float
    busy_percent: float  # of device-hours, in which cases ran whose result was kept
    tail_minutes: float  # mean over runs: from the first device without work to the end of the last first attempt
    alone_minutes: float  # mean over runs: hangs run again, and nothing else
    devices_lost: int
    again_device_hours: float  # work of lost devices that others did again
    batches_sent: int
    cases_per_s: float  # of one run's driver and database


@dataclass(slots=True)
class _RunState:
    """What one simulated run adds up to."""

    end_s: float = 0.0
    tail_s: float = 0.0
    lost: int = 0
    again_s: float = 0.0
    batches: int = 0


def run_of(night: Night, seconds: np.ndarray, devices: int, sizes: Sizes, random: np.random.Generator) -> _RunState:
    """One run: cases of these seconds, in this order, on some devices that are all free at the start."""
    total = np.concatenate(([0.0], np.cumsum(seconds)))
    answer_s = max(1.0, devices / 200.0)  # between two answers of a slot; what ended since the last one is lost with it
    fails_at = night.start_s + random.exponential(HOUR / night.losses_per_hour, devices)
    events: list[tuple[float, int, int, int]] = [(night.start_s, device, 0, 0) for device in range(devices)]
    returned: list[tuple[int, int]] = []
    idle: list[int] = []
    following, count = 0, len(seconds)
    state, first_idle = _RunState(), math.inf
    while events:
        now, device, start, stop = heapq.heappop(events)
        if device < 0:  # cases of a lost device have come back to the driver
            returned.append((start, stop))
            for waiting in idle:
                heapq.heappush(events, (now, waiting, 0, 0))
            idle.clear()
            continue
        if returned:
            start, stop = returned.pop()
            if stop - start > night.workers:
                returned.append((start + night.workers, stop))
                stop = start + night.workers
        elif following < count:
            start = following
            stop = following = min(count, following + sizes(count - following, devices, night.workers))
        else:
            first_idle = min(first_idle, now)
            idle.append(device)
            continue
        state.batches += 1
        ends = now + max(float(total[stop] - total[start]) / night.workers, float(seconds[start:stop].max()))
        if fails_at[device] >= ends:
            heapq.heappush(events, (ends, device, 0, 0))
            state.end_s = max(state.end_s, ends)
            continue
        fails = max(now, float(fails_at[device]))
        worked = (fails - now) * night.workers
        kept = int(np.searchsorted(total, total[start] + max(0.0, worked - answer_s * night.workers), side="right")) - 1
        kept = min(max(kept, start), stop - 1)
        state.lost += 1
        state.again_s += max(0.0, worked - float(total[kept] - total[start])) / night.workers
        heapq.heappush(events, (fails + night.notice_s, -1, kept, stop))
        back = fails + night.back_after_s
        fails_at[device] = back + random.exponential(HOUR / night.losses_per_hour)
        heapq.heappush(events, (back + night.start_s, device, 0, 0))
    state.tail_s = max(0.0, state.end_s - first_idle)
    return state


def simulate(night: Night, layout: Layout, seed: int = 0) -> Simulated:
    """The whole night: `at_once` rows of runs beside each other, each row on its share of the devices."""
    random = np.random.default_rng(seed)
    cases, devices = night.cases // layout.runs, night.devices // layout.at_once
    rows = [0.0] * layout.at_once
    work_s = tail_s = alone_s = again_s = 0.0
    lost = batches = 0
    shift = math.log(night.mean_case_s) - night.spread**2 / 2
    for _ in range(layout.runs):
        seconds = np.minimum(random.lognormal(shift, night.spread, cases), night.limit_s)
        seconds[random.random(cases) < night.hangs] = night.limit_s
        hung = seconds >= night.limit_s
        one = run_of(night, seconds, devices, layout.sizes, random)
        rounds = int(hung.sum()) if layout.is_alone_in_turn else math.ceil(hung.sum() / devices)
        alone = rounds * CONFIRMATION_FACTOR * night.limit_s
        at = rows.index(min(rows))
        rows[at] += night.plan_s + one.end_s + alone
        work_s += float(seconds.sum()) / night.workers
        tail_s, alone_s, again_s = tail_s + one.tail_s, alone_s + alone, again_s + one.again_s
        lost, batches = lost + one.lost, batches + one.batches
    hours = max(rows) / HOUR
    return Simulated(
        batches=layout.batches,
        runs=layout.runs,
        at_once=layout.at_once,
        devices_of_a_run=devices,
        mean_case_s=night.mean_case_s,
        hours=round(hours, 2),
        device_hours=round(hours * night.devices, 1),
        busy_percent=round(100 * work_s / HOUR / (hours * night.devices), 1),
        tail_minutes=round(tail_s / layout.runs / 60, 2),
        alone_minutes=round(alone_s / layout.runs / 60, 1),
        devices_lost=lost,
        again_device_hours=round(again_s / HOUR, 2),
        batches_sent=batches,
        cases_per_s=round(night.cases / layout.at_once / (hours * HOUR), 1),
    )


def shared(left: int, devices: int, workers: int) -> int:
    return batch_size(left, slots=devices, workers=workers)


def fixed(size: int) -> Sizes:
    return lambda left, devices, workers: size


def table() -> Iterator[Simulated]:
    """Sizes of batches in one run of a million cases; then the night in several layouts, and with shorter cases."""
    one_run = Night(cases=10**6)
    for devices in (1000, 10):
        night = Night(cases=10**6, devices=devices)
        for size in (4, 128, 1024):
            yield simulate(night, Layout(runs=1, at_once=1, sizes=fixed(size), batches=f"always {size}"))
        yield simulate(night, Layout(runs=1, at_once=1, sizes=shared, batches="a share of what is left"))
    in_turn = Layout(runs=1, at_once=1, sizes=shared, batches="the same, hangs again in turn", is_alone_in_turn=True)
    yield simulate(one_run, in_turn)
    for at_once in (1, 10, 100):
        layout = Layout(runs=100, at_once=at_once, sizes=shared, batches="a share of what is left")
        yield simulate(Night(), layout)
    for mean in (0.5, 0.2):
        layout = Layout(runs=100, at_once=100, sizes=shared, batches="a share of what is left")
        yield simulate(Night(mean_case_s=mean), layout)


# ------------------------------------------------------------------------------------------------------------ measured


@dataclass(frozen=True, slots=True)
class Measured:
    """One row of what is measured."""

    what: str
    count: int
    wall_s: float
    cpu_s: float
    value: int
    unit: str


class _NoCluster:
    """Slots that have done a batch as soon as they are asked for it."""

    def __init__(self, slots: int) -> None:
        self.resources = Resources.parse("CPU=1")
        self._slots = slots

    def slots_possible(self) -> int:
        return self._slots

    def start(self, settings: str) -> object:
        return object()

    def about(self, slot: object) -> Any:
        return (object(), json.dumps({"node": "n", "versions": {}}))

    def work(self, slot: object, batch: str | None, wait_s: float) -> Any:
        end = {"kind": "Completed", "value": {"verdict": "pass" * 100}, "wall_s": 1.0, "replace_worker": False}
        keys = [task["key"] for task in json.loads(batch or "[]")]
        results = [{"key": key, "end": end, "worker_pid": 1, "tasks_before": 0} for key in keys]
        return (object(), json.dumps({"results": results, "is_done": True, "error": ""}))

    def wait(self, references: Sequence[Any], timeout_s: float) -> Sequence[Any]:
        return references

    def answer(self, reference: Any) -> str:
        return reference[1]

    def kill(self, slot: object) -> None:
        """Nothing runs."""

    def close(self) -> None:
        """Nothing is open."""


def measured(count: int = 50_000, slots: int = 10) -> Iterator[Measured]:
    """The driver's tasks a second, and the bytes of a record."""
    payload = {"case": {"program": {"source": "x" * 1500}}, "subject": {}, "options": {}}
    common = {"function": "a:b", "payload": payload, "group": "g", "timeout_s": 1.0, "memory_bytes": 1}
    tasks = [Task(key=f"t{number}", **common) for number in range(count)]
    with ClusterPool(_NoCluster(slots), SlotSettings(workers=4)) as pool:
        start, start_cpu = time.perf_counter(), time.process_time()
        assert sum(1 for _ in pool.run(tasks)) == count
        wall, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    what = "tasks through the driver of a cluster, without a network, with the JSON of both sides"
    yield Measured(what, count, round(wall, 2), round(cpu, 2), round(count / cpu), "tasks for each second of processor")
    with tempfile.TemporaryDirectory() as folder:
        rows, wall, cpu = write(str(Path(folder) / "rows.db"), 0, 1, count)
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
    what = "a planned case with its program and its record in SQLite, with indexes"
    yield Measured(what, rows, round(wall, 2), round(cpu, 2), round(size / rows), "bytes")
    yield _memory(count)


def _memory(count: int) -> Measured:
    """What a planned case takes in the driver: its program is text, as it comes from a worker, and its task is made of it."""
    text = json.dumps(
        {"name": "operator/float32/forward/1", "source": "x" * 1500, "calls": [{"args": [[1, 2], [3]]}] * 2}
    )
    process, start, start_cpu = psutil.Process(), time.perf_counter(), time.process_time()
    before = process.memory_info().rss
    cases = [
        PlannedCase(
            case_id=f"s/{number}@inductor", suite="s", group="g", name=str(number), subject="inductor",
            program={**json.loads(text), "name": str(number)},
        )
        for number in range(count)
    ]  # fmt: skip
    payloads = [case.to_json() for case in cases]
    taken = process.memory_info().rss - before
    wall, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    what = f"a planned case and its task in the driver's memory ({len(payloads[0]['program']['source'])} characters of source)"
    return Measured(what, count, round(wall, 2), round(cpu, 2), round(taken / count), "bytes")


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--measured", type=Path, help="write what is measured here, and simulate nothing")
    options = parser.parse_args()
    if options.measured is not None:
        shown(measured(), options.measured)
    else:
        shown(table(), options.csv)


if __name__ == "__main__":
    main()
