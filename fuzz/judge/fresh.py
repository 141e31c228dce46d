"""Judges a program in a new interpreter, which shares only the compiler's caches on disk with this process.

`python -m fuzz.judge.fresh` reads {"program", "subject"} from standard input and writes {"verdict", "hits"} as its last line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from torch._dynamo.utils import counters

from fuzz.judge.single import judge
from oracle.errors import InternalError
from oracle.program import Program
from oracle.subjects.registry import load
from oracle.subjects.spec import SubjectSpec
from oracle.verdict import Status, Verdict

TIMEOUT_S = 120.0
_ROOT = Path(__file__).parents[2]


def judge_in_fresh_process(program: Program, subject: SubjectSpec) -> Verdict:
    """The verdict; `crash` or `timeout` if the process dies or does not end. Raises InternalError if the judge fails."""
    return asked_in_fresh_process(program, subject)[0]


def asked_in_fresh_process(
    program: Program, subject: SubjectSpec, *, timeout_s: float = TIMEOUT_S
) -> tuple[Verdict, dict[str, int]]:
    """The verdict, and torch's counts of cache hits."""
    message = json.dumps({"program": program.to_json(), "subject": subject.to_json()})
    path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")]), os.getcwd()])
    environment = {**os.environ, **subject.env, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "fuzz.judge.fresh"],
            input=message, capture_output=True, text=True, timeout=timeout_s, env=environment, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Verdict(status=Status.TIMEOUT, symptom=f"no end within {timeout_s:g} s in a fresh process"), {}
    if ended.returncode < 0:
        return Verdict(status=Status.CRASH, symptom=f"the fresh process died of signal {-ended.returncode}"), {}
    lines = ended.stdout.strip().splitlines()
    if ended.returncode or not lines:
        raise InternalError(f"the fresh process ended with {ended.returncode}: {ended.stderr.strip()[-500:]}")
    answer: dict[str, Any] = json.loads(lines[-1])
    return Verdict.from_json(answer["verdict"]), answer["hits"]


def main() -> None:
    """Judge the program on standard input."""
    message = json.loads(sys.stdin.read())
    result = judge(Program.from_json(message["program"]), load(SubjectSpec.from_json(message["subject"])))
    hits = {
        f"{group}.{name}": count
        for group in ("inductor", "aot_autograd")
        for name, count in counters[group].items()
        if "cache_hit" in name
    }
    sys.stdout.write("\n" + json.dumps({"verdict": result.verdict.to_json(), "hits": hits}) + "\n")


if __name__ == "__main__":
    main()
