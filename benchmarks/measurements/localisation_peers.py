"""Compares localise and minimise with PyTorch's own tools on known issues: CompilerBisector, and the accuracy minifier.

    python -m benchmarks.measurements.localisation_peers [--count 10] [--seed 0] [--only TEXT] [--limit 180] [--csv FILE]

The issues are drawn as in `localisation`, without those of exporters, for which the other tools do not exist. Each tool runs in a
process of its own and is stopped after `--limit` seconds. CompilerBisector needs a test from its user; here that is the judge, so
that all tools see the same difference. The minifier decides itself what differs (TORCHDYNAMO_REPRO_LEVEL=4), first behind AOT
autograd and then behind Dynamo; the commands that it writes are run as its documentation says.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch._inductor.compiler_bisector import CompilerBisector

from benchmarks.measurements.frame import options_of, shown
from benchmarks.measurements.localisation import drawn, measured, named
from fuzz.triage.repro import text_script
from oracle.case import CaseOptions, EagerState, judge_subject
from oracle.errors import TorchOracleError
from oracle.isolate.forked import ChildDiedError, ChildLateError, in_child
from oracle.known.ledger import KnownIssue, load_ledger
from oracle.program.build import instantiate
from oracle.subjects.registry import load, resolve
from oracle.verdict import Status, Verdict

LADDER = ("dynamo", "aot_eager", "aot_eager_decomp_partition", "inductor")
# The check of a graph raised: the error is the first line after that which names one. Each line has a prefix of the logger.
_SKIPS = re.compile(
    r"Skipping this graph.*?(?:^|\] )[\w.]*?(\w+(?:Error|Exception)\b[^\n]{0,80})", re.DOTALL | re.MULTILINE
)
_LAUNCHER, _REPRO = "**/minifier_launcher.py", "**/repro.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What the tools said about one issue. Times are wall seconds."""

    issue: str
    rung: str  # of the ledger
    where: str  # what the ledger says, in words
    ours_rung: str
    ours_culprit: str
    ours_s: float
    ours_statements: str  # "9 to 2"
    ours_minimise_s: float
    bisector: str  # backend, subsystem, number and debug text; or how it ended
    bisector_s: float
    minifier: str  # "aot: 12 to 3 nodes", or how it ended
    minifier_s: float


def timed(work: Callable[[], str], limit_s: float) -> tuple[str, float]:
    """The text that `work` returns in a forked process, or how that ended; and seconds."""
    started = time.monotonic()
    try:
        said = in_child(work, timeout_s=limit_s)
    except ChildLateError:
        said = f"no end within {limit_s:.0f} s"
    except ChildDiedError as died:
        said = f"died of {died}"
    return said, round(time.monotonic() - started, 1)


def bisected(issue: KnownIssue) -> str:
    """What CompilerBisector says, with the judge as its test."""
    eager, subject = EagerState(make=lambda: instantiate(issue.program)), load(resolve("inductor"))

    def is_right() -> bool:
        return not judge_subject(eager=eager, subject=subject, options=CaseOptions()).verdict.status.is_finding

    with contextlib.redirect_stdout(sys.stderr):
        found = CompilerBisector.do_bisect(is_right)
    if found is None:
        return "finds nothing"
    parts = (found.backend, found.subsystem, found.bisect_number, found.debug_info)
    return " ".join("" if part is None else " ".join(str(part).split()) for part in parts).strip()


def minified(issue: KnownIssue, limit_s: float) -> str:
    """What the minifier leaves of the program, behind AOT autograd or else behind Dynamo."""
    verdict = Verdict(status=Status(issue.statuses[0]))
    try:
        script = text_script(issue.program, resolve("inductor"), verdict)
    except TorchOracleError as error:
        return f"no script: {error}".splitlines()[0]
    deadline = time.monotonic() + limit_s
    ends = [_minified_behind(stage, script, deadline) for stage in ("aot", "dynamo")]
    return next((end for end in ends if " to " in end), "; ".join(ends))


