"""Plans a run: which programs run on which subjects.

Programs are listed in workers, so that the parent never loads torch, and a generator that crashes loses only its group, with a
row.

All suites are listed in one pass: each in PARTS parts, which the workers share. A part is the i-th of n slices of the suite's
groups; it does not name groups, since only a worker knows them (operators depend on its torch).
"""

from __future__ import annotations

import difflib
import functools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from oracle.deadline import closed_at
from oracle.errors import InternalError, UsageError
from oracle.isolate import Completed, Died, End, Failed, OutOfMemory, Task, TaskPool, TimedOut
from oracle.program import Program
from oracle.records import PlannedCase
from oracle.sweep import CaseLimits
from suites.base import Selection, Suite
from suites.registry import load_suite

PLAN_TIMEOUT_S = 300.0
PLAN_MEMORY_BYTES = 8 * 2**30
PARTS = 40
Progress = Callable[[str], None]
OnPart = Callable[[int, int, int, str], None]
"""Called after each part with: parts done, parts in all, programs found so far, the part's suite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One of `count` parts of a run; every program belongs to exactly one, whatever the subjects."""

    index: int = 1  # from 1
    count: int = 1

    def holds(self, suite: str, name: str) -> bool:
        return zlib.crc32(f"{suite}/{name}".encode()) % self.count == self.index - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A request for a plan of one suite. `are_own`: the user named no subjects, so a program may choose among the suite's own
    (`SuiteProgram.subjects`).
    """

    suite: str
    selection: Selection
    subjects: tuple[str, ...]
    are_own: bool = False

    def subjects_of(self, entry: Mapping[str, Any]) -> Iterable[str]:
        wanted = entry["subjects"] if self.are_own else ()
        return [subject for subject in self.subjects if not wanted or subject in wanted]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The planned cases, with time limits by program name for programs that have their own."""

    cases: tuple[PlannedCase, ...]
    limits: Mapping[str, CaseLimits]


def make_plan(
    suite: str, selection: Selection, *, subjects: Sequence[str], pool: TaskPool, shard: Shard = Shard()
) -> Plan:
    """All cases of one suite, in order. Raises UsageError when the selection matches nothing."""
    order = Order(suite=suite, selection=selection, subjects=tuple(subjects))
    return make_plans([order], pool=pool, shard=shard)


def make_plans(
    orders: Sequence[Order],
    *,
    pool: TaskPool,
    shard: Shard = Shard(),
    on_part: OnPart = lambda done, total, programs, suite: None,
    deadline: float | None = None,
) -> Plan:
    """All cases of several suites, suite after suite, each in its own order.

    If nothing matches in one of several suites, it is left out; with a single suite that is a UsageError. Also raises UsageError
    if the deadline (seconds of `time.monotonic()`) comes before the plan is complete.
    """
    listed = _list(orders, pool, on_part, deadline)
    cases: list[PlannedCase] = []
    limits: dict[str, CaseLimits] = {}
    for order in orders:
        try:
            cases += _cases(order, listed[order.suite].entries(order), shard, limits)
        except UsageError:
            if len(orders) == 1:
                raise
    return Plan(cases=tuple(cases), limits=limits)


def _cases(
    order: Order, entries: Iterable[Mapping[str, Any]], shard: Shard, limits: dict[str, CaseLimits]
) -> list[PlannedCase]:
    """The cases of one suite; adds its programs' limits to `limits`. Raises UsageError if there is no program."""
    suite, selection = order.suite, order.selection
    cases: list[PlannedCase] = []
    seen: set[str] = set()
    for entry in entries:
        name = entry["program"]["name"]
        if name in seen:
            raise InternalError(f"suite {suite!r} lists program {name!r} twice")
        seen.add(name)
        if not shard.holds(suite, name):
            continue
        if entry["timeout_s"] or entry["memory_bytes"]:
            limits[name] = CaseLimits(timeout_s=entry["timeout_s"], memory_bytes=entry["memory_bytes"])
        for subject in order.subjects_of(entry):
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
            seen=f"suite {suite!r} has matching groups, but none with a program of this selection",
            expected="a --dtype, --direction and --tag that some program has",
            do=f"`torch-oracle list {suite}` shows tags and dtypes",
        )
    return cases


# ------------------------------------------------------------------------------------------------ listing, by workers


class _Listed:
    """The programs that workers have listed for one suite so far."""

    def __init__(self) -> None:
        self.groups: list[str] | None = None  # all groups, which every part reports
        self.near: list[str] = []  # groups with names like those that no group has
        self.programs: dict[str, list[dict[str, Any]]] = {}
        self.lost: list[tuple[int, End]] = []  # parts whose worker died
        self.problem: Mapping[str, str] | None = None

    def add(self, value: Mapping[str, Any]) -> None:
        self.problem = self.problem or value.get("usage_error")
        if self.problem is None:
            self.groups = value.get("groups", self.groups)
            self.near = value.get("near", self.near)
            self.programs.update(value["programs"])

    def entries(self, order: Order) -> Iterator[dict[str, Any]]:
        """The programs in the order of the groups. Raises UsageError if there is no group, or if a worker reported one."""
        if self.problem is not None:
            raise UsageError(**self.problem)
        if not self.groups:
            near = f"did you mean {' or '.join(self.near)}? " if self.near else ""
            raise UsageError(
                seen=f"no group of suite {order.suite!r} matches {', '.join(order.selection.match) or 'the selection'}",
                expected="a glob on group or program names, such as 'add' or 'nn.functional.*'",
                do=f"{near}`torch-oracle list {order.suite}` shows the groups",
            )
        for group in self.groups:
            yield from self.programs[group]


