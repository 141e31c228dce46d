"""Merging shards: nothing lost, nothing doubled, no contradiction accepted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oracle.errors import UsageError
from oracle.verdict import Status
from results.merge import merge
from results.store import Store
from results.tests import fabricate


def arguments(index: int, count: int = 2, **changes: Any) -> dict[str, Any]:
    own = {"shard": {"index": index, "count": count}, "workers": index, "case_limits": {f"op{index}": {"timeout_s": 9}}}
    return {"suites": ["opinfo"], "limits": {"timeout_s": 5, "run_s": 60 * index}, **own, **changes}


def names(index: int) -> list[str]:
    return [f"op{index}/float32/{i}" for i in range(3)]


def shard(
    directory: Path,
    index: int,
    *,
    count: int = 2,
    unrecorded: bool = False,
    status: Status = Status.PASS,
    **changes: Any,
) -> Path:
    """The database of one shard of a sweep, three cases each."""
    records = [fabricate.record(fabricate.case(name), status) for name in names(index)]
    return fabricate.database(
        directory / f"shard{index}-{len(list(directory.iterdir()))}.db",
        records,
        run_id=f"run-{index}",
        arguments=arguments(index, count, **changes),
        environment={**fabricate.ENVIRONMENT, "hostname": f"host{index}"},
        unrecorded=[fabricate.case(f"left{index}/float32/0")] if unrecorded else [],
    )


def contents(path: Path) -> list[tuple[str, str]]:
    with Store.open(path, create=False, read_only=True) as store:
        return [(record.case_id, record.verdict.status.value) for record in store.records(with_missing=True)]


def test_two_shards_become_one_complete_run(tmp_path: Path):
    sources, out = [shard(tmp_path, i) for i in (1, 2)], tmp_path / "out.db"
    merged = merge(out, sources)
    assert (merged.cases, merged.records, merged.cases_added, merged.records_added) == (6, 6, 6, 6)
    assert contents(out) == contents(sources[0]) + contents(sources[1])
    with Store.open(out, create=False) as store:
        (run,) = store.runs()
        assert run.is_complete
        assert run.arguments["shard"] == {"index": 1, "count": 1}
        assert run.arguments["case_limits"] == {"op1": {"timeout_s": 9}, "op2": {"timeout_s": 9}}
        assert run.environment["hostname"] == "host1"
        origins = [(o["run_id"], o["shard"], o["differs"]) for o in run.environment["merged_from"]]
        assert origins == [("run-1", "1/2", {}), ("run-2", "2/2", {"hostname": "host2"})]
        assert store.program(next(iter(store.records())).case_id) == fabricate.case(names(1)[0]).program


def test_merging_again_changes_nothing_in_any_order(tmp_path: Path):
    sources, out = [shard(tmp_path, i) for i in (1, 2)], tmp_path / "out.db"
    first = merge(out, sources)
    before = contents(out)
    again = merge(out, list(reversed(sources)))
    assert (again.run_id, again.cases_added, again.records_added) == (first.run_id, 0, 0)
    assert contents(out) == before
    with Store.open(out, create=False) as store:
        assert len(store.runs()) == 1


def test_shards_in_one_database_are_found_together(tmp_path: Path):
    path, out = tmp_path / "both.db", tmp_path / "out.db"
    with Store.open(path, create=True) as store:
        for i in (1, 2):
            records = [fabricate.record(fabricate.case(name)) for name in names(i)]
            fabricate.write_run(store, records, run_id=f"run-{i}", arguments=arguments(i))
    assert merge(out, [path]).records == 6


def test_an_absent_shard_is_refused_by_name_and_no_file_is_made(tmp_path: Path):
    sources, out = [shard(tmp_path, i, count=3) for i in (1, 3)], tmp_path / "out.db"
    with pytest.raises(UsageError, match=r"shard 2/3 is absent"):
        merge(out, sources)
    assert not out.exists()


def test_a_partial_merge_is_interrupted_until_the_rest_comes(tmp_path: Path):
    out = tmp_path / "out.db"
    first = merge(out, [shard(tmp_path, 1, unrecorded=True)], partial=True)
    assert first.absent_shards == ("2/2",)
    with Store.open(out, create=False) as store:
        assert store.run().state == "interrupted"
    assert contents(out)[-1] == ("opinfo/left1/float32/0@inductor", "not_run")
    with pytest.raises(UsageError, match="3 of 4 records"):
        merge(out, [shard(tmp_path, 1, unrecorded=True), shard(tmp_path, 2)])
    # The first shard is finished, and the second comes.
    done = tmp_path / "done.db"
    records = [fabricate.record(fabricate.case(name)) for name in [*names(1), "left1/float32/0"]]
    fabricate.database(done, records, run_id="run-1", arguments=arguments(1))
    second = merge(out, [done, shard(tmp_path, 2)])
    assert (second.cases_added, second.records_added) == (3, 4)
    with Store.open(out, create=False) as store:
        (run,) = store.runs()
        assert run.is_complete


def test_a_shard_merged_later_completes_what_is_there(tmp_path: Path):
    out = tmp_path / "out.db"
    merge(out, [shard(tmp_path, 1)], partial=True)
    # The second shard alone shares no run with the target: it names the first as well.
    with pytest.raises(UsageError, match="shard 1/2 is absent"):
        merge(out, [shard(tmp_path, 2)])
    assert merge(out, [shard(tmp_path, 1), shard(tmp_path, 2)]).records == 6


def test_contradicting_records_are_refused_and_the_target_left_alone(tmp_path: Path):
    out = tmp_path / "out.db"
    sources = [shard(tmp_path, 1), shard(tmp_path, 2)]
    merge(out, sources)
    before = contents(out)
    with pytest.raises(UsageError, match=r"op1/float32/0@inductor has different records"):
        merge(out, [shard(tmp_path, 1, status=Status.CRASH), sources[1]])
    assert contents(out) == before


def test_contradicting_sources_are_refused_and_no_file_is_made(tmp_path: Path):
    out = tmp_path / "out.db"
    with pytest.raises(UsageError, match="different records"):
        merge(out, [shard(tmp_path, 1), shard(tmp_path, 1, status=Status.CRASH), shard(tmp_path, 2)])
    assert not out.exists()


def test_one_case_planned_with_two_programs_is_refused(tmp_path: Path):
    case = fabricate.case(names(1)[0])
    other = replace(case, program={**case.program, "source": "def program(x):\n    return x\n"})
    paths = []
    for i, planned in enumerate((case, other), 1):
        paths.append(tmp_path / f"{i}.db")
        with Store.open(paths[-1], create=True) as store:
            store.begin_run(run_id=f"run-{i}", environment={}, arguments=arguments(i))
            store.plan(f"run-{i}", [planned])
            store.finish_planning(f"run-{i}")
    with pytest.raises(UsageError, match="planned with other programs"):
        merge(tmp_path / "out.db", paths, partial=True)


def test_runs_of_different_sweeps_are_refused(tmp_path: Path):
    sources = [shard(tmp_path, 1), shard(tmp_path, 2, suites=["models"])]
    with pytest.raises(UsageError, match=r"models(.|\n)*opinfo"):
        merge(tmp_path / "out.db", sources)
    sources = [shard(tmp_path, 1), shard(tmp_path, 2, limits={"timeout_s": 6})]
    with pytest.raises(UsageError, match="latest run was made with"):
        merge(tmp_path / "out.db", sources)
    sources = [shard(tmp_path, 1), shard(tmp_path, 2, count=3)]
    with pytest.raises(UsageError, match="shards of one division"):
        merge(tmp_path / "out.db", sources)


def test_a_source_that_is_the_target_or_not_there_is_refused(tmp_path: Path):
    source = shard(tmp_path, 1)
    with pytest.raises(UsageError, match="source and target"):
        merge(source, [source])
    with pytest.raises(UsageError, match="does not exist"):
        merge(tmp_path / "out.db", [tmp_path / "absent.db"])
    with pytest.raises(UsageError, match="nothing to merge"):
        merge(tmp_path / "out.db", [])
    assert not (tmp_path / "out.db").exists()


def test_a_run_that_died_while_planning_is_refused(tmp_path: Path):
    path = tmp_path / "planning.db"
    with Store.open(path, create=True) as store:
        store.begin_run(run_id="run-1", environment={}, arguments=arguments(1))
    with pytest.raises(UsageError, match="died while its cases were planned"):
        merge(tmp_path / "out.db", [path], partial=True)
