"""Programs a minute: `python -m fuzz.benchmarks.throughput [--programs 2000] [--subject NAME ...] [--torchfuzz PATH]`.

Whole campaigns by the command line, judge included, findings found but not reduced. "a minute" is the wall clock from the first
program drawn to the last judged, the start of the workers left out; CPU seconds are those of all processes, the start included:
on a busy machine they say more. `--split` adds, from one process, where the time of a program goes.

`--torchfuzz PATH` runs the generator of PyTorch's tree (tools/experimental/torchfuzz) beside it, on the same machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fuzz.campaign.worker import judge_range, warm_up
from oracle.subjects.registry import resolve
from oracle.subjects.spec import SubjectSpec

SUBJECTS = ("eager", "dynamo", "aot_eager", "aot_eager_decomp_partition", "inductor")
_CHUNK = 20
_LIMIT_S = 300.0
_SUCCESSFUL = re.compile(r"Successful: (\d+)/(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One fuzzer on one subject."""

    name: str
    programs: int
    findings: int
    wall_s: float
    cpu_s: float

    def text(self) -> str:
        each = self.cpu_s / self.programs
        return (
            f"{self.name:28} {self.programs:6} programs {60 * self.programs / self.wall_s:7.0f}/min wall"
            f"  {each * 1e3:7.0f} CPU ms a program  {self.findings} findings"
        )


def campaign(name: str, *, programs: int, seed: int, focus: str, workers: int, batch: int | None) -> Row:
    """One campaign, as a user starts it, with an empty ledger (known issues are looked at before it, at any length)."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder) / "none.toml"
        ledger.write_text("")
        words = [
            sys.executable,
            "-m",
            "oracle.cli",
            "fuzz",
            "--subject",
            name,
            "--count",
            str(programs),
            "--seed",
            str(seed),
        ]
        words += ["--focus", focus, "--workers", str(workers), "--no-reduce", "--json", "--known", str(ledger)]
        words += ["--batch", str(batch)] if batch else []
        started = _children_cpu()
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
        cpu_s = _children_cpu() - started
    if done.returncode not in (0, 1) or not done.stdout:
        raise SystemExit(f"the campaign on {name} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    summary = json.loads(done.stdout.splitlines()[-1])["summary"]
    findings = sum(summary["symptoms"].values())
    return Row(name=name, programs=summary["programs"], findings=findings, wall_s=summary["wall_s"], cpu_s=cpu_s)


def torchfuzz(path: Path, *, programs: int, workers: int) -> Row:
    """PyTorch's own generator: draws, compiles and compares one program a process.

    Raises SystemExit where not every program ran: it ends with 0 whatever became of them.
    """
    places = (path, path / "fuzzer.py", path / "tools" / "experimental" / "torchfuzz" / "fuzzer.py")
    script = next((place for place in places if place.is_file()), None)
    if script is None:
        raise SystemExit(f"no fuzzer.py in {path}")
    started_cpu, started = _children_cpu(), time.perf_counter()
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [sys.executable, script.name, "--start", "0", "--count", str(programs), "-p", str(workers)],
            cwd=script.parent, capture_output=True, text=True, check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": cache},
        )  # fmt: skip
    wall_s = time.perf_counter() - started
    said = _SUCCESSFUL.search(done.stdout + done.stderr)
    if said is None or said[1] != said[2]:
        raise SystemExit(f"torchfuzz did not run its programs ({said and said[0]}):\n{done.stderr[-2000:]}")
    return Row(name="torchfuzz", programs=int(said[2]), findings=0, wall_s=wall_s, cpu_s=_children_cpu() - started_cpu)


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
        named = {"draw": 0.0, "eager": 0.0, "subject": 0.0, "judge": 0.0, "truth and noise": 0.0}
        for stage, seconds in self.seconds.items():
            if stage in ("eager", "eager again"):
                named["eager"] += seconds
            elif stage in ("draw", "subject", "judge"):
                named[stage] += seconds
            elif stage in ("truth", "noise", "loud noise", "relaid"):
                named["truth and noise"] += seconds
        return named


def split(spec: SubjectSpec, *, programs: int, seed: int, focus: str) -> str:
    """Where the time goes when programs are judged alone in this process, which compiles for itself."""
    warm_up({"subject": spec.to_json()}, _silent)
    payload: dict[str, Any] = {
        "subject": spec.to_json(), "settings": {"focus": focus}, "steering": {}, "seed": seed, "limit_s": _LIMIT_S,
        "configs": {}, "batch_size": 1,
    }  # fmt: skip
    clock = StageClock()
    for at in range(0, programs, _CHUNK):
        judge_range({**payload, "numbers": list(range(at, min(at + _CHUNK, programs)))}, clock)
    parts = ", ".join(f"{stage} {seconds / programs * 1e3:.1f}" for stage, seconds in clock.split().items())
    return f"    CPU ms a program, alone: {parts}"


def _cpu() -> float:
    """Of this process and of children that have ended."""
    return sum(os.times()[:4])


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _silent(stage: str) -> None:
    pass


def main() -> None:
    """Print a row for each subject."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=2000, help="for each subject")
    parser.add_argument("--subject", action="append", help="repeatable; default: the ladder of torch.compile")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--focus", default="all")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--batch", type=int, help="programs in one compile; default: the campaign's own")
    parser.add_argument("--split", action="store_true", help="also where the time of 100 programs goes")
    parser.add_argument("--torchfuzz", type=Path, help="PyTorch's tree, or its tools/experimental/torchfuzz")
    parser.add_argument("--torchfuzz-programs", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"load of the machine: {', '.join(f'{load:.1f}' for load in os.getloadavg())} on {os.cpu_count()} cores")
    for name in options.subject or SUBJECTS:
        row = campaign(
            name, programs=options.programs, seed=options.seed, focus=options.focus, workers=options.workers,
            batch=options.batch,
        )  # fmt: skip
        print(row.text(), flush=True)
        if options.split:
            print(split(resolve(name), programs=100, seed=options.seed, focus=options.focus), flush=True)
    if options.torchfuzz:
        print(
            torchfuzz(options.torchfuzz, programs=options.torchfuzz_programs, workers=options.workers).text(),
            flush=True,
        )


if __name__ == "__main__":
    main()
