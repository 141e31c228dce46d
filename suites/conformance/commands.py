"""`torch-oracle conformance`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from oracle.environment import check_supported
from oracle.errors import UsageError
from results.render import show
from suites.conformance.expected import judge_failures, read_expected
from suites.conformance.job import REFIMPL, STOCK
from suites.conformance.outcomes import TestOutcome
from suites.conformance.report import (
    SHOWN_FAILURES,
    check_output,
    class_table,
    failure_table,
    figure,
    page_section,
    records,
    write_page,
    write_records,
)
from suites.conformance.run import ConformanceRequest, ConformanceResult, ConformanceRun
from suites.conformance.table import SUITES, find_suite
from suites.conformance.tree import open_tree
from suites.progress import RunProgress

SUBJECTS = (REFIMPL, STOCK)
DEFAULT_CACHE = Path("torch-oracle-conformance")


def conformance(
    pytorch_src: Annotated[Path, typer.Option(help="Root of a PyTorch source tree, 2.1 to 2.13; its test/ is read.")],
    suite: Annotated[str, typer.Option(help=f"Which of PyTorch's test files: {', '.join(SUITES)}.")],
    subject: Annotated[str, typer.Option(help="refimpl, or torch for only the passes without refimpl.")] = REFIMPL,
    select: Annotated[
        list[str] | None, typer.Option("-k", help="Part of a test's name, or a glob; repeatable, as alternatives.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Worker processes. Default: one per core.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for one test.")] = 480.0,
    memory: Annotated[float, typer.Option(help="Memory limit of one test, in GiB beyond what its worker uses.")] = 6.0,
    guard: Annotated[
        bool, typer.Option("--guard/--no-guard", help="Raise if refimpl calls the code that it is compared with.")
    ] = True,
    cache: Annotated[Path, typer.Option(help="Folder that keeps outcomes between runs.")] = DEFAULT_CACHE,
    output: Annotated[Path | None, typer.Option(help="One row per test: a .csv or .jsonl file.")] = None,
    page: Annotated[Path | None, typer.Option(help="Rewrite the suite's section of this Markdown page.")] = None,
) -> None:
    """Run PyTorch's own tests with refimpl in place of torch's entry points."""
    check_supported()
    row = find_suite(suite)
    if subject not in SUBJECTS:
        raise UsageError(seen=f"--subject {subject}", expected=f"one of {', '.join(SUBJECTS)}", do="name one of these")
    for name, value in (("--timeout", timeout), ("--memory", memory), ("--workers", 1 if workers is None else workers)):
        if value <= 0:
            raise UsageError(seen=f"{name} {value}", expected="a number above 0", do="give one")
    if output is not None:
        check_output(output)
    request = ConformanceRequest(
        tree=open_tree(pytorch_src, row),
        suite=row,
        subject=subject,
        select=tuple(select or ()),
        workers=workers or len(os.sched_getaffinity(0)),
        timeout_s=timeout,
        memory_bytes=int(memory * 2**30),
        is_guarded=guard,
        cache_folder=cache,
    )
    err = Console(stderr=True)
    with RunProgress(console=err, unit="tests", noun="not passed") as progress:
        not_passed = 0

        def on_outcome(what: str, outcome: TestOutcome, done: int, total: int) -> None:
            nonlocal not_passed
            not_passed = (0 if done == 1 else not_passed) + (not outcome.ending.is_passed)
            label = f"{what}: {outcome.test.rpartition('.')[2][:60]}"
            progress.advance(done, total=total, found=not_passed, label=label)

        result = ConformanceRun(request, on_outcome=on_outcome).run()
    raise typer.Exit(_report(request, result, output=output, page=page, err=err))


def _report(
    request: ConformanceRequest, result: ConformanceResult, *, output: Path | None, page: Path | None, err: Console
) -> int:
    """Print and write the results, and compare them with the committed table. Returns the exit code."""
    is_stock = request.subject == STOCK
    expected = read_expected(request.suite.name, tree=request.tree.version, torch=result.described.torch)
    judgement = judge_failures(
        () if is_stock else expected,
        failed=[row.test for row in result.rows if row.is_failed],
        passed=[row.test for row in result.rows if row.is_passed],
    )
    tables = [class_table(result, f"{request.suite.name}: {request.subject} passes {figure(result)}")]
    if result.passed < result.denominator:
        tables.append(failure_table(result, judgement, limit=SHOWN_FAILURES))
    show(Console(), tables)
    if output is not None:
        write_records(output, records(result, judgement))
    if page is not None:
        write_page(page, request.suite.name, page_section(request, result, judgement))
    missing = [name for name in request.suite.needs if name not in result.described.names]
    if missing and not is_stock:
        err.print(f"exploratory: refimpl has no counterpart of {', '.join(missing)} yet", highlight=False)
    for row in judgement.stale:
        err.print(f"passes now, remove its row from the table: {', '.join(row.tests)}", highlight=False, markup=False)
    if judgement.unexpected:
        err.print(
            f"{len(judgement.unexpected)} failures that are not in the table of expected failures", highlight=False
        )
    return 1 if judgement.unexpected else 0
