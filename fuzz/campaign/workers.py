"""The workers of a campaign, on this machine or on a cluster, and what they share on a machine: a compiler's cache and builds."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from typing_extensions import Self

from fuzz.builds.server import BUILDS, BuildServer
from fuzz.campaign.settings import PROCESS_BYTES, CampaignSettings
from oracle.cluster import Execution, SlotSettings, open_cluster
from oracle.isolate import Pool, Task, TaskPool
from oracle.limits import ADDRESS_SPACE_MARGIN_BYTES

PRELOAD = ("torch", "oracle.case", "fuzz.campaign.worker", "fuzz.judge.relation", "fuzz.reduce.task")
INDUCTOR_PRELOAD = (
    "torch._inductor.compile_fx", "torch._inductor.graph", "torch._dynamo.backends.inductor", "torch.export._trace",
    "torch.utils.cpp_extension",
)  # fmt: skip
WARM_UP_S = 180.0
START_S = 400.0  # limit for the start of the process that workers are forked from, including one trial of the compiler

_PREFIX: Final = "torch-oracle-fuzz-"
_MOST_FILES = 20_000  # of a compiler's cache: a few GB of kernels


@dataclass(frozen=True, slots=True)
class Workers:
    """The pool of a campaign. `shared` is what its workers share, if they are processes of this machine."""

    settings: CampaignSettings
    pool: TaskPool
    shared: SharedCompilers | None

    def warm_up(self) -> None:
        """Compile one program, so that no other program's time includes what Inductor builds once (probes of the processor).

        Does nothing on a cluster, where one program would warm up one node.
        """
        if self.shared is None or not self.settings.is_inductor:
            return
        task = Task(
            key="warm up",
            function="fuzz.campaign.worker:warm_up",
            payload={"subject": self.settings.subject.to_json()},
            group="",
            timeout_s=WARM_UP_S,
            memory_bytes=self.settings.memory_bytes,
            environment=tuple(sorted(self.settings.subject.env.items())),
        )
        for _ in self.pool.run([task]):  # an error is ignored: the programs of the campaign will show it
            self.shared.keep()

    def between_runs(self) -> None:
        """Called when no task of the pool runs. The slots of a cluster do the same by themselves."""
        if self.shared is not None:
            self.shared.before_batch()


@contextmanager
def open_workers(settings: CampaignSettings, execution: Execution, *, tell: Callable[[str], None]) -> Iterator[Workers]:
    """The workers, until the context is left. `tell` gets lines about lost nodes. Raises UsageError if there is no cluster."""
    with ExitStack() as stack:
        if execution.resources is None:
            shared = stack.enter_context(SharedCompilers(settings.workers, builds=settings.is_inductor))
            pool = stack.enter_context(_pool_here(settings, shared.environment))
            yield Workers(settings, pool, shared)
        else:
            cluster = stack.enter_context(open_cluster(execution, _slots_of(settings), tell=tell))
            yield Workers(settings, cluster, None)


def _pool_here(settings: CampaignSettings, environment: Mapping[str, str]) -> Pool:
    return Pool(workers=settings.processes, environment=environment, **_options(settings))


def _slots_of(settings: CampaignSettings) -> SlotSettings:
    function = builds_of_slot if settings.is_inductor else cache_of_slot
    service = f"{function.__module__}:{function.__name__}"
    return SlotSettings(workers=settings.workers, service=service, **_options(settings))


def _options(settings: CampaignSettings) -> dict[str, Any]:
    """The settings that a pool on this machine and one in a slot of a cluster share."""
    return {
        "preload": _preload(settings),
        "threads_per_worker": settings.threads,
        "max_worker_growth_bytes": PROCESS_BYTES,
        "address_space_margin_bytes": ADDRESS_SPACE_MARGIN_BYTES,
        "start_timeout_s": START_S,
    }


def _preload(settings: CampaignSettings) -> tuple[str, ...]:
    if settings.is_inductor:
        return (*PRELOAD, *INDUCTOR_PRELOAD, "fuzz.campaign.warming:inductor")
    if settings.subject.kind in ("torch_compile", "backend"):
        return (*PRELOAD, "fuzz.campaign.warming:aot_eager")
    return PRELOAD


# Functions that the slots of a cluster call by name.


def cache_of_slot(workers: int) -> SharedCompilers:
    """A compiler's cache for the workers of a slot."""
    return SharedCompilers(workers, builds=False, folder=folder_of_process())


def builds_of_slot(workers: int) -> SharedCompilers:
    """A compiler's cache and a build server for the workers of a slot."""
    return SharedCompilers(workers, builds=True, folder=folder_of_process())


def folder_of_process() -> Path:
    """A new folder for temporary files of this process. Deletes those of processes of this machine that have ended.

    A slot is killed at the end of a run, without time to delete its own.
    """
    root = Path(tempfile.gettempdir()) / f"{_PREFIX}{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        root.mkdir(mode=0o700)
    found = root.lstat()
    if found.st_uid != os.getuid() or not stat.S_ISDIR(
        found.st_mode
    ):  # somebody else took the name, perhaps for a link
        return Path(tempfile.mkdtemp(prefix=_PREFIX))
    host = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]  # the path of a socket has at most 107 bytes
    for left in root.glob(f"{host}-*-*"):
        if not _is_running(left.name.split("-")[1]):
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{host}-{os.getpid()}-", dir=root))


def _is_running(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


class SharedCompilers:
    """The setting of one machine's workers: a temporary folder for compilers' caches and, for Inductor, a build server.

    Kernels of random programs are never needed again, and should not fill the user's cache: when the folder holds too many
    files, all but those seen by `keep` are deleted.
    """

    def __init__(self, workers: int, *, builds: bool, folder: Path | None = None) -> None:
        """`builds`: whether kernels are compiled by a server. `folder`: holds all files, and is deleted; None for a new one."""
        self.path = folder or Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._server = BuildServer(turns=workers, folder=str(self.path / "builds")) if builds else None
        self._cache = self.path / "cache"
        self._kept: set[str] = set()

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables for the workers."""
        found = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(self._cache)}
        return {**found, BUILDS: self._server.path} if self._server is not None else found

    def __enter__(self) -> Self:
        self._cache.mkdir(exist_ok=True)
        if self._server is not None:
            self._server.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.__exit__(kind, error, trace)
        shutil.rmtree(self.path, ignore_errors=True)

    def keep(self) -> None:
        """Keep the files that exist now: every process needs them (results of probes, headers)."""
        self._kept = set(self._files())

    def before_batch(self) -> None:
        """Delete files if there are too many. No process may read them now."""
        files = [name for name in self._files() if name not in self._kept]
        if len(files) > _MOST_FILES:
            for name in files:
                with contextlib.suppress(OSError):  # another process has deleted it
                    os.unlink(name)

    def _files(self) -> list[str]:
        return [os.path.join(folder, name) for folder, _, names in os.walk(self._cache) for name in names]
