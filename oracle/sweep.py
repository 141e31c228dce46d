"""Execute planned cases in a worker pool and write their records. Imports no torch: only the workers need it.

Every case ends as exactly one record, even if its worker dies.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any, cast

from typing_extensions import assert_never

from oracle.again import is_timed, measured_again, run_again
from oracle.costs import Precision
from oracle.deadline import closed_at, is_over
from oracle.isolate import START_UP, Completed, Died, Failed, OutOfMemory, Task, TaskPool, TaskResult, TimedOut
from oracle.known.ledger import Ledger
from oracle.known.matching import with_known_issue
from oracle.records import Measurements, PlannedCase, Record, RecordSink
from oracle.subjects.spec import SubjectSpec
from oracle.verdict import Status, Verdict

FLUSH_EVERY_S = 0.5
FLUSH_AT = 200
AGAIN_AT = 24  # cases that are timed in one process after another, before the first of them is timed in the next
CONFIRMATIONS = 8  # after so many confirmed timeouts of a subject in a row, its others are not confirmed
CONFIRMATION_FACTOR = 3.0  # factor of the time limit for the confirmation of a timeout
MOST_RERUN = 200  # findings that are run again; a subject that fails everywhere is not flaky
_BUSY = 2.0  # wall time is mentioned if it is at least so many times the charged time


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Default limits of a case, and limits of the run."""

    timeout_s: float = 120.0
    memory_bytes: int = 6 * 2**30
    run_s: float | None = None  # seconds after which the command ends, planning included; the run can be resumed


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseLimits:
    """Limits that its suite sets for one case."""

    timeout_s: float | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCheck:
    """The ledger of known issues for a run, and the version of torch in its workers ("2.13.0+cpu")."""

    ledger: Ledger
    torch_version: str

    def applied(self, record: Record, case: PlannedCase, spec: SubjectSpec) -> Record:
        verdict = with_known_issue(record.verdict, case, spec, self.ledger, torch_version=self.torch_version)
        return record if verdict is record.verdict else replace(record, verdict=verdict)


@dataclass(slots=True, kw_only=True)
class SweepSummary:
    """Counts of a run, updated while it runs."""

    planned: int = 0
    done: int = 0
    statuses: dict[str, int]
    internal_errors: list[str]
    reset_failures: list[str] = field(default_factory=list)  # of the command that follows a hang (`--on-hang`)
    wall_s: float = 0.0
    case_wall_s: float = 0.0  # sum over cases, in the workers
    bare_s: float = 0.0  # sum over cases of the time of the calls alone
    is_complete: bool = False

    @property
    def findings(self) -> int:
        """Number of findings, without known issues."""
        return sum(count for status, count in self.statuses.items() if Status(status).is_finding)

    @property
    def known(self) -> int:
        return self.statuses.get(Status.KNOWN.value, 0)


def execute(
    cases: Sequence[PlannedCase],
    *,
    subjects: Mapping[str, SubjectSpec],
    sink: RecordSink,
    run_id: str,
    pool: TaskPool,
    limits: Limits,
    options: Mapping[str, Any],
    case_limits: Mapping[str, CaseLimits] | None = None,
    repro_options: Sequence[str] = (),
    known: KnownCheck | None = None,
    on_record: Callable[[Record, SweepSummary], None] = lambda record, summary: None,
    on_warning: Callable[[str], None] = lambda text: None,
    deadline: float | None = None,
    summary: SweepSummary | None = None,
    speed_cache: str | None = None,
    reruns: int = 0,
) -> SweepSummary:
    """Run the cases and append their records to the sink.

    A case that is timed in several processes is recorded when all have, in batches of AGAIN_AT cases.
    A case that timed out is run once more after all others, alone and with more time, and only then recorded, so that a busy
    machine causes no findings; on a cluster one runs in each place. For a subject that hangs on everything this would take
    hours: after CONFIRMATIONS confirmed timeouts in a row, its other timeouts are recorded without confirmation, and say so.

    `subjects` maps the subject names in the cases to specs. `options` are the fields of oracle.case.CaseOptions.
    `case_limits` maps program names to limits; `repro_options` are appended to every repro command; `known` marks known issues
    (without it every difference is a finding); `summary` has the counts of earlier cases of the run; `speed_cache` is the
    folder for the caches of processes that measure speed again. The first MOST_RERUN findings are run `reruns` times more when
    all other cases have run, each time in a fresh process, and only then recorded, with what these runs gave.
    Returns when all cases have run or at the deadline (seconds of `time.monotonic()`), when running cases are killed without a
    record. However the run is interrupted, the records of finished cases are in the sink.
    """
    summary = summary if summary is not None else SweepSummary(statuses={}, internal_errors=[])
    summary.planned += len(cases)
    records = _RecordsState(
        cases={case.case_id: case for case in cases}, subjects=subjects, sink=sink, run_id=run_id,
        repro_options=repro_options, known=known, on_record=on_record, on_warning=on_warning, summary=summary,
        reruns=reruns,
    )  # fmt: skip
    tasks = [_task(case, subjects[case.subject], limits, options, (case_limits or {}).get(case.name)) for case in cases]
    processes = options.get("speed_processes", 1) if options.get("speed") else 1
    try:
        late: list[tuple[Task, TimedOut]] = []
        for batch in [tasks] if processes == 1 else _batches(tasks):
            late += _run_batch(
                batch, pool, records, processes=processes, precision=_precision(options), speed_cache=speed_cache,
                deadline=deadline,
            )  # fmt: skip
        _confirm(late, pool, records, deadline)
        records.run_failed_again(pool, deadline)
    finally:
        records.close()
    summary.is_complete = summary.done == summary.planned
    return summary


