"""Runs the battery and prints the judge's two error rates: `python -m oracle.tests.battery.run`.

Wrong subjects found of all, right subjects passed of all, by class and dtype; the dial: the smallest relative bias found by
dtype and size; every miss and every false alarm by its id. `--json FILE` writes the same as a table.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import platform
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from oracle.case import CaseOptions, EagerState, judge_subject
from oracle.checking import check
from oracle.program import Program
from oracle.program.build import instantiate
from oracle.tests.battery.entries import Entry, LiveCase, WrappedProgram, dtype_name
from oracle.tests.battery.measure import is_as_claimed
from oracle.tests.battery.right import right_entries
from oracle.tests.battery.wrong import wrong_entries
from oracle.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the judge said of one entry. Without a verdict the entry was measured, and is not what it claims to be."""

    entry: Entry
    verdict: Verdict | None

    @property
    def is_right(self) -> bool:
        return self.verdict is not None and self.entry.is_answered(self.verdict)


class States:
    """Eager's runs of programs: of the newest one, since entries of one program come one after the other, or of all."""

    def __init__(self, *, keeps_all: bool = False) -> None:
        self._keeps_all = keeps_all
        self._states: dict[str, tuple[Program, EagerState]] = {}

    def of(self, program: Program) -> EagerState:
        known, state = self._states.get(program.name, (None, None))
        if state is None or known != program:
            if not self._keeps_all:
                self._states.clear()
            state = EagerState(make=lambda: instantiate(program))
            self._states[program.name] = program, state
        return state


def answer(entry: Entry, states: States) -> Answer:
    if isinstance(entry.case, LiveCase):
        verdicts = check(entry.case.function, *entry.case.inputs(), subjects=[entry.case.backend], isolate=False)
        return Answer(entry=entry, verdict=next(iter(verdicts.values())))
    if entry.is_measured and entry.rng == "eager" and not is_as_claimed(entry):
        return Answer(entry=entry, verdict=None)
    result = judge_subject(eager=states.of(entry.case), subject=WrappedProgram(entry), options=CaseOptions())
    return Answer(entry=entry, verdict=result.verdict)


def all_entries() -> list[Entry]:
    """Wrong and right ones, those of one program side by side."""
    entries = [*wrong_entries(), *right_entries()]
    first: dict[Any, int] = {}
    for at, entry in enumerate(entries):
        first.setdefault(_program_of(entry), at)
    return sorted(entries, key=lambda entry: first[_program_of(entry)])


def _program_of(entry: Entry) -> str:
    return entry.case.name if isinstance(entry.case, Program) else entry.id


def chosen(entries: Iterable[Entry], *, only: Sequence[str] = (), kinds: Sequence[str] = ()) -> list[Entry]:
    """Those whose id matches a pattern of `only`, of the classes `kinds`; all where these are empty."""
    return [
        entry
        for entry in entries
        if (not only or any(fnmatch.fnmatch(entry.id, pattern) for pattern in only))
        and (not kinds or entry.kind in kinds)
    ]


def answers(
    entries: Iterable[Entry], *, states: States | None = None, progress: Callable[[int], None] = lambda done: None
) -> Iterator[Answer]:
    states = states or States()
    for done, entry in enumerate(entries):
        progress(done)
        yield answer(entry, states)


# --------------------------------------------------------------------------------------------- tables


DIALS = {
    "scaled": "the rounded result times 1 + d",
    "biased": "the result in the next wider dtype times 1 + d, then rounded",
}  # classes whose figure is the smallest bias found; how many of their steps are found depends on the steps


def rates(given: Sequence[Answer], *, is_wrong: bool) -> str:
    """Right answers of all, by class and dtype; the dials stand below the line `all` and are not in it."""
    judged = [a for a in given if a.entry.is_wrong is is_wrong and a.verdict is not None]
    dtypes = list(dict.fromkeys(dtype_name(a.entry.dtype) for a in judged))
    right: Counter[tuple[str, str]] = Counter()
    total: Counter[tuple[str, str]] = Counter()
    for a in judged:
        for key in ((a.entry.kind, dtype_name(a.entry.dtype)), (a.entry.kind, "all"), ("all", "all"),
                    ("all", dtype_name(a.entry.dtype))):  # fmt: skip
            if key[0] != "all" or a.entry.kind not in DIALS:
                total[key] += 1
                right[key] += a.is_right
    seen = list(dict.fromkeys(a.entry.kind for a in judged))
    kinds = [*(kind for kind in seen if kind not in DIALS), "all", *(kind for kind in seen if kind in DIALS)]
    rows = [["class", *dtypes, "all"]]
    for kind in kinds:
        rows.append(
            [kind, *(f"{right[kind, d]} of {total[kind, d]}" if total[kind, d] else "-" for d in (*dtypes, "all"))]
        )
    return _aligned(rows)


