"""A table as text: rich on a terminal, plain columns in a pipe or a log, Markdown for a comment on a pull request."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from oracle.verdict import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """A titled table of text. `right` holds the indices of the columns aligned to the right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int] = frozenset()
    note: str = ""  # printed below


def of_frame(title: str, table: pd.DataFrame, *, names: dict[str, str] | None = None, note: str = "") -> TextTable:
    """A data frame as a TextTable; `names` renames columns. Numbers are formatted by `number`, missing ones are "-"."""
    columns = tuple((names or {}).get(str(column), str(column)) for column in table.columns)
    rows = tuple(tuple(_cell(value) for value in row) for row in table.itertuples(index=False, name=None))
    numeric = frozenset(
        i for i, column in enumerate(table.columns) if pd.api.types.is_numeric_dtype(table[column].dtype)
    )
    return TextTable(title=title, columns=columns, rows=rows, right=numeric, note=note)


def _cell(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(str, value)) + "]"
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return "-"
    return number(value) if isinstance(value, float) else str(value)


def number(value: float | None) -> str:
    """Four significant digits, "-" for None and NaN."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.4g}"


def seconds(value: float | None) -> str:
    """A time with its unit: "1.25 s", "310 ms", "4.2 µs"."""
    if value is None or math.isnan(value):
        return "-"
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"


def ratio(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """A speedup: "1.52x", with its interval if known: "1.52x [1.48, 1.56]"."""
    if value is None or math.isnan(value):
        return "-"
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return f"{value:.3g}x"
    return f"{value:.3g}x [{low:.3g}, {high:.3g}]"


# ------------------------------------------------------------------------------------------------------------ output


def show(console: Console, tables: Iterable[TextTable]) -> None:
    """Print tables: rich ones on a terminal; otherwise plain, never cut to a width."""
    for table in tables:
        if console.is_terminal:
            console.print(_rich(table))
            if table.note:
                console.print(Text(table.note, style="dim"))
            console.print()
        else:
            console.file.write(plain(table) + "\n")


_STATUS_STYLES: Final = {
    status.value: "green" if status is Status.PASS else "bold red" if status.is_silent else "red"
    for status in Status
    if status is Status.PASS or status.is_finding
}


def _rich(table: TextTable) -> Table:
    rich_table = Table(title=table.title, title_justify="left", title_style="bold")
    for i, column in enumerate(table.columns):
        rich_table.add_column(column, justify="right" if i in table.right else "left", overflow="fold")
    for row in table.rows:
        rich_table.add_row(*(Text(cell, style=_STATUS_STYLES.get(cell, "")) for cell in row))
    return rich_table


def plain(table: TextTable) -> str:
    """Aligned columns, two spaces apart, one line per row; ends with a newline."""
    rows = [[_one_line(cell) for cell in row] for row in (table.columns, *table.rows)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.columns))]
    lines = [table.title]
    for row in rows:
        cells = [cell.rjust(widths[i]) if i in table.right else cell.ljust(widths[i]) for i, cell in enumerate(row)]
        lines.append("  " + "  ".join(cells).rstrip())
    if not table.rows:
        lines.append("  (none)")
    if table.note:
        lines.append("  " + table.note)
    return "\n".join(lines) + "\n"


def markdown(table: TextTable, *, level: int = 2) -> str:
    """A heading and a Markdown table; ends with a newline."""
    lines = [f"{'#' * level} {table.title}", ""]
    if table.rows:
        lines.append("| " + " | ".join(map(escape_markdown, table.columns)) + " |")
        lines.append("|" + "|".join(" ---: " if i in table.right else " --- " for i in range(len(table.columns))) + "|")
        lines += ["| " + " | ".join(map(escape_markdown, row)) + " |" for row in table.rows]
    else:
        lines.append("None.")
    if table.note:
        lines += ["", escape_markdown(table.note)]
    return "\n".join(lines) + "\n"


def escape_markdown(text: str) -> str:
    """Text that stands in one cell: no line breaks, and no character that Markdown or HTML would take for markup."""
    text = _one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # An underscore inside a word is no markup, and status words are full of them.
    return re.sub(r"([\\|`*\[\]~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))", r"\\\1", text)


def _one_line(text: str) -> str:
    """Line breaks and other control characters as escapes, so that a row stays a row."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode() for char in text
    )


def shorten(text: str, length: int = 160) -> str:
    """At most `length` characters of one line."""
    text = _one_line(text)
    return text if len(text) <= length else text[: length - 1] + "…"


def csv_list(values: Sequence[Any]) -> str:
    """Items for a sentence: "a, b, c" or "none"."""
    return ", ".join(map(str, values)) or "none"
