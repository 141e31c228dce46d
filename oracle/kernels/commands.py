"""`torch-oracle kernel`: fuzz a hand-written Triton kernel against a PyTorch function."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from oracle.errors import InternalError, UsageError

LEVELS = ("emulator", "interpreter", "gpu")
COUNTS = {"emulator": 200, "interpreter": 20, "gpu": 200}
CASE_TIMEOUT_S = 120.0
_START_TIMEOUT_S = 300.0
_MOST_RESTARTS = 3


def kernel(
    launcher: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:LAUNCHER", help="A Python function that takes tensors and launches the kernel."
        ),
    ],
    reference: Annotated[
        str,
        typer.Option(metavar="FILE.py:FUNCTION", help="The reference: a PyTorch function of the same arguments."),
    ],
    inputs: Annotated[
        str,
        typer.Option(
            help="The arguments, e.g. 'x: f32|f16[M, N], w: f32[N]!, index: i64[K] < M, eps: 1e-5, k: int 1..8'; or "
            "FILE.py:FUNCTION that takes a random.Random and returns them. Default: tensors of one random shape and dtype."
        ),
    ] = "",
    level: Annotated[
        str, typer.Option(help="Where the kernel runs: emulator, interpreter, gpu; several separated by commas.")
    ] = "emulator",
    count: Annotated[int, typer.Option(help="Cases for each level; 0 means 200, or 20 on the interpreter.", min=0)] = 0,
    seconds: Annotated[float, typer.Option(help="Time limit of each level; 0 means no limit.", min=0.0)] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the random cases.", min=0)] = 0,
    only: Annotated[int, typer.Option(help="Run only the case with this number.", min=-1)] = -1,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False,
) -> int:
    """Fuzz a hand-written Triton kernel against a PyTorch function.

    LAUNCHER allocates its outputs, calls kernel[grid](...) and returns; FUNCTION computes the same with PyTorch. Both are called
    with random arguments: sizes around powers of two, strided and permuted tensors, NaN, infinities, denormals, ties.

    It finds loads and stores out of bounds (by guard zones around every buffer; the emulator checks every access and names its
    program, lane and source line), elements that were never written, results that depend on undefined memory, races (emulator),
    kernels that Triton would not compile (emulator), and wrong values, judged against fp64. Each finding is shown once, with the
    simplest arguments that show it.

    A launcher may refuse arguments by raising before it launches a kernel. Such cases are counted, and are not findings.

    \b
    Example:
      torch-oracle kernel softmax.py:softmax --reference softmax.py:eager --inputs 'x: f32|f16[M, N]'

    Exit codes: 0 no findings, 1 findings, 2 usage error. See docs/kernels.md.
    """
    levels = _levels(level)
    reports = []
    for name in levels:
        cases = [only] if only >= 0 else list(range(count or COUNTS[name]))
        request = {
            "launcher": launcher, "reference": reference, "inputs": inputs, "level": name, "seed": seed, "seconds": seconds,
        }  # fmt: skip
        report = _run_level(request, cases)
        reports.append(report)
        if not as_json:
            _print(report, launcher=launcher, seed=seed)
    if as_json:
        sys.stdout.write(json.dumps([report.to_json() for report in reports], indent=2) + "\n")
    _check_judged(reports)
    return 1 if any(report.findings for report in reports) else 0


def _levels(text: str) -> list[str]:
    """The levels that --level names. Raises UsageError for unknown ones, and for none."""
    levels = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in levels if name not in LEVELS]
    if unknown or not levels:
        raise UsageError(seen=f"--level {text!r}", expected=f"one or more of {', '.join(LEVELS)}", do="correct --level")
    return levels


def _check_judged(reports: Sequence[LevelReport]) -> None:
    """Raises UsageError if no case of any level could be judged."""
    judged = sum(report.tally["passed"] + len(report.findings) for report in reports)
    if judged == 0:
        reasons = [reason for report in reports for reason in report.reasons]
        raise UsageError(
            seen=f"no case could be judged: {reasons[0] if reasons else 'there was no time'}",
            expected="arguments that both launcher and reference accept", do="describe them with --inputs",
        )  # fmt: skip


@dataclass(slots=True, kw_only=True)
class LevelReport:
    """The results of one level. `findings`: each finding with the number of its case and its arguments."""

    level: str
    findings: list[tuple[Mapping[str, str], int, str]] = field(default_factory=list)
    tally: dict[str, int] = field(default_factory=lambda: {"passed": 0, "skipped": 0, "refused": 0, "found": 0})
    reasons: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        findings = [{**finding, "number": number, "case": case} for finding, number, case in self.findings]
        return {
            "level": self.level, "findings": findings, "tally": self.tally, "reasons": self.reasons, "seconds": self.seconds,
        }  # fmt: skip


def _run_level(request: Mapping[str, Any], cases: Sequence[int]) -> LevelReport:
    """Run the cases in a child process; start another one each time it dies."""
    report = LevelReport(level=request["level"])
    start, left = time.monotonic(), list(cases)
    for _ in range(_MOST_RESTARTS + 1):
        died_in = _run_process({**request, "cases": left}, report)
        if died_in is None or died_in not in left:
            break
        left = left[left.index(died_in) + 1 :]
        if not left:
            break
    report.seconds = time.monotonic() - start
    return report


def _run_process(request: Mapping[str, Any], report: LevelReport) -> int | None:
    """Run cases in one process. Returns the number of the case in which it died, or None."""
    process, answers = _start(request)
    running: tuple[int, str] | None = None
    done = 0
    try:
        for line in _lines(answers, _START_TIMEOUT_S, lambda: CASE_TIMEOUT_S):
            if "usage" in line:
                raise UsageError(**line["usage"])
            if "started" in line:
                running = (line["started"], line["case"])
            elif "done" in line:
                running, done = None, done + 1
            elif "finding" in line:
                known = {(finding["kind"], finding["where"]) for finding, _, _ in report.findings}
                if (line["finding"]["kind"], line["finding"]["where"]) not in known:
                    report.findings.append((line["finding"], line["number"], line["case"]))
            elif "summary" in line:
                for name, value in line["summary"].items():
                    report.tally[name] += value
                report.reasons.update(line["reasons"])
                return None
        how = "did not end in time" if process.poll() is None else f"died (exit code {process.wait()})"
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(answers)
    if running is None:
        raise InternalError(f"the process of level {request['level']} {how} outside of any case")
    number, case = running
    report.tally["found"] += 1
    report.findings.append(({"kind": "crash", "where": "", "text": f"the process {how} in this case"}, number, case))
    return number


def _start(request: Mapping[str, Any]) -> tuple[subprocess.Popen[bytes], int]:
    answers, write = os.pipe()
    environment = {**os.environ, "TRITON_INTERPRET": "1" if request["level"] == "interpreter" else "0"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in (*sys.path, environment.get("PYTHONPATH", "")) if path)
    process = subprocess.Popen(
        [sys.executable, "-m", "oracle.kernels.session", str(write)], stdin=subprocess.PIPE, stdout=2,
        env=environment, pass_fds=(write,),
    )  # fmt: skip
    os.close(write)
    assert process.stdin is not None
    process.stdin.write(json.dumps(request).encode())
    process.stdin.close()
    return process, answers


def _lines(descriptor: int, first_s: float, next_s: Any) -> Iterator[dict[str, Any]]:
    """Read lines of JSON until the writer closes the pipe, or no line arrives in time."""
    text, timeout = b"", first_s
    while True:
        ready, _, _ = select.select([descriptor], [], [], timeout)
        part = os.read(descriptor, 1 << 16) if ready else b""
        if not part:
            return
        *lines, text = (text + part).split(b"\n")
        for line in lines:
            yield json.loads(line)
        timeout = next_s()


def _print(report: LevelReport, *, launcher: str, seed: int) -> None:
    write = sys.stdout.write
    for finding, number, case in report.findings:
        write(f"{finding['kind']} [{report.level}, case {number}]\n")
        write("".join(f"  {line}\n" for line in finding["text"].splitlines()))
        write(f"  with\n{_indented(case)}\n  again: --level {report.level} --seed {seed} --only {number}\n\n")
    tally = report.tally
    total = sum(tally.values())
    write(
        f"{launcher} on {report.level}: {total} cases in {report.seconds:.1f} s: {tally['passed']} right, {tally['found']} wrong "
        f"({len(report.findings)} findings), {tally['refused']} refused by the launcher, {tally['skipped']} by the reference\n"
    )
    for reason, times in report.reasons.items():
        write(f"  {times} times: {reason}\n")


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
