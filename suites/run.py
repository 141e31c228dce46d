"""Runs a sweep: plans, runs the cases, runs programs with findings on lower rungs, closes the run, and prints the result."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from oracle.cluster import Execution, NodesLostError
from oracle.commands import fingerprint_with_worker
from oracle.errors import UsageError
from oracle.isolate import TaskPool
from oracle.known.ledger import ledger_named
from oracle.records import PlannedCase, Record
from oracle.subjects.usability import check_usable
from oracle.subjects.version import recorded_versions
from oracle.sweep import CaseLimits, KnownCheck, SweepSummary, execute
from results.queries import last_judged
from results.report import GROUPS_SHOWN, show_run
from results.store import RunInfo, Store
from suites.end_report import End, EndReport, plural
from suites.execution import open_pool
from suites.order import running_order
from suites.planning import make_plans
from suites.progress import PlanningProgress, SweepProgress
from suites.request import SweepRequest
from suites.rungs import cases_below


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A new or resumed run, and how to show it."""

    store: Store
    run_id: str
    request: SweepRequest
    db: str
    is_default_db: bool
    label: str  # the user's name for what is tested; "" for none
    is_resumed: bool
    as_json: bool
    show_all: bool  # print tables in full
    began: float  # start of the command, by time.monotonic()
    execution: Execution = Execution()

    @property
    def deadline(self) -> float | None:
        run_s = self.request.limits.run_s
        return None if run_s is None else self.began + run_s

    def run(self) -> int:
        """Returns the exit code; raises UsageError before anything is written."""
        err = Console(stderr=True)
        signal.signal(signal.SIGTERM, _raise_interrupt)  # a cancelled CI job ends the run like Ctrl-C
        summary = SweepSummary(statuses={}, internal_errors=[])
        with ExitStack() as stack:
            try:
                cache = self._empty_cache(stack)
                pool = stack.enter_context(
                    open_pool(self.request, self.execution, cache=cache, tell=lambda text: _warn(err, text))
                )
                cases, limits = self._left(err) if self.is_resumed else self._plan(pool, err)
            except KeyboardInterrupt:
                return self._say_nothing_kept(err)
            end = End.INTERRUPTED
            try:
                self._execute(cases, limits, pool, cache, summary, err)
                end = End.COMPLETE if summary.is_complete else End.OUT_OF_TIME
            except NodesLostError as error:
                _warn(err, f"torch-oracle: {error}")
            except KeyboardInterrupt:
                _ignore_interrupts()  # a second Ctrl-C must not interrupt closing the run
        return self._close(end, summary, err)

    # ------------------------------------------------------------------------------------------------------ before

    def _empty_cache(self, stack: ExitStack) -> str | None:
        """An empty folder for the caches of a run that measures speed, so that cold compile times are really cold."""
        if not self.request.options["speed"]:
            return None
        return stack.enter_context(tempfile.TemporaryDirectory(prefix="torch-oracle-cache-"))

    def _left(self, err: Console) -> tuple[Sequence[PlannedCase], dict[str, CaseLimits]]:
        """The cases of a resumed run that have no record."""
        cases = self.store.unfinished(self.run_id)
        self._warn_of_other_versions(err)
        limits = self.store.arguments(self.run_id).get("case_limits") or {}
        if not self.as_json:
            err.print(f"run {self.run_id}: {plural(len(cases), 'case')} left", highlight=False)
        return cases, {name: CaseLimits(**own) for name, own in limits.items()}

    def _plan(self, pool: TaskPool, err: Console) -> tuple[Sequence[PlannedCase], dict[str, CaseLimits]]:
        """Write all planned cases before the first one runs. Nothing is written if the selection is wrong, or after Ctrl-C."""
        request = self.request
        if not self.as_json:
            err.print(
                f"planning: listing the programs of {', '.join(request.suites)}, in {self.execution.place(request.workers)}",
                highlight=False,
                soft_wrap=True,
            )
        check_usable(request.spec_by_name().values(), pool)
        with PlanningProgress(console=err, quiet=self.as_json) as progress:
            plan = make_plans(
                request.orders(), pool=pool, shard=request.shard, on_part=progress.update, deadline=self.deadline
            )
        if not plan.cases:
            raise UsageError(
                seen="a selection that no program of any suite matches"
                if request.shard.count == 1
                else "a shard without programs",
                expected="at least one program",
                do="`torch-oracle list` shows suites, groups, tags and dtypes",
            )
        arguments = {
            **request.to_json(),
            "case_limits": {name: asdict(own) for name, own in plan.limits.items()},
        }
        environment = {**fingerprint_with_worker(pool), **self._tested()}
        self.store.begin_planned(run_id=self.run_id, environment=environment, arguments=arguments, cases=plan.cases)
        if not self.as_json:
            err.print(
                f"run {self.run_id}: {plural(len(plan.cases), 'case')}, {self.execution.place(request.workers)};"
                " Ctrl-C stops it and keeps what has run",
                highlight=False,
                soft_wrap=True,
            )
        return plan.cases, dict(plan.limits)

    def _tested(self) -> dict[str, Any]:
        """What the run says of the versions of its subjects."""
        versions = recorded_versions(self.request.spec_by_name().values())
        return {**versions, **({"label": self.label} if self.label else {})}

    def _warn_of_other_versions(self, err: Console) -> None:
        """A run that goes on with another version of a subject has records of both."""
        began = self.store.environment(self.run_id).get("subjects", {})
        for name, version in self._tested().get("subjects", {}).items():
            if began.get(name, version) != version:
                _warn(err, f"warning: the run began with {name} at {began[name]}; it goes on with {version}")

    def _say_nothing_kept(self, err: Console) -> int:
        _ignore_interrupts()
        if self.is_resumed:
            said = f"interrupted before a case of run {self.run_id} had run; the same command goes on with it"
        else:
            said = (
                "interrupted while planning: no case has run and nothing is kept; give the same command to start again"
            )
        err.print(f"\n{said}\nexit code 2", highlight=False, soft_wrap=True)
        return 2

    # ----------------------------------------------------------------------------------------------------- running

    def _execute(
        self,
        cases: Sequence[PlannedCase],
        limits: dict[str, CaseLimits],
        pool: TaskPool,
        cache: str | None,
        summary: SweepSummary,
        err: Console,
    ) -> None:
        request, out = self.request, sys.stdout
        known = _known_check(request.known, self.store.run(self.run_id))

        def on_record(record: Record, summary: SweepSummary) -> None:
            progress.update(record, summary)
            if self.as_json:
                out.write(json.dumps(record.to_json()) + "\n")

        def execute_more(cases: Sequence[PlannedCase]) -> None:
            execute(
                cases,
                subjects=request.spec_by_name(),
                sink=self.store,
                run_id=self.run_id,
                pool=pool,
                limits=request.limits,
                options=request.options,
                case_limits=limits,
                repro_options=("--subjects-file", request.subjects_file) if request.subjects_file else (),
                known=known,
                on_record=on_record,
                on_warning=lambda text: _warn(err, text),
                deadline=self.deadline,
                summary=summary,
                speed_cache=cache,
                reruns=request.reruns,
            )

        with SweepProgress(total=len(cases), console=err, quiet=self.as_json) as progress:
            judged = (
                {} if self.deadline is None else last_judged(self.store, self.run_id, (case.case_id for case in cases))
            )
            execute_more(running_order(cases, judged))
            if not summary.is_complete or not request.lower_rungs:
                return
            further = cases_below(self.store.planned(self.run_id), self.store.records(self.run_id))
            if further:
                progress.note(
                    f"{plural(len(further), 'further case')}: what is new, on lower rungs, to find the first wrong one"
                )
                self.store.plan_further(self.run_id, further)
                execute_more(further)

    # ------------------------------------------------------------------------------------------------------- after

    def _close(self, end: End, summary: SweepSummary, err: Console) -> int:
        self.store.end_run(self.run_id, state="complete" if end is End.COMPLETE else "interrupted")
        report = self._end_report(end, summary)
        if self.as_json:
            sys.stdout.write(json.dumps({"summary": asdict(summary), "run_id": self.run_id}) + "\n")
        else:
            show_run(self.store, self.run_id, console=Console(), limit=None if self.show_all else GROUPS_SHOWN)
        if not self.as_json or end is not End.COMPLETE:
            err.print("\n".join(report.lines()), markup=False, highlight=False, soft_wrap=True)
        return report.exit_code

    def _end_report(self, end: End, summary: SweepSummary) -> EndReport:
        statuses: Counter[str] = Counter()
        findings: list[Record] = []
        for record in self.store.records(self.run_id):
            statuses[record.verdict.status.value] += 1
            if record.verdict.status.is_finding:
                findings.append(record)
        findings.sort(key=lambda record: not record.verdict.status.is_silent)  # silent findings first, as in the tables
        return EndReport(
            end=end,
            run_id=self.run_id,
            db=self.db,
            is_default_db=self.is_default_db,
            planned=self.store.run(self.run_id).planned,
            statuses=statuses,
            seconds=time.monotonic() - self.began,
            time_limit_s=self.request.limits.run_s,
            first_finding=findings[0].case_id if findings else "",
            subjects_are_own=self.request.subjects_are_own,
            selection=self.request.selection_options(),
            known=self.request.known,
            internal_errors=summary.internal_errors,
            execution=self.execution.words(),
        )


def _known_check(known: str, run: RunInfo) -> KnownCheck | None:
    """The ledger of a run; None for `--known none`."""
    ledger = ledger_named(known)
    version = run.environment.get("worker", {}).get("torch") or run.environment.get("versions", {}).get("torch", "")
    return None if ledger is None else KnownCheck(ledger=ledger, torch_version=str(version))


def _warn(err: Console, text: str) -> None:
    """Print a line on stderr, above the progress bar if there is one; also with --json, whose output is on stdout."""
    err.print(text, markup=False, highlight=False, soft_wrap=True)


def _raise_interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _ignore_interrupts() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