def _precision(options: Mapping[str, Any]) -> Precision | None:
    wanted = options.get("speed_precision")
    return Precision(half_width=wanted, most=options["speed_most_processes"]) if wanted else None


def _run_batch(
    batch: Sequence[Task],
    pool: TaskPool,
    records: _RecordsState,
    *,
    processes: int,
    precision: Precision | None,
    speed_cache: str | None,
    deadline: float | None,
) -> list[tuple[Task, TimedOut]]:
    """Run tasks and record their ends, of timed cases when all `processes` have measured them.

    Returns the tasks that timed out, which are not recorded.
    """
    late: list[tuple[Task, TimedOut]] = []
    judged: list[TaskResult] = []
    with closed_at(deadline, pool.run(batch)) as results:
        for result in results:
            if isinstance(result.end, TimedOut):
                records.note_reset(result.end)
                late.append((result.task, result.end))
            elif processes > 1 and is_timed(result):
                judged.append(result)
            else:
                records.take(result)
    if judged and not is_over(deadline):
        for result in measured_again(
            judged, pool, processes, cache=speed_cache, deadline=deadline, precision=precision
        ):
            records.take(result)
    return late


def _confirm(
    late: Sequence[tuple[Task, TimedOut]], pool: TaskPool, records: _RecordsState, deadline: float | None
) -> None:
    """Run the cases that timed out once more, each alone in its place and with more time, and record the results."""
    hung: Counter[str] = Counter()  # confirmed timeouts in a row, by subject
    waiting = deque(late)
    while waiting and not is_over(deadline):
        alone: dict[str, tuple[Task, TimedOut]] = {}
        while waiting and len(alone) < pool.places:
            task, first = waiting.popleft()
            subject = records.cases[task.key].subject
            if hung[subject] >= CONFIRMATIONS:
                note = f"not run again alone, as {hung[subject]} other cases of {subject} were, and did not end either"
                records.take(TaskResult(task=task, end=first, worker_pid=0, tasks_before=0), note=note)
            else:
                alone[task.key] = (replace(task, timeout_s=CONFIRMATION_FACTOR * task.timeout_s), first)
        if not alone:
            continue
        with closed_at(deadline, pool.run([task for task, _ in alone.values()])) as results:
            for result in results:
                if isinstance(result.end, TimedOut):
                    records.note_reset(result.end)
                subject = records.cases[result.task.key].subject
                records.take(result, alone[result.task.key][1])
                hung[subject] = hung[subject] + 1 if isinstance(result.end, TimedOut) else 0


def _batches(tasks: Sequence[Task]) -> list[Sequence[Task]]:
    return [tasks[start : start + AGAIN_AT] for start in range(0, len(tasks), AGAIN_AT)]


