"""Slots as actors of a ray cluster. The only module that uses ray, which is an optional dependency."""

from __future__ import annotations

import importlib
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

from oracle.cluster.pool import Handle, HeadLostError, Reference, SlotLostError
from oracle.cluster.resources import Resources
from oracle.cluster.slot import Slot
from oracle.errors import InternalError, UsageError

_CONNECT_S = 10.0
_HEAD_LOST_S = 20.0
_STOP_S = 5.0


class RayClient:
    """A connection to a cluster. Raises UsageError if ray is not installed, or if there is no cluster at the address."""

    def __init__(self, *, resources: Resources, address: str | None = None) -> None:
        """`address`: of a running cluster; None: that of $RAY_ADDRESS, or the one on this machine."""
        self.resources = resources
        self._ray = ray = _import_ray()
        self._is_own = not ray.is_initialized()
        if self._is_own:
            _connect(ray, address)
        self._head: str = ray.get_runtime_context().gcs_address
        self._head_seen = time.monotonic()
        self._is_head_lost = False
        self._stopping: list[Reference] = []
        amounts = dict(resources.amounts)
        memory = {"memory": amounts.pop("memory")} if "memory" in amounts else {}
        # A lost slot is not started again by ray: the driver decides what its tasks do next.
        self._actor = ray.remote(Slot).options(
            num_cpus=amounts.pop("CPU", 0), num_gpus=amounts.pop("GPU", 0), resources=amounts, **memory,
            max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD",
        )  # fmt: skip

    def slots_possible(self) -> int:
        """How many slots the nodes hold that are there now, whatever else runs on them.

        Raises HeadLostError if the head of the cluster cannot be reached. Ray would end this process for that, after a minute
        and with exit code 1.
        """
        try:
            _check_reachable(self._head)
        except OSError as error:
            if time.monotonic() - self._head_seen < _HEAD_LOST_S:
                return 0  # slots work on without it
            self._is_head_lost = True
            raise HeadLostError(f"the head of the cluster at {self._head} cannot be reached: {error}") from error
        self._head_seen = time.monotonic()
        return sum(self.resources.slots_on(node["Resources"]) for node in self._ray.nodes() if node["Alive"])

    def start(self, settings: str) -> Handle:
        return self._actor.remote(settings, os.path.join(os.path.dirname(self._ray.__file__), ""))

    def about(self, slot: Handle) -> Reference:
        return slot.about.remote()

    def work(self, slot: Handle, batch: str | None, wait_s: float) -> Reference:
        return slot.work.remote(batch, wait_s)

    def wait(self, references: Sequence[Reference], timeout_s: float) -> Sequence[Reference]:
        """The references whose answers are there, after at least one is or the time is over."""
        first, rest = self._ray.wait(list(references), num_returns=1, timeout=timeout_s)
        if not first or not rest:
            return first
        return [*first, *self._ray.wait(rest, num_returns=len(rest), timeout=0)[0]]

    def answer(self, reference: Reference) -> str:
        """Raises SlotLostError if the slot or its node is gone, or cannot be reached."""
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            raise InternalError(f"a slot failed: {error}") from error
        except self._ray.exceptions.RayError as error:
            raise SlotLostError(str(error)) from error

    def kill(self, slot: Handle) -> None:
        if self._is_head_lost:  # only it can end a process; but the slot itself can end its workers
            self._stopping.append(slot.stop.remote())
        else:
            self._ray.kill(slot, no_restart=True)

    def close(self) -> None:
        if self._stopping:
            self._ray.wait(self._stopping, num_returns=len(self._stopping), timeout=_STOP_S)
        if self._is_own:
            self._ray.shutdown()


def _import_ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise UsageError(
            seen="--executor ray, but ray is not installed",
            expected="the extra `ray` of torch-oracle, here and on every node",
            do="pip install 'torch-oracle[ray]', or leave --executor out to run on this machine",
        ) from error


def _connect(ray: Any, address: str | None) -> None:
    address = address or os.environ.get("RAY_ADDRESS") or "auto"
    where = "this machine" if address == "auto" else address
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        _check_reachable(address)
        ray.init(
            address=address,
            namespace="torch-oracle",
            log_to_driver=False,
            configure_logging=False,
        )
    except (OSError, ValueError, RuntimeError) as error:  # an OSError is also what ray raises if it finds no cluster
        first_line = str(error).strip().splitlines()[0]
        raise UsageError(
            seen=f"no ray cluster at {where}: {first_line}",
            expected="a running cluster",
            do="start one with `ray start --head`, add nodes with `ray start --address=HOST:6379`, or name it with --ray-address",
        ) from error
    else:
        # Ray's thread prints what it notices of nodes on stdout, which is for results; the driver tells it in its own words.
        setattr(importlib.import_module("ray._private.worker"), "_worker_logs_enabled", False)
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, handler)  # ray sets its own, which would end the run without closing it


def _check_reachable(address: str) -> None:
    """Raises OSError if nothing listens at HOST:PORT, for which ray itself would wait for minutes. Ignores other addresses."""
    found = re.fullmatch(r"\[?([^/\]]+?)\]?:(\d+)", address)
    if found is not None:
        socket.create_connection((found[1], int(found[2])), timeout=_CONNECT_S).close()
