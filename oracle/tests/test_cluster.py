"""Tasks on slots of a cluster: each ends exactly once, whatever happens to the slots. No cluster software is needed here."""

from __future__ import annotations

import importlib
import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from oracle.cluster import ClusterPool, NodesLostError, RayClient, Resources, SlotSettings
from oracle.cluster.messages import end_from_json, end_to_json, task_from_json, task_to_json
from oracle.cluster.pool import MOST_LOSSES, HeadLostError, SlotLostError, batch_size
from oracle.cluster.slot import Slot
from oracle.errors import UsageError
from oracle.isolate import AfterHang, Completed, Failed, Pool, Task, TaskResult
from oracle.tests.isolate_tasks import task

SETTINGS = SlotSettings(workers=2)
DONE = {"kind": "Completed", "value": {}, "wall_s": 1.0, "replace_worker": False}


@dataclass(eq=False)
class StandInSlot:
    number: int
    batch: list[Task] = field(default_factory=list)
    is_killed: bool = False


class StandInCluster:
    """Slots that end one task with each answer. `loses(slot, task)` says whether the slot is lost when it comes to that task."""

    def __init__(self, slots: int, loses: Callable[[StandInSlot, Task], bool] = lambda slot, task: False) -> None:
        self.resources = Resources.parse("CPU=2")
        self.slots = slots
        self.started: list[StandInSlot] = []
        self.batches: list[list[str]] = []
        self.ran: list[str] = []
        self.versions: Callable[[int], str] = lambda number: "2.13.0"
        self.error: Callable[[int], str] = lambda number: ""
        self._loses = loses

    def slots_possible(self) -> int:
        return self.slots

    def start(self, settings: str) -> StandInSlot:
        assert SlotSettings.from_json(settings) == SETTINGS
        self.started.append(StandInSlot(len(self.started)))
        return self.started[-1]

    def about(self, slot: StandInSlot) -> Any:
        said = {"node": f"n{slot.number}", "versions": {"torch": self.versions(slot.number)}}
        return (slot, object(), json.dumps(said))

    def work(self, slot: StandInSlot, batch: str | None, wait_s: float) -> Any:
        assert not slot.is_killed
        if batch is not None:
            slot.batch = list(map(task_from_json, json.loads(batch)))
            self.batches.append([task.key for task in slot.batch])
        return (slot, object(), None)

    def wait(self, references: Sequence[Any], timeout_s: float) -> Sequence[Any]:
        return references

    def answer(self, reference: Any) -> str:
        slot, _, said = reference
        if said is not None:
            return said
        if error := self.error(slot.number):
            return json.dumps({"results": [], "is_done": True, "error": error})
        if self._loses(slot, slot.batch[0]):
            raise SlotLostError("the node is gone")
        ended = slot.batch.pop(0)
        self.ran.append(ended.key)
        found = {"key": ended.key, "end": DONE, "worker_pid": slot.number, "tasks_before": 0}
        return json.dumps({"results": [found], "is_done": not slot.batch, "error": ""})

    def kill(self, slot: StandInSlot) -> None:
        slot.is_killed = True

    def close(self) -> None:
        """Nothing to close."""


def tasks(count: int) -> list[Task]:
    return [task("echo", key=f"t{number:03}") for number in range(count)]


def ends_of(cluster: StandInCluster, count: int, **options: Any) -> dict[str, TaskResult]:
    with ClusterPool(cluster, SETTINGS, **options) as pool:
        results = list(pool.run(tasks(count)))
    assert Counter(result.task.key for result in results) == Counter(task.key for task in tasks(count))
    return {result.task.key: result for result in results}


def test_every_task_of_lost_slots_ends_once() -> None:
    lost: Counter[int] = Counter()

    def loses(slot: StandInSlot, task: Task) -> bool:
        """Every other slot is lost at its third task."""
        lost[slot.number] += 1
        return slot.number % 2 == 0 and lost[slot.number] == 3

    cluster, told = StandInCluster(4, loses), []
    ends = ends_of(cluster, 100, tell=told.append)
    assert {type(result.end) for result in ends.values()} == {Completed}
    assert len(cluster.started) > 4
    assert sorted(cluster.ran) == sorted(ends)  # the task at which a slot was lost had not ended, so it runs once
    assert "node n0 was lost, or a slot on it; its tasks run again elsewhere" in told


def test_a_task_that_always_loses_its_slot_ends_as_failed_and_no_other_does() -> None:
    cluster = StandInCluster(2, lambda slot, task: task.key == "t007")
    ends = ends_of(cluster, 40)
    failed = [result for result in ends.values() if isinstance(result.end, Failed)]
    assert [result.task.key for result in failed] == ["t007"]
    assert f"lost {MOST_LOSSES} times while it had this task, the last time alone" in str(failed[0].end)
    assert [batch for batch in cluster.batches if "t007" in batch][-1] == ["t007"]


def test_a_node_that_cannot_work_is_told_and_gets_nothing_more() -> None:
    cluster, told = StandInCluster(3), []
    cluster.versions = lambda number: "2.12.0" if number == 1 else "2.13.0"
    cluster.error = lambda number: "worker processes do not start" if number == 2 else ""
    ends = ends_of(cluster, 30, tell=told.append)
    assert {result.worker_pid for result in ends.values()} == {0}
    assert "node n1 is not used: it has torch 2.12.0 where other nodes have torch 2.13.0" in told
    assert "node n2 is not used: worker processes do not start" in told
    assert len(cluster.started) == 3  # those two keep their resources, so no slot is placed there again


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        (StandInCluster(0), "no node of the cluster has answered for 0.2 s; 5 tasks have no result"),
        (StandInCluster(2), "no node of the cluster can run tasks"),
    ],
)
def test_a_run_without_nodes_ends_with_a_message(cluster: StandInCluster, message: str) -> None:
    cluster.error = lambda number: "worker processes do not start"
    with ClusterPool(cluster, SETTINGS, lost_after_s=0.2) as pool:
        with pytest.raises(NodesLostError, match=message):
            list(pool.run(tasks(5)))


