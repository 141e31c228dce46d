"""The driver of a cluster: gives batches of tasks to slots, and returns the end of each task exactly once.

Sizes of batches. A batch is a share of what is left: large at first, so that few messages are sent, and small at the end, so that
no slot works on a long batch while others have nothing (`batch_size`).

Lost nodes. When a slot is lost, its tasks without a result go to the front of the queue, in smaller batches. Whatever it might
still send is not heard, so no task ends twice. A task whose slot was lost MOST_LOSSES times, the last time with this task alone
in its batch, ends as `Failed`: it may be what ends the node.

Slots that cannot work. A slot whose workers do not start, or with other versions than the first one, stays where it is without
work. It keeps its resources, so that no other slot is placed on that node.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, TypeAlias

from typing_extensions import Self

from oracle.cluster.messages import end_from_json, task_to_json
from oracle.cluster.resources import Resources
from oracle.cluster.slot import SlotSettings
from oracle.errors import InternalError, UsageError
from oracle.isolate import Failed, Task, TaskResult, plan_run

Handle: TypeAlias = Any  # of a slot
Reference: TypeAlias = Any  # to an answer that may not be there yet; hashable

MOST_LOSSES = 3
LOST_AFTER_S = 300.0  # without an answer of any slot, the run stops
_BATCH_PER_WORKER = 32  # tasks, at most
_SHARES = 4  # of what is left, each slot gets one share
_LOOK_EVERY_S = 2.0  # at the nodes of the cluster
_WAIT_S = 0.5
_ANSWERS_PER_S = 200.0  # of all slots together, about
_FAILED_STARTS = 3
_TELL_EVERY_S = 10.0
_GO_ON = "A sweep that has records goes on with --resume, one that was planning with the same command"


class SlotLostError(Exception):
    """The slot or its node is gone, or cannot be reached."""


class HeadLostError(Exception):
    """The cluster itself is gone: nothing can be started on it."""


class NodesLostError(UsageError):
    """No node is left that runs tasks."""


class Client(Protocol):
    """The interface that the driver needs of the software that runs the cluster. `RayClient` is one."""

    @property
    def resources(self) -> Resources: ...
    def slots_possible(self) -> int: ...
    def start(self, settings: str) -> Handle: ...
    def about(self, slot: Handle) -> Reference: ...
    def work(self, slot: Handle, batch: str | None, wait_s: float) -> Reference: ...
    def wait(self, references: Sequence[Reference], timeout_s: float) -> Sequence[Reference]: ...
    def answer(self, reference: Reference) -> str: ...
    def kill(self, slot: Handle) -> None: ...
    def close(self) -> None: ...


@dataclass(slots=True)
class _Job:
    """A task without a result, and how many slots were lost while they had it."""

    task: Task
    losses: int = 0


@dataclass(slots=True, eq=False)
class _SlotState:
    handle: Handle
    asked: Reference | None  # the answer that is awaited
    node: str = ""  # empty until the slot has answered for the first time
    is_set_aside: bool = False
    batch: dict[str, _Job] = field(default_factory=dict)  # by key, without those that have ended

    @property
    def is_usable(self) -> bool:
        return bool(self.node) and not self.is_set_aside


def batch_size(left: int, *, slots: int, workers: int) -> int:
    """How many of the tasks that are left the next batch has: a share of them, and at least one for each worker of the slot
    as long as there are enough for all slots.
    """
    share = math.ceil(left / (_SHARES * slots))
    least = min(workers, math.ceil(left / slots))
    return max(least, min(share, _BATCH_PER_WORKER * workers))


class ClusterPool:
    """Runs tasks in slots. Has the interface of `oracle.isolate.Pool`; use as a context manager, too."""

    def __init__(
        self,
        client: Client,
        settings: SlotSettings,
        *,
        tell: Callable[[str], None] = lambda text: None,
        most_slots: int | None = None,
        lost_after_s: float | None = None,
    ) -> None:
        """`tell`: gets one line when a node is lost or cannot be used. `most_slots`: None for as many as the nodes hold.
        `lost_after_s`: None for LOST_AFTER_S.
        """
        self._client = client
        self._settings = settings
        self._tell = tell
        self._most_slots = most_slots
        self._lost_after_s = LOST_AFTER_S if lost_after_s is None else lost_after_s
        self._slots: list[_SlotState] = []
        self._versions: Mapping[str, Any] | None = None
        self._looked = -math.inf
        self._heard = 0.0  # when a slot last answered
        self._failed_starts = 0
        self._told: dict[str, float] = {}
        self._current: ClusterResults | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def places(self) -> int:
        """Number of slots that work now, at least 1."""
        return max(1, sum(slot.is_usable for slot in self._slots))

    def run(self, tasks: Iterable[Task]) -> ClusterResults:
        """Yield the end of each task once. Raises NodesLostError if no slot answers for `lost_after_s` seconds."""
        is_busy = self._current is not None and not self._current.is_over
        jobs = deque(_Job(planned.task) for planned in plan_run(tasks, is_busy=is_busy))
        self._heard = time.monotonic()
        self._looked = -math.inf
        self._current = ClusterResults(self, jobs)
        return self._current

    def stop(self) -> None:
        """End all slots with their workers."""
        if self._current is not None:
            self._current.close()
        for slot in self._slots:
            self._client.kill(slot.handle)
        self._slots.clear()
        self._client.close()

    # Called by ClusterResults, with its lock held.

    def advance(self, run: ClusterResults) -> None:
        """One round: add slots, give out batches, and wait a moment for answers."""
        self._add_slots(run)
        for slot in self._slots:
            if slot.is_usable and slot.asked is None and run.queue:
                self._send(slot, run)
        asked = {slot.asked: slot for slot in self._slots if slot.asked is not None}
        if asked:
            for reference in self._client.wait(list(asked), _WAIT_S):
                self._hear(asked[reference], run)
        else:
            time.sleep(_WAIT_S)
        if time.monotonic() - self._heard > self._lost_after_s:
            raise NodesLostError(
                seen=f"no node of the cluster has answered for {self._lost_after_s:g} s; {run.left} tasks have no result",
                expected=f"a node that has {self._client.resources} free",
                do=f"start nodes (`ray status` lists them). {_GO_ON}",
            )

    def abandon(self) -> None:
        """End the slots that work, since nobody wants their results."""
        for slot in [slot for slot in self._slots if slot.batch]:
            self._client.kill(slot.handle)
            self._slots.remove(slot)

    def _add_slots(self, run: ClusterResults) -> None:
        now = time.monotonic()
        if now - self._looked < _LOOK_EVERY_S:
            return
        self._looked = now
        try:
            possible = self._client.slots_possible()
        except HeadLostError as error:
            raise NodesLostError(
                seen=f"{error}; {run.left} tasks have no result", expected="a running cluster", do=f"start it. {_GO_ON}"
            ) from error
        wanted = min(possible, run.left) if self._most_slots is None else min(possible, run.left, self._most_slots)
        for _ in range(wanted - len(self._slots)):
            handle = self._client.start(self._settings.to_json())
            self._slots.append(_SlotState(handle, self._client.about(handle)))

    def _send(self, slot: _SlotState, run: ClusterResults) -> None:
        losses = run.queue[0].losses
        size = batch_size(len(run.queue), slots=self.places, workers=self._settings.workers)
        if losses:
            size = 1 if losses >= MOST_LOSSES - 1 else min(size, self._settings.workers)
        jobs: list[_Job] = []
        while run.queue and len(jobs) < size and run.queue[0].losses == losses:
            jobs.append(run.queue.popleft())
        slot.batch = {job.task.key: job for job in jobs}
        self._ask(slot, json.dumps([task_to_json(job.task) for job in jobs]))

    def _ask(self, slot: _SlotState, batch: str | None) -> None:
        slot.asked = self._client.work(slot.handle, batch, max(1.0, len(self._slots) / _ANSWERS_PER_S))

    def _hear(self, slot: _SlotState, run: ClusterResults) -> None:
        reference, slot.asked = slot.asked, None
        try:
            answer: dict[str, Any] = json.loads(self._client.answer(reference))
        except SlotLostError as error:
            self._lose(slot, run, str(error))
            return
        self._heard = time.monotonic()
        if not slot.node:
            self._admit(slot, answer)
            return
        for found in answer["results"]:
            if (job := slot.batch.pop(found["key"], None)) is not None:
                run.put(job.task, found)
        if answer["error"]:
            run.put_back(slot.batch.values())
            slot.batch = {}
            self._set_aside(slot, answer["error"])
        elif not answer["is_done"]:
            self._ask(slot, None)
        elif slot.batch:
            raise InternalError(f"a batch ended without results of {', '.join(slot.batch)}")

    def _admit(self, slot: _SlotState, about: Mapping[str, Any]) -> None:
        """The first answer of a slot: it may work unless its versions differ from those of the first slot."""
        slot.node = about["node"]
        self._failed_starts = 0
        versions = self._versions = self._versions or about["versions"]
        if about["versions"] != versions:
            others = [f"{name} {version}" for name, version in about["versions"].items() if version != versions[name]]
            wanted = [
                f"{name} {versions[name]}" for name, version in about["versions"].items() if version != versions[name]
            ]
            self._set_aside(slot, f"it has {', '.join(others)} where other nodes have {', '.join(wanted)}")

    def _set_aside(self, slot: _SlotState, why: str) -> None:
        slot.is_set_aside = True
        self._tell_of(slot.node, f"node {slot.node} is not used: {why}")
        if all(other.is_set_aside for other in self._slots):
            raise NodesLostError(
                seen=f"no node of the cluster can run tasks; {slot.node}: {why}",
                expected="nodes with the same torch, Python and torch-oracle, on which workers start",
                do=f"run `torch-oracle env` on a node. {_GO_ON}",
            )

    def _lose(self, slot: _SlotState, run: ClusterResults, why: str) -> None:
        self._slots.remove(slot)
        self._client.kill(slot.handle)
        self._looked = -math.inf
        if not slot.node:
            self._failed_starts += 1
            if self._failed_starts >= _FAILED_STARTS and not any(other.is_usable for other in self._slots):
                raise NodesLostError(
                    seen=f"{self._failed_starts} slots in a row ended before they began; the last one said:\n{why}",
                    expected="torch-oracle installed on every node, as here",
                    do=f"correct the nodes. {_GO_ON}",
                )
            return
        self._tell_of(slot.node, f"node {slot.node} was lost, or a slot on it; its tasks run again elsewhere")
        again: list[_Job] = []
        for job in slot.batch.values():
            job.losses += 1
            if job.losses < MOST_LOSSES:
                again.append(job)
            else:
                error = (
                    f"the node or slot was lost {job.losses} times while it had this task, the last time alone: {why}"
                )
                run.deliver(TaskResult(task=job.task, end=Failed(error=error), worker_pid=0, tasks_before=0))
        run.put_back(again)

    def _tell_of(self, node: str, text: str) -> None:
        """Tell once, not for each slot of the node."""
        now = time.monotonic()
        if now - self._told.get(node, -math.inf) > _TELL_EVERY_S:
            self._tell(text)
        self._told[node] = now


class ClusterResults(Iterator[TaskResult]):
    """The ends of one run's tasks. Closing it, also from another thread, ends what is running."""

    def __init__(self, pool: ClusterPool, jobs: deque[_Job]) -> None:
        self._pool = pool
        self.queue = jobs
        self.left = len(jobs)  # without an end
        self._ready: deque[TaskResult] = deque()
        self._is_closed = False
        self._lock = threading.Lock()

    @property
    def is_over(self) -> bool:
        return self._is_closed or not (self.left or self._ready)

    def __next__(self) -> TaskResult:
        with self._lock:
            try:
                while self.left and not self._ready and not self._is_closed:
                    self._pool.advance(self)
            except BaseException:  # Ctrl-C, or no node left
                self._is_closed = True
                self._pool.abandon()
                raise
            if self._is_closed:
                self._pool.abandon()
                raise StopIteration
            if not self._ready:
                raise StopIteration
            return self._ready.popleft()

    def close(self) -> None:
        self._is_closed = True
        if self._lock.acquire(blocking=False):  # else the thread that holds it ends the slots
            try:
                self._pool.abandon()
            finally:
                self._lock.release()

    # Called by the pool.

    def put(self, task: Task, found: Mapping[str, Any]) -> None:
        end = end_from_json(found["end"])
        self.deliver(TaskResult(task=task, end=end, worker_pid=found["worker_pid"], tasks_before=found["tasks_before"]))

    def deliver(self, result: TaskResult) -> None:
        self.left -= 1
        self._ready.append(result)

    def put_back(self, jobs: Iterable[_Job]) -> None:
        self.queue.extendleft(reversed(list(jobs)))
