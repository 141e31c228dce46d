"""The source lines of one bytecode instruction, underlined as in tracebacks: `^` under the operator, `~` under the operands.

Counterpart: torch/_dynamo/utils.py get_instruction_source_311, _fix_offset, _extract_anchors_from_expr
Differs: the marks are as wide as the operator; one function handles expressions of one line and of several.
"""

from __future__ import annotations

import ast
import linecache
from dataclasses import dataclass
from types import CodeType
from typing import Any

_OPERATORS = ("**", "//", "<<", ">>", "+", "-", "*", "/", "%", "@", "&", "|", "^")


@dataclass(frozen=True)
class _Anchors:
    """Line and character where the operator begins and ends in the source text. The rest are operands."""

    left_end_lineno: int
    left_end_offset: int
    right_start_lineno: int
    right_start_offset: int


def get_instruction_source_311(code: CodeType, inst: Any) -> str:
    """The instruction's source lines, each followed by its marks; "" if the positions or the file are missing.

    inst: an instruction of `dis`, or another object with `positions` (Python 3.11 and later).
    """
    positions = getattr(inst, "positions", None)
    if positions is None or None in (
        positions.lineno, positions.end_lineno, positions.col_offset, positions.end_col_offset,
    ):  # fmt: skip
        return ""
    numbers = range(positions.lineno, positions.end_lineno + 1)
    lines = [linecache.getline(code.co_filename, number).rstrip() for number in numbers]
    if not lines[0] or positions.end_lineno < positions.lineno:
        return ""
    start = _fix_offset(lines[0], positions.col_offset)
    end = _fix_offset(lines[-1], positions.end_col_offset)
    marks = _marks(lines, start, end)
    return "".join(f"{line}\n{under}\n" if under else f"{line}\n" for line, under in zip(lines, marks, strict=True))


def _fix_offset(str: str, offset: int) -> int:
    """Convert an offset in bytes of UTF-8 to one in characters."""
    return len(str.encode()[:offset].decode(errors="replace"))


def _marks(lines: list[str], start: int, end: int) -> list[str]:
    """For each source line the line of marks below it, without trailing blanks."""
    first = lines[0]
    segment = [line[start if line is first and number == 0 else 0 :] for number, line in enumerate(lines)]
    segment[-1] = segment[-1][: end - start if len(lines) == 1 else end]
    anchors = _extract_anchors_from_expr("\n".join(segment))
    marks: list[str] = []
    for number, text in enumerate(segment):
        begins = len(text) - len(text.lstrip())
        row = "".join(
            " " if column < begins else "^" if _is_marked(anchors, number, column) else "~"
            for column in range(len(text))
        )
        marks.append(((" " * start if number == 0 else "") + row).rstrip())
    return marks


def _is_marked(anchors: _Anchors | None, line: int, column: int) -> bool:
    if anchors is None:
        return True
    begins, ends = (
        (anchors.left_end_lineno, anchors.left_end_offset),
        (anchors.right_start_lineno, anchors.right_start_offset),
    )
    return begins <= (line, column) < ends


def _extract_anchors_from_expr(segment: str) -> _Anchors | None:
    """The part that `^` underlines: a binary operator, the brackets of a subscript, the parentheses of a call; else None."""
    try:
        tree = ast.parse(f"(\n{segment}\n)")
    except SyntaxError:
        return None
    lines = segment.split("\n")
    if len(tree.body) != 1 or not isinstance(statement := tree.body[0], ast.Expr):
        return None
    match statement.value:
        case ast.BinOp() as found:
            return _of_operator(lines, *_end_of(lines, found.left))
        case ast.Subscript() as found:
            return _to_the_end(lines, "[", *_end_of(lines, found.value))
        case ast.Call() as found:
            return _to_the_end(lines, "(", *_end_of(lines, found.func))
        case _:
            return None


def _end_of(lines: list[str], node: ast.expr) -> tuple[int, int]:
    """Line and character after an expression. The tree counts bytes, and has one line more at the beginning."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    line = node.end_lineno - 2
    return line, _fix_offset(lines[line], node.end_col_offset)


def _next(lines: list[str], line: int, column: int, wanted: tuple[str, ...]) -> tuple[int, int, str] | None:
    """Find the next of these signs. Comments, line ends and the left operand's closing parentheses are skipped."""
    while line < len(lines):
        text = lines[line]
        while column < len(text) and text[column] != "#":
            found = next((sign for sign in wanted if text.startswith(sign, column)), None)
            if found is not None:
                return line, column, found
            column += 1
        line, column = line + 1, 0
    return None


def _of_operator(lines: list[str], line: int, column: int) -> _Anchors | None:
    found = _next(lines, line, column, _OPERATORS)
    return None if found is None else _Anchors(found[0], found[1], found[0], found[1] + len(found[2]))


def _to_the_end(lines: list[str], opening: str, line: int, column: int) -> _Anchors | None:
    found = _next(lines, line, column, (opening,))
    return None if found is None else _Anchors(found[0], found[1], len(lines) - 1, len(lines[-1]))
