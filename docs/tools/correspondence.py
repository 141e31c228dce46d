"""Writes docs/correspondence.md: the counterpart in PyTorch of each part of refimpl, and their differences.

Read from docstrings of modules, classes and functions in refimpl, without importing them. A docstring says

    Counterpart: torch/fx/experimental/proxy_tensor.py make_fx
    Differs: no stack traces unless asked for

each once, at the start of a line; an entry ends at a blank line or the next of these words. `--check` fails if the page is out of
date or an entry has no counterpart; `--write` makes the page.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORDS = ("Counterpart:", "Differs:")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One module, class or function of refimpl with the upstream part it stands for."""

    name: str
    counterpart: str
    differs: str


def entries(root: Path) -> list[Entry]:
    """Returns the entries of all modules of refimpl in order of their names; tests have none."""
    found: list[Entry] = []
    for path in sorted((root / "refimpl").rglob("*.py")):
        relative = path.relative_to(root)
        if "tests" in relative.parts:
            continue
        module = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
        for name, docstring in docstrings(ast.parse(path.read_text(encoding="utf-8")), module):
            said = read_entry(docstring)
            if said:
                found.append(Entry(name=name, counterpart=said.get(WORDS[0], ""), differs=said.get(WORDS[1], "")))
    return found


def docstrings(tree: ast.Module, module: str) -> Iterator[tuple[str, str]]:
    """Yields the dotted name and docstring of the module and of everything defined in it, outside in."""
    pending: list[tuple[str, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]] = [(module, tree)]
    while pending:
        name, node = pending.pop(0)
        docstring = ast.get_docstring(node)
        if docstring:
            yield name, docstring
        inner = [
            (f"{name}.{child.name}", child)
            for child in node.body
            if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        ]
        pending = inner + pending


def read_entry(docstring: str) -> dict[str, str]:
    """Returns the text after each of the two words in a docstring."""
    said: dict[str, str] = {}
    current = ""
    for line in map(str.strip, docstring.splitlines()):
        word = next((word for word in WORDS if line.startswith(word)), "")
        if word:
            current = word
            line = line.removeprefix(word).strip()
        elif not line:
            current = ""
        if current:
            said[current] = f"{said.get(current, '')} {line}".strip()
    return said


def render(found: list[Entry]) -> str:
    """Returns the page."""
    lines = [
        "# Correspondence: refimpl and the parts of PyTorch it stands for",
        "",
        "Made by `docs/tools/correspondence.py` from `Counterpart:` and `Differs:` lines of docstrings; do not edit.",
        "",
        "| refimpl | counterpart in PyTorch | differs |",
        "|---|---|---|",
    ]
    lines += [f"| `{entry.name}` | {cell(entry.counterpart)} | {cell(entry.differs)} |" for entry in found]
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    """Returns text that is safe inside a table."""
    return text.replace("|", "\\|")


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(description="Keep docs/correspondence.md.")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="fail unless docstrings and page agree")
    action.add_argument("--write", action="store_true", help="make the page from the docstrings")
    options = parser.parse_args(arguments)

    found = entries(root)
    problems = [f"{entry.name} has Differs: but no Counterpart:" for entry in found if not entry.counterpart]
    page, text = root / "docs/correspondence.md", render(found)
    if options.write:
        page.write_text(text, encoding="utf-8")
    elif not page.is_file() or page.read_text(encoding="utf-8") != text:
        problems.append("docs/correspondence.md is not what the docstrings say; run `make fix`")
    for problem in problems:
        print(f"correspondence: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
