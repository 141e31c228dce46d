"""Reads the code blocks of a document, so that a test can run them as they are printed.

A Python block whose first line is a comment with a file name (`# shift.py`) is that file, in the folder where the page's other
blocks run. In a console block a line that begins with `$ ` is a command, followed by its output; a line `...` of the output
stands for any lines. A comment on the line before a block changes how it is checked:

    <!-- not run: REASON -->        Python is compiled only; commands are parsed only
    <!-- numbers vary: REASON -->   the output is compared without its numbers
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_BLOCK = re.compile(
    r"(?:^<!-- (?P<marker>not run|numbers vary)(?P<reason>[^\n]*) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_FILE = re.compile(r"# (?P<name>[\w/.-]+\.(?:py|toml))$")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command of a console block."""

    text: str
    output: tuple[str, ...]  # its printed lines; empty if the document shows none


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One code block of a document."""

    language: str  # "" if the fence names none
    text: str
    line: int  # of the opening fence, from 1
    marker: str  # "not run", "numbers vary" or ""
    reason: str  # the text after the marker's colon

    @property
    def file(self) -> str:
        """The name of the file that the block shows, or ""."""
        found = _FILE.match(self.text.partition("\n")[0])
        return found["name"] if found else ""

    @property
    def is_doctest(self) -> bool:
        return self.text.lstrip().startswith(">>>")

    @property
    def commands(self) -> tuple[Command, ...]:
        """The commands of a block; one that ends with a backslash continues on the next line.

        In a console block these are the lines with `$ `; in other blocks, except Python, every line is a command.
        """
        joined = self.text.replace("\\\n", " ")
        if self.language != "console":
            plain = self.language in ("", "bash", "sh")
            return tuple(Command(text=line, output=()) for line in joined.splitlines() if plain and line.strip())
        found: list[tuple[str, list[str]]] = []
        for line in joined.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif found:
                found[-1][1].append(line)
        return tuple(Command(text=text, output=tuple(output)) for text, output in found)


def blocks_of(text: str) -> list[Block]:
    """The code blocks of a document in Markdown, in order."""
    return [
        Block(
            language=found["language"],
            text=found["text"],
            line=text.count("\n", 0, found.start("language")) + 1,
            marker=found["marker"] or "",
            reason=(found["reason"] or "").lstrip(": "),
        )
        for found in _BLOCK.finditer(text)
    ]


def is_output(printed: str, shown: tuple[str, ...], *, numbers_vary: bool = False) -> bool:
    """Whether a command's output matches the document. Trailing blanks and blank lines at the end are ignored."""
    if numbers_vary:
        printed, shown = _NUMBER.sub("N", printed), tuple(_NUMBER.sub("N", line) for line in shown)
    lines = [line.rstrip() for line in printed.rstrip().splitlines()]
    expected = [line.rstrip() for line in "\n".join(shown).rstrip().splitlines()]
    pattern = "".join(r"(?:.*\n)*" if line.strip() == "..." else re.escape(line) + r"\n" for line in expected)
    return re.fullmatch(pattern, "".join(line + "\n" for line in lines)) is not None
