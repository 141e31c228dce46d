"""Print tables: fitted to the width of a terminal, as plain columns in a pipe or a log, or as Markdown.

Symptoms, tracebacks and program names come from subjects and are never printed directly: `one_line` and `visible` escape all
characters that control a terminal or reorder text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.console import Console
from rich.text import Text

from oracle.verdict import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """A titled table of text.

    `right` has the indices of right-aligned columns, `prose` those of columns whose text may be wrapped on a narrow terminal;
    other cells (a case id, a status, a number) are never broken. With `is_cut` prose is cut to one line instead, for tables that
    must stay short and whose text is printed in full elsewhere.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int] = frozenset()
    prose: frozenset[int] = frozenset()
    is_cut: bool = False
    note: str = ""  # printed below the table; may have several lines


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


# ---------------------------------------------------------------------------------------------------------- characters


def one_line(text: str) -> str:
    """The text with all characters that are not printable escaped, so that it stays on one line.

    These are line breaks, controls (ESC controls a terminal), format characters (U+202E reverses the rest of the line, U+200B is
    invisible), spaces other than " ", and unassigned characters. Letters of every script stay.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode() for char in text
    )


def visible(text: str) -> str:
    """`one_line` for text of several lines, such as a traceback or a program: line feeds and tabs stay."""
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "\n".join("\t".join(map(one_line, line.split("\t"))) for line in text.split("\n"))


def shorten(text: str, length: int = 160) -> str:
    """The text cut to `length` characters of one line."""
    text = one_line(text)
    return text if len(text) <= length else text[: length - 1] + "…"


# ------------------------------------------------------------------------------------------------------------ output


Part = TextTable | str  # a table, or a paragraph


def show(console: Console, parts: Iterable[Part]) -> None:
    """Print tables and paragraphs, fitted to a terminal's width; in a pipe or a file they have any width."""
    for part in parts:
        if isinstance(part, str):
            show_text(console, part)
        elif console.is_terminal:
            show_lines(console, fitted(part, console.width))
        else:
            console.file.write(plain(part))
        show_lines(console, [""])


def show_lines(console: Console, lines: Iterable[str | Text]) -> None:
    """Print lines without wrapping. A terminal breaks a long line without a line feed, so that it can be copied whole."""
    if console.is_terminal:
        for line in lines:
            console.print(line if isinstance(line, Text) else Text(line), soft_wrap=True)
    else:
        console.file.write("".join(f"{line}\n" for line in lines))


def show_text(console: Console, text: str) -> None:
    """Print one paragraph, wrapped between words on a narrow terminal."""
    text = one_line(text)
    show_lines(console, _wrapped(text, console.width) if console.is_terminal else [text])


def plain(table: TextTable) -> str:
    """Aligned columns, two spaces apart, one line per row; ends with a newline."""
    return "".join(f"{line}\n" for line in _aligned(_escaped(table), None) or ())


_NARROW: Final = 100  # on a terminal of fewer columns, a table that does not fit becomes a list
_LEAST_PROSE: Final = 24  # with fewer columns for wrapped text it becomes a list too
_INDENT: Final = "  "
_SHORT: Final = 24  # cells of up to so many columns share a line in a list

_STATUS_STYLES: Final = {
    status.value: "green" if status is Status.PASS else "bold red" if status.is_silent else "red"
    for status in Status
    if status is Status.PASS or status.is_finding
}


def fitted(table: TextTable, width: int) -> list[Text]:
    """The lines of a table for a terminal of `width` columns.

    If the table does not fit, its prose is wrapped on a terminal of at least 100 columns; on a narrower one the table becomes a
    list with "label: value" for each cell. Cells that are not prose are never broken.
    """
    table = _escaped(table)
    return _aligned(table, width) or _list(table, width)


def _escaped(table: TextTable) -> TextTable:
    return TextTable(
        title=one_line(table.title),
        columns=tuple(map(one_line, table.columns)),
        rows=tuple(tuple(map(one_line, row)) for row in table.rows),
        right=table.right,
        prose=table.prose,
        is_cut=table.is_cut,
        note="\n".join(map(one_line, table.note.split("\n"))),
    )


def _aligned(table: TextTable, width: int | None) -> list[Text] | None:
    """The table in columns; None if `width` is too narrow for it."""
    widths = [max(map(cell_len, cells)) for cells in zip(table.columns, *table.rows, strict=True)]
    headers = [[column] for column in table.columns]
    gap = 2
    if width is not None and _total(widths, gap) > width:
        headers = [_wrapped(column, 1) for column in table.columns]  # one word per line
        least = [max(map(cell_len, header)) for header in headers]
        cells = [max([0, *map(cell_len, column)]) for column in zip(*table.rows, strict=True)] or least
        widths = [max(pair) for pair in zip(least, cells, strict=True)]
        headers = [_wrapped(column, w) for column, w in zip(table.columns, widths, strict=True)]
        gap = 1 if _total(widths, 1) <= width < _total(widths, 2) else 2
    if width is not None and _total(widths, gap) > width:
        room = width - _total([0 if i in table.prose else w for i, w in enumerate(widths)], gap)
        if width < _NARROW or room < _LEAST_PROSE * len(table.prose) or not table.prose:
            return None
        widths = _shared(widths, table.prose, room)
    lines = _heading(table, width)
    if table.rows:
        lines += _row(headers, widths, table.right, gap, is_header=True)
    else:
        lines.append(Text(_INDENT + "(none)"))
    for row in table.rows:
        cells = [[cell] for cell in row]
        for i in table.prose:
            if cell_len(row[i]) > widths[i]:
                cells[i] = [_cut(row[i], widths[i])] if table.is_cut else _wrapped(row[i], widths[i], is_hard=True)
        lines += _row(cells, widths, table.right, gap)
    return lines + _note(table, width)


