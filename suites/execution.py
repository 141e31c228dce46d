"""Where the cases of a sweep run: in worker processes of this machine, or in slots of a cluster. Does not change results.

These options are not stored with a run: a resumed run may run elsewhere, and no command or address is taken from a database.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass

from oracle.cluster import ClusterPool, RayClient, Resources, SlotSettings
from oracle.environment import recorded_variables
from oracle.errors import UsageError
from oracle.isolate import AfterHang, Pool, TaskPool
from oracle.isolate.settings import StartMethod
from oracle.limits import ADDRESS_SPACE_MARGIN_BYTES, available_cores, check_positive
from suites.registry import modules_of
from suites.request import SweepRequest

LOCAL, RAY = "local", "ray"
DEFAULT_RESOURCES = "CPU=1"
DEFAULT_TIMEOUT_S = 60.0
PRELOAD = ("torch", "oracle.case")
# What is preloaded is imported once and shared by all workers, which are forked from one process: a worker that takes the place
# of one that died would import it again, and these two take as long as torch.
_COMPILER_PRELOAD = ("torch._dynamo", "torch._functorch.aot_autograd")
_KINDS_WITH_COMPILER = frozenset({"torch_compile", "backend", "compiler", "export"})
_GIVEN_BY_RAY = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """The checked options `--executor`, `--on-hang` and those that begin with `--ray-` and `--on-hang-`."""

    resources: Resources | None = None  # of a slot; None: this machine
    address: str | None = None
    most_slots: int | None = None  # None: as many as the nodes hold
    on_hang: tuple[str, ...] = ()
    on_hang_timeout_s: float = DEFAULT_TIMEOUT_S

    @property
    def default_workers(self) -> int:
        """Workers of the pool, or of each slot."""
        return available_cores() if self.resources is None else self.resources.processors

    def words(self) -> list[str]:
        """The options that are not at their defaults, for a command that goes on with the run."""
        words: list[str] = []
        if self.resources is not None:
            words += ["--executor", RAY]
            words += ["--ray-resources", str(self.resources)] if str(self.resources) != DEFAULT_RESOURCES else []
            words += ["--ray-address", self.address] if self.address else []
            words += ["--ray-slots", str(self.most_slots)] if self.most_slots else []
        if self.on_hang:
            words += ["--on-hang", shlex.join(self.on_hang)]
            timeout_s = self.on_hang_timeout_s
            words += ["--on-hang-timeout", f"{timeout_s:g}"] if timeout_s != DEFAULT_TIMEOUT_S else []
        return words

    def refuse_speed(self, speed: bool) -> None:
        """Raise UsageError if speed is to be measured on a cluster."""
        if speed and self.resources is not None:
            raise UsageError(
                seen="--speed with --executor ray",
                expected="one machine: the processes that time a case must be on the same one",
                do="leave out one of the two; to time cases on several machines, give each a part with --shard",
            )

    def place(self, count: int) -> str:
        """ "2 workers", "slots of 2 workers in a cluster"."""
        workers = f"{count:,} worker{'' if count == 1 else 's'}"
        return workers if self.resources is None else f"slots of {workers} in a cluster"


def make_execution(
    *, executor: str, ray_address: str | None, ray_resources: str | None, ray_slots: int | None, on_hang: str | None,
    on_hang_timeout: float,
) -> Execution:  # fmt: skip
    """Check the options. Raises UsageError."""
    if executor not in (LOCAL, RAY):
        raise UsageError(seen=f"--executor {executor}", expected="local or ray", do="name one of them")
    if executor == LOCAL and not ray_address == ray_resources == ray_slots is None:
        raise UsageError(
            seen="--ray-address, --ray-resources or --ray-slots without --executor ray",
            expected="--executor ray beside them",
            do="add --executor ray, or leave them out",
        )
    check_positive({"--on-hang-timeout": on_hang_timeout, "--ray-slots": ray_slots})
    return Execution(
        resources=Resources.parse(ray_resources or DEFAULT_RESOURCES) if executor == RAY else None,
        address=ray_address,
        most_slots=ray_slots,
        on_hang=_command(on_hang, is_here=executor == LOCAL) if on_hang is not None else (),
        on_hang_timeout_s=on_hang_timeout,
    )


def _command(text: str, *, is_here: bool) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(
            seen=f"--on-hang {text!r}: {error}",
            expected="a command with its arguments, quoted as for a shell",
            do="correct it",
        ) from error
    if not words or (is_here and shutil.which(words[0]) is None):
        raise UsageError(
            seen=f"--on-hang {text!r}: {words[0] if words else 'no command'} was not found",
            expected="a program on PATH, or its path; no shell reads the command",
            do="name a program; for a pipe or a variable of a shell: --on-hang \"sh -c '...'\"",
        )
    return words


def preload_of(request: SweepRequest) -> tuple[str, ...]:
    """What every worker of the sweep would import: compilers if a subject is one, and the suites."""
    kinds = {spec.kind for spec in request.spec_by_name().values()}
    compilers = _COMPILER_PRELOAD if kinds & _KINDS_WITH_COMPILER else ()
    return (*PRELOAD, *compilers, *modules_of(request.suites))


def open_pool(
    request: SweepRequest, execution: Execution, *, cache: str | None, tell: Callable[[str], None]
) -> TaskPool:
    """The pool that runs the sweep. `cache`: an empty folder for Inductor's caches; `tell` gets lines about lost nodes.

    Raises UsageError if there is no cluster.
    """
    is_cuda = request.options["device"].startswith("cuda")
    # Workers already use every core, so compile processes in each of them would not help.
    environment = {"TORCHINDUCTOR_COMPILE_THREADS": os.environ.get("TORCHINDUCTOR_COMPILE_THREADS", "1")}
    if cache is not None:
        environment["TORCHINDUCTOR_CACHE_DIR"] = cache
    start_method: StartMethod = "spawn" if is_cuda else "forkserver"
    margin = None if is_cuda else ADDRESS_SPACE_MARGIN_BYTES
    after_hang = None
    if execution.on_hang:
        after_hang = AfterHang(
            command=execution.on_hang, device=request.options["device"], timeout_s=execution.on_hang_timeout_s
        )
    if execution.resources is None:
        return Pool(
            workers=request.workers, preload=preload_of(request), start_method=start_method,
            threads_per_worker=request.threads, environment=environment, address_space_margin_bytes=margin,
            after_hang=after_hang,
        )  # fmt: skip
    # Workers of this machine would inherit these; nodes have what they were started with.
    inherited = {name: value for name, value in recorded_variables(os.environ).items() if name != _GIVEN_BY_RAY}
    settings = SlotSettings(
        workers=request.workers, preload=preload_of(request), start_method=start_method,
        threads_per_worker=request.threads, environment={**inherited, **environment},
        address_space_margin_bytes=margin, after_hang=after_hang,
        path=tuple(os.path.abspath(entry) for entry in sys.path),
    )  # fmt: skip
    client = RayClient(resources=execution.resources, address=execution.address)
    return ClusterPool(client, settings, tell=tell, most_slots=execution.most_slots)
