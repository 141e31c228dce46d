"""The place where tasks run: worker processes of this machine, or slots of a cluster. It does not change results.

These options are not stored with a run: a resumed run may run elsewhere, and no command or address is taken from a database.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from oracle.cluster.pool import ClusterPool
from oracle.cluster.ray_client import RayClient
from oracle.cluster.resources import Resources
from oracle.cluster.slot import SlotSettings
from oracle.environment import recorded_variables
from oracle.errors import UsageError
from oracle.limits import available_cores, check_positive

LOCAL, RAY = "local", "ray"
DEFAULT_RESOURCES = "CPU=1"
DEFAULT_TIMEOUT_S = 60.0
_GIVEN_BY_RAY = "CUDA_VISIBLE_DEVICES"

ExecutorOption = Annotated[
    str, typer.Option(help="Where cases run: 'local' or 'ray', the nodes of a ray cluster (docs/scale.md).")
]
RayAddressOption = Annotated[
    str | None, typer.Option(help="The cluster, as HOST:PORT. Default: $RAY_ADDRESS, or the one on this machine.")
]
RayResourcesOption = Annotated[
    str | None, typer.Option(help="What one slot takes of a node, such as CPU=4,GPU=0.5. Default: CPU=1.")
]
RaySlotsOption = Annotated[
    int | None, typer.Option(help="Most slots that this run takes. Default: as many as the nodes hold.")
]


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
    *, executor: str, ray_address: str | None, ray_resources: str | None, ray_slots: int | None,
    on_hang: str | None = None, on_hang_timeout: float = DEFAULT_TIMEOUT_S,
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


def open_cluster(execution: Execution, settings: SlotSettings, *, tell: Callable[[str], None]) -> ClusterPool:
    """The pool that runs tasks in slots. `tell` gets lines about lost nodes.

    The slots get this process's search path, and those of its variables that a run records.
    Raises UsageError if there is no cluster, ValueError if `execution` is that of this machine.
    """
    if execution.resources is None:
        raise ValueError("tasks are to run on this machine")
    # Workers of this machine would inherit these; nodes have what they were started with.
    inherited = {name: value for name, value in recorded_variables(os.environ).items() if name != _GIVEN_BY_RAY}
    settings = replace(
        settings,
        environment={**inherited, **settings.environment},
        path=tuple(os.path.abspath(entry) for entry in sys.path),
    )
    client = RayClient(resources=execution.resources, address=execution.address)
    return ClusterPool(client, settings, tell=tell, most_slots=execution.most_slots)