def _total(widths: Sequence[int], gap: int) -> int:
    return len(_INDENT) + sum(widths) + gap * (len(widths) - 1)


def _shared(widths: list[int], prose: frozenset[int], room: int) -> list[int]:
    """The widths with `room` columns shared among prose. A column that needs less leaves the rest to the others."""
    shared = list(widths)
    left = sorted(prose, key=lambda i: widths[i])
    for position, i in enumerate(left):
        shared[i] = min(widths[i], room // (len(left) - position))
        room -= shared[i]
    return shared


def _row(
    cells: Sequence[list[str]], widths: Sequence[int], right: frozenset[int], gap: int, *, is_header: bool = False
) -> list[Text]:
    lines = []
    for k in range(max(map(len, cells))):
        line = Text(_INDENT)
        for i, cell in enumerate(cells):
            # Headers are aligned to the bottom.
            at = k - (max(map(len, cells)) - len(cell)) if is_header else k
            text = cell[at] if 0 <= at < len(cell) else ""
            space = " " * (widths[i] - cell_len(text))
            line.append((" " * gap if i else "") + (space if i in right else ""))
            line.append(text, "bold" if is_header else _STATUS_STYLES.get(text, ""))
            line.append("" if i in right else space)
        line.rstrip()
        lines.append(line)
    return lines


def _list(table: TextTable, width: int) -> list[Text]:
    """A block of lines for each row. Short cells share a line, others have their own; prose is wrapped between words."""
    lines = _heading(table, width)
    for row in table.rows:
        block: list[Text] = []
        is_open = False  # whether further short cells fit in the last line
        for i, (label, cell) in enumerate(zip(table.columns, row, strict=True)):
            start = Text.assemble(f"{label}: ", (cell, _STATUS_STYLES.get(cell, "")))
            indent = _INDENT * (2 if block else 1)
            if cell_len(cell) <= _SHORT:
                if is_open and block[-1].cell_len + 2 + start.cell_len <= width:
                    block[-1].append("  ").append_text(start)
                else:
                    block.append(Text(indent).append_text(start))
                    is_open = True
                continue
            is_open = False
            pieces = [f"{label}: {cell}"]
            if i in table.prose and table.is_cut:
                pieces = [_cut(pieces[0], width - len(indent))]
            elif i in table.prose:
                pieces = _wrapped(pieces[0], width - len(_INDENT * 3))
            elif len(indent) + cell_len(pieces[0]) > width:
                pieces = [f"{label}:", cell]
            block += [Text((_INDENT * 3 if k else indent) + piece) for k, piece in enumerate(pieces)]
        lines += block
    return lines + _note(table, width)


def _heading(table: TextTable, width: int | None) -> list[Text]:
    return [Text(line, "bold") for line in _wrapped(table.title, width)]


def _note(table: TextTable, width: int | None) -> list[Text]:
    room = None if width is None else width - len(_INDENT)
    lines = table.note.split("\n") if table.note else []
    return [Text(_INDENT + piece, "dim") for line in lines for piece in _wrapped(line, room)]


def _wrapped(text: str, width: int | None, *, is_hard: bool = False) -> list[str]:
    """The text in lines of `width` columns, broken between words; `is_hard` also breaks longer words."""
    if width is None or cell_len(text) <= width:
        return [text]
    lines: list[str] = []
    for word in text.split(" "):
        pieces = chop_cells(word, width) if is_hard and cell_len(word) > width else [word]
        if lines and cell_len(lines[-1]) + 1 + cell_len(pieces[0]) <= width:
            lines[-1] += " " + pieces.pop(0)
        lines += pieces
    return lines


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


# ---------------------------------------------------------------------------------------------------------- Markdown


def markdown(table: Part, *, level: int = 2) -> str:
    """A heading and a Markdown table, or a paragraph; ends with a newline."""
    if isinstance(table, str):
        return escape_markdown(table) + "\n"
    return f"{'#' * level} {escape_markdown(table.title)}\n\n" + markdown_body(table)


def markdown_body(table: TextTable) -> str:
    """The table and its note, without the title."""
    lines = []
    if table.rows:
        lines.append("| " + " | ".join(map(escape_markdown, table.columns)) + " |")
        lines.append("|" + "|".join(" ---: " if i in table.right else " --- " for i in range(len(table.columns))) + "|")
        lines += ["| " + " | ".join(map(escape_markdown, row)) + " |" for row in table.rows]
    else:
        lines.append("None.")
    for line in table.note.split("\n") if table.note else ():
        lines += ["", escape_markdown(line)]
    return "\n".join(lines) + "\n"


def escape_markdown(text: str) -> str:
    """The text for one cell: without line breaks, and with the markup characters of Markdown and HTML escaped."""
    text = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # Underscores inside a word are no markup, and status words have many.
    return re.sub(r"([\\|`*\[\]~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))", r"\\\1", text)
