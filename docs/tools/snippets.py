"""Reads the code blocks of a document, so that a test can run them as they are printed.

A block of Python whose first line is a comment with a file name (`# shift.py`) is that file; it lies in the folder where the
page's other blocks run. In a block of the console, a line that begins with `$ ` is a command, and what follows is its output; a
line `...` of the output stands for any lines. A comment on the line before a block changes what is asked of it:

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
    output: tuple[str, ...]  # its lines, as printed; empty where the document shows none


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One code block of a document."""

    language: str  # "" where the fence names none
    text: str
    line: int  # of the opening fence, from 1
    marker: str  # "not run", "numbers vary" or ""
    reason: str  # what the marker says after its colon

    @property
    def file(self) -> str:
        """The name of the file that the block is, or ""."""
        found = _FILE.match(self.text.partition("\n")[0])
        return found["name"] if found else ""

    @property
    def is_doctest(self) -> bool:
        return self.text.lstrip().startswith(">>>")

    @property
    def commands(self) -> tuple[Command, ...]:
        """The commands of a block; one that ends with a backslash goes on in the next line.

        In a console block these are the lines after `$ `; in any other block that is not Python, every line is one.
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
    """Whether a command's output is what a document shows. Trailing blanks and blank lines at the end do not count."""
    if numbers_vary:
        printed, shown = _NUMBER.sub("N", printed), tuple(_NUMBER.sub("N", line) for line in shown)
    lines = [line.rstrip() for line in printed.rstrip().splitlines()]
    expected = [line.rstrip() for line in "\n".join(shown).rstrip().splitlines()]
    pattern = "".join(r"(?:.*\n)*" if line.strip() == "..." else re.escape(line) + r"\n" for line in expected)
    return re.fullmatch(pattern, "".join(line + "\n" for line in lines)) is not None
