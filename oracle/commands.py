"""`torch-oracle env`: what this machine and its torch are, as every run records it."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from oracle.environment import check_supported, fingerprint
from oracle.isolate import Completed, Pool, Task


def env(as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False) -> None:
    """Show the environment fingerprint."""
    data = fingerprint()
    task = Task(
        key="environment",
        function="oracle.environment:torch_fingerprint_task",
        payload={},
        group="",
        timeout_s=120,
        memory_bytes=4 * 2**30,
    )
    with Pool(workers=1, preload=("torch",)) as pool:
        (result,) = pool.run([task])
    data["worker"] = result.end.value if isinstance(result.end, Completed) else {"error": str(result.end)}
    if as_json:
        sys.stdout.write(json.dumps(data, indent=2) + "\n")
    else:
        _print(data, indent="")
    check_supported()


def _print(data: object, *, indent: str) -> None:
    if isinstance(data, dict):
        for key, value in data.items():
            if isinstance(value, dict):
                sys.stdout.write(f"{indent}{key}:\n")
                _print(value, indent=indent + "  ")
            else:
                sys.stdout.write(f"{indent}{key}: {value}\n")
