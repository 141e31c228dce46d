"""Recordings: the texts of every case, compressed in a SQLite file, and the differences of two recordings."""

from __future__ import annotations

import contextlib
import difflib
import json
import re
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from oracle.errors import UsageError
from suites.steady import Texts

_NUMBER = re.compile(r"\d+")
_MOST_LINES = 24  # lines of a change that are printed
_WIDTH = 300  # characters of such a line

_TABLES = """
create table if not exists texts (case_id text, kind text, text blob, primary key (case_id, kind));
create table if not exists drawn (name text primary key, program text);
"""


class Recording:
    """The recording of one source tree. Raises UsageError for a file of another kind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._db = sqlite3.connect(path)
        try:
            self._db.executescript(_TABLES)
        except sqlite3.DatabaseError as error:
            raise UsageError(
                seen=f"{path}: {error}", expected="a recording of `make steady`", do="delete the file"
            ) from error

    def add(self, case_id: str, texts: Texts) -> None:
        rows = [(case_id, kind, zlib.compress(text.encode(), 6)) for kind, text in texts.items()]
        self._db.executemany("insert into texts values (?, ?, ?)", rows)

    def add_drawn(self, name: str, program: Mapping[str, Any]) -> None:
        self._db.execute("insert into drawn values (?, ?)", (name, json.dumps(program)))

    def drawn(self) -> dict[str, dict[str, Any]]:
        """The drawn programs by name."""
        return {name: json.loads(program) for name, program in self._db.execute("select * from drawn")}

    def texts(self) -> Iterator[tuple[str, str, str]]:
        """Case, kind and text, sorted."""
        for case_id, kind, text in self._db.execute("select * from texts order by case_id, kind"):
            yield case_id, kind, zlib.decompress(text).decode()

    def close(self) -> None:
        """Commit what was added, and close the file."""
        self._db.commit()
        self._db.close()


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Recording]:
    recording = Recording(path)
    try:
        yield recording
    finally:
        recording.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The removed ("- ...") and added ("+ ...") lines of a text. `cases` are those with the same change up to numbers."""

    kind: str
    lines: tuple[str, ...]
    cases: tuple[str, ...]

    def __str__(self) -> str:
        return self.text()

    def text(self, *, names: bool = False) -> str:
        """The printed text of the change; `names`: list all of its cases, not only the first."""
        shown = self.lines[:_MOST_LINES]
        more = [f"  ... {len(self.lines) - len(shown)} lines more"] if len(shown) < len(self.lines) else []
        count = f"{len(self.cases)} case{'s' if len(self.cases) > 1 else ''}"
        first = f"{self.kind}: {count}, such as {next(iter(self.cases))}"
        cases = [f"  in {case_id}" for case_id in self.cases] if names else []
        return "\n".join([first, *(f"  {_cut(line)}" for line in shown), *more, *cases])


TextsOfCases = Mapping[tuple[str, str], str]  # (case, kind) -> text


def compare(old: TextsOfCases, new: TextsOfCases) -> list[Change]:
    """All changes, those with most cases first. A case that only one recording has is also a change."""
    groups: dict[tuple[str, tuple[str, ...]], tuple[tuple[str, ...], list[str]]] = {}
    for case_id, kind, lines in _differing(old, new):
        key = kind, tuple(_NUMBER.sub("0", line) for line in lines)
        groups.setdefault(key, (lines, []))[1].append(case_id)
    changes = [Change(kind=kind, lines=lines, cases=tuple(cases)) for (kind, _), (lines, cases) in groups.items()]
    return sorted(changes, key=lambda change: -len(change.cases))


def _differing(old: TextsOfCases, new: TextsOfCases) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Case, kind and changed lines of each text that differs."""
    old_cases, new_cases = ({case_id for case_id, _ in texts} for texts in (old, new))
    for case_id in sorted(old_cases ^ new_cases):
        yield case_id, "corpus", ("- case" if case_id in old_cases else "+ case",)
    for case_id, kind in sorted({*old, *new}):
        if case_id in old_cases and case_id in new_cases:
            before, after = old.get((case_id, kind), ""), new.get((case_id, kind), "")
            if before != after:
                yield case_id, kind, changed_lines(before.splitlines(), after.splitlines())


def changed_lines(before: Sequence[str], after: Sequence[str]) -> tuple[str, ...]:
    """The changed lines of a diff."""
    diff: Iterable[str] = difflib.unified_diff(before, after, lineterm="", n=0)
    return tuple(line for line in islice(diff, 2, None) if not line.startswith("@@"))  # the first two name files


def _cut(line: str) -> str:
    """Cut a line to the printed width. Blanks are kept, since only they may have changed."""
    return line if len(line) <= _WIDTH else f"{line[:_WIDTH]}..."
