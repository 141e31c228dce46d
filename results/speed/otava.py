"""Writes histories for Apache Otava, which looks for change points in them: CSV files, and a configuration that names them.

    otava analyze --config-file FOLDER/otava.yaml TEST

A test is one case and one quantity. Its file has the columns `time` (ISO 8601), `run`, `commit` and `value`; a smaller value is
better. Runs that did not measure the case are left out, since Otava reads no empty cells.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from results.files import write_atomically

CONFIGURATION = "otava.yaml"
_COLUMNS = ("time", "run", "commit", "value")


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPoint:
    """One run's value of a case."""

    time: str  # ISO 8601 with its zone
    run: str
    commit: str  # "" if it is not known
    value: float  # positive and finite; smaller is better


def write_otava(histories: Mapping[str, Sequence[HistoryPoint]], folder: Path) -> list[Path]:
    """Write one CSV file for each history, by the name of its test, and then the configuration. Returns all paths.

    Points are sorted by time. Points whose value is not finite, and histories without points, are left out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tests, paths = {}, []
    for name, points in histories.items():
        kept = sorted((point for point in points if math.isfinite(point.value)), key=lambda point: point.time)
        if not kept:
            continue
        paths.append(folder / file_name(name))
        write_atomically(paths[-1], _table(kept))
        tests[name] = {
            "type": "csv",
            "file": str(paths[-1].resolve()),
            "time_column": "time",
            "attributes": ["run", "commit"],
            "metrics": {"value": {"column": "value", "direction": -1, "scale": 1}},
        }
    paths.append(folder / CONFIGURATION)
    write_atomically(paths[-1], json.dumps({"tests": tests}, indent=2) + "\n")  # JSON is YAML
    return paths


def file_name(test: str) -> str:
    """A file name for a test: what is readable of its name, and a digest, since names differ in other characters too."""
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", test).strip("-")[:80]
    return f"{readable}-{hashlib.blake2b(test.encode(), digest_size=4).hexdigest()}.csv"


def _table(points: Sequence[HistoryPoint]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    writer.writerows((point.time, point.run, point.commit, f"{point.value:.6g}") for point in points)
    return text.getvalue()