class _RecordsState:
    """Makes records as tasks end, counts them, and writes them to the sink in batches."""

    def __init__(
        self,
        *,
        cases: Mapping[str, PlannedCase],
        subjects: Mapping[str, SubjectSpec],
        sink: RecordSink,
        run_id: str,
        repro_options: Sequence[str],
        known: KnownCheck | None,
        on_record: Callable[[Record, SweepSummary], None],
        on_warning: Callable[[str], None],
        summary: SweepSummary,
        reruns: int,
    ) -> None:
        self.cases = cases
        self._subjects = subjects
        self._sink = sink
        self._run_id = run_id
        self._repro_options = repro_options
        self._known = known
        self._on_record = on_record
        self._on_warning = on_warning
        self._summary = summary
        self._reruns = reruns
        self._failed: dict[str, tuple[Task, Record]] = {}  # findings that will be run again
        self._pending: list[Record] = []
        self._wall_before_s = summary.wall_s
        self._started = self._flushed = time.monotonic()

    def take(self, result: TaskResult, first: TimedOut | None = None, *, note: str = "") -> None:
        """Record a case. `first` is the timeout of its first attempt, if this is the second; `note` is added to the symptom."""
        case = self.cases[result.task.key]
        record = record_of(case, result, self._run_id, self._repro_options, first=first)
        if note:
            record = replace(record, verdict=replace(record.verdict, symptom=f"{record.verdict.symptom}; {note}"))
        if self._known is not None:
            record = self._known.applied(record, case, self._subjects[case.subject])
        if isinstance(result.end, Failed):
            self._summary.internal_errors.append(f"{result.task.key}\n{result.end.error}")
        if self._reruns and _may_be_flaky(record.verdict.status) and len(self._failed) < MOST_RERUN:
            self._failed[result.task.key] = (result.task, record)
        else:
            self._put(record)

    def run_failed_again(self, pool: TaskPool, deadline: float | None) -> None:
        """Run the findings again, and record them."""
        statuses: dict[str, list[str]] = {key: [] for key in self._failed}
        tasks = [task for task, _ in self._failed.values()]
        for result in run_again(tasks, pool, self._reruns, deadline=deadline) if tasks else ():
            if isinstance(result.end, Failed):  # says nothing of the case
                self._summary.internal_errors.append(f"{result.task.key}, run again\n{result.end.error}")
            else:
                statuses[result.task.key].append(_status_of(result))
        for key, words in statuses.items():
            _, record = self._failed.pop(key)
            self._put(replace(record, verdict=replace(record.verdict, reruns=tuple(words))))

    def _put(self, record: Record) -> None:
        self._pending.append(record)
        self._count(record)
        if len(self._pending) >= FLUSH_AT or time.monotonic() - self._flushed >= FLUSH_EVERY_S:
            self._flush()
        self._on_record(record, self._summary)

    def note_reset(self, end: TimedOut) -> None:
        """Count a failure of the command that follows a hang, and warn of the first one of the run."""
        if end.reset_failure:
            self._summary.reset_failures.append(end.reset_failure)
            if len(self._summary.reset_failures) == 1:
                self._on_warning(
                    f"warning: --on-hang: {end.reset_failure}; told once, each record says whether it failed"
                )

    def close(self) -> None:
        """Write the last batch, and findings that were to be run again when the run was interrupted."""
        for key in list(self._failed):
            self._put(self._failed.pop(key)[1])
        self._flush()
        self._summary.wall_s = self._wall_s()

    def _flush(self) -> None:
        # Removed first, so that Ctrl-C just after the write does not cause a second write.
        batch = self._pending.copy()
        self._pending.clear()
        if batch:
            self._sink.append(batch)
        self._flushed = time.monotonic()

    def _count(self, record: Record) -> None:
        summary, word = self._summary, record.verdict.status.value
        summary.done += 1
        summary.statuses[word] = summary.statuses.get(word, 0) + 1
        summary.case_wall_s += record.measurements.wall_s or 0.0
        summary.bare_s += record.measurements.bare_s or 0.0
        summary.wall_s = self._wall_s()

    def _wall_s(self) -> float:
        return self._wall_before_s + time.monotonic() - self._started


def _may_be_flaky(status: Status) -> bool:
    """Whether a case is run again. One that timed out was run again already, and errors of torch-oracle are reported at once."""
    return status.is_finding and status not in (Status.TIMEOUT, Status.MISSING)


def _status_of(result: TaskResult) -> str:
    if isinstance(result.end, Completed):
        return cast("dict[str, Any]", result.end.value)["verdict"]["status"]
    return verdict_of_end(result.end).status.value


def _task(
    case: PlannedCase, spec: SubjectSpec, limits: Limits, options: Mapping[str, Any], own: CaseLimits | None
) -> Task:
    return Task(
        key=case.case_id,
        function="oracle.case:run_case",
        payload={"case": case.to_json(), "subject": spec.to_json(), "options": dict(options)},
        group=f"{case.suite}/{case.group}",
        timeout_s=(own.timeout_s if own and own.timeout_s else limits.timeout_s),
        memory_bytes=(own.memory_bytes if own and own.memory_bytes else limits.memory_bytes),
        environment=tuple(sorted(spec.env.items())),
    )


