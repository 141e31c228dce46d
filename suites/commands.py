"""`torch-oracle sweep` and `torch-oracle list`."""

from __future__ import annotations

import difflib
import json
import os
import sys
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.table import Table

from oracle.cluster.execution import (
    DEFAULT_TIMEOUT_S,
    LOCAL,
    ExecutorOption,
    RayAddressOption,
    RayResourcesOption,
    RaySlotsOption,
    make_execution,
)
from oracle.environment import LABEL_VARIABLE, check_supported
from oracle.errors import UsageError
from oracle.isolate import Completed, Pool, Task
from oracle.subjects.registry import check_requirements, known
from results.files import DB_VARIABLE
from results.store import Store
from suites.base import Selection
from suites.execution import PRELOAD
from suites.registry import SUITES, find_suite
from suites.request import SweepRequest, make_request
from suites.run import Sweep

DEFAULT_DB = "torch-oracle.db"


# The options of `sweep`.
_Suite = Annotated[
    str | None,
    typer.Option(
        help="Suites, by comma; 'all': all but transformers and recorded. Default: the default sweep (see above)."
    ),
]
_Subject = Annotated[
    str | None, typer.Option(help="Subjects, by comma: names, module:function, compile:module:function.")
]
_SubjectsFile = Annotated[Path | None, typer.Option(help="TOML file with [subjects.NAME] tables.")]
_Match = Annotated[list[str] | None, typer.Option(help="Glob on group or program names; repeatable.")]
_Tag = Annotated[list[str] | None, typer.Option(help="Only programs with this tag; repeatable.")]
_Dtype = Annotated[str | None, typer.Option(help="Dtypes, by comma.")]
_Direction = Annotated[str | None, typer.Option(help="forward, backward, or both by comma.")]
_MaxSamples = Annotated[int | None, typer.Option(help="Largest number of programs per group, dtype and direction.")]
_Shard = Annotated[str, typer.Option(help="Run part i of n, as i/n.")]
_Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1 ...")]
_Time = Annotated[
    str | None,
    typer.Option(help="Stop after this time (90s, 10m, 1h30m), planning included; --resume continues the run."),
]
_CaseTimeout = Annotated[
    float,
    typer.Option(
        help="Seconds for one case, without start-up and without time that other processes take from it. "
        "A case that exceeds the limit runs again alone, with three times the limit, before it is a finding."
    ),
]
_Memory = Annotated[float, typer.Option(help="Memory limit of one case, in GiB beyond what its worker uses.")]
_Workers = Annotated[
    int | None, typer.Option(help="Worker processes, of each slot on a cluster. Default: one per core; 1 with --speed.")
]
_Threads = Annotated[int, typer.Option(help="Threads per worker.")]
_Speed = Annotated[bool, typer.Option("--speed", help="Also measure speed, compile time and memory of passing cases.")]
_SpeedBudget = Annotated[float, typer.Option(help="Seconds of interleaved timing per case, in all its processes.")]
_SpeedProcesses = Annotated[
    int,
    typer.Option(
        help="Fresh processes that time each case; 1: only the one that judges it. A verdict on a change needs several."
    ),
]
_SpeedPrecision = Annotated[
    float | None,
    typer.Option(
        metavar="PERCENT",
        help="Time each case in more processes until the 95 % interval of its speedup is at most so many percent to each side.",
    ),
]
_SpeedMostProcesses = Annotated[int, typer.Option(help="With --speed-precision: most processes that time a case.")]
_Recording = Annotated[
    Path | None, typer.Option(help="With --suite recorded: the file that `torch-oracle record` wrote.")
]
_Rerun = Annotated[
    int, typer.Option(help="Run each case that fails so many times more, each in a fresh process: is it flaky?")
]
_OnHang = Annotated[
    str | None,
    typer.Option(
        help="Command to run after a worker was killed for its time limit, before another starts: to reset a device. "
        "TORCH_ORACLE_CASE and TORCH_ORACLE_DEVICE tell it the case and the device. No shell reads it."
    ),
]
_OnHangTimeout = Annotated[float, typer.Option(help="Seconds for the command of --on-hang.")]
_Label = Annotated[
    str,
    typer.Option(
        help="Name of what is tested, for versions that torch-oracle does not see: a driver, a simulator, a build. "
        "`history` and `compare` tell when it changed.",
        envvar=LABEL_VARIABLE,
        show_envvar=True,
    ),
]
_Db = Annotated[
    str, typer.Option(help="Results: a SQLite file or a database URL.", envvar=DB_VARIABLE, show_envvar=True)
]
_Resume = Annotated[bool, typer.Option("--resume", help="Continue the stopped run in --db with its own options.")]
_ShowAll = Annotated[bool, typer.Option("--all", help="Print every row of the tables.")]
_Known = Annotated[
    str, typer.Option(help="Known issues, by comma: 'torch' (built in), your own TOML files; or 'none'.")
]
_AsJson = Annotated[bool, typer.Option("--json", help="One JSON record per line on stdout, then a summary.")]


