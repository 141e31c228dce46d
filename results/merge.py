"""Merge the shards of one sweep into one run.

Shards are runs with the same arguments, except for the shard. Merging again changes nothing: existing rows are compared, not
duplicated. If records contradict each other, nothing is written.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from oracle.errors import UsageError
from oracle.records import PlannedCase, Record
from results.engine import Location
from results.store import COMPLETE, INTERRUPTED, PLANNING, RUNNING, RunInfo, Store, StoreTransaction

# Arguments in which shards of one sweep may differ: the shard, the number of workers, the limits of its cases.
SHARD_KEYS: Final = frozenset({"shard", "workers", "case_limits"})
_CASE_LIMITS: Final = "case_limits"
_SOURCES_KEY: Final = "merged_from"


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """Result of a merge."""

    run_id: str
    sources: int  # number of runs
    cases_added: int
    records_added: int
    cases: int  # in the merged run
    records: int
    absent_shards: tuple[str, ...]  # shards without a run: "3/4"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    path: str
    run: RunInfo
    cases: list[PlannedCase]
    records: dict[str, Record]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """The merged run before this merge: nothing, or an earlier merge of some of the sources."""

    run_id: str
    run: RunInfo | None = None
    shards: tuple[str, ...] = ()
    cases: Mapping[str, PlannedCase] = field(default_factory=dict)
    records: Mapping[str, Record] = field(default_factory=dict)


def merge(
    target: str | os.PathLike[str], sources: Sequence[str | os.PathLike[str]], *, partial: bool = False
) -> Merged:
    """Merge the latest run of each source, and the other shards of its sweep in the same file, into `target`.

    `partial` allows absent and unfinished shards. The merged run is then "interrupted", and a later merge can complete it. Raises
    UsageError for sources of different sweeps, and for contradicting or incomplete ones.
    """
    if not sources:
        raise UsageError(seen="nothing to merge", expected="one or more databases", do="name the shards' databases")
    for source in sources:
        if os.fspath(source) == os.fspath(target) or _is_same_file(source, target):
            raise UsageError(
                seen=f"{target} as source and target", expected="a target of its own", do="name another one"
            )
    found: list[_Source] = []
    for source in sources:
        found += _read(source, found[0].run.arguments if found else None)
    present = _read_target(target, found)
    absent = _absent_shards([*(_shard(source.run) for source in found), *present.shards])
    unfinished = [source for source in found if not source.run.is_complete]
    if not partial and (absent or unfinished):
        seen = [f"shard {shard} is absent" for shard in absent]
        seen += [f"run {s.run.run_id} in {s.path} has {s.run.recorded} of {s.run.planned} records" for s in unfinished]
        raise UsageError(
            seen="; ".join(seen),
            expected="every shard of the sweep, each complete",
            do="finish them with --resume and name them all, or merge what there is with --partial",
        )
    return _write(target, present, found, absent)


def _is_same_file(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> bool:
    paths = [Path(os.fspath(path)) for path in (source, target)]
    return all(path.exists() for path in paths) and paths[0].samefile(paths[1])


def _read(source: str | os.PathLike[str], arguments: Mapping[str, Any] | None) -> list[_Source]:
    """The latest run of each shard in `source` with these `arguments`; with None, with those of its latest run."""
    with Store.open(source, create=False, read_only=True) as store:
        wanted = _sweep_key(arguments if arguments is not None else store.run().arguments)
        by_shard = {_shard(run): run for run in store.runs() if _sweep_key(run.arguments) == wanted}
        if not by_shard:
            raise UsageError(
                seen=f"{source}: its latest run was made with {_describe(store.run().arguments)}",
                expected=f"a shard of the sweep made with {_describe(arguments or {})}",
                do="merge only shards of one sweep",
            )
        for run in by_shard.values():
            if run.state == PLANNING:
                raise UsageError(
                    seen=f"run {run.run_id} in {source} died while its cases were planned",
                    expected="a run whose planned set is complete",
                    do="run that shard again",
                )
        return [
            _Source(
                path=str(store.location),
                run=run,
                cases=store.planned(run.run_id),
                records={record.case_id: record for record in store.records(run.run_id)},
            )
            for run in by_shard.values()
        ]


def _sweep_key(arguments: Mapping[str, Any]) -> str:
    return json.dumps(_common(arguments), sort_keys=True)


def _common(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that must be equal in all shards."""
    common = {key: value for key, value in arguments.items() if key not in SHARD_KEYS}
    if isinstance(limits := common.get("limits"), Mapping):
        common["limits"] = {
            key: value for key, value in limits.items() if key != "run_s"
        }  # run_s does not affect the cases
    return common


def _shard(run: RunInfo) -> str:
    """The shard of a run, "i/n"; "1/1" for a whole sweep."""
    shard = run.arguments.get("shard") or {"index": 1, "count": 1}
    return f"{shard['index']}/{shard['count']}"


def _absent_shards(shards: Sequence[str]) -> tuple[str, ...]:
    present = set(shards)
    counts = {shard.partition("/")[2] for shard in present}
    if len(counts) > 1:
        raise UsageError(
            seen=f"shards {', '.join(sorted(present))}",
            expected="shards of one division",
            do="merge only shards of one sweep",
        )
    (count,) = counts
    return tuple(f"{i}/{count}" for i in range(1, int(count) + 1) if f"{i}/{count}" not in present)


