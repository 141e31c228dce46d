"""`torch-oracle traces`: compares refimpl's graphs with torch's, on operators and models."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from typing_extensions import assert_never

from oracle.commands import fingerprint_with_worker
from oracle.environment import check_supported
from oracle.errors import UsageError
from oracle.isolate import Completed, Died, End, Failed, OutOfMemory, Pool, Task, TimedOut
from suites.registry import modules_of
from suites.request import parse_shard
from suites.traces import DIRECTIONS, INTEGER, MODES
from suites.traces.explanations import reason_of
from suites.traces.planning import TracesRequest, plan_traces
from suites.traces.records import CRASH, MISSING, OOM, TIMEOUT, TraceCase, TraceRow
from suites.traces.tables import ROWS_FILE, SUMMARY_FILE, read_header, read_rows, summary, write_tables

PRELOAD = ("torch", "oracle.case", "suites.traces.worker")
SUITES = ("opinfo", "models")
_TIMEOUTS = {"opinfo": 120.0, "models": 600.0}
LINE_EVERY_S = 15.0


def traces(
    suite: Annotated[str, typer.Option(help="opinfo, models, or both by comma.")] = "opinfo",
    mode: Annotated[str, typer.Option(help="real, fake, symbolic; several by comma.")] = ",".join(MODES),
    dtype: Annotated[
        str, typer.Option(help=f"Dtypes by comma; {INTEGER!r}: int64, or another integer an operator takes.")
    ] = f"float32,{INTEGER}",
    direction: Annotated[
        str | None,
        typer.Option(help="forward; joint: with gradients. Default: forward for operators, joint for models."),
    ] = None,
    ops: Annotated[list[str] | None, typer.Option(help="Glob on operators or models; repeatable.")] = None,
    max_samples: Annotated[int | None, typer.Option(help="At most so many samples per operator and dtype.")] = None,
    shard: Annotated[str, typer.Option(help="Run part i of n, as i/n.")] = "1/1",
    case_timeout: Annotated[float | None, typer.Option(help="Seconds for one case.")] = None,
    memory: Annotated[float, typer.Option(help="GiB that one case may add.")] = 6.0,
    workers: Annotated[int | None, typer.Option(help="Worker processes. Default: one per core.")] = None,
    merge: Annotated[
        list[Path] | None, typer.Option(help="Run nothing: one table of the rows in these folders; repeatable.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder for rows.jsonl, rows.csv, differences.csv, summary.md.")] = Path(
        "traces"
    ),
) -> None:
    """Trace with refimpl.make_fx and with torch's make_fx; compare results with eager, operators, and a second size."""
    check_supported()
    if merge:
        raise typer.Exit(_merged(merge, output))
    started = time.monotonic()
    suites = split_words("suite", suite, SUITES)
    rows: list[TraceRow] = []
    count = workers or len(os.sched_getaffinity(0))
    err = Console(stderr=True, soft_wrap=True, highlight=False)
    with Pool(workers=count, preload=(*PRELOAD, *modules_of(suites))) as pool:
        for name in suites:
            default = "joint" if name == "models" else "forward"
            request = TracesRequest(
                suites=(name,),
                modes=split_words("mode", mode, MODES),
                dtypes=tuple(word.strip() for word in dtype.split(",")),
                directions=split_words("direction", direction or default, DIRECTIONS),
                match=tuple(ops or ()),
                max_samples=max_samples,
                shard=parse_shard(shard),
            )
            try:
                cases = plan_traces(request, pool)
            except UsageError:
                if len(suites) == 1:
                    raise
                continue  # another suite may match
            err.print(f"{name}: {len(cases)} cases, {count} workers")
            rows += run_cases(cases, pool, timeout_s=case_timeout or _TIMEOUTS[name], memory_gib=memory, err=err)
        if not rows:
            raise UsageError(
                seen="no program matches", expected="a glob that some operator or model has", do="see --ops"
            )
        header = header_of(pool, max_samples=max_samples, seconds=time.monotonic() - started, workers=count)
    raise typer.Exit(_write(rows, header, output))


def _merged(folders: Sequence[Path], output: Path) -> int:
    """The rows of several runs, with current explanations. Raises UsageError for a folder without rows, or a case in two
    folders.
    """
    rows: dict[str, TraceRow] = {}
    headers: list[str] = []
    for folder in folders:
        if not (folder / ROWS_FILE).is_file():
            raise UsageError(
                seen=f"--merge {folder}, without {ROWS_FILE}",
                expected="the --output of a run",
                do="name another folder",
            )
        for row in read_rows(folder / ROWS_FILE):
            if row.case_id in rows:
                raise UsageError(
                    seen=f"case {row.case_id} in two folders", expected="each case once", do="leave one folder out"
                )
            rows[row.case_id] = row.with_reasons(reason_of)
        headers += read_header(folder)
    return _write(list(rows.values()), headers, output)


