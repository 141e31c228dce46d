"""Programs a minute, and where the time goes: `python -m fuzz.benchmarks.throughput [--programs 400] [--subject NAME ...]`.

One process, one thread, as a worker of a campaign: programs are drawn, put into batches where the subject has them, and judged.
CPU seconds include compilers that were called; on a busy machine they say more than the wall clock. "2 cores" is what two such
workers make of an idle machine. Findings are found, not reduced.

`--torchfuzz PATH` runs the generator of PyTorch's tree (tools/experimental/torchfuzz) beside it, on the same machine.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fuzz.batch import batch_key, grouped
from fuzz.campaign.settings import SINGLES_EVERY, default_batch_size
from fuzz.structure import FuzzProgram
from fuzz.worker import draw_range, judge_range, warm_up
from oracle.subjects.registry import resolve
from oracle.subjects.spec import SubjectSpec

SUBJECTS = ("eager", "dynamo", "aot_eager", "aot_eager_decomp_partition", "inductor")
_CHUNK = 20
_LIMIT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One subject."""

    name: str
    programs: int
    findings: int
    judgements: int
    wall_s: float
    cpu_s: float
    draw_cpu_s: float
    split: dict[str, float]  # stage -> CPU seconds of this process

    def text(self) -> str:
        per_program = self.cpu_s / self.programs
        parts = ", ".join(f"{stage} {seconds / self.programs * 1e3:.1f}" for stage, seconds in self.split.items())
        return (
            f"{self.name:28} {60 * self.programs / self.wall_s:7.0f}/min wall  {60 / per_program:7.0f}/min a CPU  "
            f"{120 / per_program:7.0f}/min on 2 cores  {self.judgements} judgements, {self.findings} findings\n"
            f"    CPU ms a program: {per_program * 1e3:.1f} = draw {self.draw_cpu_s / self.programs * 1e3:.1f}, {parts}"
        )


class StageClock:
    """CPU time by stage of the judge, from what it says of its progress."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._stage = ""
        self._since = _cpu()

    def __call__(self, stage: str) -> None:
        now = _cpu()
        self.seconds[self._stage] = self.seconds.get(self._stage, 0.0) + now - self._since
        self._stage, self._since = stage.rpartition(": ")[2], now

    def split(self) -> dict[str, float]:
        self("")
        named = {"eager": 0.0, "subject": 0.0, "judge": 0.0, "truth and noise": 0.0}
        for stage, seconds in self.seconds.items():
            if stage in ("eager", "eager again"):
                named["eager"] += seconds
            elif stage in ("subject", "judge"):
                named[stage] += seconds
            elif stage in ("truth", "noise", "loud noise", "relaid"):
                named["truth and noise"] += seconds
        return named


def measure(spec: SubjectSpec, *, programs: int, seed: int, focus: str) -> Row:
    """Draw and judge so many programs, as a worker would."""
    batch_size = default_batch_size(spec)
    warm_up({"subject": spec.to_json()}, _silent)
    payload: dict[str, Any] = {
        "subject": spec.to_json(), "settings": {"focus": focus}, "steering": {}, "seed": seed, "limit_s": _LIMIT_S,
        "configs": {}, "batch_size": batch_size,
    }  # fmt: skip
    groups = [list(range(at, min(at + _CHUNK, programs))) for at in range(0, programs, _CHUNK)]
    sort_s = 0.0
    if batch_size > 1:
        started = _cpu()
        groups = _batches(payload, programs, batch_size)
        sort_s = _cpu() - started
    clock, started_wall, started = StageClock(), time.perf_counter(), _cpu()
    done = [judge_range({**payload, "numbers": numbers}, clock) for numbers in groups]
    return Row(
        name=spec.name,
        programs=sum(len(value["programs"]) for value in done),
        findings=sum(len(value["findings"]) for value in done),
        judgements=sum(value["judgements"] for value in done),
        wall_s=time.perf_counter() - started_wall,
        cpu_s=_cpu() - started + sort_s,
        draw_cpu_s=sum(value["draw_cpu_s"] for value in done) + sort_s,
        split=clock.split(),
    )


def _batches(payload: dict[str, Any], programs: int, size: int) -> list[list[int]]:
    """As a campaign groups a round: by kind of call plan, each tenth program alone."""
    drawn = draw_range({**payload, "numbers": list(range(programs))}, _silent)["programs"]
    parsed = [FuzzProgram.from_json(item["program"]) for item in drawn]
    numbers = [item["number"] for item in drawn]
    keys = [None if n % SINGLES_EVERY == 0 else batch_key(p) for n, p in zip(numbers, parsed, strict=True)]
    return [[numbers[position] for position in group] for group in grouped(parsed, keys, size)]


def torchfuzz(path: Path, *, programs: int) -> str:
    """A line for PyTorch's own generator: draws, compiles and compares one program a process."""
    places = (path, path / "fuzzer.py", path / "tools" / "experimental" / "torchfuzz" / "fuzzer.py")
    script = next((place for place in places if place.is_file()), None)
    if script is None:
        return f"torchfuzz: no fuzzer.py in {path}"
    with tempfile.TemporaryDirectory() as folder:
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(
            [sys.executable, str(script), "--start", "0", "--count", str(programs), "-p", "1"],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        wall = time.perf_counter() - started
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    name, each = f"torchfuzz (exit {done.returncode})", max(cpu, 1e-9) / programs
    rates = f"{60 * programs / wall:7.0f}/min wall  {60 / each:7.0f}/min a CPU  {120 / each:7.0f}/min on 2 cores"
    return f"{name:28} {rates}"


def _cpu() -> float:
    """Of this process and of children that have ended."""
    return sum(os.times()[:4])


def _silent(stage: str) -> None:
    pass


def main() -> None:
    """Print a row for each subject."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=400, help="for each subject")
    parser.add_argument("--subject", action="append", help="repeatable; default: the ladder of torch.compile")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--focus", default="all")
    parser.add_argument("--torchfuzz", type=Path, help="PyTorch's tree, or its tools/experimental/torchfuzz")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"load of the machine: {', '.join(f'{load:.1f}' for load in os.getloadavg())} on {os.cpu_count()} cores")
    for name in options.subject or SUBJECTS:
        spec = resolve(name)
        print(measure(spec, programs=options.programs, seed=options.seed, focus=options.focus).text(), flush=True)
    if options.torchfuzz:
        print(torchfuzz(options.torchfuzz, programs=max(10, options.programs // 20)), flush=True)


if __name__ == "__main__":
    main()
