"""`torch-oracle sweep` and `torch-oracle list`."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from oracle.commands import fingerprint_with_worker
from oracle.environment import check_supported
from oracle.errors import UsageError
from oracle.isolate import Completed, Pool, Task
from oracle.known.ledger import ledger_named
from oracle.limits import ADDRESS_SPACE_MARGIN_BYTES
from oracle.records import PlannedCase
from oracle.subjects.registry import check_requirements, known
from oracle.subjects.usability import check_usable
from oracle.sweep import CaseLimits, KnownCheck, SweepSummary, execute
from results.report import show_run
from results.store import RunInfo, Store
from suites.base import Selection
from suites.planning import make_plan
from suites.progress import SweepProgress
from suites.registry import SUITES, find_suite
from suites.request import SweepRequest, make_request

DEFAULT_DB = "torch-oracle.db"
PRELOAD = ("torch", "oracle.case")


def sweep(
    suite: Annotated[str | None, typer.Option(help="Suites, by comma. Default: all, on a quick selection.")] = None,
    subject: Annotated[
        str | None, typer.Option(help="Subjects, by comma: names, module:function, compile:module:function.")
    ] = None,
    subjects_file: Annotated[Path | None, typer.Option(help="TOML file with [subjects.NAME] tables.")] = None,
    match: Annotated[list[str] | None, typer.Option(help="Glob on group or program names; repeatable.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Only programs with this tag; repeatable.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Dtypes, by comma.")] = None,
    direction: Annotated[str | None, typer.Option(help="forward, backward, or both by comma.")] = None,
    max_samples: Annotated[
        int | None, typer.Option(help="At most so many programs per group, dtype and direction.")
    ] = None,
    shard: Annotated[str, typer.Option(help="Run part i of n, as i/n.")] = "1/1",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 ...")] = "cpu",
    time: Annotated[str | None, typer.Option(help="Stop after 90s, 10m, 1h30m; continue with --resume.")] = None,
    case_timeout: Annotated[
        float,
        typer.Option(
            help="Seconds for one case. Start-up and time in which other processes have the processors do not count. "
            "A case over its limit runs again alone, with three times the time, before it is a finding."
        ),
    ] = 120.0,
    memory: Annotated[float, typer.Option(help="GiB that one case may add.")] = 6.0,
    workers: Annotated[
        int | None, typer.Option(help="Worker processes. Default: one per core; 1 with --speed.")
    ] = None,
    threads: Annotated[int, typer.Option(help="Threads per worker.")] = 1,
    speed: Annotated[
        bool, typer.Option("--speed", help="Also measure speed, compile time and memory of passing cases.")
    ] = False,
    speed_budget: Annotated[float, typer.Option(help="Seconds of interleaved timing per case.")] = 1.0,
    db: Annotated[str, typer.Option(help="Results: a SQLite file or a database URL.")] = DEFAULT_DB,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the interrupted run in --db.")] = False,
    known: Annotated[
        str, typer.Option(help="Ledger of known issues: 'torch' (built in), 'none', or a TOML file of one's own.")
    ] = "torch",
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON record per line on stdout, then a summary.")
    ] = False,
) -> None:
    """Run suites on subjects and print what differs from eager, where, and by how much."""
    check_supported()
    with ExitStack() as stack:
        if resume:
            store = stack.enter_context(Store.open(db, create=False))
            run_id = store.resumable_run()
            if run_id is None:
                raise UsageError(
                    seen=f"--resume, but {db} holds no interrupted run with a complete plan",
                    expected="a run that was stopped after it had been planned",
                    do="start it without --resume",
                )
            request = SweepRequest.from_json(store.arguments(run_id))
        else:
            request = make_request(
                suite=suite, subject=subject, subjects_file=subjects_file, match=match, tag=tag, dtype=dtype, direction=direction,
                max_samples=max_samples, shard=shard, device=device, time=time, case_timeout=case_timeout, memory=memory,
                workers=workers, threads=threads, speed=speed, speed_budget=speed_budget, known=known,
            )  # fmt: skip
            for spec in request.spec_by_name().values():
                check_requirements(spec, device=device)
            store = stack.enter_context(Store.open(db, create=True))
            run_id = f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:6]}"
        code = _run(store, run_id, request, is_resumed=resume, as_json=as_json)
    raise typer.Exit(code)


def _run(store: Store, run_id: str, request: SweepRequest, *, is_resumed: bool, as_json: bool) -> int:
    """Plan (or read the plan), execute, close the run, print. Returns the exit code."""
    err = Console(stderr=True)
    is_cuda = request.options["device"].startswith("cuda")
    signal.signal(signal.SIGTERM, _raise_interrupt)  # a cancelled CI job closes the run as Ctrl-C does
    # Workers already use every core; a pool of compile processes in each would only wait for one another.
    environment = {"TORCHINDUCTOR_COMPILE_THREADS": os.environ.get("TORCHINDUCTOR_COMPILE_THREADS", "1")}
    with ExitStack() as stack:
        if request.options["speed"]:
            # an empty cache directory of this run's own: cold compile times are cold
            cache = stack.enter_context(tempfile.TemporaryDirectory(prefix="torch-oracle-cache-"))
            environment["TORCHINDUCTOR_CACHE_DIR"] = cache
        try:
            pool = stack.enter_context(
                Pool(
                    workers=request.workers,
                    preload=PRELOAD,
                    start_method="spawn" if is_cuda else "forkserver",
                    threads_per_worker=request.threads,
                    environment=environment,
                    address_space_margin_bytes=None if is_cuda else ADDRESS_SPACE_MARGIN_BYTES,
                )
            )
            if is_resumed:
                cases: Sequence[PlannedCase] = store.unfinished(run_id)
                limits = {
                    name: CaseLimits(**own) for name, own in (store.arguments(run_id).get("case_limits") or {}).items()
                }
                if not as_json:
                    err.print(f"run {run_id}: {len(cases)} cases left")
            else:
                check_usable(request.spec_by_name().values(), pool)
                cases, limits = _plan(store, run_id, request, pool, err, as_json)
            out = sys.stdout

            def on_record(record: Any, summary: SweepSummary) -> None:
                progress.update(record, summary)
                if as_json:
                    out.write(json.dumps(record.to_json()) + "\n")

            with SweepProgress(total=len(cases), console=err, quiet=as_json) as progress:
                summary = execute(
                    cases,
                    subjects=request.spec_by_name(),
                    sink=store,
                    run_id=run_id,
                    pool=pool,
                    limits=request.limits,
                    options=request.options,
                    case_limits=limits,
                    repro_options=("--subjects-file", request.subjects_file) if request.subjects_file else (),
                    known=_known_check(request.known, store.run(run_id)),
                    on_record=on_record,
                )
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not cut the closing short
            if not any(run.run_id == run_id and run.is_resumable for run in store.runs()):
                err.print("interrupted while planning: no case had run; start again without --resume")
                return 2
            store.end_run(run_id, state="interrupted")
            err.print(
                f"interrupted: run {run_id} is closed, its records are kept; `torch-oracle sweep --resume` continues it"
            )
            return 2
    store.end_run(run_id, state="complete" if summary.is_complete else "interrupted")
    if as_json:
        sys.stdout.write(json.dumps({"summary": asdict(summary), "run_id": run_id}) + "\n")
    else:
        show_run(store, run_id, console=Console())
        _print_closing(summary, run_id, request.workers, err)
    if summary.internal_errors:
        return 3
    return 1 if summary.findings else 0


def _known_check(known: str, run: RunInfo) -> KnownCheck | None:
    """The ledger of a run; None where nothing is to be taken as known."""
    ledger = ledger_named(known)
    version = run.environment.get("worker", {}).get("torch") or run.environment.get("versions", {}).get("torch", "")
    return None if ledger is None else KnownCheck(ledger=ledger, torch_version=str(version))


def _raise_interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _plan(
    store: Store, run_id: str, request: SweepRequest, pool: Pool, err: Console, quiet: bool
) -> tuple[list[PlannedCase], dict[str, CaseLimits]]:
    """Write the planned set before the first case runs. Nothing is written when the selection is wrong."""
    cases: list[PlannedCase] = []
    limits: dict[str, CaseLimits] = {}
    for suite in request.suites:
        selection = request.selection_for(suite)
        if selection is None:
            continue
        names = [spec.name for spec in request.subjects[suite]]
        try:
            plan = make_plan(suite, selection, subjects=names, pool=pool, shard=request.shard)
        except UsageError:
            if len(request.suites) == 1:
                raise
            continue  # another suite may match; if none does, that is said below
        cases.extend(plan.cases)
        limits.update(plan.limits)
    if not cases:
        raise UsageError(
            seen="a selection that no program of any suite matches"
            if request.shard.count == 1
            else "a shard without programs",
            expected="at least one program",
            do="`torch-oracle list` shows suites, groups, tags and dtypes",
        )
    arguments = request.to_json()
    arguments["case_limits"] = {name: asdict(own) for name, own in limits.items()}
    store.begin_run(run_id=run_id, environment=fingerprint_with_worker(pool), arguments=arguments)
    store.plan(run_id, cases)
    store.finish_planning(run_id)
    if not quiet:
        err.print(f"run {run_id}: {len(cases)} cases, {request.workers} workers", highlight=False)
    return cases, limits


def _print_closing(summary: SweepSummary, run_id: str, workers: int, err: Console) -> None:
    rate = summary.done / summary.wall_s if summary.wall_s else 0.0
    line = f"run {run_id}: {summary.done} of {summary.planned} cases in {summary.wall_s:.1f} s, {rate:.1f}/s"
    line += f", {summary.findings} findings"
    if summary.bare_s:
        # the first ratio is the case itself, the second the run: with what workers waited for, or could not use
        ratio, whole = summary.case_wall_s / summary.bare_s, summary.wall_s * workers / summary.bare_s
        line += (
            f"; {summary.bare_s:.0f} s of bare calls took {summary.case_wall_s:.0f} s in the workers ({ratio:.2f}x), "
        )
        line += f"{summary.wall_s * workers:.0f} s of {workers} workers in all ({whole:.2f}x)"
    err.print(line, highlight=False, soft_wrap=True)
    if not summary.is_complete:
        err.print("not all cases ran: `torch-oracle sweep --resume` continues", highlight=False)
    for error in summary.internal_errors[:3]:
        err.print(f"internal error of torch-oracle, please report it: {error}", markup=False, highlight=False)


def list_(
    what: Annotated[
        str, typer.Argument(help="suites, subjects, tags, or the name of a suite for its groups")
    ] = "suites",
    match: Annotated[list[str] | None, typer.Option(help="Glob on group names; repeatable.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda ...")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False,
) -> None:
    """List suites, subjects, tags, or the groups of one suite."""
    rows = _rows(what, Selection(match=tuple(match or ()), device=device))
    if as_json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return
    console = Console()
    if not console.is_terminal:
        for row in rows:
            sys.stdout.write("\t".join(str(value) for value in row.values()) + "\n")
        return
    table = Table(*(rows[0] if rows else ("nothing",)))
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    console.print(table)


def _rows(what: str, selection: Selection) -> list[dict[str, str]]:
    if what == "suites":
        return [
            {
                "suite": entry.name,
                "what": entry.description,
                "subjects by default": ", ".join(entry.default_subjects),
                "dtypes": ", ".join(entry.dtypes),
            }
            for entry in SUITES.values()
        ]
    if what == "subjects":
        return [{"subject": spec.name, "what": description} for spec, description in known()]
    if what == "tags":
        return [
            {"suite": entry.name, "tag": tag, "what": text}
            for entry in SUITES.values()
            for tag, text in entry.tags.items()
        ]
    entry = find_suite(what)
    task = Task(
        key="groups",
        function="suites.planning:list_groups",
        payload={"suite": entry.name, "selection": selection.to_json()},
        group="",
        timeout_s=300,
        memory_bytes=8 * 2**30,
    )
    with Pool(workers=1, preload=PRELOAD) as pool:
        (result,) = pool.run([task])
    if not isinstance(result.end, Completed):
        raise UsageError(
            seen=f"listing {what!r} ended as {result.end}", expected="a list of groups", do="see the text above"
        )
    return [{"group": str(group)} for group in result.end.value["groups"]]  # type: ignore[union-attr]
