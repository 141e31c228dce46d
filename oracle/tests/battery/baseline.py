"""What the judge is known to answer wrongly: ids under a reason, in `known_misses.txt` and `known_false_alarms.txt`.

The lists may only shrink. An id that is listed and answered rightly fails `test_battery.py`, and so does one that is answered
wrongly and not listed.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch

from oracle.tests.battery.entries import Entry

FOLDER = Path(__file__).parent
MISSES = FOLDER / "known_misses.txt"
FALSE_ALARMS = FOLDER / "known_false_alarms.txt"

_DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.complex64)
_LARGEST = 1024  # elements, of classes that exist in several sizes
_SMALLEST_BIAS = 1e-1
_COARSE = ("up_4_ulp", "low_4_bits_cleared", "narrow_accumulator", "quarter_times_1+0.1", "fp8_one_up")


def read(path: Path) -> dict[str, str]:
    """id -> reason. A line that starts with # is the reason of the ids below it."""
    found: dict[str, str] = {}
    reason = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            reason = line.lstrip("# ")
        elif line.strip():
            found[line.strip()] = reason
    return found


def selection(entries: Iterable[Entry]) -> list[Entry]:
    """The part of the battery that `make test` runs: two dtypes, small sizes, errors far from the edge of being found.

    Left out is what hangs on the processor: the finer steps of the dial, and memory that nobody filled.
    """
    return [entry for entry in entries if entry.dtype in _DTYPES and _is_selected(entry)]


def _is_selected(entry: Entry) -> bool:
    if entry.kind in ("scaled", "low_precision", "gradient") and entry.size > _LARGEST:
        return False
    if entry.kind == "not_repeatable":
        return entry.program == "clock"
    if entry.kind == "random":  # the slowest: 64 runs of eager under other seeds where an element is not finite
        return entry.dtype is torch.float32
    if entry.kind == "low_precision":
        return entry.name in _COARSE
    return entry.dial is None or entry.dial >= _SMALLEST_BIAS
