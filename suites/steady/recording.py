"""A recording: the texts of every case, in a SQLite file, compressed."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from oracle.errors import UsageError
from suites.steady import Texts

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
