"""Tables and lines as they are printed: nothing in them steers a terminal, and they fit it."""

from __future__ import annotations

import io
import unicodedata

import pytest
from rich.cells import cell_len
from rich.console import Console

from results import render
from results.render import TextTable

WIDTHS = (60, 80, 100, 140)
# Everything a terminal obeys or that changes what is read: controls, bidirectional marks, line separators, invisible ones.
NASTY = "".join(
    char
    for char in map(chr, [*range(0x20), *range(0x7F, 0x100), *range(0x2000, 0x2070), 0x61C, 0xFEFF, 0xD800, 0xE0001])
    if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")
)
LONG_ID = "opinfo/nn.functional.a_very_long_name_of_an_operator.with_an_overload/float32/backward/sample-12@inductor[mode=max]"
SHORT_ID = "opinfo/add/float32/forward/sample-0@inductor"
SYMPTOM = "call 0: output[0] is 15, but should be 13 (fp64 13.0): error 2, allowed 2.48e-05; 3 of 3 elements are wrong"


def printed(table: TextTable, width: int) -> str:
    """What a terminal of so many columns is sent, without colours."""
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    render.show(console, [table])
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def table(*rows: tuple[str, ...], **options) -> TextTable:
    columns = ("case", "status", "symptom", "error")
    given = {"title": "failures", "columns": columns, "rows": rows, "right": frozenset({3}), "prose": frozenset({2})}
    return TextTable(**{**given, **options})


def row(case_id: str = SHORT_ID, symptom: str = SYMPTOM) -> tuple[str, ...]:
    return (case_id, "fail_accuracy", symptom, "0.25")


# ---------------------------------------------------------------------------------------------------------- characters


@pytest.mark.parametrize("column", range(4))
@pytest.mark.parametrize("width", WIDTHS)
def test_no_column_sends_a_terminal_anything_but_printable_characters(column: int, width: int):
    cells = list(row())
    cells[column] = f"before{NASTY}after"
    text = printed(table(tuple(cells)), width)
    assert all(char.isprintable() for line in text.split("\n") for char in line)
    assert "before\\x00" in text.replace("\n", "")


@pytest.mark.parametrize("part", ["title", "note", "columns"])
def test_title_note_and_headers_are_escaped_too(part: str):
    value = (NASTY, "b", "c", "d") if part == "columns" else NASTY
    made = table(row(), **{part: value})
    for text in (printed(made, 100), render.plain(made), render.markdown(made)):
        assert all(char.isprintable() for line in text.split("\n") for char in line)
        assert "u202e" in text


def test_a_pipe_and_markdown_get_the_same_escapes():
    made = table(row(case_id="a\x1b[2Jb\u202ec"))
    assert r"a\x1b[2Jb\u202ec" in render.plain(made)
    assert r"a\\x1b\[2Jb\\u202ec" in render.markdown(made)


def test_a_text_of_several_lines_keeps_its_lines_and_tabs_and_nothing_else():
    assert render.visible("a\n\tb\r\nc\x1b[31m\u2066") == "a\n\tb\\r\nc\\x1b[31m\\u2066"
    assert render.visible("plain\n\ttext") == "plain\n\ttext"
    assert render.one_line("é ∞ 日本 שלום 😀") == "é ∞ 日本 שלום 😀"


# --------------------------------------------------------------------------------------------------------------- width


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("is_cut", [False, True])
def test_lines_fit_the_terminal_and_case_ids_stay_whole(width: int, is_cut: bool):
    ids = [SHORT_ID, LONG_ID, SHORT_ID.replace("add", "日本語" * 3)]
    made = table(*(row(case_id, SYMPTOM * 3) for case_id in ids), is_cut=is_cut)
    lines = printed(made, width).splitlines()
    for case_id in ids:
        assert any(case_id in line for line in lines), case_id
    for line in lines:
        # A case id longer than the terminal has a line of its own, which the terminal breaks without a line feed.
        assert cell_len(line) <= width or line.strip() in ids, line


@pytest.mark.parametrize(
    ("width", "is_list"),
    [(60, True), (80, True), (99, True), (100, False), (140, False), (400, False)],
)
def test_below_100_columns_a_table_that_does_not_fit_becomes_a_list(width: int, is_list: bool):
    text = printed(table(row()), width)
    assert ("status: fail_accuracy" in text) is is_list
    assert text.replace("\n", " ").split()[-1] in ("0.25", "wrong")


def test_a_table_that_fits_stays_one_however_narrow_the_terminal():
    small = TextTable(title="t", columns=("suite", "not compared"), rows=(("opinfo", "3"),), right=frozenset({1}))
    assert printed(small, 30).splitlines() == ["t", "  suite   not compared", "  opinfo             3", ""]
    assert printed(small, 20).splitlines() == [
        "t",
        "               not",
        "  suite   compared",
        "  opinfo         3",
        "",
    ]


def test_a_table_without_prose_that_does_not_fit_becomes_a_list_at_any_width():
    made = table(row(LONG_ID * 2), prose=frozenset())
    assert LONG_ID * 2 in printed(made, 140).split()


def test_a_block_of_the_list_packs_short_cells_and_indents_what_follows():
    made = table(row(symptom="output differs"))
    assert printed(made, 50) == (
        "failures\n"
        "  case:\n"
        "      opinfo/add/float32/forward/sample-0@inductor\n"
        "    status: fail_accuracy  symptom: output differs\n"
        "    error: 0.25\n\n"
    )


def test_cut_prose_takes_one_line_and_says_that_it_goes_on():
    lines = printed(table(row(), row(), is_cut=True), 120).splitlines()
    assert len([line for line in lines if "…" in line]) == 2
    assert len(lines) == 1 + 1 + 2 + 1


def test_wrapped_prose_loses_no_word():
    lines = printed(table(row()), 110).splitlines()[2:-1]
    assert len(lines) > 1
    start = lines[0].index("call 0:")
    words = " ".join(line[start:].removesuffix("0.25") for line in lines).split()
    assert words == SYMPTOM.split()


def test_a_pipe_gets_one_line_per_row_whatever_its_length():
    made = table(row(LONG_ID, SYMPTOM * 4), is_cut=True)
    assert SYMPTOM * 4 in render.plain(made).splitlines()[2]
    assert len(render.plain(made).splitlines()) == 3


def test_an_empty_table_says_so():
    assert render.plain(table()) == "failures\n  (none)\n"
    assert printed(table(), 60) == "failures\n  (none)\n\n"