def sweep(
    ctx: typer.Context,
    suite: _Suite = None,
    subject: _Subject = None,
    subjects_file: _SubjectsFile = None,
    match: _Match = None,
    tag: _Tag = None,
    dtype: _Dtype = None,
    direction: _Direction = None,
    max_samples: _MaxSamples = None,
    recording: _Recording = None,
    shard: _Shard = "1/1",
    device: _Device = "cpu",
    time: _Time = None,
    case_timeout: _CaseTimeout = 120.0,
    memory: _Memory = 6.0,
    workers: _Workers = None,
    threads: _Threads = 1,
    speed: _Speed = False,
    speed_budget: _SpeedBudget = 1.0,
    speed_processes: _SpeedProcesses = 3,
    speed_precision: _SpeedPrecision = None,
    speed_most_processes: _SpeedMostProcesses = 20,
    rerun: _Rerun = 0,
    executor: ExecutorOption = LOCAL,
    ray_address: RayAddressOption = None,
    ray_resources: RayResourcesOption = None,
    ray_slots: RaySlotsOption = None,
    on_hang: _OnHang = None,
    on_hang_timeout: _OnHangTimeout = DEFAULT_TIMEOUT_S,
    label: _Label = "",
    db: _Db = DEFAULT_DB,
    resume: _Resume = False,
    show_all: _ShowAll = False,
    known: _Known = "torch",
    as_json: _AsJson = False,
) -> None:
    """Run suites on subjects and print where they differ from eager, and by how much.

    Without --suite, --match, --tag and --max-samples the default sweep runs: some programs of every suite, each with one or two
    stages of torch.compile. Programs that differ also run with the earlier stages, to find the first that is wrong. It takes a
    few minutes. --suite all runs every program of all suites but transformers and recorded. That takes hours.

    Ctrl-C stops a run and keeps its results so far; --resume continues it.

    Exit code: 0 nothing new, 1 new findings, 2 stopped or a usage error, 3 an internal error of torch-oracle. Known issues are
    not findings. If --time ends a run, the exit code is that of the cases that ran.
    """
    raise typer.Exit(_swept(locals()))


_EXECUTION = ("executor", "ray_address", "ray_resources", "ray_slots", "on_hang", "on_hang_timeout")
_REQUEST = (
    "suite", "subject", "subjects_file", "match", "tag", "dtype", "direction", "max_samples", "recording", "shard", "device",
    "time", "case_timeout", "memory", "threads", "speed", "speed_budget", "speed_processes", "speed_precision",
    "speed_most_processes", "rerun", "known",
)  # fmt: skip


