"""Progress of a run: a bar with rate, ETA and failures on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text
from typing_extensions import Self

from oracle.records import Record
from oracle.sweep import SweepSummary
from results.render import shorten

PLAIN_LINE_EVERY_S = 15.0


class _RateColumn(ProgressColumn):
    """Steps per second over the whole run."""

    def render(self, task: Task) -> Text:
        rate = task.completed / task.elapsed if task.elapsed else 0.0
        return Text(f"{rate:.1f}/s")


class RunProgress:
    """Context manager; call `advance` at every step. Writes to stderr, so that stdout stays for results."""

    def __init__(
        self, *, console: Console, unit: str, noun: str, total: int | None = None, quiet: bool = False
    ) -> None:
        """`unit`: what is counted, such as "cases"; `noun`: what is found, such as "findings"."""
        self._console = console
        self._unit = unit
        self._noun = noun
        self._total = total
        self._done = 0
        self._quiet = quiet
        self._started = time.monotonic()
        self._last_line = self._started
        self._bar: Progress | None = None
        self._task = None
        if console.is_terminal and not quiet:
            self._bar = Progress(
                SpinnerColumn(),
                BarColumn(),
                MofNCompleteColumn(),
                _RateColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[found]} " + noun + "{task.fields[aside]}"),
                TextColumn("[dim]{task.fields[label]}"),
                console=console,
                transient=True,
            )

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task(self._unit, total=self._total, found=0, aside="", label="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def note(self, line: str) -> None:
        """Print a line above the bar."""
        if not self._quiet:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def advance(self, done: int, *, total: int, found: int, label: str, aside: str = "") -> None:
        """Show the number of finished steps. A smaller number than before begins another stage of the run.

        `aside`: a count to show after the findings, such as "40 known".
        """
        aside = f", {aside}" if aside else ""
        if done < self._done:
            self._started = time.monotonic()
            if self._bar is not None and self._task is not None:
                self._bar.reset(self._task, total=total, found=found, aside=aside, label=label)
        elif total != self._total and self._bar is not None and self._task is not None:
            self._bar.update(self._task, total=total)
        self._total = total
        self._done = done
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, found=found, aside=aside, label=label)
        elif not self._quiet:
            now = time.monotonic()
            if now - self._last_line >= PLAIN_LINE_EVERY_S or done == total:
                self._last_line = now
                rate = done / max(now - self._started, 1e-9)
                left = (total - done) / rate if rate else 0.0
                self._console.print(
                    f"{done}/{total} {self._unit}, {rate:.1f}/s, {left:.0f} s left, {found} {self._noun}{aside}",
                    markup=False,
                    highlight=False,
                )


class SweepProgress(RunProgress):
    """The progress of a sweep; call `update` with every record. New findings and known issues are counted apart."""

    def __init__(self, *, total: int, console: Console, quiet: bool = False) -> None:
        super().__init__(console=console, unit="cases", noun="new findings", total=total, quiet=quiet)

    def update(self, record: Record, summary: SweepSummary) -> None:
        verdict = record.verdict
        if verdict.status.is_finding:
            self.note(f"{verdict.status.value:22} {record.case_id}  {shorten(verdict.symptom)}")
        self.advance(
            summary.done,
            total=summary.planned,
            found=summary.findings,
            aside=f"{summary.known} known" if summary.known else "",
            label=shorten(record.group, 40),
        )


class PlanningProgress(RunProgress):
    """The progress of planning; `update` has the parameters of `suites.planning.OnPart`.

    Without a terminal the end of planning is not printed, since the number of cases comes next.
    """

    def __init__(self, *, console: Console, quiet: bool = False) -> None:
        super().__init__(console=console, unit="parts of the plan", noun="programs", quiet=quiet)
        self._is_end_told = console.is_terminal

    def update(self, done: int, total: int, programs: int, suite: str) -> None:
        if done < total or self._is_end_told:
            self.advance(done, total=total, found=programs, label=suite)
