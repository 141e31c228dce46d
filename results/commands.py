"""The commands on results: show, history, triage, compare, gate, export, import, merge, push, migrate, prune, as typer functions.

Exit codes: 0 clean, 1 findings (compare: regressions; gate: closed), 4 a gate whose run measured nothing. Bad input raises
UsageError, which the command line prints.
"""

from __future__ import annotations

import difflib
import io
import json
import math
import shlex
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated, Any, Final

import sqlalchemy as sa
import typer
from rich.console import Console

from oracle.errors import UsageError
from oracle.verdict import Status
from results import compare as comparing
from results import gate as gating
from results.baseline import baseline_text, is_acceptable, read_baseline, updated_baseline, write_baseline
from results.engine import Location
from results.files import DB_VARIABLE
from results.history import (
    CaseRun,
    case_history,
    case_ids,
    find_break,
    find_flakiness,
    flaky_cases,
    flaky_table,
    history_parts,
    run_summaries,
    runs_before,
    runs_table,
    speed_history,
)
from results.kept import keep_missing
from results.merge import merge as merge_runs
from results.prune import prune as prune_runs
from results.queries import bias_findings, case_filter, count_statuses, finding_groups
from results.render import Part, markdown, one_line
from results.render import show as show_tables
from results.schema import CASES, DATABASE_VERSION
from results.speed.otava import write_otava
from results.spool import Spool, is_spool
from results.store import LATEST, RunInfo, Store, moment_of, place_of
from results.transfer import Copied, copy_runs

DEFAULT_DB = "torch-oracle.db"  # what `sweep` writes by default
FORMATS: Final = ("jsonl", "csv", "dynamo-accuracy", "dynamo-speedup", "markdown", "junit", "parquet")
_SUFFIXES: Final = {".jsonl": "jsonl", ".csv": "csv", ".parquet": "parquet", ".md": "markdown", ".xml": "junit"}
_SQLITE: Final = b"SQLite format 3\0"  # the beginning of such a file
_MOST_DAYS: Final = 36_500  # a hundred years: dates have an end
_CASES_IN_FULL = 20  # `show GLOB` prints up to so many cases in full, more as a table

DbOption = Annotated[
    str, typer.Option(help="Results: a SQLite file or a database URL.", envvar=DB_VARIABLE, show_envvar=True)
]
RunOption = Annotated[str, typer.Option(help="Id of the run, or 'latest'.")]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]
AllOption = Annotated[bool, typer.Option("--all", help="Everything: every group, case and status.")]


