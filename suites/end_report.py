"""The last lines of a sweep: its result, where the records are, and which commands to use next. Does not import torch."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from oracle.known.ledger import BUILT_IN
from oracle.verdict import Status

COMMANDS_SHOWN = 3
EXIT_CODES = "0: nothing new; 1: new findings; 2: stopped, or a usage error; 3: an internal error of torch-oracle"


class End(Enum):
    """Why a sweep ended."""

    COMPLETE = "complete"
    OUT_OF_TIME = "out of time"  # --time was over
    INTERRUPTED = "interrupted"  # Ctrl-C or SIGTERM


@dataclass(frozen=True, slots=True, kw_only=True)
class EndReport:
    """The facts that the last lines tell. Counts are of the whole run, also if this command has run only a part of it."""

    end: End
    run_id: str
    db: str
    is_default_db: bool
    planned: int  # cases
    statuses: Mapping[str, int]  # status word -> cases with a record
    seconds: float  # since the command began
    time_limit_s: float | None  # --time
    first_finding: str  # a case id, or ""
    subjects_are_own: bool  # the user named none
    selection: Sequence[str] = ()  # the options that chose the programs
    internal_errors: Sequence[str] = ()
    known: str = BUILT_IN  # the ledgers of the run, by comma
    execution: Sequence[str] = ()  # the options that say where it ran, which are not stored with it

    @property
    def recorded(self) -> int:
        return sum(self.statuses.values())

    @property
    def findings(self) -> int:
        return sum(count for word, count in self.statuses.items() if Status(word).is_finding)

    @property
    def exit_code(self) -> int:
        """0, 1, 2 or 3, as EXIT_CODES says."""
        if self.end is End.INTERRUPTED:
            return 2
        if self.internal_errors:
            return 3
        return 1 if self.findings else 0

    def lines(self) -> list[str]:
        """Plain text; the last line says what an exit code other than 0 means."""
        lines = [self._what_ran(), f"results: run {self.run_id} in {self.db}"]
        lines += ["", "commands to use next:", *self._commands(), ""]
        lines += [f"internal error of torch-oracle, please report it: {error}" for error in self.internal_errors[:3]]
        if self.exit_code:
            lines.append(f"exit code {self.exit_code} ({EXIT_CODES})")
        return lines

    def _what_ran(self) -> str:
        part = f"{self.recorded:,} of {self.planned:,} cases have run"
        match self.end:
            case End.COMPLETE:
                every = f"all {self.planned:,} cases have" if self.planned > 1 else "the one case has"
                start = f"{every} run, in {duration_text(self.seconds)}"
            case End.OUT_OF_TIME:
                start = f"the time is over (--time {duration_text(self.time_limit_s or 0)}): {part}"
            case End.INTERRUPTED:
                start = f"interrupted: {part}, and their results are kept"
        return f"{start}: {self._what_came()}"

    def _what_came(self) -> str:
        counts = [plural(self.findings, "new finding")]
        known = self.statuses.get(Status.KNOWN.value, 0)
        gone = self.statuses.get(Status.XPASS.value, 0)
        if known:
            counts.append(f"{plural(known, 'case')} with a known issue")
        if gone:
            counts.append(f"{plural(gone, 'case')} whose known issue did not show (xpass)")
        return ", ".join(counts)

    def _commands(self) -> list[str]:
        program = own_command()
        db = [] if self.is_default_db else ["--db", self.db]
        wanted: list[tuple[list[str], str]] = []
        if self.end is not End.COMPLETE:
            again = f", for {duration_text(self.time_limit_s)} at most" if self.time_limit_s else ""
            left = self.planned - self.recorded
            rest = f"run the other {plural(left, 'case')}{again}" if left else "finish the run"
            wanted.append((["sweep", "--resume", *db, *self.execution], rest))
        if self.first_finding:
            wanted.append(
                (
                    ["show", self.first_finding, *db],
                    "show one new finding: its program, the difference, how to run it alone",
                )
            )
            wanted.append(
                (
                    ["repro", f"{self.run_id}:{self.first_finding}", *db],
                    "find the part that is wrong; write a small script that shows it, and the text of an issue",
                )
            )
        if self.statuses.get(Status.KNOWN.value):
            own = self.known not in (BUILT_IN, "none")
            ledgers = ["--known", self.known] if own else []
            whose = "these ledgers" if own else "PyTorch"
            wanted.append((["issues", *ledgers], f"list the known issues of {whose}, most severe first"))
        if self.subjects_are_own:
            own = [*self.selection, "--subject", "my_package.my_module:my_backend"]
            wanted.append((["sweep", *own], "run the same programs on your own backend"))
        if not self.first_finding or not self.subjects_are_own:
            accept = ["gate", "--baseline", "accepted.txt", "--update", *db]
            wanted.append((accept, "accept the findings of this run, so that CI fails only on new ones"))
        wanted.append((["show", *db], "print the tables above again"))
        shown = wanted[:COMMANDS_SHOWN]
        return [line for words, what in shown for line in (f"  {program} {shlex.join(words)}", f"      {what}")]


def own_command() -> str:
    """How to call torch-oracle here: its name if the shell finds it, else the script's path, or `python -m`."""
    script = Path(sys.executable).with_name("torch-oracle")
    found = shutil.which("torch-oracle")
    if found and (not script.exists() or os.path.samefile(found, script)):
        return "torch-oracle"
    if script.exists():
        shown = os.path.relpath(script)
        return shlex.quote(str(script) if shown.startswith("..") else shown)
    return f"{shlex.quote(sys.executable)} -m oracle.cli"


def plural(count: int, noun: str) -> str:
    """ "1 case", "1,276 cases"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def duration_text(seconds: float) -> str:
    """ "5 s", "4 min 12 s", "1 h 30 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    return f"{whole // 3600} h" + (f" {whole % 3600 // 60} min" if whole % 3600 // 60 else "")
