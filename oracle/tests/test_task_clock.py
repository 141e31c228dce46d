"""What a task is charged: wall time where it waits or runs, nothing where other processes keep it from running."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest
import torch

import oracle
from oracle.isolate import START_UP, Completed, Pool, TimedOut, forked, process_tree, worker_handle
from oracle.isolate.process_tree import thread_times, tree_of
from oracle.isolate.task_clock import WALL_FACTOR, TaskClock
from oracle.tests.isolate_tasks import compute_on, run_one, task, value_of
from oracle.verdict import Status, Verdict

S = 1_000_000_000
PRELOAD = ["oracle.tests.isolate_tasks"]


class Machine:
    """A clock of a task of two threads, and what a system would have counted of them."""

    def __init__(self, *, limit_s: float = 10.0) -> None:
        self.now = 100.0
        self.times = {1: (5 * S, 7 * S), 2: (0, 0)}  # thread 1 is of before the task
        self.clock = TaskClock(limit_s=limit_s, times=self.times, now=self.now)

    def spend(self, seconds: float, *, ran: float = 0.0, queued: float = 0.0, thread: int = 1) -> None:
        """Some time passes, of which a thread ran, and stood in a run queue, for so long."""
        self.now += seconds
        ran_before, queued_before = self.times.get(thread, (0, 0))
        self.times[thread] = (ran_before + int(ran * S), queued_before + int(queued * S))
        self.clock.look(self.times, self.now)


def test_a_task_that_runs_is_charged_wall_time() -> None:
    machine = Machine()
    machine.spend(3, ran=3)
    assert (machine.clock.charged_s, machine.clock.cpu_s) == (3, 3)
    assert machine.clock.due_at == machine.now + 7


def test_a_task_that_waits_for_something_else_than_a_processor_is_charged_wall_time() -> None:
    machine = Machine()
    machine.spend(10)
    assert (machine.clock.charged_s, machine.clock.cpu_s) == (10, 0)
    assert machine.clock.is_over


def test_a_task_that_waits_for_a_processor_is_charged_what_it_ran() -> None:
    machine = Machine()
    for _ in range(40):
        machine.spend(1, ran=0.125, queued=0.875)
    assert machine.clock.wall_s == 40
    assert machine.clock.charged_s == 5
    assert not machine.clock.is_over
    assert machine.clock.due_at == machine.now + 5  # at the earliest: if it ran from here on


def test_a_wait_that_is_counted_when_it_ends_is_taken_off_what_was_charged_before() -> None:
    machine = Machine()
    machine.spend(4)
    machine.spend(1, ran=1, queued=4)
    assert machine.clock.charged_s == 1


def test_threads_that_keep_one_another_waiting_save_nothing_for_a_later_deadlock() -> None:
    machine = Machine()
    machine.spend(1, ran=2, queued=60)  # two processors for many threads
    assert machine.clock.charged_s == 1
    machine.spend(9)
    assert machine.clock.charged_s == 10
    assert machine.clock.is_over


def test_a_child_that_is_starved_while_its_parent_waits_for_it_counts_as_the_task() -> None:
    machine = Machine()
    machine.spend(8, ran=2, queued=6, thread=33)
    assert machine.clock.charged_s == 2


def test_the_number_of_a_thread_that_ended_may_be_given_to_another() -> None:
    machine = Machine()
    machine.spend(2, ran=1, queued=1, thread=2)
    machine.times[2] = (0, 0)
    machine.spend(2, ran=0.5, queued=1.5, thread=2)
    assert (machine.clock.cpu_s, machine.clock.charged_s) == (1.5, 1.5)


def test_a_process_that_is_missing_from_one_listing_is_not_counted_twice() -> None:
    machine = Machine()
    machine.spend(2, ran=1, queued=1, thread=2)
    kept = machine.times.pop(2)
    machine.spend(1)
    machine.times[2] = kept
    machine.spend(1)
    assert (machine.clock.cpu_s, machine.clock.charged_s) == (1, 3)


def test_a_task_that_gets_no_processor_at_all_ends_all_the_same() -> None:
    machine = Machine(limit_s=2)
    for _ in range(19):
        machine.spend(1, queued=1)
    assert not machine.clock.is_over
    machine.spend(1, queued=1)
    assert machine.clock.charged_s == 0
    assert machine.clock.is_over
    assert machine.clock.wall_s == WALL_FACTOR * 2


def test_where_the_system_does_not_count_wall_time_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_tree, "_HAS_SCHEDSTAT", False)
    assert thread_times([os.getpid()]) is None
    clock = TaskClock(limit_s=10, times=None, now=0)
    clock.look(None, 4)
    assert (clock.charged_s, clock.cpu_s, clock.is_over) == (4, None, False)
    clock.look({1: (S, S)}, 10)
    assert (clock.charged_s, clock.is_over) == (10, True)


needs_counts = pytest.mark.skipif(
    thread_times([os.getpid()]) is None, reason="this system does not count how long a thread waits for a processor"
)


@pytest.fixture
def busy_processor() -> Iterator[int]:
    """A processor with two spinning processes, each in a session of its own: systems may share time by session."""
    processor = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, {{{processor}}}); print('ready', flush=True)\nwhile True: pass"
    hogs = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) for _ in range(2)
    ]
    try:
        for hog in hogs:
            assert hog.stdout is not None
            assert hog.stdout.readline() == b"ready\n"
        yield processor
    finally:
        for hog in hogs:
            hog.kill()
            hog.communicate()


@needs_counts
def test_a_starved_task_is_no_timeout_though_the_wall_is_over_its_limit(busy_processor: int) -> None:
    with Pool(workers=1, preload=PRELOAD) as pool:
        result = run_one(pool, task("compute_on", timeout_s=1.0, processor=busy_processor, cpu_s=0.6))
    assert value_of(result)["wall_s"] > 1.0


def test_tasks_that_sleep_or_loop_on_a_busy_machine_are_timeouts(busy_processor: int) -> None:
    with Pool(workers=1, preload=PRELOAD) as pool:
        asleep = run_one(pool, task("sleep", timeout_s=0.5, seconds=600)).end
        loops = run_one(pool, task("compute_on", timeout_s=0.5, processor=busy_processor, cpu_s=600)).end
    assert isinstance(asleep, TimedOut)
    assert isinstance(loops, TimedOut)
    assert asleep.cpu_s is None or asleep.cpu_s < 0.5


@needs_counts
def test_a_check_that_is_starved_is_no_timeout(busy_processor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child of `oracle.check` has the same clock."""
    began = time.monotonic()

    def child(work: object, connection: Connection) -> None:
        compute_on({"processor": busy_processor, "cpu_s": 0.6}, lambda stage: None)
        answer = {"verdict": Verdict(status=Status.PASS).to_json()}
        connection.send_bytes(json.dumps({"answer": answer}).encode())
        os._exit(0)

    monkeypatch.setattr(forked, "_child", child)
    (verdict,) = oracle.check(torch.sin, torch.ones(1), subjects=["eager"], timeout_s=1.0).values()
    assert verdict.status is Status.PASS
    assert time.monotonic() - began > 1.0


@needs_counts
def test_children_are_counted() -> None:
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        assert set(thread_times([child.pid]) or {}) == {child.pid}
        assert set(thread_times(tree_of(os.getpid())) or {}) >= {child.pid, os.getpid()}
    finally:
        child.kill()
        child.wait()


def test_start_up_is_not_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    with Pool(workers=1, preload=PRELOAD) as pool:
        assert isinstance(run_one(pool, task("start_up", timeout_s=0.4, start_s=0.8, work_s=0.0)).end, Completed)
        late = run_one(pool, task("start_up", timeout_s=0.4, start_s=0.0, work_s=600)).end
        monkeypatch.setattr(worker_handle, "START_UP_S", 0.6)
        never = run_one(pool, task("start_up", timeout_s=0.4, start_s=600, work_s=0.0)).end
    assert isinstance(late, TimedOut)
    assert late.stage == "work"
    assert isinstance(never, TimedOut)
    assert never.stage == START_UP
    assert never.seconds >= 0.6
