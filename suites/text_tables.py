"""Tables as text: Markdown and CSV. Imports no torch."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any


def markdown_table(head: Sequence[str], body: Iterable[Sequence[Any]]) -> list[str]:
    """The lines of a table. Cells may hold any text."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return lines + [f"| {' | '.join(map(_cell, row))} |" for row in body]


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def csv_text(head: Sequence[str], body: Iterable[Sequence[Any]]) -> str:
    """The text of a CSV file with a header line."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(body)
    return file.getvalue()