def record_of(
    case: PlannedCase,
    result: TaskResult,
    run_id: str,
    repro_options: Sequence[str] = (),
    *,
    first: TimedOut | None = None,
) -> Record:
    """The record of a case whose task ended in any way; `first` is the timeout of its first attempt, if this was the second."""
    repro = repro_command(case, repro_options)
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    end = result.end
    if isinstance(end, Completed):
        value = cast("dict[str, Any]", end.value)
        return Record.of(
            case,
            run_id=run_id,
            verdict=_after_reset(_after_timeout(Verdict.from_json(value["verdict"]), first), first),
            measurements=Measurements(**value["measurements"]),
            seed=value["seed"],
            repro=repro,
            started_at=value["started_at"],
            traceback=value["traceback"],
        )
    trace = end.error if isinstance(end, Failed) else "" if isinstance(end, OutOfMemory) else end.traceback
    verdict = verdict_of_end(end, first)
    return Record.of(case, run_id=run_id, verdict=verdict, repro=repro, started_at=now, traceback=trace)


def verdict_of_end(end: Failed | Died | TimedOut | OutOfMemory, first: TimedOut | None = None) -> Verdict:
    """The verdict on a case whose task did not return; `first` is an earlier timeout of it."""
    if isinstance(end, TimedOut):
        return _after_reset(_ended(end.stage, Status.TIMEOUT, _no_end(end, first)), first, end)
    return _after_reset(_after_timeout(_verdict_of_other_end(end), first), first)


def _no_end(end: TimedOut, first: TimedOut | None) -> str:
    """The symptom of a timeout. Measured figures have a decimal point: `results.compare` ignores those."""
    measured = [] if end.cpu_s is None else [f"{end.cpu_s:.1f} s of CPU time"]
    if end.wall_s is not None and end.wall_s > _BUSY * end.seconds:
        measured.append(f"{end.wall_s:.1f} s on the wall of a busy machine")
    times = f" ({', '.join(measured)})" if measured else ""
    if first is None:
        return f"no end within {end.seconds:.0f} s{times}"
    return f"no end within {first.seconds:.0f} s, nor within {end.seconds:.0f} s when run again alone{times},"


def _after_timeout(verdict: Verdict, first: TimedOut | None) -> Verdict:
    if first is None:
        return verdict
    note = f"a first attempt had not ended after {first.seconds:.0f} s; this is a second, alone and with more time"
    return replace(verdict, explained=(*verdict.explained, note))


def _after_reset(verdict: Verdict, *timeouts: TimedOut | None) -> Verdict:
    """The verdict with notes on the commands that followed the timeouts and failed."""
    failures = [end.reset_failure for end in timeouts if end is not None and end.reset_failure]
    notes = tuple(f"the command after a hang failed: {failure}" for failure in failures)
    return replace(verdict, explained=(*verdict.explained, *notes)) if notes else verdict


def _verdict_of_other_end(end: Failed | Died | OutOfMemory) -> Verdict:
    match end:
        case Failed():
            last_line = end.error.strip().splitlines()[-1]
            return Verdict(status=Status.MISSING, symptom=f"internal error of torch-oracle: {last_line}")
        case Died():
            how = f"signal {_signal_name(end.signal)}" if end.signal else f"exit code {end.exit_code}"
            return _ended(end.stage, Status.CRASH, f"the process died of {how}")
        case OutOfMemory():
            return _ended(end.stage, Status.OOM, f"over the memory limit at {end.bytes / 2**30:.1f} GiB")
        case _:
            assert_never(end)


def _ended(stage: str, status: Status, what: str) -> Verdict:
    """The verdict on a task that ended in a stage. It is eager's failure in a stage of eager, else the subject's."""
    if stage == START_UP:
        return Verdict(status=status, symptom=f"{what} while the subject was imported and warmed up", stage=stage)
    if stage in ("", "load"):
        return Verdict(status=Status.MODEL_FAIL_TO_LOAD, symptom=f"{what} while the program was loaded", stage=stage)
    if stage.startswith("eager"):
        return Verdict(status=Status.EAGER_FAIL_TO_RUN, symptom=f"{what} while eager ran", stage=stage)
    where = "in the subject" if stage == "subject" else f"in stage {stage!r}, after the subject had run"
    return Verdict(status=status, symptom=f"{what} {where}", stage=stage)


def _signal_name(number: int) -> str:
    names = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}
    return f"{number} ({names[number]})" if number in names else str(number)


def repro_command(case: PlannedCase, options: Sequence[str] = ()) -> str:
    """A command that runs this case alone."""
    words = ["torch-oracle", "sweep", "--suite", case.suite, "--match", case.name, "--subject", case.subject]
    if case.dtype:
        words += ["--dtype", case.dtype]
    words += ["--direction", case.direction]
    for tag in case.tags[:1]:
        words += ["--tag", tag]
    if case.device != "cpu":
        words += ["--device", case.device]
    return shlex.join([*words, *options])