def _list(orders: Sequence[Order], pool: TaskPool, on_part: OnPart, deadline: float | None) -> dict[str, _Listed]:
    """List every suite's groups and programs. If a worker dies, the groups of its part are listed one by one."""
    listed = {order.suite: _Listed() for order in orders}
    tasks = [
        _task("list_part", order, key=f"{order.suite} {part}", part=part) for order in orders for part in range(PARTS)
    ]
    done, found, total = 0, 0, len(tasks)

    def take(tasks: Sequence[Task]) -> Iterator[tuple[Task, End]]:
        nonlocal done, found
        left = len(tasks)
        with closed_at(deadline, pool.run(tasks)) as results:
            for result in results:
                yield result.task, result.end
                left, done = left - 1, done + 1
                found = sum(len(programs) for one in listed.values() for programs in one.programs.values())
                on_part(done, total, found, _suite_of(result.task))
        if left:
            raise UsageError(
                seen=f"the time (--time) was over while programs were being listed, {found} of them so far; nothing has run",
                expected="more time than listing the programs takes",
                do="give more --time, or name fewer programs with --suite, --match or --max-samples",
            )

    for task, end in take(tasks):
        suite = _suite_of(task)
        match end:
            case Completed(value=value):
                listed[suite].add(cast("dict[str, Any]", value))
            case Died() | TimedOut() | OutOfMemory():
                listed[suite].lost.append((cast("int", task.payload["part"]), end))
            case Failed():
                raise InternalError(f"listing programs of suite {suite!r} ended as {end}")
    again = [task for order in orders for task in _one_by_one(order, listed[order.suite], pool)]
    total += len(again)
    for task, end in take(again):
        group = cast("list[str]", task.payload["groups"])[0]
        if isinstance(end, Completed):
            listed[_suite_of(task)].add(cast("dict[str, Any]", end.value))
        else:
            listed[_suite_of(task)].programs[group] = [_unplannable(group, end)]
    return listed


def _one_by_one(order: Order, listed: _Listed, pool: TaskPool) -> list[Task]:
    """A task for each group of the parts whose worker died."""
    if not listed.lost or listed.problem is not None:
        return []
    if listed.groups is None:  # every part died
        (result,) = pool.run([_task("list_groups", order, key=f"groups of {order.suite}")])
        listed.groups = list(_value(result.end, f"listing the groups of suite {order.suite!r}")["groups"])
    groups = [
        group for part, _ in sorted(listed.lost, key=lambda lost: lost[0]) for group in _slice(listed.groups, part)
    ]
    return [_task("list_programs", order, key=f"{order.suite} {group}", groups=[group]) for group in groups]


def _task(function: str, order: Order, *, key: str, **payload: Any) -> Task:
    return Task(
        key=key,
        function=f"suites.planning:{function}",
        payload={"suite": order.suite, "selection": order.selection.to_json(), **payload},
        group=order.suite,  # a worker keeps the parts of one suite, since its modules take seconds to import
        timeout_s=PLAN_TIMEOUT_S,
        memory_bytes=PLAN_MEMORY_BYTES,
    )


def _suite_of(task: Task) -> str:
    return cast("str", task.payload["suite"])


def _slice(groups: Sequence[str], part: int) -> Sequence[str]:
    return groups[part * len(groups) // PARTS : (part + 1) * len(groups) // PARTS]


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
    """A program for a group whose listing killed its worker; it becomes a `model_fail_to_load` row."""
    message = f"listing the programs of {group!r} ended as {type(end).__name__}"
    program = Program(name=f"{group}/unplannable", source=f"raise RuntimeError({message!r})\n")
    return _entry_json(program=program.to_json(), group=group)


def _entry_json(*, program: Mapping[str, Any], group: str, **labels: Any) -> dict[str, Any]:
    defaults = {
        "dtype": "",
        "direction": "forward",
        "tags": [],
        "timeout_s": None,
        "memory_bytes": None,
        "subjects": [],
    }
    return {"program": dict(program), "group": group, **defaults, **labels}


# ---------------------------------------------------------------------------------------------------------- in workers


@functools.cache
def _suite(name: str) -> Suite:
    return load_suite(name)


def list_groups(payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Task function: the groups of a suite that a selection can want."""
    progress("listing groups")
    try:
        suite, selection = _suite(payload["suite"]), Selection.from_json(payload["selection"])
        if groups := suite.groups(selection):
            return {"groups": groups}
        return {"groups": [], "near": _near(selection.match, suite.groups(replace(selection, match=())))}
    except UsageError as error:
        return {"usage_error": {"seen": error.seen, "expected": error.expected, "do": error.do}}


def _near(words: Iterable[str], groups: Sequence[str]) -> list[str]:
    """The groups whose names come closest to these words, for "did you mean"."""
    return [name for word in words for name in difflib.get_close_matches(word, groups, n=2, cutoff=0.75)]


def list_part(payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Task function: all groups that a selection can want, and the selected programs of one slice of them."""
    listed = list_groups(payload, progress)
    if "usage_error" in listed:
        return listed
    groups = _slice(listed["groups"], payload["part"])
    return {**listed, **list_programs({**payload, "groups": groups}, progress)}


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
                subjects=list(found.subjects),
            )
            for found in suite.programs(selection, group)
        ]
    return {"programs": programs}
