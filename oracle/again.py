"""Runs cases once more in other processes: to measure the speed of those that passed, and to see whether those that failed do so
again. Imports no torch.

Each process has an environment of its own, so the pool starts it from a starter of its own: workers forked from one starter share
its memory layout and its hash seed. Processes measure one after another, with all cases of a batch in each, so that the times of
one case are spread over the batch and not taken in one bad moment.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, cast

from oracle.costs import Precision, duration_class, imprecise
from oracle.deadline import closed_at, is_over
from oracle.isolate import Completed, Task, TaskPool, TaskResult
from oracle.records import Measurements
from oracle.verdict import Status

VARIABLE = "TORCH_ORACLE_PROCESS"  # its value is the number of the process, which the program may ignore
FORKS = 4  # of a process, each of which times a short call
_SHORT_S = 1e-3
COLD = 3  # at most so many processes compile with empty caches on disk; the others read the first one's
_CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
_CONFIDENCE = 0.95


def is_timed(result: TaskResult) -> bool:
    """Whether the case passed and its speed was measured."""
    if not isinstance(result.end, Completed):
        return False
    value = cast("dict[str, Any]", result.end.value)
    return value["verdict"]["status"] == Status.PASS.value and value["measurements"].get("speedup") is not None


def measured_again(
    judged: Sequence[TaskResult],
    pool: TaskPool,
    processes: int,
    *,
    cache: str | None,
    deadline: float | None,
    precision: Precision | None = None,
) -> Iterator[TaskResult]:
    """The results, with the measurements of `processes` further processes instead of those of the process that judged.

    `cache`: folder for Inductor's caches. A process that dies or does not end adds nothing. With `precision`, cases that are not
    measured so precisely go on in further processes. At the deadline, results whose processes have not all ended are left out: a
    resumed run measures these cases again.
    """
    found: dict[str, list[Measurements]] = {result.task.key: [] for result in judged}
    waiting, number = list(judged), 0
    while waiting:
        number += 1
        tasks = [_task(result, number, cache) for result in waiting]
        with closed_at(deadline, pool.run(tasks)) as results:
            for result in results:
                if isinstance(result.end, Completed):
                    value = cast("dict[str, Any]", result.end.value)
                    found[result.task.key].append(Measurements(**value["measurements"]))
        if is_over(deadline):
            return
        if number < processes:
            continue
        going_on = _imprecise(found, precision) if precision is not None and number < precision.most else set()
        for result in waiting:
            if result.task.key not in going_on:
                yield _measured(result, found[result.task.key])
        waiting = [result for result in waiting if result.task.key in going_on]


def _imprecise(found: Mapping[str, Sequence[Measurements]], precision: Precision) -> set[str]:
    runs = {key: [cost for one in measured for cost in one.costs] for key, measured in found.items()}
    seconds = {key: [one.subject_s for one in measured if one.subject_s] for key, measured in found.items()}
    classes = {key: duration_class(statistics.median(times) if times else None) for key, times in seconds.items()}
    return imprecise(runs, classes, precision)


def _measured(result: TaskResult, again: Sequence[Measurements]) -> TaskResult:
    """The result of the process that judged, with the measurements of the others."""
    end = cast("Completed", result.end)
    value = cast("dict[str, Any]", end.value)
    measurements = together(Measurements(**value["measurements"]), again)
    return replace(result, end=replace(end, value={**value, "measurements": asdict(measurements)}))


def together(judged: Measurements, again: Sequence[Measurements]) -> Measurements:
    """The measurements of the process that judged the case, with what the others measured in place of its own.

    Judging leaves a process with caches and memory of many other calls: it measured small operators 2 to 3 % slower than fresh
    processes do. Times are medians over the others. The speedup is the geometric mean of their speedups, with a t interval over
    processes, which also covers how much processes differ. `repeats` counts the pairs of all.
    """
    timed = [one for one in again if one.eager_s and one.subject_s]
    if not timed or judged.speedup is None:
        return judged
    logs = [math.log(one.eager_s / one.subject_s) for one in timed if one.eager_s and one.subject_s]
    middle, half = statistics.fmean(logs), _half_width(logs)
    codes = {one.code for one in (judged, *again)}
    return replace(
        judged,
        eager_s=statistics.median(one.eager_s for one in timed if one.eager_s is not None),
        subject_s=statistics.median(one.subject_s for one in timed if one.subject_s is not None),
        speedup=math.exp(middle),
        speedup_low=math.exp(middle - half) if len(logs) > 1 else None,
        speedup_high=math.exp(middle + half) if len(logs) > 1 else None,
        repeats=sum(one.repeats or 0 for one in timed),
        costs=tuple(cost for one in again for cost in one.costs),
        compile_cpu_s=tuple(seconds for one in again for seconds in one.compile_cpu_s),
        peak_memories=tuple(memory for one in again for memory in one.peak_memories),
        code=judged.code if len(codes) == 1 else None,
    )


def _half_width(logs: Sequence[float]) -> float:
    if len(logs) < 2:
        return 0.0
    import scipy.special  # noqa: PLC0415 - takes a tenth of a second, and a run without speed needs none of it

    factor = float(scipy.special.stdtrit(len(logs) - 1, (1 + _CONFIDENCE) / 2))
    return factor * statistics.stdev(logs) / math.sqrt(len(logs))


def run_again(failed: Sequence[Task], pool: TaskPool, times: int, *, deadline: float | None) -> Iterator[TaskResult]:
    """The results of the tasks, each run so many times more, each time in a process of its own that has run nothing else."""
    for number in range(1, times + 1):
        if is_over(deadline):
            return
        environment = {VARIABLE: str(number)}  # so that no worker of the run is used
        tasks = [
            replace(
                task,
                function="oracle.case:run_case_again",
                environment=tuple(sorted({**dict(task.environment), **environment}.items())),
            )
            for task in failed
        ]
        with closed_at(deadline, pool.run(tasks)) as results:
            yield from results


def _task(judged: TaskResult, number: int, cache: str | None) -> Task:
    task = judged.task
    environment = {**dict(task.environment), VARIABLE: str(number)}
    if cache is not None:
        environment[_CACHE_VARIABLE] = f"{cache}/process-{number if number <= COLD else 1}"
    return replace(
        task,
        function="oracle.case:measure_case_again",
        payload={**task.payload, "is_cold": cache is not None and number <= COLD, "forks": _forks(judged)},
        environment=tuple(sorted(environment.items())),
    )


def _forks(judged: TaskResult) -> int:
    """In how many forks of a process the case is timed.

    The cost of a short call differs between forks of one process as much as between processes, by 6 to 8 % on one machine. So
    the median of several varies less. A call of a model differs by less, and building it again takes longer than timing it.
    """
    value = cast("dict[str, Any]", cast("Completed", judged.end).value)
    subject_s = value["measurements"].get("subject_s")
    return FORKS if subject_s is not None and subject_s < _SHORT_S else 1
