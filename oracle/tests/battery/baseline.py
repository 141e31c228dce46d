"""What the judge is known to answer wrongly: ids under a reason, in `known_misses.txt` and `known_false_alarms.txt`.

The lists may only shrink. An id that is listed and answered rightly fails `test_battery.py`, and so does one that is answered
wrongly and not listed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import torch

from oracle.tests.battery.entries import Entry
from oracle.tests.battery.run import all_entries, answers

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
    """The part of the battery that tests run: two dtypes, small sizes, errors far from the edge of being found.

    `make test` runs every second one of each kind of these, `make check` all.
    Left out are the finer steps of the dial: on which of them a bias is first found hangs on the processor.
    """
    return [entry for entry in entries if entry.dtype in _DTYPES and _is_selected(entry)]


def _is_selected(entry: Entry) -> bool:
    if entry.kind != "random" and entry.size > _LARGEST:
        return False
    if entry.kind == "random":  # the slowest: 64 runs of eager under other seeds where an element is not finite
        return entry.dtype is torch.float32 and not (entry.name.startswith("own_stream") and entry.name[-1] != "1")
    if entry.kind == "low_precision":
        return entry.name in _COARSE
    return entry.dial is None or entry.dial >= _SMALLEST_BIAS


def write(path: Path, listed: dict[str, str]) -> None:
    """The ids under their reasons, in the order given."""
    reasons = dict.fromkeys(listed.values())
    blocks = ["\n".join([f"# {reason}", *(name for name in listed if listed[name] == reason)]) for reason in reasons]
    path.write_text("\n\n".join(blocks) + "\n" if blocks else "", encoding="utf-8")


def shrink() -> None:
    """Take out of both lists what is answered rightly by now, and what no longer stands in the selection."""
    torch.set_num_threads(1)
    wrongly = {a.entry.id for a in answers(selection(all_entries())) if a.verdict is not None and not a.is_right}
    for path in (MISSES, FALSE_ALARMS):
        listed = read(path)
        write(path, {name: reason for name, reason in listed.items() if name in wrongly})
        sys.stdout.write(f"{path.name}: {len(listed)} before, {len(read(path))} now\n")
    unlisted = sorted(wrongly - {*read(MISSES), *read(FALSE_ALARMS)})
    sys.stdout.write("".join(f"not listed: {name}\n" for name in unlisted))


if __name__ == "__main__":
    shrink()
