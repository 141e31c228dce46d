"""The process of one slot on a node: a pool of isolated workers, which runs the batches that the driver sends."""

from __future__ import annotations

import importlib
import json
import os
import platform
import queue
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType, TracebackType
from typing import Any, Protocol

from typing_extensions import Self

from oracle.cluster.messages import end_to_json, task_from_json
from oracle.environment import package_version
from oracle.isolate import AfterHang, IsolateError, Pool, TaskResult
from oracle.isolate.settings import GIB, StartMethod

COMPARED = ("torch", "triton", "torch-oracle")  # slots with other versions of these are not used


class SlotService(Protocol):
    """Something that the workers of one slot share on their node, such as a folder for a compiler's cache."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables for the workers."""
        ...

    def before_batch(self) -> None:
        """Called when no task of the slot runs."""
        ...

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSettings:
    """The pool of a slot. The fields are parameters of `oracle.isolate.Pool`, but for the last two."""

    workers: int
    preload: tuple[str, ...] = ()
    start_method: StartMethod = "forkserver"
    threads_per_worker: int | None = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    max_worker_growth_bytes: int = 2 * GIB
    address_space_margin_bytes: int | None = None
    start_timeout_s: float = 180.0
    after_hang: AfterHang | None = None
    service: str = ""
    """The import path, as "module:function", of a function that makes the slot's `SlotService`, given the number of workers."""
    path: tuple[str, ...] = ()
    """Folders of the driver's `sys.path`, which workers search after the node's own: modules of subjects may be there."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        fields = json.loads(text)
        after = fields["after_hang"]
        if after is not None:
            fields["after_hang"] = AfterHang(**{**after, "command": tuple(after["command"])})
        return cls(**{**fields, "preload": tuple(fields["preload"]), "path": tuple(fields["path"])})

    def pool(self, environment: Mapping[str, str]) -> Pool:
        """The pool, whose workers have the variables of `environment` too."""
        return Pool(
            workers=self.workers,
            preload=self.preload,
            start_method=self.start_method,
            threads_per_worker=self.threads_per_worker,
            environment={**self.environment, **environment},
            max_worker_growth_bytes=self.max_worker_growth_bytes,
            address_space_margin_bytes=self.address_space_margin_bytes,
            start_timeout_s=self.start_timeout_s,
            after_hang=self.after_hang,
        )


class Slot:
    """Runs one batch at a time. Every method takes and returns JSON text or None, since messages cross machines."""

    def __init__(self, settings: str, hidden: str = "") -> None:
        """`hidden`: a folder with modules of the cluster's software, which workers must not import."""
        self._settings = SlotSettings.from_json(settings)
        own = [entry for entry in sys.path if not (hidden and entry.startswith(hidden))]
        sys.path[:] = [*own, *(entry for entry in self._settings.path if entry not in own and os.path.isdir(entry))]
        self._service = _service(self._settings)
        self._service.__enter__()
        self._pool = self._settings.pool(self._service.environment)
        # None: the end of the batch.
        self._ended: queue.SimpleQueue[TaskResult | BaseException | None] = queue.SimpleQueue()

    def about(self) -> str:
        """{"node", "versions"}: the name of the machine, and versions that must be the same on all."""
        versions = {name: package_version(name) for name in COMPARED}
        return json.dumps({"node": socket.gethostname(), "versions": {"python": platform.python_version(), **versions}})

    def work(self, batch: str | None, wait_s: float) -> str:
        """Begin the batch, if one is given, and collect results for `wait_s` seconds or until it ends.

        Returns {"results", "is_done", "error"}. An error is one of the pool, such as workers that do not start; the tasks without
        a result have not run then.
        """
        if batch is not None:
            self._service.before_batch()
            results = self._pool.run([task_from_json(task) for task in json.loads(batch)])
            threading.Thread(target=self._read, args=(results,), daemon=True).start()
        found: list[dict[str, Any]] = []
        deadline = time.monotonic() + wait_s
        while True:
            try:
                ended = self._ended.get(timeout=max(0.001, deadline - time.monotonic()))
            except queue.Empty:
                return _answer(found)
            if isinstance(ended, IsolateError):
                return _answer(found, is_done=True, error=str(ended))
            if isinstance(ended, BaseException):
                raise ended
            if ended is None:
                return _answer(found, is_done=True)
            found.append(
                {
                    "key": ended.task.key,
                    "end": end_to_json(ended.end),
                    "worker_pid": ended.worker_pid,
                    "tasks_before": ended.tasks_before,
                }
            )

    def stop(self) -> None:
        self._pool.stop()
        self._service.__exit__(None, None, None)

    def _read(self, results: Any) -> None:
        try:
            for result in results:
                self._ended.put(result)
        except BaseException as error:
            self._ended.put(error)
        else:
            self._ended.put(None)


def _answer(results: list[dict[str, Any]], *, is_done: bool = False, error: str = "") -> str:
    return json.dumps({"results": results, "is_done": is_done, "error": error})


class _NoService:
    environment: Mapping[str, str] = MappingProxyType({})

    def before_batch(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


def _service(settings: SlotSettings) -> SlotService:
    if not settings.service:
        return _NoService()
    module, _, name = settings.service.partition(":")
    return getattr(importlib.import_module(module), name)(settings.workers)
