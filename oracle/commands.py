"""The command `torch-oracle env`: show the environment fingerprint that every run records."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from oracle.environment import check_supported, fingerprint
from oracle.isolate import Completed, Pool, Task, TaskPool


def env(as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False) -> None:
    """Show the environment fingerprint."""
    with Pool(workers=1, preload=("torch",)) as pool:
        data = fingerprint_with_worker(pool)
    if as_json:
        sys.stdout.write(json.dumps(data, indent=2) + "\n")
    else:
        _print(data, indent="")
    check_supported()


def fingerprint_with_worker(pool: TaskPool) -> dict[str, Any]:
    """The fingerprint made without torch, and under "worker" the one that torch makes in a worker."""
    task = Task(
        key="environment",
        function="oracle.environment:torch_fingerprint_task",
        payload={},
        group="",
        timeout_s=120,
        memory_bytes=4 * 2**30,
    )
    (result,) = pool.run([task])
    inside = result.end.value if isinstance(result.end, Completed) else {"error": str(result.end)}
    return {**fingerprint(), "worker": inside}


def _print(data: object, *, indent: str) -> None:
    if isinstance(data, dict):
        for key, value in data.items():
            if isinstance(value, dict):
                sys.stdout.write(f"{indent}{key}:\n")
                _print(value, indent=indent + "  ")
            else:
                sys.stdout.write(f"{indent}{key}: {value}\n")