def _describe(arguments: Mapping[str, Any]) -> str:
    return json.dumps({key: value for key, value in _common(arguments).items() if value})


# ------------------------------------------------------------------------------------------------------------ writing


def _write(
    target: str | os.PathLike[str], present: _Target, sources: Sequence[_Source], absent: tuple[str, ...]
) -> Merged:
    cases, records = dict(present.cases), dict(present.records)
    origins = dict.fromkeys(cases, os.fspath(target))
    new_cases: list[PlannedCase] = []
    new_records: list[Record] = []
    for source in sources:
        for case in source.cases:
            if case.case_id not in cases:
                cases[case.case_id] = case
                origins[case.case_id] = source.path
                new_cases.append(case)
            elif case != cases[case.case_id]:
                raise _conflict(case.case_id, "is planned with other programs or labels", origins, source)
        for case_id, record in source.records.items():
            merged = replace(record, run_id=present.run_id)
            if case_id not in records:
                records[case_id] = merged
                new_records.append(merged)
            elif not _is_same(merged, records[case_id]):
                raise _conflict(case_id, "has different records", origins, source)
    is_complete = not absent and len(records) == len(cases)
    with Store.open(target, create=True) as store, store.transaction() as transaction:
        _write_run(transaction, present, sources, new_cases, new_records)
        transaction.end_run(present.run_id, state=COMPLETE if is_complete else INTERRUPTED)
    return Merged(
        run_id=present.run_id,
        sources=len(sources),
        cases_added=len(new_cases),
        records_added=len(new_records),
        cases=len(cases),
        records=len(records),
        absent_shards=absent,
    )


def _write_run(
    transaction: StoreTransaction,
    present: _Target,
    sources: Sequence[_Source],
    cases: Sequence[PlannedCase],
    records: Sequence[Record],
) -> None:
    run_id = present.run_id
    environment = _environment(sources, present.run)
    arguments = dict((present.run or sources[0].run).arguments) | {"shard": {"index": 1, "count": 1}}
    for source in sources:
        if limits := source.run.arguments.get(_CASE_LIMITS):
            arguments[_CASE_LIMITS] = {**arguments.get(_CASE_LIMITS, {}), **limits}
    if present.run is None:
        started_at = min(source.run.started_at for source in sources)
        transaction.begin_run(run_id=run_id, environment=environment, arguments=arguments, started_at=started_at)
        transaction.set_state(run_id, RUNNING)
    else:
        transaction.update_run(run_id, environment=environment, arguments=arguments)
    transaction.add_cases(run_id, cases)
    if records:
        transaction.append(records)


def _read_target(target: str | os.PathLike[str], sources: Sequence[_Source]) -> _Target:
    """The run in the target that has some of these sources already, or the id of a new one. Creates no file."""
    run_ids = sorted({source.run.run_id for source in sources})
    wanted = _sweep_key(sources[0].run.arguments)
    new_id = f"merged-{hashlib.sha256(json.dumps([wanted, run_ids]).encode()).hexdigest()[:12]}"
    path = Location.parse(target).path
    if path is not None and not (path.exists() and path.stat().st_size):
        return _Target(run_id=new_id)
    with Store.open(target, create=True) as store:
        for run in store.runs():
            origins = run.environment.get(_SOURCES_KEY, [])
            if _sweep_key(run.arguments) == wanted and {origin["run_id"] for origin in origins}.intersection(run_ids):
                return _Target(
                    run_id=run.run_id,
                    run=run,
                    shards=tuple(origin["shard"] for origin in origins),
                    cases={case.case_id: case for case in store.planned(run.run_id)},
                    records={record.case_id: record for record in store.records(run.run_id)},
                )
    return _Target(run_id=new_id)


def _environment(sources: Sequence[_Source], existing: RunInfo | None) -> dict[str, Any]:
    """A common environment, and for every source its origin and the differences of its environment."""
    whole = existing.environment if existing is not None else sources[0].run.environment
    first = {key: value for key, value in whole.items() if key != _SOURCES_KEY}
    origins = {origin["run_id"]: origin for origin in whole.get(_SOURCES_KEY, [])}
    for source in sources:
        differing = {key: value for key, value in source.run.environment.items() if first.get(key) != value}
        origins[source.run.run_id] = {"run_id": source.run.run_id, "shard": _shard(source.run), "differs": differing}
    return {**first, _SOURCES_KEY: [origins[key] for key in sorted(origins)]}


def _is_same(one: Record, other: Record) -> bool:
    # Compared as JSON, where NaN equals NaN.
    return json.dumps(one.to_json(), sort_keys=True) == json.dumps(other.to_json(), sort_keys=True)


def _conflict(case_id: str, what: str, origins: Mapping[str, str], source: _Source) -> UsageError:
    return UsageError(
        seen=f"{case_id} {what} in {origins[case_id]} and in {source.path} (run {source.run.run_id})",
        expected="each case in one shard; nothing was merged",
        do="merge only shards of one sweep, each once",
    )
