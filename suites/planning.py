"""Plan a run: which programs on which subjects. Programs are listed in workers, so that the parent never loads torch
and a generator that crashes costs one group, visibly.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from oracle.errors import InternalError, UsageError
from oracle.isolate import Completed, Died, End, Failed, OutOfMemory, Pool, Task, TimedOut
from oracle.program import Program
from oracle.records import PlannedCase
from oracle.sweep import CaseLimits
from suites.base import Selection, Suite
from suites.registry import load_suite

PLAN_TIMEOUT_S = 300.0
PLAN_MEMORY_BYTES = 8 * 2**30
GROUPS_PER_TASK = 16
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One of `count` parts of a run; every program belongs to exactly one, whatever the subjects."""

    index: int = 1  # from 1
    count: int = 1

    def holds(self, suite: str, name: str) -> bool:
        return zlib.crc32(f"{suite}/{name}".encode()) % self.count == self.index - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The planned set, with limits of the programs that have their own, by program name."""

    cases: tuple[PlannedCase, ...]
    limits: Mapping[str, CaseLimits]


def make_plan(suite: str, selection: Selection, *, subjects: Sequence[str], pool: Pool, shard: Shard = Shard()) -> Plan:
    """All cases of one suite, in order. Raises UsageError when the selection matches nothing."""
    groups = _groups(suite, selection, pool)
    if not groups:
        raise UsageError(
            seen=f"no group of suite {suite!r} matches {', '.join(selection.match) or 'the selection'}",
            expected="a glob on group or program names, such as 'add' or 'nn.functional.*'",
            do=f"`torch-oracle list {suite}` shows the groups",
        )
    cases: list[PlannedCase] = []
    limits: dict[str, CaseLimits] = {}
    seen: set[str] = set()
    for entry in _programs(suite, selection, groups, pool):
        name = entry["program"]["name"]
        if name in seen:
            raise InternalError(f"suite {suite!r} lists program {name!r} twice")
        seen.add(name)
        if not shard.holds(suite, name):
            continue
        if entry["timeout_s"] or entry["memory_bytes"]:
            limits[name] = CaseLimits(timeout_s=entry["timeout_s"], memory_bytes=entry["memory_bytes"])
        for subject in subjects:
            cases.append(
                PlannedCase(
                    case_id=f"{suite}/{name}@{subject}",
                    suite=suite,
                    group=entry["group"],
                    name=name,
                    subject=subject,
                    dtype=entry["dtype"],
                    direction=entry["direction"],
                    device=selection.device,
                    tags=tuple(entry["tags"]),
                    program=entry["program"],
                )
            )
    if not seen:
        raise UsageError(
            seen=f"suite {suite!r} has {len(groups)} matching group(s), but none with a program of this selection",
            expected="a --dtype, --direction and --tag that some program has",
            do=f"`torch-oracle list {suite}` shows tags and dtypes",
        )
    return Plan(cases=tuple(cases), limits=limits)


def _groups(suite: str, selection: Selection, pool: Pool) -> list[str]:
    task = _task("suites.planning:list_groups", suite, selection, key="groups", groups=())
    (result,) = pool.run([task])
    return list(_value(result.end, f"listing the groups of suite {suite!r}")["groups"])


def _programs(suite: str, selection: Selection, groups: Sequence[str], pool: Pool) -> Iterator[dict[str, Any]]:
    """Entries in the order of the groups. A chunk whose worker dies is planned again group by group."""
    chunks = [tuple(groups[at : at + GROUPS_PER_TASK]) for at in range(0, len(groups), GROUPS_PER_TASK)]
    found: dict[str, list[dict[str, Any]]] = {}
    retry: list[str] = []
    for chunk, end in _run_chunks(suite, selection, chunks, pool):
        match end:
            case Completed():
                found.update(_value(end, "planning")["programs"])
            case Died() | TimedOut() | OutOfMemory():
                retry.extend(chunk)
            case Failed():
                _value(end, f"planning {', '.join(chunk)}")
    for chunk, end in _run_chunks(suite, selection, [(group,) for group in retry], pool):
        if isinstance(end, Completed):
            found.update(_value(end, "planning")["programs"])
        else:
            found[chunk[0]] = [_unplannable(chunk[0], end)]
    for group in groups:
        yield from found[group]


def _run_chunks(
    suite: str, selection: Selection, chunks: Iterable[tuple[str, ...]], pool: Pool
) -> Iterator[tuple[tuple[str, ...], End]]:
    tasks = [
        _task("suites.planning:list_programs", suite, selection, key=f"plan {i}", groups=chunk)
        for i, chunk in enumerate(chunks)
    ]
    for result in pool.run(tasks):
        yield tuple(result.task.payload["groups"]), result.end  # type: ignore[index, arg-type]


def _task(function: str, suite: str, selection: Selection, *, key: str, groups: tuple[str, ...]) -> Task:
    return Task(
        key=key,
        function=function,
        payload={"suite": suite, "selection": selection.to_json(), "groups": list(groups)},
        group=key,
        timeout_s=PLAN_TIMEOUT_S,
        memory_bytes=PLAN_MEMORY_BYTES,
    )


def _value(end: End, what: str) -> dict[str, Any]:
    """The value of a planning task; a UsageError it reported is raised here again."""
    if isinstance(end, Completed):
        value = cast("dict[str, Any]", end.value)
        problem = value.get("usage_error")
        if problem:
            raise UsageError(**problem)
        return value
    raise InternalError(f"{what} ended as {end}")


def _unplannable(group: str, end: End) -> dict[str, Any]:
    """A program that stands for a group whose listing killed its worker: it becomes a `model_fail_to_load` row."""
    message = f"listing the programs of {group!r} ended as {type(end).__name__}"
    program = Program(name=f"{group}/unplannable", source=f"raise RuntimeError({message!r})\n")
    return _entry_json(program=program.to_json(), group=group)


def _entry_json(*, program: Mapping[str, Any], group: str, **labels: Any) -> dict[str, Any]:
    defaults = {"dtype": "", "direction": "forward", "tags": [], "timeout_s": None, "memory_bytes": None}
    return {"program": dict(program), "group": group, **defaults, **labels}


@functools.lru_cache(maxsize=4)
def _suite(name: str) -> Suite:
    return load_suite(name)


def list_groups(payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Task function: the groups of a suite that a selection can want."""
    progress("listing groups")
    try:
        return {"groups": _suite(payload["suite"]).groups(Selection.from_json(payload["selection"]))}
    except UsageError as error:
        return {"usage_error": {"seen": error.seen, "expected": error.expected, "do": error.do}}


def list_programs(payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Task function: the selected programs of some groups."""
    selection = Selection.from_json(payload["selection"])
    suite = _suite(payload["suite"])
    programs: dict[str, list[dict[str, Any]]] = {}
    for group in payload["groups"]:
        progress(f"listing {group}")
        programs[group] = [
            _entry_json(
                program=found.program.to_json(),
                group=found.group,
                dtype=found.dtype,
                direction=found.direction,
                tags=list(found.tags),
                timeout_s=found.timeout_s,
                memory_bytes=found.memory_bytes,
            )
            for found in suite.programs(selection, group)
        ]
    return {"programs": programs}
