"""Measure one passing case: speed of eager and subject, cold and warm compile time, peak memory.

The cold compile time is that of the case's first call; the warm one that of a second compilation after a reset, with the disk
caches of the first one. Both are the time of the first call minus that of a later call.

One process says little about another one, which has another memory layout and other hash seeds. So a case is measured in several
(`measure_again`), and `oracle.again` makes one result of them.
"""

from __future__ import annotations

import dataclasses
import gc
import math
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from oracle.measure import Pairs, paired_blocks, peak_memory, summarise, synchronizer
from oracle.observe.repeated import repeated_call
from oracle.program.build import Instance
from oracle.program.inputs import clone_tree
from oracle.records import Measurements
from oracle.subjects.base import CompileRequest, Subject
from oracle.subjects.generated_code import watched_code


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
    with watched_code() as code:
        run_compiled, _ = _runner(make(), subject)
        run_compiled()
    warm_first_call_s = time.perf_counter() - started
    pairs = _pairs(run_eager, run_compiled, budget_s, device)
    speed = summarise(list(pairs.eager_wall_s), list(pairs.subject_wall_s))
    memory = peak_memory(run_compiled, device=device)
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
        peak_memory=memory,
        eager_peak_memory=peak_memory(run_eager, device=device),
        costs=(pairs.compact(),),
        peak_memories=() if memory is None else (memory,),
        code=code.digest(),
    )


def measure_again(
    *, make: Callable[[], Instance], subject: Subject, budget_s: float, device: str, is_cold: bool
) -> Measurements:
    """Measure a case that was judged in another process. Only what differs between processes is in the result.

    With `is_cold` the process has empty caches on disk, and the compilation is measured too. What is in memory before the
    compilation is exempt from collections afterwards (`gc.freeze`): a full one takes longer than many a compilation, and comes or
    does not. The caller undoes this if the process goes on.
    """
    run_eager, _ = _runner(make(), None)
    instance = make()
    args, kwargs = _prepared(instance)
    subject.reset()
    gc.collect()
    gc.freeze()
    before = _processor_s()
    with watched_code() as code:
        run_compiled = repeated_call(instance, _compiled(instance, args, kwargs, subject), args, kwargs)
        run_compiled()
    compile_s = _processor_s() - before
    gc.collect()  # what compiling left
    pairs = _pairs(run_eager, run_compiled, budget_s, device)
    memory = peak_memory(run_compiled, device=device)
    return Measurements(
        eager_s=statistics.median(pairs.eager_wall_s),
        subject_s=statistics.median(pairs.subject_wall_s),
        repeats=len(pairs.costs),
        costs=(pairs.compact(),),
        compile_cpu_s=(compile_s,) if is_cold else (),
        peak_memories=() if memory is None else (memory,),
        code=code.digest(),
    )


def of_forks(each: Sequence[Measurements]) -> Measurements:
    """The measurements of one process of several forks of it, which measured one after another.

    Of each fork one cost is kept: the mean of the lowest third of its costs, which leaves out what disturbed it for a while. The
    compile time and the memory are those of the first, the only one that compiles with empty caches.
    """
    if len(each) == 1:
        return each[0]
    costs = [sorted(cost for block in one.costs for cost in block) for one in each]
    return dataclasses.replace(
        each[0],
        eager_s=statistics.median(one.eager_s for one in each if one.eager_s is not None),
        subject_s=statistics.median(one.subject_s for one in each if one.subject_s is not None),
        repeats=sum(one.repeats or 0 for one in each),
        costs=(tuple(round(statistics.fmean(cost[: math.ceil(len(cost) / 3)]), 4) for cost in costs),),
    )


def _pairs(run_eager: Callable[[], Any], run_compiled: Callable[[], Any], budget_s: float, device: str) -> Pairs:
    is_alone = torch.device(device).type == "cpu" and torch.get_num_threads() == 1
    return paired_blocks(run_eager, run_compiled, budget_s=budget_s, sync=synchronizer(device), is_alone=is_alone)


def _processor_s() -> float:
    """Seconds of processor time of this process and of its children that have ended, such as a C++ compiler."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _runner(instance: Instance, subject: Subject | None) -> tuple[Callable[[], None], Callable[..., Any]]:
    """A function that makes the plan's first call and its backward, on inputs built beforehand."""
    args, kwargs = _prepared(instance)
    target = instance.target if subject is None else _compiled(instance, args, kwargs, subject)
    return repeated_call(instance, target, args, kwargs), target


def _prepared(instance: Instance) -> tuple[Any, Any]:
    """The inputs of the plan's first call."""
    instance.prepare(0)
    return instance.inputs(0)


def _compiled(instance: Instance, args: Any, kwargs: Any, subject: Subject) -> Callable[..., Any]:
    example_args, example_kwargs, _ = instance.arguments(*clone_tree((args, kwargs)))
    return subject.compile(
        CompileRequest(
            target=instance.target,
            args=example_args,
            kwargs=example_kwargs,
            dynamic=instance.program.dynamic,
            backward=instance.program.calls[0].backward,
        )
    )
