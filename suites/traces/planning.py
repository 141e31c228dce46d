"""Plans `torch-oracle traces`: which programs in which modes. Does not import torch; workers list the programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from oracle.errors import InternalError, UsageError
from oracle.isolate import Completed, Pool, Task
from oracle.program import Program
from oracle.records import PlannedCase
from suites.base import Selection
from suites.planning import PLAN_MEMORY_BYTES, PLAN_TIMEOUT_S, Shard, make_plan
from suites.traces import INTEGER, INTEGER_DTYPES
from suites.traces.records import TraceCase

_JOINT_SAMPLE = """\
from suites.traces.programs import joint_of_sample

program, inputs = joint_of_sample({op!r}, dtype={dtype!r}, index={index}, device="cpu")
"""
_MODEL = """\
from suites.traces.programs import model

program, inputs = model({name!r}, direction={direction!r}, dtype={dtype!r}, device="cpu", masks={masks})
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracesRequest:
    """The checked options."""

    suites: tuple[str, ...]
    modes: tuple[str, ...]
    dtypes: tuple[str, ...]  # names of dtypes, and INTEGER
    directions: tuple[str, ...]
    match: tuple[str, ...]
    max_samples: int | None
    shard: Shard


def plan_traces(request: TracesRequest, pool: Pool) -> list[TraceCase]:
    """All cases, by suite, direction, dtype, group, sample and mode. Raises UsageError when nothing matches."""
    cases: list[TraceCase] = []
    for suite in request.suites:
        for direction in request.directions:
            for planned in _programs(suite, direction, request, pool):
                cases += [_case(planned, direction, mode) for mode in request.modes]
    if not cases:
        raise UsageError(
            seen="a selection that no program matches",
            expected="a glob on operators or models, and a dtype, that some program has",
            do="`torch-oracle list opinfo` and `torch-oracle list models` show the groups",
        )
    return cases


def _programs(suite: str, direction: str, request: TracesRequest, pool: Pool) -> list[PlannedCase]:
    """Entries of the suite's own plan, one for each program of this shard."""
    is_opinfo = suite == "opinfo"
    selection = Selection(
        match=request.match,
        tags=("sample",) if is_opinfo else (),
        directions=("backward" if direction == "joint" else "forward",),
        max_samples=request.max_samples,
    )
    found: list[PlannedCase] = []
    for dtype in request.dtypes:
        if dtype != INTEGER:
            found += _plan(suite, replace(selection, dtypes=(dtype,)), pool)
        elif is_opinfo and direction == "forward":  # models have floating-point weights, and integers no gradients
            found += _integer_programs(selection, pool)
    return [case for case in found if request.shard.holds(suite, case.name)]


def _integer_programs(selection: Selection, pool: Pool) -> list[PlannedCase]:
    """Programs in int64; for operators without int64, in the first other integer dtype that they support."""
    found = _plan("opinfo", replace(selection, dtypes=INTEGER_DTYPES[:1]), pool)
    for dtype in INTEGER_DTYPES[1:]:
        have = {case.group for case in found}
        lacking = [group for group in _groups(replace(selection, dtypes=(dtype,)), pool) if group not in have]
        if lacking:
            planned = _plan("opinfo", replace(selection, dtypes=(dtype,), match=tuple(lacking)), pool)
            found += [case for case in planned if selection.wants(group=case.group, name=case.name)]
    return found


def _plan(suite: str, selection: Selection, pool: Pool) -> list[PlannedCase]:
    try:
        return list(make_plan(suite, selection, subjects=("",), pool=pool).cases)
    except UsageError:  # another dtype, direction or suite may match; plan_traces reports it if none does
        return []


def _groups(selection: Selection, pool: Pool) -> list[str]:
    task = Task(
        key="groups",
        function="suites.planning:list_groups",
        payload={"suite": "opinfo", "selection": selection.to_json()},
        group="groups",
        timeout_s=PLAN_TIMEOUT_S,
        memory_bytes=PLAN_MEMORY_BYTES,
    )
    (result,) = pool.run([task])
    if not isinstance(result.end, Completed):
        raise InternalError(f"listing the operators of {', '.join(selection.dtypes)} ended as {result.end}")
    return list(cast("dict[str, Any]", result.end.value)["groups"])


def _case(planned: PlannedCase, direction: str, mode: str) -> TraceCase:
    name, program = _traced(planned, direction, mode)
    return TraceCase(
        case_id=f"{planned.suite}/{name}@{mode}",
        suite=planned.suite,
        group=planned.group,
        name=name,
        dtype=planned.dtype,
        direction=direction,
        mode=mode,
        program=program,
    )


def _traced(planned: PlannedCase, direction: str, mode: str) -> tuple[str, Mapping[str, Any]]:
    """Name and program to trace: for an operator's sample the program itself, or its joint function."""
    if (planned.suite == "opinfo" and direction == "forward") or planned.name.endswith("/unplannable"):
        return planned.name, planned.program
    if planned.suite == "opinfo":
        index = int(planned.name.rpartition("-")[2])
        name = planned.name.replace("/backward/", "/joint/")
        source = _JOINT_SAMPLE.format(op=planned.group, dtype=planned.dtype, index=index)
        policy = Program.from_json(planned.program).policy
    else:
        name = f"{planned.group}/{planned.dtype}/{direction}"
        source = _MODEL.format(name=planned.group, dtype=planned.dtype, direction=direction, masks=mode != "real")
        policy = Program.from_json(planned.program).policy
    return name, Program(name=name, source=source, policy=policy).to_json()
