"""The formats of `torch-oracle export`, apart from their writers, which need packages that are slow to import."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from oracle.errors import UsageError

FORMATS: Final = ("jsonl", "csv", "dynamo-accuracy", "dynamo-speedup", "markdown", "junit", "parquet")
_SUFFIXES: Final = {".jsonl": "jsonl", ".csv": "csv", ".parquet": "parquet", ".md": "markdown", ".xml": "junit"}


def format_of(path: Path, given: str | None) -> str:
    """The given format, or the one of the file's suffix. Raises UsageError if there is neither."""
    chosen = given or _SUFFIXES.get(path.suffix)
    if chosen is None or chosen not in FORMATS:
        raise UsageError(
            seen=f"--format {given}" if given else f"{path}, whose suffix names no format",
            expected=f"--format one of {', '.join(FORMATS)}, or a suffix of {', '.join(_SUFFIXES)}",
            do="name the format",
        )
    return chosen
