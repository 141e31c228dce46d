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
from types import MappingProxyType
from typing import Final, TypeAlias

from oracle.errors import UsageError
from results.changes import CaseChange, ChangeKind
from results.compare import Comparison
from results.history import Flakiness, change_text, flaky_table
from results.lasting import LastingChange, change_words
from results.render import TextTable, markdown, seconds, shorten
from results.speed import Word
from results.speed.of_records import COUNTS

NOBODY: Final = "without an owner"
_SHOWN: Final = 20  # rows of a table; a number of the others follows

Since: TypeAlias = Mapping[str, Sequence[LastingChange]]
"""The lasting changes for the worse since the base run, by case id."""
_NO_CHANGES: Final[Since] = MappingProxyType({})


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


def told_worse(comparison: Comparison) -> set[str]:
    """The cases that a comparison tells as slower, or as worse in what else is measured."""
    found = {one.case_id for one in comparison.slower}
    found |= {one.case_id for one in comparison.compile_time if one.head_s > one.base_s}
    return found | {one.case_id for one in comparison.other if one.verdict.word is Word.WORSE}


def triage_text(
    comparison: Comparison, flaky: Sequence[tuple[str, Flakiness]], owners: Owners, since: Since = _NO_CHANGES
) -> str:
    """The week as Markdown: a line on both runs, then a section for each owner who has something to look at."""
    base, head = comparison.base, comparison.head
    by_owner: defaultdict[str, list[TextTable]] = defaultdict(list)
    for title, rows in _rows(comparison, since).items():
        columns = ("case", "what", "since run")[: len(rows[0])]
        for owner, of_owner in _by_owner(rows, owners).items():
            by_owner[owner].append(_table(f"{title} ({len(of_owner)})", columns, of_owner))
    flaky_of: defaultdict[str, list[tuple[str, Flakiness]]] = defaultdict(list)
    for case_id, one in flaky:
        flaky_of[owners.of(case_id)].append((case_id, one))
    for owner, of_owner in flaky_of.items():
        by_owner[owner].append(flaky_table(of_owner[:_SHOWN]))
    lines = [f"# {head.run_id} since {base.run_id}", ""]
    lines += [f"{base.started_at} to {head.started_at}; {head.recorded} of {head.planned} cases recorded.", ""]
    if comparison.versions:
        changed = "; ".join(change_text(change) for change in comparison.versions)
        lines += [markdown(f"The subjects changed: {changed}"), ""]
    if comparison.speed_invalid and comparison.timed_in_both:
        lines += [markdown(f"Nothing is said about speed: {comparison.speed_invalid}")]
    if not by_owner:
        lines += ["Nothing new, fixed, flaky or slower.", ""]
    for owner in sorted(by_owner, key=lambda owner: (owner == NOBODY, owner)):
        lines += [markdown(TextTable(title=owner, columns=(), rows=())).split("\n", 1)[0], ""]
        lines += [markdown(table, level=3) for table in by_owner[owner]]
    return "\n".join(lines).rstrip("\n") + "\n"


_Row: TypeAlias = tuple[str, ...]  # a case id, what is said of it, and since when, where that is asked


def _rows(comparison: Comparison, since: Since) -> Mapping[str, list[_Row]]:
    """The rows under each heading, in the order in which a reader needs them."""
    wanted = {
        "new failures": ChangeKind.NEW_FAILURE,
        "missing": ChangeKind.MISSING_ROW,
        "not compared any more": ChangeKind.NO_LONGER_COMPARED,
        "fixed": ChangeKind.FIXED,
    }
    found: dict[str, list[_Row]] = {
        title: [(change.case_id, shorten(_what(change))) for change in comparison.of_kind(kind)]
        for title, kind in wanted.items()
    }
    slower = {one.case_id: f"{100 * (1 / one.change - 1):.1f} % slower" for one in comparison.slower}
    longer = {
        one.case_id: f"{seconds(one.base_s)} to {seconds(one.head_s)}"
        for one in comparison.compile_time
        if one.head_s > one.base_s
    }
    found["slower"] = [] if comparison.speed_invalid else _dated("speed", slower, since)
    found["compiles longer"] = [] if comparison.compile_invalid else _dated("compile time", longer, since)
    for what in ("peak memory", *COUNTS):
        more = {
            one.case_id: f"from {one.base} to {one.head}"
            for one in comparison.other
            if one.what == what and one.verdict.word is Word.WORSE
        }
        found[f"more {what}"] = _dated(what, more, since)
    return {title: rows for title, rows in found.items() if rows}


def _dated(what: str, told: Mapping[str, str], since: Since) -> list[_Row]:
    """What a comparison tells of one quantity, and what only the history shows, each with the run since which it is so."""
    dates: dict[str, str] = {}
    words = dict(told)
    for case_id, changes in since.items():
        for change in changes:
            if change.what == what:
                dates[case_id] = f"{change.first_run.run_id} ({change.first_run.started_at[:10]})"
                words.setdefault(case_id, change_words(change))
    return [(case_id, text, dates.get(case_id, "-")) for case_id, text in words.items()]


def _what(change: CaseChange) -> str:
    often = f"{change.head_frequency}: " if change.head_frequency else ""
    return f"{often}{change.head_symptom}" if change.head_symptom else f"was: {change.base_symptom}"


def _by_owner(rows: Sequence[_Row], owners: Owners) -> Mapping[str, list[_Row]]:
    found: defaultdict[str, list[_Row]] = defaultdict(list)
    for row in rows:
        found[owners.of(row[0])].append(row)
    return found


def _table(title: str, columns: tuple[str, ...], rows: Sequence[_Row]) -> TextTable:
    notes = [f"and {len(rows) - _SHOWN} more"] if len(rows) > _SHOWN else []
    if any(row[2:] == ("-",) for row in rows[:_SHOWN]):
        notes.append("-: its history has no lasting change yet, or fewer than five runs")
    note = "; ".join(notes)
    return TextTable(title=title, columns=columns, rows=tuple(rows[:_SHOWN]), note=note)
