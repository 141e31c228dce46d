"""`torch-oracle fuzz`."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fuzz.campaign.corpus import Corpus, read_json
from fuzz.campaign.known import id_of_known, id_of_replayed, issues_of, looked_at_again
from fuzz.campaign.progress import CampaignProgress
from fuzz.campaign.records import write_records
from fuzz.campaign.relations import every
from fuzz.campaign.replay import inputs_of, judge_alone, program_of_file, program_of_number
from fuzz.campaign.results import Listener
from fuzz.campaign.run import describe_grammar, run_campaign
from fuzz.campaign.settings import (
    BATCHED_BLOCK,
    BATCHED_ROUND,
    INDUCTOR_CHUNK,
    CampaignSettings,
    default_batch_size,
    is_inductor,
)
from fuzz.campaign.state import CampaignState, FoundBucket, new_state
from fuzz.campaign.summary import bucket_json, call_lines, summary_json, summary_lines
from fuzz.campaign.workers import open_workers
from fuzz.draw.settings import FOCUSES
from fuzz.program.render import render_shown
from fuzz.triage.ledger import Recheck
from oracle.cluster import Execution
from oracle.cluster.execution import (
    LOCAL,
    ExecutorOption,
    RayAddressOption,
    RayResourcesOption,
    RaySlotsOption,
    make_execution,
)
from oracle.commands import fingerprint_with_worker
from oracle.environment import check_supported
from oracle.errors import UsageError
from oracle.known.ledger import BUILT_IN, KnownIssue
from oracle.limits import check_positive, duration
from oracle.subjects.registry import check_requirements, resolve
from oracle.subjects.usability import check_usable
from oracle.subjects.version import recorded_versions
from oracle.verdict import Status
from results.files import DB_VARIABLE
from results.store import Store

DEFAULT_TIME_S = 600.0


def fuzz(
    subject: Annotated[str, typer.Option(help="One subject: a name, module:function, compile:module:function.")],
    subjects_file: Annotated[Path | None, typer.Option(help="TOML file with [subjects.NAME] tables.")] = None,
    time: Annotated[str | None, typer.Option(help="Stop after 90s, 10m, 1h30m. Default: 10m without --count.")] = None,
    count: Annotated[int | None, typer.Option(help="Stop after this number of programs.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the programs.")] = 0,
    focus: Annotated[str, typer.Option(help=f"The kind of programs to draw: {', '.join(FOCUSES)}.")] = "all",
    max_statements: Annotated[
        int, typer.Option(help="Largest number of steps in a program; a step is one statement or a few.")
    ] = 6,
    corpus: Annotated[
        Path | None, typer.Option(help="Directory that keeps findings and state; the same command continues it.")
    ] = None,
    db: Annotated[
        str | None,
        typer.Option(help="Results: a SQLite file or a database URL.", envvar=DB_VARIABLE, show_envvar=True),
    ] = None,
    known: Annotated[
        str, typer.Option(help="Known issues, by comma: 'torch' (built in), your own TOML files; or 'none'.")
    ] = BUILT_IN,
    reduce: Annotated[bool, typer.Option("--reduce/--no-reduce", help="Reduce findings to a few lines.")] = True,
    workers: Annotated[
        int | None, typer.Option(help="Worker processes, of each slot on a cluster. Default: one per core.")
    ] = None,
    threads: Annotated[int, typer.Option(help="Threads per worker.")] = 1,
    case_timeout: Annotated[float, typer.Option(help="Seconds for one program.")] = 60.0,
    memory: Annotated[float, typer.Option(help="Memory limit of a task, in GiB beyond what its worker uses.")] = 4.0,
    batch: Annotated[
        int | None,
        typer.Option(help="Programs that share one call of the C++ compiler. Default: 16 for inductor, 1 for others."),
    ] = None,
    number: Annotated[int | None, typer.Option(help="Judge only the program with this number.")] = None,
    replay: Annotated[Path | None, typer.Option(help="Judge only the program in this file (findings/*.json).")] = None,
    executor: ExecutorOption = LOCAL,
    ray_address: RayAddressOption = None,
    ray_resources: RayResourcesOption = None,
    ray_slots: RaySlotsOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per finding, then a summary.")] = False,
) -> None:
    """Draw random programs, judge a subject on them, reduce those that differ from eager, and count each bug once."""
    check_supported()
    execution = make_execution(
        executor=executor, ray_address=ray_address, ray_resources=ray_resources, ray_slots=ray_slots
    )
    settings = _settings(
        subject=subject, subjects_file=subjects_file, time=time, count=count, seed=seed, focus=focus,
        max_statements=max_statements, reduce=reduce, threads=threads, case_timeout=case_timeout, memory=memory,
        batch=batch, workers=execution.default_workers if workers is None else workers,
    )  # fmt: skip
    check_requirements(settings.subject)
    if number is not None and number < 0:
        raise UsageError(seen=f"--number {number}", expected="0 or more", do="name a program of the campaign")
    if number is not None and replay is not None:
        raise UsageError(seen="--number and --replay", expected="one of the two", do="leave one out")
    interrupts = _Interrupts()
    if number is not None or replay is not None:
        raise typer.Exit(_replay(settings, execution, replay, number, known, as_json=as_json))
    raise typer.Exit(_campaign(settings, execution, corpus, db, known, interrupts, as_json=as_json))


def _settings(
    *, subject: str, subjects_file: Path | None, time: str | None, count: int | None, seed: int, focus: str,
    max_statements: int, reduce: bool, workers: int, threads: int, case_timeout: float, memory: float,
    batch: int | None,
) -> CampaignSettings:  # fmt: skip
    """Check every option before anything is written or started."""
    if focus not in FOCUSES:
        raise UsageError(seen=f"--focus {focus}", expected=f"one of {', '.join(FOCUSES)}", do="choose one of them")
    if seed < 0:
        raise UsageError(seen=f"--seed {seed}", expected="0 or more", do="leave it out for 0")
    check_positive(
        {
            "--count": count,
            "--max-statements": max_statements,
            "--workers": workers,
            "--threads": threads,
            "--case-timeout": case_timeout,
            "--memory": memory,
            "--batch": batch,
        }
    )
    spec = resolve(subject, subjects_file=subjects_file)
    time_s = duration(time) if time else DEFAULT_TIME_S if count is None else None
    batch_size = batch or default_batch_size(spec)
    sizes = {"round_size": BATCHED_ROUND, "block": BATCHED_BLOCK} if batch_size > 1 else {}
    if is_inductor(spec):
        sizes["chunk"] = INDUCTOR_CHUNK
    return CampaignSettings(
        subject=spec,
        focus=focus,
        seed=seed,
        max_statements=max_statements,
        count=count,
        time_s=time_s,
        workers=workers,
        threads=threads,
        case_timeout_s=case_timeout,
        memory_bytes=int(memory * 2**30),
        reduces=reduce,
        batch_size=batch_size,
        subjects_file=str(subjects_file.resolve()) if subjects_file else "",
        **sizes,
    )


def _campaign(
    settings: CampaignSettings,
    execution: Execution,
    corpus_directory: Path | None,
    db: str | None,
    known: str,
    interrupts: _Interrupts,
    *,
    as_json: bool,
) -> int:
    """Run a campaign: open its corpus and database, print its results. Returns the exit code."""
    err = Console(stderr=True)
    is_interrupted = False
    issues = issues_of(known)
    rechecked: list[Recheck] = []
    failure: UsageError | None = None
    with ExitStack() as stack:
        corpus = stack.enter_context(Corpus(corpus_directory, settings.identity())) if corpus_directory else None
        state = _state_of(corpus, settings)
        store = stack.enter_context(Store.open(db, create=True)) if db else None
        workers = stack.enter_context(open_workers(settings, execution, tell=partial(_tell, err)))
        progress = stack.enter_context(CampaignProgress(settings, state, console=err, quiet=as_json))
        environment: Mapping[str, Any] = {}
        save = _saver(corpus, state)
        try:
            check_usable([settings.subject], workers.pool)
            if store is not None:
                environment = {**fingerprint_with_worker(workers.pool), **recorded_versions([settings.subject])}
            workers.warm_up()
            run_campaign(
                settings,
                state,
                workers.pool,
                listener=_listener(settings, issues, corpus, corpus_directory, progress, as_json=as_json),
                save=save,
                on_progress=progress.update,
                between_rounds=workers.between_runs,
                whole=interrupts.held,
            )
            rechecked = looked_at_again(issues, settings, workers.pool)  # last: new findings first
        except KeyboardInterrupt:
            interrupts.ignore()  # a second Ctrl-C must not cut the closing short
            is_interrupted = True
        except UsageError as error:
            if not state.programs:
                raise
            failure = error  # for example a full disk: print the findings first, then this error
        failure = failure or _failure_of(save)
        if store is not None:
            write = partial(write_records, store, settings, state, environment=environment, corpus=corpus_directory)
            failure = failure or _failure_of(lambda: write(is_interrupted=is_interrupted))
    _print_summary(settings, state, corpus_directory, rechecked, as_json=as_json)
    if failure is not None:
        raise failure
    if is_interrupted:
        goes_on = "the same command continues" if corpus is not None else "nothing is kept without --corpus DIR"
        err.print(f"interrupted after {state.programs} programs; {goes_on}", highlight=False, soft_wrap=True)
    return _exit_code(state, is_interrupted=is_interrupted)


def _tell(err: Console, text: str) -> None:
    err.print(text, markup=False, highlight=False, soft_wrap=True)


def _print_summary(
    settings: CampaignSettings,
    state: CampaignState,
    corpus: Path | None,
    rechecked: Sequence[Recheck],
    *,
    as_json: bool,
) -> None:
    if as_json:
        summary = summary_json(settings, state, corpus=corpus, rechecked=rechecked)
        sys.stdout.write(json.dumps({"summary": summary}) + "\n")
        return
    console = Console()
    for line in summary_lines(settings, state, corpus=corpus, rechecked=rechecked):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _failure_of(step: Callable[[], object]) -> UsageError | None:
    try:
        step()
    except UsageError as error:
        return error
    return None


def _exit_code(state: CampaignState, *, is_interrupted: bool) -> int:
    """0 clean, 1 findings, 2 interrupted before the first finding, 3 if internal errors cost more than one program in a hundred.

    Findings that there was no time to confirm count as findings.
    """
    if state.is_broken:
        return 3
    if state.new_buckets or state.stopped:
        return 1
    if is_interrupted:
        return 2
    return 1 if state.waiting or state.awaiting_draw else 0


def _state_of(corpus: Corpus | None, settings: CampaignSettings) -> CampaignState:
    data = corpus.state() if corpus is not None else None
    state = new_state(settings) if data is None else CampaignState.from_json(data)
    state.stopped = ""  # the subject may have been fixed since
    return state


def _saver(corpus: Corpus | None, state: CampaignState) -> Callable[[], None]:
    return lambda: corpus.save_state(state.to_json()) if corpus is not None else None


def _listener(
    settings: CampaignSettings,
    issues: Sequence[KnownIssue],
    corpus: Corpus | None,
    directory: Path | None,
    progress: CampaignProgress,
    *,
    as_json: bool,
) -> Listener:
    told: set[str] = set()

    def on_bucket(bucket: FoundBucket) -> None:
        progress.note_bucket(bucket)
        data = bucket_json(bucket, settings, corpus=directory)
        if corpus is not None:
            corpus.save_finding(bucket.key, data)
            corpus.save_scripts(bucket.key, bucket.short_script, bucket.script)
        if as_json and bucket.key not in told:
            told.add(bucket.key)
            sys.stdout.write(json.dumps({"finding": data}) + "\n")
            sys.stdout.flush()

    def on_interesting(number: int, program: Mapping[str, Any], features: list[str]) -> None:
        if corpus is not None:
            corpus.save_interesting(number, program, features)

    def known(bucket: FoundBucket) -> str:
        return id_of_known(bucket, issues)

    return Listener(on_bucket=on_bucket, on_interesting=on_interesting, known=known)


def _replay(
    settings: CampaignSettings,
    execution: Execution,
    replay: Path | None,
    number: int | None,
    known: str,
    *,
    as_json: bool,
) -> int:
    """Judge one program and show it. Returns the exit code: as in a campaign, a known issue does not count."""
    err = Console(stderr=True)
    issues = issues_of(known)
    stored: Mapping[str, Any] = {}
    with open_workers(settings, execution, tell=partial(_tell, err)) as workers:
        pool = workers.pool
        check_usable([settings.subject], pool)
        relation, turn = "", None
        inputs: list[list[str]] = []
        if replay is not None:
            program, relation = program_of_file(replay)
            stored = read_json(replay)
        else:
            assert number is not None
            if number >= 2 * settings.round_size and not as_json:
                err.print(f"drawing the programs before {number} again, since they influenced it", highlight=False)
            program = program_of_number(settings, number, pool, describe_grammar(pool))
            turn = number // every(settings) if number % every(settings) == 0 else None
        if not as_json:
            inputs = inputs_of(program, pool)
        verdict, refusal = judge_alone(program, settings.subject, pool, settings, relation=relation)
        if turn is not None and verdict.status is Status.PASS:
            related, _ = judge_alone(program, settings.subject, pool, settings, turn=turn)
            verdict = related if related.status.is_finding else verdict
    issue = "" if refusal else id_of_replayed(program, verdict, settings.subject.name, issues, stored=stored)
    if as_json:
        data = {"program": program.to_json(), "verdict": verdict.to_json(), "refused": refusal, "known": issue}
        sys.stdout.write(json.dumps(data) + "\n")
    else:
        sys.stdout.write("\n".join([render_shown(program).rstrip(), *call_lines(program, inputs)]) + "\n")
        status = f"refused ({refusal})" if refusal else verdict.status.value
        status = f"known {issue} ({status})" if issue else status
        sys.stdout.write(f"\n{settings.subject.name}: {status}  {verdict.symptom}\n")
    return 1 if verdict.status.is_finding and not refusal and not issue else 0


class _Interrupts:
    """Turns Ctrl-C and SIGTERM (a cancelled CI job) into KeyboardInterrupt, at once or at the end of a `held` block."""

    def __init__(self) -> None:
        self._is_held = self._is_waiting = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._take)

    def _take(self, number: int, frame: object) -> None:
        if not self._is_held:
            raise KeyboardInterrupt
        self._is_waiting = True

    @contextmanager
    def held(self) -> Iterator[None]:
        """Delay an interrupt until the end of this block."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
        if self._is_waiting:
            self._is_waiting = False
            raise KeyboardInterrupt

    def ignore(self) -> None:
        """Ignore interrupts from now on."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