def show(
    cases: Annotated[
        str | None, typer.Argument(metavar="[CASE_ID_GLOB]", help="Only these cases; a few are shown in full.")
    ] = None,
    db: DbOption = DEFAULT_DB,
    run: RunOption = LATEST,
    all_rows: AllOption = False,
    speed: Annotated[bool, typer.Option("--speed", help="Also the speed of every timed case.")] = False,
    runs: Annotated[bool, typer.Option("--runs", help="List the runs in the database instead.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show a run: what passed, new findings in groups, known issues, speed. Or everything on single cases."""
    from results.report import GROUPS_SHOWN, case_text, show_run  # noqa: PLC0415  pandas is slow to import

    with Store.open(db, create=False, read_only=True) as store:
        if runs:
            _show_runs(store, as_json)
            return
        info = store.run(run)
        if cases is None and not as_json:
            show_run(store, info.run_id, console=Console(), limit=None if all_rows else GROUPS_SHOWN, with_speed=speed)
            return
        glob = cases if cases is not None else "*"
        found = sum(cases for *_, cases in count_statuses(store, info, glob))
        if cases is not None and not found:
            raise UsageError(
                seen=f"{cases!r}, which matches no case of run {info.run_id}",
                expected="a case id, or a glob such as 'opinfo/add/*@inductor'",
                do=f"torch-oracle show --db {db} lists the failures",
            )
        if not as_json and found > _CASES_IN_FULL and not all_rows:
            show_run(store, info.run_id, console=Console(), match=glob, with_speed=speed)
            return
        if as_json:
            _write_json_of_run(store, info, glob)
            return
        for record in store.records(info.run_id, with_missing=True, where=case_filter(glob)):
            sys.stdout.write(case_text(record, store.program(record.case_id, info.run_id)) + "\n")


def _write_json_of_run(store: Store, info: RunInfo, glob: str) -> None:
    """The run as JSON, record by record: a large run does not fit into memory."""
    groups = [group.to_json() for group in finding_groups(store, info, glob)]
    errors = [one.to_json() for one in bias_findings(store, info, glob)]
    data = {"run": _run_json(info), "new_findings": groups, "systematic_errors": errors, "records": []}
    head, tail = json.dumps(data, indent=2).rsplit("[]", 1)
    separator = "[\n"
    sys.stdout.write(head)
    for record in store.records(info.run_id, with_missing=True, where=case_filter(glob)):
        sys.stdout.write(separator + textwrap.indent(json.dumps(record.to_json(), indent=2), "    "))
        separator = ",\n"
    sys.stdout.write(("[]" if separator == "[\n" else "\n  ]") + tail + "\n")


def _show_runs(store: Store, as_json: bool) -> None:
    summaries = run_summaries(store)
    if not as_json:
        show_tables(Console(), [runs_table(summaries)])
        return
    infos = {info.run_id: info for info in store.runs()}
    _write_json([{**_run_json(infos[one.facts.run_id]), **one.to_json()} for one in summaries])


def history(
    cases: Annotated[
        str | None, typer.Argument(metavar="[CASE_ID_GLOB]", help="Case id, or a glob that matches a few.")
    ] = None,
    db: DbOption = DEFAULT_DB,
    flaky: Annotated[
        bool, typer.Option("--flaky", help="List the cases whose verdict goes to and fro without a change.")
    ] = False,
    otava: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write the histories for Apache Otava into this folder instead."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a case over all runs: how it ended, what changed between runs, when it broke or became slower, whether it is flaky."""
    if flaky == (cases is not None):
        raise UsageError(
            seen="no case" if cases is None else f"{cases!r} with --flaky",
            expected="a case id, or --flaky",
            do="`torch-oracle show` names cases; or ask for --flaky alone",
        )
    with Store.open(db, create=False, read_only=True) as store:
        if cases is None:
            found = flaky_cases(store)
            if as_json:
                _write_json([{"case_id": case_id, **asdict(one)} for case_id, one in found])
            else:
                show_tables(Console(), [flaky_table(found)])
            return
        ids = case_ids(store, cases)
        if not ids or (len(ids) > _CASES_IN_FULL and otava is None):
            raise UsageError(
                seen=f"{cases!r}, which matches {len(ids) or 'no'} cases of {store.location}",
                expected=f"1 to {_CASES_IN_FULL} cases",
                do="name a case id, as `torch-oracle show` prints it",
            )
        histories = ((case_id, case_history(store, case_id)) for case_id in ids)
        if otava is not None:
            _write_otava(histories, otava)
        elif as_json:
            _write_json([_history_json(case_id, runs) for case_id, runs in histories])
        else:
            show_tables(Console(), [part for case_id, runs in histories for part in _history_parts(case_id, runs)])


def _history_parts(case_id: str, runs: Sequence[CaseRun]) -> list[Part]:
    from results.lasting import lasting_changes, lasting_table  # noqa: PLC0415  ruptures is slow to import

    changes = lasting_changes(runs)
    return [*history_parts(case_id, runs), *([lasting_table(changes)] if changes else [])]


def _history_json(case_id: str, runs: Sequence[CaseRun]) -> dict[str, Any]:
    from results.lasting import lasting_changes  # noqa: PLC0415  ruptures is slow to import

    return {
        "case_id": case_id,
        "runs": [one.to_json() for one in runs],
        "broke": broke.to_json() if (broke := find_break(runs)) else None,
        "flakiness": asdict(flakiness) if (flakiness := find_flakiness(runs)) else None,
        "lasting_changes": [change.to_json() for change in lasting_changes(runs)],
    }


def _write_otava(histories: Iterable[tuple[str, Sequence[CaseRun]]], folder: Path) -> None:
    from results.lasting import otava_histories  # noqa: PLC0415  ruptures is slow to import

    tests = {name: points for case_id, runs in histories for name, points in otava_histories(case_id, runs).items()}
    *written, configuration = write_otava(tests, folder)
    sys.stdout.write(one_line(f"{len(written)} histories and {configuration} written") + "\n")


def compare(
    base: Annotated[str, typer.Argument(help="Database, or DB#RUN for a run other than its latest.")],
    head: Annotated[str, typer.Argument(help="Database, or DB#RUN; compared with BASE.")],
    all_rows: AllOption = False,
    fail_on_slower: Annotated[
        bool, typer.Option("--fail-on-slower", help="Exit 1 also when a case became slower for real.")
    ] = False,
    as_json: JsonOption = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Markdown on stdout.")] = False,
) -> None:
    """Compare two runs case by case. Exits 1 for new failures, missing rows and rows no longer compared."""
    with _opened(base) as (base_store, base_run), _opened(head) as (head_store, head_run):
        if base_run.run_id == head_run.run_id:
            sys.stderr.write(one_line(f"note: {base} and {head} are the same run, {head_run.run_id}") + "\n")
        comparison = comparing.compare_runs(
            base_store, head_store, base_run=base_run, head_run=head_run, history=speed_history(base_store, base_run)
        )
        if as_json:
            _write_json(comparison.to_json())
        else:
            tables = comparing.tables_of(comparison, limit=None if all_rows else 50)
            if as_markdown:
                sys.stdout.write("\n".join(markdown(table) for table in tables))
            else:
                show_tables(Console(), tables)
    raise typer.Exit(int(comparison.has_regression or (fail_on_slower and bool(comparison.slower))))


def gate(
    baseline: Annotated[Path, typer.Option(help="Accepted failures: a sorted text file kept with the code.")],
    db: DbOption = DEFAULT_DB,
    run: RunOption = LATEST,
    update: Annotated[
        bool, typer.Option("--update", help="Rewrite the baseline to accept exactly what fails now.")
    ] = False,
    suggest: Annotated[
        bool, typer.Option("--suggest", help="Print what --update would change, as a patch, and write nothing.")
    ] = False,
    expires_days: Annotated[int, typer.Option(help="With --update or --suggest: days that new lines hold.")] = 30,
    base: Annotated[
        str | None, typer.Option(metavar="DB[#RUN]", help="Run to compare speed and compile time with.")
    ] = None,
    slower: Annotated[float | None, typer.Option(help="With --base: percent that a case may be slower.")] = None,
    compile_slower: Annotated[
        float | None, typer.Option(help="With --base: percent that a cold compilation may take longer.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Exit 0 if a run fails in exactly the accepted ways, 1 otherwise, 4 if it measured nothing.

    A planned case without a record fails.
    """
    if not 1 <= expires_days <= _MOST_DAYS:
        raise UsageError(
            seen=f"--expires-days {expires_days}", expected=f"1 to {_MOST_DAYS}", do="name a number of days"
        )
    budgets = gating.Budgets(speed=slower, compile_time=compile_slower)
    _check_budgets(base, slower, compile_slower)
    today = datetime.now(timezone.utc).date()
    expires = today + timedelta(days=expires_days)
    comparison = None
    with Store.open(db, create=False, read_only=True) as store:
        info = store.run(run)
        if suggest or update:
            failing = gating.failing(gating.Cases.read(store, info, {}))
            if suggest:
                sys.stdout.write(_suggested(baseline, info, failing, expires=expires))
                return
            _update_baseline(baseline, info, failing, expires=expires)
        accepted = read_baseline(baseline)
        if base is not None:
            with _opened(base) as (base_store, base_run):
                comparison = comparing.compare_runs(
                    base_store, store, base_run=base_run, head_run=info, history=speed_history(base_store, base_run)
                )
        cases = gating.Cases.read(store, info, accepted)
        most = None if as_json else gating.PROBLEMS_SHOWN
        report = gating.gate(cases, accepted, run=info, today=today, comparison=comparison, budgets=budgets, most=most)
        if as_json:
            _write_json(report.to_json())
        else:
            show_tables(Console(), gating.tables_of(report))
    raise typer.Exit(report.exit_code)


def triage(
    db: DbOption = DEFAULT_DB,
    run: RunOption = LATEST,
    days: Annotated[
        int, typer.Option(min=1, max=_MOST_DAYS, help="How far back to look: the last run at least so many days older.")
    ] = 7,
    base: Annotated[
        str | None, typer.Option(metavar="DB[#RUN]", help="Run to compare with, instead of --days.")
    ] = None,
    owners: Annotated[Path | None, typer.Option(help="File of lines `pattern owner`; the last match counts.")] = None,
) -> None:
    """Write what is new, fixed, flaky or slower since a week ago, by owner, as Markdown."""
    from results.lasting import slower_since, worse_since  # noqa: PLC0415  ruptures is slow to import
    from results.triage import Owners, read_owners, told_worse, triage_text  # noqa: PLC0415

    known = read_owners(owners) if owners is not None else Owners()
    with Store.open(db, create=False, read_only=True) as store:
        head = store.run(run)
        place = base or f"{db}#{_run_of_days_ago(store, head, days).run_id}"
        with _opened(place) as (base_store, base_run):
            comparison = comparing.compare_runs(
                base_store, store, base_run=base_run, head_run=head, history=speed_history(base_store, base_run)
            )
            since = worse_since(store, base_run, told_worse(comparison) | slower_since(store, base_run, head))
            text = triage_text(comparison, flaky_cases(store), known, since)
    sys.stdout.write(text)


def _run_of_days_ago(store: Store, head: RunInfo, days: int) -> RunInfo:
    """The last run of the same selection that began so many days before `head`, or the first one if none is as old."""
    alike = runs_before(store, head)
    if not alike:
        raise UsageError(
            seen=f"run {head.run_id}, before which {store.location} has no run of the same selection",
            expected="an earlier run to compare with",
            do="name one with --base DB#RUN",
        )
    if (began := moment_of(head.started_at)) is None:
        raise UsageError(
            seen=f"run {head.run_id}, which began at {head.started_at!r}",
            expected="a date and time in ISO 8601, to find a run of a week before",
            do="name one with --base DB#RUN",
        )
    limit = began - timedelta(days=days)
    old = [one for one in alike if (moment := moment_of(one.started_at)) is not None and moment <= limit]
    return old[-1] if old else alike[0]


def _check_budgets(base: str | None, slower: float | None, compile_slower: float | None) -> None:
    given = {"--slower": slower, "--compile-slower": compile_slower}
    for name, percent in given.items():
        if percent is not None and not 0 <= percent < math.inf:
            raise UsageError(seen=f"{name} {percent}", expected="a percentage from 0", do="such as 5")
    if (base is None) != (slower is None and compile_slower is None):
        seen = f"--base {base} without a budget" if base is not None else "a budget without --base"
        raise UsageError(
            seen=seen, expected="a base run and --slower or --compile-slower", do="add --base DB#RUN --slower 5"
        )


def _suggested(path: Path, run: RunInfo, failing: Mapping[str, Status], *, expires: date) -> str:
    """The patch that `--update` would make; "" if the baseline is right."""
    _check_updatable(run, failing, "--suggest")
    accepted = read_baseline(path) if path.exists() else {}
    new = baseline_text(path, updated_baseline(accepted, failing, expires=expires))
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    name = path.as_posix()
    lines = difflib.unified_diff(
        io.StringIO(old).readlines(),  # `splitlines` would also end lines where the file has none, at U+2028 say
        io.StringIO(new).readlines(),
        fromfile=f"a/{name}" if old else "/dev/null",
        tofile=f"b/{name}",
    )
    return "".join(lines)


def _update_baseline(path: Path, run: RunInfo, failing: Mapping[str, Status], *, expires: date) -> None:
    _check_updatable(run, failing, "--update")
    accepted = read_baseline(path) if path.exists() else {}
    write_baseline(path, updated_baseline(accepted, failing, expires=expires))


def _check_updatable(run: RunInfo, failing: Mapping[str, Status], option: str) -> None:
    if not run.is_complete or not all(map(is_acceptable, failing.values())):
        left = run.planned - run.recorded
        raise UsageError(
            seen=f"{option} from run {run.run_id} ({run.state}), {left} of whose {run.planned} cases have no record",
            expected="a complete run: an unfinished one would drop lines that still hold",
            do="finish it with `torch-oracle sweep --resume`, then update; the baseline was left as it is",
        )


def export(
    output: Annotated[Path, typer.Argument(help="File to write; replaced at once if it exists.")],
    db: DbOption = DEFAULT_DB,
    run: RunOption = LATEST,
    format: Annotated[str | None, typer.Option(help=f"{', '.join(FORMATS)}. Default: by suffix.")] = None,
    suite: Annotated[str | None, typer.Option(help="Only this suite.")] = None,
    subject: Annotated[str | None, typer.Option(help="Only this subject, as it stands in records.")] = None,
    match: Annotated[str, typer.Option(help="Only case ids that match this glob.")] = "*",
) -> None:
    """Write a run to a file: JSON lines, CSV, the CSVs of PyTorch's dynamo benchmarks, Parquet, Markdown, JUnit XML."""
    from results.export import export_run  # noqa: PLC0415  pyarrow is slow to import

    chosen = format_of(output, format)
    named = {CASES.c.suite: suite, CASES.c.subject: subject}
    wanted = sa.and_(case_filter(match), *(column == value for column, value in named.items() if value is not None))
    with Store.open(db, create=False, read_only=True) as store:
        info = store.run(run)
        found = sum(cases for *_, cases in count_statuses(store, info, wanted))
        if not found and info.planned:
            raise UsageError(
                seen=f"a selection that none of the {info.planned} cases of run {info.run_id} matches",
                expected="at least one case",
                do="correct --suite, --subject or --match",
            )
        export_run(store, info, wanted, path=output, format=chosen)
    sys.stderr.write(one_line(f"{found} records of run {info.run_id} written to {output} ({chosen})") + "\n")


def import_(
    file: Annotated[
        Path, typer.Argument(help="JSON lines, Parquet, a CSV of PyTorch's benchmarks or expected accuracies.")
    ],
    db: DbOption = DEFAULT_DB,
    suite: Annotated[str, typer.Option(help="For a CSV: name of the suite.")] = "imported",
    subject: Annotated[str, typer.Option(help="For a CSV: the compiler that it is about.")] = "inductor",
    run_id: Annotated[str | None, typer.Option(help="For a CSV: id of the run. Default: made of the file.")] = None,
) -> None:
    """Add the runs in a file to a database, which is made if absent. Every row is checked before anything is written."""
    from results.importing import Labels, read_file, write_runs  # noqa: PLC0415  pyarrow is slow to import

    if file.is_file() and file.open("rb").read(len(_SQLITE)) == _SQLITE:
        raise UsageError(
            seen=f"{file}, a SQLite database", expected="a file to import",
            do=f"copy its runs with: torch-oracle push {shlex.quote(str(file))} DATABASE",
        )  # fmt: skip
    runs = read_file(file, Labels(suite=suite, subject=subject, run_id=run_id))
    with Store.open(db, create=True) as store:
        write_runs(store, runs, source=file.name)
    for run in runs:
        sys.stdout.write(one_line(f"run {run.run_id} with {len(run.records)} records imported into {db}") + "\n")


def merge(
    output: Annotated[str, typer.Argument(help="Database to merge into; made if absent.")],
    inputs: Annotated[list[str], typer.Argument(help="Databases of the shards.")],
    partial: Annotated[bool, typer.Option("--partial", help="Merge although shards are absent or unfinished.")] = False,
    history: Annotated[
        bool, typer.Option("--history", help="Copy every run as it is instead, to keep the histories in one database.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Merge the shards of one sweep into one run, or the histories of databases. Merging again changes nothing."""
    if history:
        if partial:
            raise UsageError(seen="--history with --partial", expected="one of them", do="--history copies every run")
        _write_copied(sum((copy_runs(source, output) for source in inputs), Copied()), output, as_json)
        return
    merged = merge_runs(output, inputs, partial=partial)
    if as_json:
        _write_json(
            {
                "run_id": merged.run_id,
                "cases": merged.cases,
                "records": merged.records,
                "cases_added": merged.cases_added,
                "records_added": merged.records_added,
                "absent_shards": list(merged.absent_shards),
            }
        )
        return
    lines = [
        f"run {merged.run_id} in {output}: {merged.records} of {merged.cases} cases recorded; "
        f"{merged.cases_added} cases and {merged.records_added} records added from {merged.sources} runs",
        *(f"shard {shard} is absent" for shard in merged.absent_shards),
    ]
    sys.stdout.write("".join(f"{one_line(line)}\n" for line in lines))


def push(
    source: Annotated[
        str,
        typer.Argument(metavar="DB", help="Database whose runs are copied, or a file that a run left (.spool.jsonl)."),
    ],
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="Database to copy them to, such as a URL of PostgreSQL.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Copy all runs of a database to another one. What is there already stays as it is."""
    if is_spool(source):
        spool = Spool(Path(source))
        records = spool.records()
        with Store.open(target, create=False) as store:
            count = store.deliver(records)
        spool.remove()
        _write_copied(Copied(records=count), target, as_json)
        return
    if Path(source).suffix in (".jsonl", ".parquet", ".csv"):
        raise UsageError(
            seen=f"{source}, which is no database by its name", expected="a results database",
            do=f"add its runs with: torch-oracle import {shlex.quote(source)} --db {shlex.quote(target)}",
        )  # fmt: skip
    _write_copied(copy_runs(source, target), target, as_json)


def _write_copied(copied: Copied, target: str, as_json: bool) -> None:
    if as_json:
        _write_json(asdict(copied))
        return
    text = (
        f"{copied.runs} new runs, {copied.runs_completed} completed; {copied.cases} cases and {copied.records} records"
    )
    sys.stdout.write(one_line(f"{Location.parse(target)}: {text} added") + "\n")


def migrate(
    db: Annotated[
        str, typer.Argument(help="Database: a SQLite file or a URL.", envvar=DB_VARIABLE, show_envvar=True)
    ] = DEFAULT_DB,
) -> None:
    """Bring a database of an older version of torch-oracle up to date, and keep with its runs what makes comparisons fast."""
    with Store.open(db, create=False) as store:
        with store.transaction() as transaction:
            kept = keep_missing(transaction.connection)
        done = f"; summaries of {kept} runs were made, so that comparisons are fast" if kept else ""
        sys.stdout.write(one_line(f"{store.location} has schema version {DATABASE_VERSION}{done}") + "\n")


def prune(
    older_days: Annotated[
        int, typer.Option(min=1, max=_MOST_DAYS, help="Remove runs that started more than so many days ago.")
    ],
    db: DbOption = DEFAULT_DB,
    trial: Annotated[bool, typer.Option("--trial", help="List the runs, and remove nothing.")] = False,
) -> None:
    """Remove old runs, and the programs that only they have.

    Runs that have not ended stay, and so does the newest run of each choice of suites and subjects.
    """
    before = datetime.now(timezone.utc) - timedelta(days=older_days)
    with Store.open(db, create=False) as store:
        pruned = prune_runs(store, before=before, is_trial=trial)
        for run_id in pruned.runs:
            sys.stdout.write(one_line(run_id) + "\n")
        verb = "would be removed from" if trial else "removed from"
        text = f"{len(pruned.runs)} runs and {pruned.cases} cases {verb} {store.location}"
        sys.stdout.write(one_line(text) + "\n")


@contextmanager
def _opened(text: str) -> Iterator[tuple[Store, RunInfo]]:
    """The store and the run of "DB" or "DB#RUN"."""
    db, run_id = place_of(text)
    with Store.open(db, create=False, read_only=True) as store:
        yield store, store.run(run_id)


def _run_json(info: RunInfo) -> dict[str, Any]:
    return {
        "run_id": info.run_id,
        "state": info.state,
        "started_at": info.started_at,
        "ended_at": info.ended_at,
        "planned": info.planned,
        "recorded": info.recorded,
        "environment": info.environment,
    }


def _write_json(data: Any) -> None:
    sys.stdout.write(json.dumps(data, indent=2) + "\n")


def format_of(path: Path, given: str | None) -> str:
    """The given format, or the one of the file's suffix. Raises UsageError if there is neither."""
    chosen = given or _SUFFIXES.get(path.suffix)
    if chosen is None or chosen not in FORMATS:
        raise UsageError(
            seen=f"--format {given}" if given else f"{path}, whose suffix names no format",
            expected=f"--format one of {', '.join(FORMATS)}, or a suffix of {', '.join(_SUFFIXES)}",
            do="name the format",
        )
    return chosen