def _swept(asked: Mapping[str, Any]) -> int:
    """The exit code of a sweep with these options, by the names that they have in `sweep`."""
    began = monotonic()
    check_supported()
    execution = make_execution(**{name: asked[name] for name in _EXECUTION})
    with ExitStack() as stack:
        if asked["resume"]:
            _refuse_beside_resume(asked["ctx"])
            store, run_id = _run_to_resume(stack, asked["db"])
            kept = SweepRequest.from_json(store.arguments(run_id))
            request = kept.going_on(time=asked["time"], workers=asked["workers"])
            execution.refuse_speed(request.options["speed"])
        else:
            execution.refuse_speed(asked["speed"])
            own_workers = 1 if asked["speed"] else execution.default_workers
            workers = own_workers if asked["workers"] is None else asked["workers"]
            request = make_request(**{name: asked[name] for name in _REQUEST}, workers=workers)
            store, run_id = _new_run(stack, asked["db"], request)
        default_db = os.environ.get(DB_VARIABLE) or DEFAULT_DB  # not repeated in commands: it may hold a password
        return Sweep(
            store=store, run_id=run_id, request=request, db=asked["db"], is_default_db=asked["db"] == default_db,
            label=asked["label"], is_resumed=asked["resume"],
            as_json=asked["as_json"], show_all=asked["show_all"], began=began, execution=execution,
        ).run()  # fmt: skip


def _new_run(stack: ExitStack, db: str, request: SweepRequest) -> tuple[Store, str]:
    """The store, and the id of a new run, if all subjects can run here. Raises UsageError if one cannot."""
    for spec in request.spec_by_name().values():
        check_requirements(spec, device=request.selection.device)
    return (
        stack.enter_context(Store.open(db, create=True)),
        f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:6]}",
    )


def _run_to_resume(stack: ExitStack, db: str) -> tuple[Store, str]:
    """The store, and the id of the newest run that was stopped with a complete plan. Raises UsageError if there is none."""
    store = stack.enter_context(Store.open(db, create=False))
    run_id = store.resumable_run()
    if run_id is None:
        raise UsageError(
            seen=f"--resume, but {db} holds no interrupted run with a complete plan",
            expected="a run that was stopped after its planning was complete",
            do="start it without --resume",
        )
    return store, run_id


HEARD_BESIDE_RESUME = frozenset({"resume", "db", "time", "workers", "as_json", "show_all", *_EXECUTION})


def _refuse_beside_resume(ctx: typer.Context) -> None:
    """A resumed run keeps its own options: UsageError for an option that would change it, since it would be ignored."""
    given = [name for name in ctx.params if str(ctx.get_parameter_source(name)).endswith("COMMANDLINE")]
    unheard = [f"--{name.replace('_', '-')}" for name in given if name not in HEARD_BESIDE_RESUME]
    if unheard:
        raise UsageError(
            seen=f"--resume with {', '.join(unheard)}",
            expected="--resume alone, or with options that change no result: --db, --time, --workers, --all, --json, --executor, "
            "--ray-address, --ray-resources, --ray-slots, --on-hang and --on-hang-timeout",
            do="leave them out, or start a new run without --resume",
        )


def list_(
    what: Annotated[
        str, typer.Argument(help="suites, subjects, tags, or a suite's name to list its groups")
    ] = "suites",
    match: Annotated[list[str] | None, typer.Option(help="Glob on group names; repeatable.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda ...")] = "cpu",
    recording: Annotated[
        Path | None, typer.Option(help="With recorded: the file that `torch-oracle record` wrote.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False,
) -> None:
    """List suites, subjects, tags, or the groups of one suite."""
    rows = _rows(
        what,
        Selection(match=tuple(match or ()), device=device, recording=str(recording.resolve()) if recording else ""),
    )
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
    if what not in SUITES and (near := difflib.get_close_matches(what, ("suites", "subjects", "tags"), n=1)):
        raise UsageError(
            seen=f"list {what}",
            expected="suites, subjects, tags, or the name of a suite",
            do=f"did you mean {near[0]}?",
        )
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
    value = cast("dict[str, Any]", result.end.value)
    if "usage_error" in value:
        raise UsageError(**value["usage_error"])
    if not value["groups"] and selection.match:
        near = f"; did you mean {' or '.join(value['near'])}?" if value["near"] else ""
        sys.stderr.write(f"no group of suite {entry.name!r} matches {', '.join(selection.match)}{near}\n")
    return [{"group": str(group)} for group in value["groups"]]
