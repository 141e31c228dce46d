"""Parse and check time, count and memory options that several commands share. Does not import torch."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from oracle.errors import UsageError

ADDRESS_SPACE_MARGIN_BYTES = 4 * 2**30  # g++ under inductor maps more than it uses
_DURATION = re.compile(r"^(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?$")


def duration(text: str) -> float:
    """The seconds of "90s", "10m", "1h30m" or "45". Raises UsageError for other text and for zero."""
    found = _DURATION.fullmatch(text.strip())
    seconds = (
        sum(int(part or 0) * unit for part, unit in zip(found.groups(), (3600, 60, 1), strict=True)) if found else 0
    )
    if not seconds:
        raise UsageError(seen=f"--time {text}", expected="a time such as 90s, 10m or 1h30m", do="correct --time")
    return float(seconds)


def check_positive(values: Mapping[str, float | None]) -> None:
    """Raises UsageError for an option that is set and not positive."""
    for option, value in values.items():
        if value is not None and value <= 0:
            raise UsageError(
                seen=f"{option} {value}", expected="a positive number", do=f"leave {option} out for the default"
            )


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