def _write(rows: Sequence[TraceRow], header: Sequence[str], output: Path) -> int:
    """Write and print the tables; returns the exit code."""
    write_tables(output, rows, header=header)
    sys.stdout.write(summary(rows, header=header))
    Console(stderr=True, soft_wrap=True, highlight=False).print(
        f"tables: {output} ({SUMMARY_FILE} is what was printed)"
    )
    return 1 if any(row.is_finding for row in rows) else 0


def run_cases(
    cases: Sequence[TraceCase], pool: Pool, *, timeout_s: float, memory_gib: float, err: Console
) -> list[TraceRow]:
    """One row for each case, in the order of the plan, also if workers die."""
    by_id = {case.case_id: case for case in cases}
    tasks = [
        Task(
            key=case.case_id,
            function="suites.traces.worker:run_case",
            payload={"case": case.to_json()},
            group=f"{case.suite}/{case.group}",
            timeout_s=timeout_s,
            memory_bytes=int(memory_gib * 2**30),
        )
        for case in cases
    ]
    rows: dict[str, TraceRow] = {}
    started = last = time.monotonic()
    for result in pool.run(tasks):
        case = by_id[result.task.key]
        rows[case.case_id] = row_of(case, result.end).with_reasons(reason_of)
        if rows[case.case_id].is_finding:
            err.print(f"{rows[case.case_id].status:9} {case.case_id}  {_what(rows[case.case_id])[:200]}", markup=False)
        now = time.monotonic()
        if now - last > LINE_EVERY_S:
            last = now
            findings = sum(row.is_finding for row in rows.values())
            err.print(f"{len(rows)}/{len(cases)} cases, {len(rows) / (now - started):.1f}/s, {findings} findings")
    return [rows.get(case.case_id) or TraceRow.of(case, status=MISSING, symptom="no worker ran it") for case in cases]


def _what(row: TraceRow) -> str:
    return next((f"{one.aspect}: {one.detail}" for one in row.differences if not one.reason), row.symptom)


def row_of(case: TraceCase, end: End) -> TraceRow:
    """The row of a case, from however its task ended."""
    if isinstance(end, Completed):
        return TraceRow.from_json(cast("dict[str, Any]", end.value)["row"])
    status, symptom = how_it_ended(end)
    return TraceRow.of(case, status=status, symptom=symptom)


def how_it_ended(end: Died | TimedOut | OutOfMemory | Failed) -> tuple[str, str]:
    """Status and symptom of a case whose worker returned no row."""
    match end:
        case Failed():
            return MISSING, f"internal error: {end.error.strip().splitlines()[-1]}"
        case Died():
            how = f"signal {end.signal}" if end.signal else f"exit code {end.exit_code}"
            return CRASH, f"the process died of {how} in stage {end.stage!r}"
        case TimedOut():
            return TIMEOUT, f"no end within {end.seconds:.0f} s in stage {end.stage!r}"
        case OutOfMemory():
            return OOM, f"over the limit at {end.bytes / 2**30:.1f} GiB in stage {end.stage!r}"
        case _:
            assert_never(end)


def header_of(pool: Pool, *, max_samples: int | None, seconds: float, workers: int) -> list[str]:
    """Lines that say how and where a table was made."""
    environment = fingerprint_with_worker(pool)
    facts = {
        "command": shlex.join(["torch-oracle", *_without_output(sys.argv[1:])]),
        "versions": f"torch {environment['versions']['torch']}, Python {environment['python']}",
        "machine": f"{environment['cpu_model']}, {environment['usable_cores']} cores, one thread a worker",
        "samples per operator and dtype": "all" if max_samples is None else f"at most {max_samples}",
        "time": f"{seconds:.0f} s with {workers} workers",
    }
    return [f"{key}: {value}" for key, value in facts.items()]


def _without_output(words: Sequence[str]) -> list[str]:
    """The command line without --output, which does not influence a table's content."""
    return [
        word
        for before, word in zip(("", *words), words, strict=False)
        if before != "--output" and not word.startswith("--output")
    ]


def split_words(what: str, text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """The words of an option. Raises UsageError for an unknown one."""
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    for word in words:
        if word not in known:
            raise UsageError(
                seen=f"--{what} {word}", expected=f"one of {', '.join(known)}", do="name one, or several by comma"
            )
    return words
