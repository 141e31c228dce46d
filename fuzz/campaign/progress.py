"""Live progress of a campaign: one line on a terminal, or a plain line from time to time. Does not import torch."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.status import Status as Spinner
from typing_extensions import Self

from fuzz.campaign.settings import CampaignSettings
from fuzz.campaign.state import CampaignState, FoundBucket

PLAIN_LINE_EVERY_S = 30.0


class CampaignProgress:
    """A context manager; call `update` whenever a task ends. Writes to stderr, since stdout is for results."""

    def __init__(self, settings: CampaignSettings, state: CampaignState, *, console: Console, quiet: bool) -> None:
        self._settings = settings
        self._state = state
        self._console = console
        self._quiet = quiet
        self._started = self._last_line = time.monotonic()
        self._programs_before = state.programs
        self._noted: set[str] = set(state.buckets)
        self._spinner: Spinner | None = None
        if console.is_terminal and not quiet:
            self._spinner = console.status("")

    def __enter__(self) -> Self:
        if self._spinner is not None:
            self._spinner.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._spinner is not None:
            self._spinner.stop()

    def note(self, line: str) -> None:
        """Print a line above the progress line."""
        if not self._quiet:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def note_bucket(self, bucket: FoundBucket) -> None:
        """Print a line for a new bucket."""
        if bucket.key in self._noted:
            return
        self._noted.add(bucket.key)
        word = f"known {bucket.known}" if bucket.known else bucket.status
        where = f" [{bucket.rung}]" if bucket.rung else ""
        self.note(f"{word:22} {bucket.key}{where}  {bucket.kind[:60]}  {' '.join(bucket.operators)[:80]}")

    def update(self) -> None:
        if self._spinner is not None:
            self._spinner.update(self.line())
        elif not self._quiet and time.monotonic() - self._last_line >= PLAIN_LINE_EVERY_S:
            self._last_line = time.monotonic()
            self.note(self.line())

    def line(self) -> str:
        """Programs so far, programs per minute, findings, coverage."""
        state, seconds = self._state, max(time.monotonic() - self._started, 1e-9)
        rate = (state.programs - self._programs_before) / seconds * 60
        of_count = f" of {self._settings.count}" if self._settings.count is not None else ""
        sizes = state.reached.sizes()
        waiting = sum(work.found is not None for work in state.work.values())
        words = [
            f"{state.programs}{of_count} programs",
            f"{rate:.0f}/min",
            f"{len(state.new_buckets)} distinct findings ({sum(state.symptoms.values())} programs, {waiting} waiting)",
            f"{sizes.get('aten', 0)} aten overloads",
        ]
        if sizes.get("lowering"):
            words.append(f"{sizes['lowering']} lowerings")
        return ", ".join(words)
