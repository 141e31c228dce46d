"""A team's weekly report: new failures, fixed ones, flaky and slower cases, each under its owner, as Markdown.

Owners come from a file like CODEOWNERS: a pattern of case ids and the owner's name on each line, of which the last match counts.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from oracle.errors import UsageError
from results.changes import CaseChange, ChangeKind
from results.compare import Comparison
from results.history import Flakiness, flaky_table
from results.render import TextTable, markdown, seconds, shorten

NOBODY: Final = "without an owner"
_SHOWN: Final = 20  # rows of a table; a number of the others follows


@dataclass(frozen=True, slots=True, kw_only=True)
class Owners:
    """Patterns of case ids and their owners, in the order of the file."""

    patterns: Sequence[tuple[str, str]] = ()

    def of(self, case_id: str) -> str:
        """The owner of a case: that of the last pattern that matches its id."""
        return next((owner for glob, owner in reversed(self.patterns) if fnmatchcase(case_id, glob)), NOBODY)


def read_owners(path: Path) -> Owners:
    """Read a file of lines `pattern owner`; empty lines and lines with # are left out.

    Raises UsageError for a file that cannot be read, and with its number for a line that has no owner.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # editors on Windows write a mark first
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            seen=f"{path}: {error}", expected="a readable UTF-8 text file", do="correct --owners"
        ) from error
    patterns = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        words = line.split(maxsplit=1)
        if len(words) < 2:
            raise UsageError(
                seen=f"{path}, line {number}: {line.strip()!r}",
                expected="a pattern of case ids and an owner, such as: opinfo/nn.* @nn-team",
                do="correct the line",
            )
        # A bracket in a pattern stands for itself, since ids have them: inductor[mode=...].
        patterns.append((re.sub(r"\[", "[[]", words[0]), words[1].strip()))
    return Owners(patterns=tuple(patterns))


def triage_text(comparison: Comparison, flaky: Sequence[tuple[str, Flakiness]], owners: Owners) -> str:
    """The week as Markdown: a line on both runs, then a section for each owner who has something to look at."""
    base, head = comparison.base, comparison.head
    by_owner: defaultdict[str, list[TextTable]] = defaultdict(list)
    for title, rows in _rows(comparison).items():
        columns = ("case", "what")
        for owner, of_owner in _by_owner(rows, owners).items():
            by_owner[owner].append(_table(f"{title} ({len(of_owner)})", columns, of_owner))
    flaky_of: defaultdict[str, list[tuple[str, Flakiness]]] = defaultdict(list)
    for case_id, one in flaky:
        flaky_of[owners.of(case_id)].append((case_id, one))
    for owner, of_owner in flaky_of.items():
        by_owner[owner].append(flaky_table(of_owner[:_SHOWN]))
    lines = [f"# {head.run_id} since {base.run_id}", ""]
    lines += [f"{base.started_at} to {head.started_at}; {head.recorded} of {head.planned} cases recorded.", ""]
    if comparison.speed_invalid and comparison.timed_in_both:
        lines += [markdown(f"Nothing is said about speed: {comparison.speed_invalid}")]
    if not by_owner:
        lines += ["Nothing new, fixed, flaky or slower.", ""]
    for owner in sorted(by_owner, key=lambda owner: (owner == NOBODY, owner)):
        lines += [markdown(TextTable(title=owner, columns=(), rows=())).split("\n", 1)[0], ""]
        lines += [markdown(table, level=3) for table in by_owner[owner]]
    return "\n".join(lines).rstrip("\n") + "\n"


def _rows(comparison: Comparison) -> Mapping[str, list[tuple[str, str]]]:
    """Case id and what is said of it, by heading, in the order in which a reader needs them."""
    wanted = {
        "new failures": ChangeKind.NEW_FAILURE,
        "missing": ChangeKind.MISSING_ROW,
        "not compared any more": ChangeKind.NO_LONGER_COMPARED,
        "fixed": ChangeKind.FIXED,
    }
    found = {
        title: [(change.case_id, shorten(_what(change))) for change in comparison.of_kind(kind)]
        for title, kind in wanted.items()
    }
    found["slower"] = [(one.case_id, f"{100 * (1 / one.change - 1):.1f} % slower") for one in comparison.slower]
    found["compiles longer"] = [
        (one.case_id, f"{seconds(one.base_s)} to {seconds(one.head_s)}")
        for one in comparison.compile_time
        if one.head_s > one.base_s
    ]
    return {title: rows for title, rows in found.items() if rows}


def _what(change: CaseChange) -> str:
    often = f"{change.head_frequency}: " if change.head_frequency else ""
    return f"{often}{change.head_symptom}" if change.head_symptom else f"was: {change.base_symptom}"


def _by_owner(rows: Sequence[tuple[str, str]], owners: Owners) -> Mapping[str, list[tuple[str, str]]]:
    found: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for row in rows:
        found[owners.of(row[0])].append(row)
    return found


def _table(title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> TextTable:
    note = f"and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
    return TextTable(title=title, columns=columns, rows=tuple(rows[:_SHOWN]), note=note)
