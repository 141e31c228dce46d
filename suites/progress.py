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

from oracle.records import Record
from oracle.sweep import SweepSummary

PLAIN_LINE_EVERY_S = 15.0


class _RateColumn(ProgressColumn):
    """Cases per second over the whole run."""

    def render(self, task: Task) -> Text:
        rate = task.completed / task.elapsed if task.elapsed else 0.0
        return Text(f"{rate:.1f}/s")


class SweepProgress:
    """Context manager; call `update` with every record. Writes to stderr, so that stdout stays for results."""

    def __init__(self, *, total: int, console: Console, quiet: bool = False) -> None:
        self._console = console
        self._total = total
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
                TextColumn("{task.fields[findings]} findings"),
                TextColumn("[dim]{task.fields[case]}"),
                console=console,
                transient=True,
            )

    def __enter__(self) -> SweepProgress:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("cases", total=self._total, findings=0, case="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, record: Record, summary: SweepSummary) -> None:
        if record.verdict.status.is_finding and not self._quiet:
            verdict = record.verdict
            line = f"{verdict.status.value:22} {record.case_id}  {verdict.symptom[:160]}".replace("\n", " ")
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=summary.done, findings=summary.findings, case=record.group[:40])
        elif not self._quiet:
            now = time.monotonic()
            if now - self._last_line >= PLAIN_LINE_EVERY_S or summary.done == self._total:
                self._last_line = now
                rate = summary.done / max(now - self._started, 1e-9)
                left = (self._total - summary.done) / rate if rate else 0.0
                self._console.print(
                    f"{summary.done}/{self._total} cases, {rate:.1f}/s, {left:.0f} s left, {summary.findings} findings",
                    markup=False,
                    highlight=False,
                )
