"""Check before a run that the subjects given by path can be used at all, to report it once. Does not import torch."""

from __future__ import annotations

from collections.abc import Iterable

from oracle.errors import UsageError
from oracle.isolate import Completed, Task, TaskPool
from oracle.subjects.spec import SubjectSpec

TIMEOUT_S = 20.0  # a subject that takes longer for one tiny function is left to the run


def check_usable(specs: Iterable[SubjectSpec], pool: TaskPool) -> None:
    """Try each subject given by path on one tiny function, in a worker (`oracle.subjects.preflight`).

    Raises UsageError for a path that does not import, that names nothing callable, or whose function returns nothing callable.
    """
    tasks = [
        Task(
            key=f"preflight {spec.name}",
            function="oracle.subjects.preflight:probe",
            payload={"subject": spec.to_json()},
            group=spec.name,
            timeout_s=TIMEOUT_S,
            memory_bytes=2 * 2**30,
            environment=tuple(sorted(spec.env.items())),
        )
        for spec in specs
        if spec.path
    ]
    for result in pool.run(tasks) if tasks else ():
        if isinstance(result.end, Completed) and result.end.value.get("usage_error"):
            raise UsageError(**result.end.value["usage_error"])  # type: ignore[arg-type]