def _minified_behind(stage: str, script: str, deadline: float) -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "script.py").write_text(script, encoding="utf-8")
        settings = {"TORCHDYNAMO_REPRO_AFTER": stage, "TORCHDYNAMO_REPRO_LEVEL": "4"}
        caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"), "TORCH_COMPILE_DEBUG_DIR": name}
        said = folder / "said.txt"
        _run([sys.executable, "script.py"], folder, {**os.environ, **settings, **caches}, deadline, said)
        launchers = sorted(folder.glob(_LAUNCHER))
        if not launchers:
            return f"{stage}: {without_launcher(said.read_text(encoding='utf-8', errors='replace'))}"
        before = nodes(launchers[0].read_text(encoding="utf-8"))
        is_late = _run([sys.executable, launchers[0].name], launchers[0].parent, {**os.environ, **caches}, deadline)
        repros = sorted(folder.glob(_REPRO), key=lambda path: path.stat().st_mtime)
        if not repros:
            return f"{stage}: {'no end in time' if is_late else 'leaves nothing'} of {before} nodes"
        after = nodes(repros[-1].read_text(encoding="utf-8"))
        return f"{stage}: {before} to {after} nodes{', not finished' if is_late else ''}"


def without_launcher(said: str) -> str:
    """Why the minifier wrote nothing: its check of a graph raised, so it skips the graph, or the check found no difference."""
    reasons = dict.fromkeys(" ".join(reason.split()) for reason in _SKIPS.findall(said))
    return f"skips the graph ({'; '.join(reasons)})" if reasons else "sees no difference"


def _run(command: Sequence[str], folder: Path, env: dict[str, str], deadline: float, said: Path | None = None) -> bool:
    """Run a command, and write what it says to a file; whether it had to be stopped."""
    with contextlib.ExitStack() as stack:
        out = subprocess.DEVNULL if said is None else stack.enter_context(said.open("wb"))
        child = subprocess.Popen(command, cwd=folder, env=env, stdout=out, stderr=out, start_new_session=True)
    try:
        child.wait(max(1.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return True
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    return False


def nodes(text: str) -> int:
    """Number of calls in the graph that a file of the minifier holds."""
    forward = text.partition("def forward(")[2].partition("return")[0]
    return len(re.findall(r"^\s+\w+(?:: [^=]*)? = .*\(", forward, re.MULTILINE))


def row_of(issue: KnownIssue, limit_s: float) -> Row | None:
    """The row of an issue; None if its program agrees on this machine."""
    ours = measured(issue, minimises=True)
    if ours.found == "agrees":
        return None
    bisector, bisector_s = timed(lambda: bisected(issue), limit_s)
    minifier, minifier_s = timed(lambda: minified(issue, limit_s), limit_s + 30)
    return Row(
        issue=issue.id,
        rung=issue.subject,
        where=issue.where,
        ours_rung=ours.found,
        ours_culprit=ours.culprit or "not found",
        ours_s=ours.wall_s,
        ours_statements=f"{ours.before} to {ours.after}",
        ours_minimise_s=ours.minimise_s,
        bisector=bisector,
        bisector_s=bisector_s,
        minifier=minifier,
        minifier_s=minifier_s,
    )


def rows(issues: Sequence[KnownIssue], limit_s: float) -> Iterator[Row]:
    """Yield a row for each issue whose program differs from eager on this machine."""
    for issue in issues:
        try:
            row = row_of(issue, limit_s)
        except TorchOracleError as error:
            sys.stderr.write(f"{issue.id}: {error}\n")
            continue
        if row is None:
            sys.stderr.write(f"{issue.id}: agrees\n")
        else:
            yield row


def main() -> None:
    """Measure, print each row, and write the table."""
    parser = options_of(__doc__, only=True)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=180.0, help="seconds for each of torch's tools")
    asked = parser.parse_args()
    issues = [issue for issue in named(load_ledger().issues, asked.only) if issue.subject in LADDER]
    shown(rows(drawn(issues, asked.count, asked.seed), asked.limit), asked.csv)


if __name__ == "__main__":
    main()