def dial_of(given: Sequence[Answer], kind: str) -> dict[tuple[str, int], dict[str, float]]:
    """The smallest bias from which on every larger one is found too, by dtype and size, for each program."""
    seen: dict[tuple[str, int], dict[str, dict[float, bool]]] = defaultdict(lambda: defaultdict(dict))
    for a in given:
        if a.entry.kind == kind and a.entry.dial is not None and a.verdict is not None:
            seen[dtype_name(a.entry.dtype), a.entry.size][a.entry.program][a.entry.dial] = a.is_right
    found: dict[tuple[str, int], dict[str, float]] = {}
    for key, programs in seen.items():
        found[key] = {}
        for program, steps in programs.items():
            smallest = float("inf")
            for step in sorted(steps, reverse=True):
                if not steps[step]:
                    break
                smallest = step
            found[key][program] = smallest
    return found


def dial_table(given: Sequence[Answer], kind: str) -> str:
    """Rows are dtypes, columns sizes; a cell is the smallest bias found on the best and on the worst program."""
    dial = dial_of(given, kind)
    sizes = sorted({size for _, size in dial})
    rows = [["dtype", *(f"{size} elements" for size in sizes)]]
    for dtype in dict.fromkeys(dtype for dtype, _ in dial):
        cells = []
        for size in sizes:
            values = dial.get((dtype, size), {}).values()
            cells.append(f"{min(values):g} .. {max(values):g}" if values else "-")
        rows.append([dtype, *cells])
    return _aligned(rows)


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def report(given: Sequence[Answer], *, seconds: float) -> str:
    wrong = [a for a in given if a.entry.is_wrong and a.verdict is not None]
    right = [a for a in given if not a.entry.is_wrong and a.verdict is not None]
    not_wrong = sum(a.entry.is_wrong and a.verdict is None for a in given)
    equal = sum(not a.entry.is_wrong and a.verdict is None for a in given)
    misses = [a for a in wrong if not a.is_right]
    alarms = [a for a in right if not a.is_right]
    skipped = sum(a.verdict is not None and a.verdict.status.value == "pass_due_to_skip" for a in right)
    counted = [a for a in wrong if a.entry.kind not in DIALS]
    lines = [
        f"wrong subjects found: {sum(a.is_right for a in counted)} of {len(counted)}, beside {len(wrong) - len(counted)} "
        f"steps of a dial ({not_wrong} more subjects are within rounding here)",
        rates(given, is_wrong=True), "",
        f"right subjects passed: {len(right) - len(alarms)} of {len(right)}, {skipped} of them as pass_due_to_skip "
        f"({equal} more are bit for bit eager here)",
        rates(given, is_wrong=False), "",
        *(line for kind, what in DIALS.items() for line in (
            f"smallest relative bias found, of the best program and of the worst ({kind}: {what})",
            dial_table(given, kind), "")),
        f"missed: {len(misses)}", *(f"  {a.entry.id}  {_status(a)}" for a in misses), "",
        f"false alarms: {len(alarms)}", *(f"  {a.entry.id}  {_status(a)}: {_symptom(a)}" for a in alarms), "",
        f"{len(given)} subjects in {seconds:.0f} s of processor time",
    ]  # fmt: skip
    return "\n".join(lines)


def _status(a: Answer) -> str:
    return a.verdict.status.value if a.verdict is not None else ""


def _symptom(a: Answer) -> str:
    return a.verdict.symptom[:160] if a.verdict is not None else ""


def table(given: Sequence[Answer], *, seconds: float) -> dict[str, Any]:
    """The figures as JSON, with where they come from."""

    def counts(is_wrong: bool) -> dict[str, dict[str, list[int]]]:
        found: dict[str, dict[str, list[int]]] = {}
        for a in given:
            if a.entry.is_wrong is is_wrong and a.verdict is not None:
                cell = found.setdefault(a.entry.kind, {}).setdefault(dtype_name(a.entry.dtype), [0, 0])
                cell[0] += a.is_right
                cell[1] += 1
        return found

    return {
        "schema": 1,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "seconds": round(seconds),
        "wrong_found": counts(True),
        "right_passed": counts(False),
        "dial": [
            {
                "class": kind,
                "dtype": dtype,
                "elements": size,
                "smallest": {p: v if v < 1 else None for p, v in programs.items()},
            }
            for kind in DIALS
            for (dtype, size), programs in dial_of(given, kind).items()
        ],
        "missed": [a.entry.id for a in given if a.entry.is_wrong and a.verdict is not None and not a.is_right],
        "false_alarms": [
            a.entry.id for a in given if not a.entry.is_wrong and a.verdict is not None and not a.is_right
        ],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", default=[], help="a pattern of ids, for example 'unstable/argmax-*'")
    parser.add_argument("--class", dest="kinds", action="append", default=[], help="a class, for example low_precision")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--list", action="store_true", help="only list the ids")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    entries = chosen(all_entries(), only=options.only, kinds=options.kinds)
    if options.list:
        sys.stdout.write("".join(f"{entry.id}\n" for entry in entries))
        return 0
    started = time.process_time()

    def progress(done: int) -> None:
        if done % 100 == 0:
            sys.stderr.write(f"{done} of {len(entries)}\n")

    given = list(answers(entries, progress=progress))
    seconds = time.process_time() - started
    sys.stdout.write(report(given, seconds=seconds) + "\n")
    if options.json is not None:
        options.json.write_text(json.dumps(table(given, seconds=seconds), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
