"""Tasks and their ends as JSON, for the way to a node and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from oracle.isolate import Completed, Died, End, Failed, OutOfMemory, Task, TimedOut

_ENDS: Mapping[str, type[End]] = {kind.__name__: kind for kind in (Completed, Failed, Died, TimedOut, OutOfMemory)}


def task_to_json(task: Task) -> dict[str, Any]:
    return asdict(task)


def task_from_json(data: Mapping[str, Any]) -> Task:
    return Task(**{**data, "environment": tuple((name, value) for name, value in data["environment"])})


def end_to_json(end: End) -> dict[str, Any]:
    return {"kind": type(end).__name__, **asdict(end)}


def end_from_json(data: Mapping[str, Any]) -> End:
    fields = {name: value for name, value in data.items() if name != "kind"}
    return _ENDS[data["kind"]](**fields)
