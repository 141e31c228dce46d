"""Records that a server did not take, kept in a file until it answers again.

A sweep that writes to PostgreSQL must not lose what it has run because the server goes away. From then on its records are written
to a file of JSON lines, one record a line, each line on the disk before the next case counts as done. The store delivers them as
soon as the server answers again, or `torch-oracle push FILE URL` does later.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from oracle.errors import UsageError
from oracle.records import Record
from results.render import one_line

SUFFIX = ".spool.jsonl"


class Spool:
    """The file of one run's records that are not in the database yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_told = False

    @classmethod
    def of_run(cls, run_id: str) -> Spool:
        """A file in the working directory, named after the run."""
        return cls(Path(f"torch-oracle-{re.sub(r'[^A-Za-z0-9._-]', '_', run_id)[:100]}{SUFFIX}"))

    def add(self, records: Iterable[Record], *, location: object) -> None:
        """Append records durably. The first time, the user is told where they are and how to deliver them."""
        try:
            with self.path.open("ab") as file:
                file.truncate(self._whole_lines())
                file.writelines(f"{json.dumps(record.to_json())}\n".encode() for record in records)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise UsageError(
                seen=f"{location} does not answer, and {self.path.absolute()} cannot be written: {error.strerror}",
                expected="a place for the records of this run",
                do="make room there, or bring the server back, then use --resume",
            ) from error
        if not self._is_told:
            self._is_told = True
            sys.stderr.write(
                one_line(
                    f"{location} does not answer. Records go to {self.path.absolute()} until it does. If it is back only after "
                    f"this run: torch-oracle push {self.path} {location}"
                )
                + "\n"
            )

    def _whole_lines(self) -> int:
        """The size of the file without a last line that a killed process did not end."""
        return self.path.read_bytes().rfind(b"\n") + 1

    def records(self) -> list[Record]:
        """The records in the file. Raises UsageError with the line number for a line that is no record.

        A last line without its end, which a killed process leaves, is not counted: its case has to run again.
        """
        found: list[Record] = []
        try:
            text = self.path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                seen=f"{self.path}: {error}", expected="a readable file of JSON lines", do="correct the path"
            ) from error
        for number, line in enumerate(text.split("\n")[:-1], 1):
            try:
                found.append(Record.from_json(json.loads(line)))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise UsageError(
                    seen=f"{self.path}, line {number}: {type(error).__name__}: {error}",
                    expected="a record, as a run writes it while its server does not answer",
                    do="remove the line; its case runs again with --resume",
                ) from error
        return found

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def is_spool(path: str) -> bool:
    """Whether the path is that of a spool and no database."""
    return path.endswith(SUFFIX)
