"""Writes known issues of the ledger as scripts that need only torch, and runs each in a fresh interpreter.

    python -m benchmarks.measurements.scripts_of_issues [--count 50] [--seed 0] [--only TEXT] [--csv FILE]

The issues are drawn as in `localisation`. A script must exit with 1, since the bug is there. First the issue's program is judged,
so that one that agrees on this machine counts for nothing. Exit codes other than 1 are printed with the end of the output.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measurements.frame import options_of, shown
from benchmarks.measurements.localisation import drawn, named
from fuzz.triage.script_runs import exit_code
from oracle.errors import UsageError
from oracle.known.ledger import KnownIssue, load_ledger
from oracle.localisation.search import Questions
from oracle.program.build import instantiate
from oracle.subjects.registry import resolve
from suites.regressions.commands import script_of

_TIMEOUT_S = 300.0
_FEW_LINES = 25  # the form for reading has no more
_SHOWN = 300  # characters of an output


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The script of one issue."""

    issue: str
    subject: str
    verdict: str  # of the issue's program here
    lines: int
    form: str  # "short" or "long"; "none" if the subject has no script
    exit_code: int | None
    seconds: float  # of the run in a fresh interpreter, wall time


def row_of(issue: KnownIssue) -> Row:
    """Judge, write and run the script of one issue."""
    verdict = Questions.about(lambda: instantiate(issue.program)).verdict(resolve(issue.subject))
    row = Row(
        issue=issue.id, subject=issue.subject, verdict=verdict.status.value, lines=0, form="none", exit_code=None, seconds=0.0
    )  # fmt: skip
    try:
        text = script_of(issue, load_ledger(), runs=exit_code)
    except UsageError:  # an exporter: the script would need this project
        return row
    started = time.monotonic()
    code, output = _ran(text)
    if code != 1:
        sys.stderr.write(f"{issue.id}: exit code {code}: ...{output[-_SHOWN:]!r}\n")
    lines = len(text.splitlines())
    form = "short" if lines <= _FEW_LINES else "long"
    return Row(
        issue=issue.id, subject=issue.subject, verdict=row.verdict, lines=lines, form=form, exit_code=code,
        seconds=round(time.monotonic() - started, 1),
    )  # fmt: skip


def _ran(text: str) -> tuple[int, str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "script.py")
        path.write_text(text, encoding="utf-8")
        try:
            done = subprocess.run(
                [sys.executable, "-I", str(path)],
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                cwd=folder,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return 124, ""
    return done.returncode, done.stdout + done.stderr


def main() -> None:
    """Measure, print a line for each issue and the sums, and write the table."""
    parser = options_of(__doc__, only=True)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    issues = drawn(named(load_ledger().issues, asked.only), asked.count, asked.seed)
    table = shown(map(row_of, issues), asked.csv)
    live = table[~table["verdict"].isin(["pass", "pass_due_to_skip"]) & (table["form"] != "none")]
    text = f"{(live['exit_code'] == 1).sum()} of {len(live)} scripts of live issues show the bug"
    sys.stdout.write(f"{text}; {(live['form'] == 'short').sum()} are short\n")


if __name__ == "__main__":
    main()
