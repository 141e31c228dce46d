"""Sweeps and campaigns on a ray cluster of two nodes, one of which is killed in the middle. Needs ray: `make test-ray`."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest

from oracle.cli import run
from oracle.records import Record
from oracle.tests.command_here import run_here
from oracle.tests.isolate_tasks import wait_until
from results.store import RunInfo, Store

VARIABLE = "TORCH_ORACLE_TEST_RAY"
DRILL = "suites.tests.drill_subjects"
PLANTED = "fuzz.tests.planted:wrong_for_rank_two"
SUBJECTS = ("eager", f"{DRILL}:slow", f"{DRILL}:wrong", f"{DRILL}:segfault")
MATCH = ("--match", "clos*")  # three programs, one graph each
SWEEP = ("sweep", "--suite", "features", *MATCH, "--subject", ",".join(SUBJECTS), "--workers", "1")
MEASURED = {"wall_s", "bare_s", "compile_cold_s", "compile_warm_s", "peak_memory", "eager_peak_memory"}

# A node that stopped answering is given up after about two seconds; by default after fifteen.
QUICK = {"health_check_period_ms": 500, "health_check_timeout_ms": 500, "health_check_failure_threshold": 3}

pytestmark = pytest.mark.skipif(not os.environ.get(VARIABLE), reason=f"needs ray; `make test-ray` sets {VARIABLE}")


class Nodes:
    """A cluster on this machine: a head that runs no cases, and nodes with one processor each."""

    def __init__(self) -> None:
        cluster_utils: Any = importlib.import_module("ray.cluster_utils")
        self.cluster = cluster_utils.Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 0, "include_dashboard": False, "_system_config": QUICK},
        )
        self.nodes = [self.cluster.add_node(num_cpus=1) for _ in range(2)]
        self.options = ("--executor", "ray", "--ray-address", str(self.cluster.address))

    def processes(self, node: Any) -> list[psutil.Process]:
        """The node's server, its slots, and their starters and workers."""
        try:
            server = psutil.Process(node.all_processes["raylet"][0].process.pid)
            return [server, *server.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def renew(self) -> None:
        """Two nodes again, in place of those that were killed."""
        for node in self.nodes:
            self.kill(node)
        self.nodes = [self.cluster.add_node(num_cpus=1) for _ in range(2)]

    def kill(self, node: Any) -> None:
        """End every process of it at once, as a power cut does."""
        for process in self.processes(node):
            process.kill()


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    found = Nodes()
    yield found
    found.cluster.shutdown()


def stored(database: Path) -> tuple[RunInfo, list[Any], list[Record]]:
    with Store.open(database, create=False) as store:
        info = store.run()
        return info, list(store.planned(info.run_id)), list(store.records(info.run_id))


def comparable(record: Record) -> dict[str, Any]:
    """All of a record but what differs between two runs on one machine."""
    data = record.to_json()
    measured = {name: value for name, value in asdict(record.measurements).items() if name not in MEASURED}
    traceback = re.sub(r"0x[0-9a-f]+", "0x", record.traceback)  # of threads, in the text of a crash
    return {**data, "measurements": measured, "traceback": traceback, "run_id": "", "started_at": ""}


def test_a_sweep_that_loses_a_node_has_the_plan_and_the_records_of_one_on_this_machine(
    tmp_path: Path, nodes: Nodes
) -> None:
    local, clustered = tmp_path / "local.db", tmp_path / "ray.db"
    command = [sys.executable, "-m", "oracle.cli", *SWEEP, "--db", str(clustered), "--json", *nodes.options]
    sweep = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert sweep.stdout is not None
    lines = [sweep.stdout.readline() for _ in range(3)]
    assert all(lines), sweep.communicate()[1]
    busy = max(nodes.nodes, key=lambda node: len(nodes.processes(node)))
    assert is_working(nodes, busy)
    nodes.kill(busy)
    out, errors = sweep.communicate(timeout=120)
    assert sweep.returncode == 1, errors
    assert "was lost, or a slot on it; its tasks run again elsewhere" in errors
    info, planned, records = stored(clustered)
    assert Counter(record.case_id for record in records) == Counter(case.case_id for case in planned)
    told = [json.loads(line) for line in [*lines, *out.splitlines()]]
    assert Counter(line.get("case_id") for line in told) == Counter([None, *(case.case_id for case in planned)])
    assert "summary" in told[-1]

    assert run([*SWEEP, "--db", str(local), "--json"]) == 1
    here, planned_here, records_here = stored(local)
    assert planned == planned_here
    assert info.environment == here.environment
    assert info.arguments == here.arguments
    expected = {record.case_id: comparable(record) for record in records_here}
    assert {record.case_id: comparable(record) for record in records} == expected
    assert len({record.verdict.status for record in records}) > 2


def test_an_interrupted_sweep_leaves_no_worker_and_one_without_nodes_goes_on_elsewhere(
    tmp_path: Path, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = str(tmp_path / "interrupted.db")
    command = [sys.executable, "-m", "oracle.cli", *SWEEP, "--db", database, "--json", *nodes.options]
    sweep = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert sweep.stdout is not None
    assert sweep.stdout.readline()
    os.killpg(sweep.pid, signal.SIGINT)
    _, errors = sweep.communicate(timeout=60)
    assert sweep.returncode == 2, errors
    assert "Traceback" not in errors
    assert f"sweep --resume --db {database} {' '.join(nodes.options)}" in errors
    assert wait_until(lambda: not any(is_working(nodes, node) for node in nodes.nodes), seconds=10)
    before, planned, _ = stored(Path(database))
    assert before.state == "interrupted"
    assert 0 < before.recorded < before.planned

    for node in nodes.nodes:
        nodes.kill(node)
    monkeypatch.setattr("oracle.cluster.pool.LOST_AFTER_S", 2.0)
    resume = ["sweep", "--resume", "--db", database, "--json"]
    refused = run_here(*resume, *nodes.options)
    assert refused.returncode == 2
    assert "no node of the cluster has answered for 2 s" in refused.stderr
    assert "--resume" in refused.stderr
    assert run_here(*resume).returncode == 1
    after, _, records = stored(Path(database))
    assert after.state == "complete"
    assert Counter(record.case_id for record in records) == Counter(case.case_id for case in planned)


def campaign(db: Path, *options: str) -> list[str]:
    return [
        *("fuzz", "--subject", f"compile:{PLANTED}", "--focus", "ops", "--max-statements", "3", "--no-reduce", "--known", "none"),
        *("--count", "120", "--workers", "1", "--json", "--db", str(db), *options),
    ]  # fmt: skip


def told_by(out: str) -> tuple[dict[str, int], dict[str, Any]]:
    """How many programs show each finding, by its key, and the summary."""
    summary = json.loads(out.splitlines()[-1])["summary"]
    return {bucket["key"]: bucket["count"] for bucket in summary["buckets"]}, summary


def test_a_campaign_that_loses_a_node_finds_what_one_on_this_machine_finds(
    tmp_path: Path, nodes: Nodes, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes.renew()
    command = [sys.executable, "-m", "oracle.cli", *campaign(tmp_path / "ray.db", *nodes.options)]
    fuzz = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert fuzz.stdout is not None
    first = fuzz.stdout.readline()  # a finding
    nodes.kill(max(nodes.nodes, key=lambda node: len(nodes.processes(node))))
    out, errors = fuzz.communicate(timeout=240)
    assert fuzz.returncode == 1, errors
    assert "its tasks run again elsewhere" in errors
    assert run(campaign(tmp_path / "local.db")) == 1
    findings, summary = told_by(first + out)
    findings_here, summary_here = told_by(capsys.readouterr().out)
    assert findings == findings_here
    assert summary["statuses"] == summary_here["statuses"]
    assert summary["programs"] == summary_here["programs"] == 120


def is_working(nodes: Nodes, node: Any) -> bool:
    """Whether a starter or a worker runs on the node."""
    for process in nodes.processes(node):
        with suppress(psutil.NoSuchProcess):  # of zombies, too
            if any("oracle.isolate" in word for word in process.cmdline()):
                return True
    return False
