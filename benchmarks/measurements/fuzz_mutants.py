"""Measures how many planted bugs a campaign finds, and after how much CPU time.

    python -m benchmarks.measurements.fuzz_mutants [--minutes 10] [--seed 0] [--only TEXT] [--csv FILE]

For each mutant of `fuzz.mutants` it runs `torch-oracle fuzz` with one worker, until the first finding or until its processes have
used the given minutes of CPU time. A finding counts if the mutant lists its status; others are listed separately. CPU time does
not depend on other load of the machine.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from benchmarks.measurements.frame import options_of, shown, write_rows
from fuzz.mutants import MUTANTS, Mutant

_SAMPLE_S = 0.5
_CASE_TIMEOUT_S = 10.0  # time after which a mutant that hangs is found


@dataclass(frozen=True, slots=True, kw_only=True)
class MutantRow:
    """How the search for one planted bug ended."""

    mutant: str
    stage: str
    rarity: str
    found: bool
    cpu_s: float  # of all processes of the campaign, until the finding or the end
    number: int | None  # of the program that showed it
    status: str  # of the first finding that counts
    kind: str
    others: str  # statuses of findings before it that do not count


def search(mutant: Mutant, *, seed: int, cpu_limit_s: float) -> MutantRow:
    """Run one campaign until the planted bug shows."""
    command = [
        sys.executable,
        "-m",
        "oracle.cli",
        "fuzz",
        "--subject",
        mutant.subject,
        "--seed",
        str(seed),
        "--no-reduce",
    ]
    command += ["--workers", "1", "--time", "100h", "--case-timeout", str(_CASE_TIMEOUT_S), "--json"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    assert process.stdout is not None
    found: list[dict[str, Any]] = []
    others: list[str] = []
    reader = threading.Thread(target=_read_findings, args=(process.stdout, mutant, found, others), daemon=True)
    reader.start()
    used = 0.0
    while reader.is_alive() and not found and used < cpu_limit_s:
        time.sleep(_SAMPLE_S)
        used = max(used, _cpu_seconds(process.pid))
    _end(process)
    reader.join(10)
    first = found[0] if found else {}
    return MutantRow(
        mutant=mutant.name,
        stage=mutant.stage,
        rarity=mutant.rarity,
        found=bool(found),
        cpu_s=round(used, 1),
        number=(first.get("numbers") or [None])[0],
        status=first.get("status", ""),
        kind=first.get("kind", ""),
        others=" ".join(dict.fromkeys(others)),
    )


def _read_findings(stream: Any, mutant: Mutant, found: list[dict[str, Any]], others: list[str]) -> None:
    for line in stream:
        finding = json.loads(line).get("finding")
        if finding is None:
            continue
        if finding["status"] in mutant.statuses:
            found.append(finding)
            return
        others.append(finding["status"])


def _cpu_seconds(pid: int) -> float:
    """CPU time of a process and its descendants, including ended children."""
    total = 0.0
    try:
        parent = psutil.Process(pid)
        family = [parent, *parent.children(recursive=True)]
    except psutil.Error:
        return 0.0
    for process in family:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def _end(process: subprocess.Popen[str]) -> None:
    """End a campaign with Ctrl-C first, so that it ends its workers itself."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()


def main(arguments: Sequence[str] | None = None) -> None:
    """Search all, print a line each and the fraction found."""
    parser = options_of(__doc__, only=True)
    parser.add_argument("--minutes", type=float, default=10.0, help="CPU minutes for each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lanes", type=int, default=2, help="campaigns at a time")
    options = parser.parse_args(arguments)
    chosen = [mutant for mutant in MUTANTS.values() if options.only in mutant.name]
    with concurrent.futures.ThreadPoolExecutor(options.lanes) as lanes:
        waiting = [lanes.submit(search, m, seed=options.seed, cpu_limit_s=options.minutes * 60) for m in chosen]
        found = shown((future.result() for future in concurrent.futures.as_completed(waiting)), None)["found"].sum()
    write_rows((asdict(future.result()) for future in waiting), options.csv)  # in the order of the mutants
    print(f"{found} of {len(chosen)} found in {options.minutes:g} CPU minutes each, seed {options.seed}")


if __name__ == "__main__":
    main()