def test_a_lost_head_ends_the_run_with_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> int:
        raise HeadLostError("the head of the cluster at head:6379 cannot be reached")

    cluster = StandInCluster(2)
    with ClusterPool(cluster, SETTINGS) as pool:
        results = pool.run(tasks(500))
        next(results)
        monkeypatch.setattr(cluster, "slots_possible", gone)
        monkeypatch.setattr("oracle.cluster.pool._LOOK_EVERY_S", 0.0)
        with pytest.raises(NodesLostError, match=r"head:6379 cannot be reached; [0-9]+ tasks have no result"):
            list(results)


def test_closing_a_run_ends_its_slots_and_the_next_run_has_new_ones() -> None:
    cluster = StandInCluster(2)
    with ClusterPool(cluster, SETTINGS) as pool:
        results = pool.run(tasks(50))
        next(results)
        closing = threading.Thread(target=results.close)  # as a deadline does
        closing.start()
        closing.join()
        assert list(results) == []
        working = [slot for slot in cluster.started if slot.batch]
        assert working
        assert all(slot.is_killed for slot in working)
        assert len(list(pool.run(tasks(3)))) == 3
    assert all(slot.is_killed for slot in cluster.started)


def test_a_run_takes_no_more_slots_than_it_may_or_has_tasks_for() -> None:
    cluster = StandInCluster(9)
    ends_of(cluster, 30, most_slots=3)
    assert len(cluster.started) == 3
    cluster = StandInCluster(9)
    ends_of(cluster, 2)
    assert len(cluster.started) == 2


@pytest.mark.parametrize(
    ("left", "slots", "workers", "size"),
    [(10_000, 10, 1, 32), (100, 10, 1, 3), (10, 10, 1, 1), (3, 10, 1, 1), (10_000, 10, 8, 250), (100, 10, 8, 8), (5, 10, 8, 1)],
)  # fmt: skip
def test_batches_are_large_at_first_and_small_at_the_end(left: int, slots: int, workers: int, size: int) -> None:
    assert batch_size(left, slots=slots, workers=workers) == size


def test_a_slot_gives_the_ends_that_a_pool_gives() -> None:
    wanted = [
        task("echo", key="\ud800 ü", text="\ud800"), task("segfault"), task("raise_error"), task("eat_memory"),
        task("hang_in_python", timeout_s=0.2), task("return_nan"), task("echo", environment=(("A", "b"),)),
    ]  # fmt: skip
    preload = ("oracle.tests.isolate_tasks",)
    with Pool(workers=1, preload=preload) as pool:
        here = {result.task.key: result.end for result in pool.run(wanted)}
    slot = Slot(replace(SETTINGS, workers=1, preload=preload, address_space_margin_bytes=2 << 30).to_json())
    try:
        there = {}
        answer = json.loads(slot.work(json.dumps([task_to_json(one) for one in wanted]), 0.01))
        while True:
            there |= {found["key"]: end_from_json(found["end"]) for found in answer["results"]}
            if answer["is_done"]:
                break
            answer = json.loads(slot.work(None, 1.0))
    finally:
        slot.stop()
    assert {key: type(end) for key, end in there.items()} == {key: type(end) for key, end in here.items()}
    for key, end in here.items():
        assert end_from_json(json.loads(json.dumps(end_to_json(end)))) == end or key == "return_nan"


def test_settings_of_a_slot_survive_the_way() -> None:
    after = AfterHang(command=("reset", "--gpu"), device="cuda:1", timeout_s=5.0)
    settings = replace(SETTINGS, preload=("torch",), environment={"A": "b"}, after_hang=after, path=("/x",))
    assert SlotSettings.from_json(settings.to_json()) == settings


@pytest.mark.parametrize("text", ["", "CPU", "CPU=0", "CPU=-1", "CPU=nan", "CPU=1,CPU=2", "=1", "GPU=1.5", "CPU=inf"])
def test_resources_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--ray-resources"):
        Resources.parse(text)


def test_a_node_holds_as_many_slots_as_its_scarcest_resource_allows() -> None:
    wanted = Resources.parse("CPU=2, GPU=0.25,tpu=1")
    assert (wanted.processors, str(wanted)) == (2, "CPU=2,GPU=0.25,tpu=1")
    assert wanted.slots_on({"CPU": 64.0, "GPU": 2.0, "tpu": 100.0, "memory": 1e9}) == 8
    assert wanted.slots_on({"CPU": 64.0, "GPU": 2.0}) == 0


def test_an_address_without_a_cluster_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ray:
        def is_initialized(self) -> bool:
            return False

        def init(self, **options: Any) -> None:
            raise AssertionError("ray would wait for minutes")

    monkeypatch.setattr("oracle.cluster.ray_client._import_ray", Ray)
    with socket.socket() as taken:  # bound, but nothing listens
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UsageError, match=f"no ray cluster at {address}: .*refused"):
            RayClient(resources=Resources.parse("CPU=1"), address=address)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_ray(name: str, *rest: Any) -> Any:
        assert name == "ray"
        raise ModuleNotFoundError("No module named 'ray'")

    monkeypatch.setattr(importlib, "import_module", no_ray)
    with pytest.raises(UsageError, match=r"pip install 'torch-oracle\[ray\]'"):
        RayClient(resources=Resources.parse("CPU=1"))
