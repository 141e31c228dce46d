"""Measure one passing case: speed of eager and subject, cold and warm compile time, peak memory.

The cold compile time is that of the case's first call; the warm one that of a second compilation after a reset, with the disk
caches of the first one. Both are the time of the first call minus that of a later call.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from oracle.measure import interleaved, peak_memory, synchronizer
from oracle.observe.repeated import repeated_call
from oracle.program.build import Instance
from oracle.program.inputs import clone_tree
from oracle.records import Measurements
from oracle.subjects.base import CompileRequest, Subject


def measure_speed(
    *,
    make: Callable[[], Instance],
    subject: Subject,
    budget_s: float,
    device: str,
    first_call_s: float,
    base: Measurements,
) -> Measurements:
    """Measure the first call of the plan. Returns `base` with the times in seconds and the memory in bytes added."""
    run_eager, _ = _runner(make(), None)
    started = time.perf_counter()
    subject.reset()
    run_compiled, _ = _runner(make(), subject)
    run_compiled()
    warm_first_call_s = time.perf_counter() - started
    speed = interleaved(run_eager, run_compiled, budget_s=budget_s, sync=synchronizer(device))
    return dataclasses.replace(
        base,
        eager_s=speed.eager_s,
        subject_s=speed.subject_s,
        speedup=speed.speedup,
        speedup_low=speed.speedup_low,
        speedup_high=speed.speedup_high,
        repeats=speed.repeats,
        compile_cold_s=max(0.0, first_call_s - speed.subject_s),
        compile_warm_s=max(0.0, warm_first_call_s - speed.subject_s),
        peak_memory=peak_memory(run_compiled, device=device),
        eager_peak_memory=peak_memory(run_eager, device=device),
    )


def _runner(instance: Instance, subject: Subject | None) -> tuple[Callable[[], None], Callable[..., Any]]:
    """A function that makes the plan's first call and its backward, on inputs built beforehand."""
    call = instance.program.calls[0]
    instance.prepare(0)
    args, kwargs = instance.inputs(0)
    target = instance.target
    if subject is not None:
        example_args, example_kwargs, _ = instance.arguments(*clone_tree((args, kwargs)))
        target = subject.compile(
            CompileRequest(
                target=instance.target,
                args=example_args,
                kwargs=example_kwargs,
                dynamic=instance.program.dynamic,
                backward=call.backward,
            )
        )
    return repeated_call(instance, target, args, kwargs), target
