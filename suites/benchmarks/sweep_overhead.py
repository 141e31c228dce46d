"""What a sweep costs beyond the bare calls (eager twice, fp64 and noise where needed, subject), as a ratio.

Run: python -m suites.benchmarks.sweep_overhead [--subject aot_eager] [--rounds 3]
Prints two ratios per round and their medians: of the cases alone (observing, judging, state checks), and of the whole
run with planning left out (messages, database, workers waiting). The goal is below 1.25.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

MATCH = ("a*", "nn.functional.l*", "linalg.s*", "s*")  # some two hundred groups


def one_round(subject: str, workers: int) -> tuple[float, float, int]:
    """(ratio of the cases, ratio of the run, number of cases)."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "oracle.cli", "sweep", "--suite", "opinfo", "--subject", subject]
        command += ["--max-samples", "3", "--workers", str(workers), "--json", "--db", str(Path(directory) / "x.db")]
        command += [word for glob in MATCH for word in ("--match", glob)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr)
    summary = json.loads(done.stdout.splitlines()[-1])["summary"]
    bare = summary["bare_s"]
    return summary["case_wall_s"] / bare, summary["wall_s"] * workers / bare, summary["done"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subject", default="aot_eager")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    rounds = []
    for number in range(options.rounds):
        cases, run, count = one_round(options.subject, options.workers)
        rounds.append((cases, run))
        print(f"round {number}: {count} cases on {options.subject}: cases {cases:.3f}x, run {run:.3f}x", flush=True)
    print(f"median of {options.rounds}: cases {statistics.median(r[0] for r in rounds):.3f}x, ", end="")
    print(f"run {statistics.median(r[1] for r in rounds):.3f}x of the bare calls (goal: below 1.25)")


if __name__ == "__main__":
    main()
