"""Fills in figures, tables, programs and answers in the documents, from the files that hold them.

A document marks the places with comments, and `--write` replaces the text between them:

    <!-- figure: issues.programs -->300<!-- /figure -->     a figure of `figures`
    <!-- table: conformance.capture -->...<!-- /table -->   a table of `measurements.tables`
    <!-- program: pytorch-197829 -->...<!-- /program -->     the program of a known issue
    <!-- answer: pytorch-197829 -->...<!-- /answer -->       its severity, and how it ended on each rung that was measured

Figures and tables are computed from results/data (docs/tools/measurements.py), and from the ledger of known issues
(oracle/known). `--check` fails if a document is out of date, or names an unknown key.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import measurements
from oracle.known.ledger import KnownIssue, Ledger, load_ledger
from oracle.known.matching import LADDER

ROOT = Path(__file__).resolve().parents[2]
_PLACE = re.compile(
    r"<!-- (?P<kind>figure|table|program|answer): (?P<key>[^ ]+) -->(?P<text>.*?)<!-- /(?P=kind) -->", re.DOTALL
)
_RUNGS = (*LADDER, "export")


def figures(ledger: Ledger) -> dict[str, Callable[[], str]]:
    """How each figure is computed, by its key."""
    return {
        "issues.programs": lambda: str(len(ledger.issues)),
        "issues.causes": lambda: str(len({issue.cause for issue in ledger.issues})),
        **measurements.figures(),
    }


def program_block(issue: KnownIssue) -> str:
    """The program of an issue as a block of Python, without docstring, header, and a `derive` that changes nothing."""
    source = issue.program.source.strip()
    source = re.sub(r'\A""".*?"""\n', "", source, flags=re.DOTALL)
    source = re.sub(r"^PROGRAM = (?:\{\}|\{.*?\}$\n)(?=\S|\n)", "", source, flags=re.DOTALL | re.MULTILINE)
    source = re.sub(r"^DEVICE = .*\n", "", source, flags=re.MULTILINE)
    source = re.sub(r"(, )?\bdevice=DEVICE", "", source).replace("[DEVICE]", "").replace("(, ", "(")
    source = re.sub(r"\n+def derive\((.*)\):\n    return \(\1,?\), \{\}$", "", source, flags=re.MULTILINE)
    text = re.sub(r"\n{3,}", "\n\n\n", source).strip()
    calls = [f"# before call {i}: {call.before.strip()}" for i, call in enumerate(issue.program.calls) if call.before]
    return "\n```python\n" + "\n\n\n".join([text, *calls]) + "\n```\n"


def answer_block(issue: KnownIssue, ledger: Ledger) -> str:
    """The verdicts on the measured rungs up to the first wrong one, with the newest torch."""
    measured = ledger.newest_endings(issue)
    lines = []
    for rung in (*[r for r in _RUNGS if r != issue.subject], issue.subject):
        for ending in measured.get(rung, ())[:1]:
            if rung == issue.subject or _RUNGS.index(rung) < _position(issue.subject):
                lines.append(f"{rung}: {ending.status.value}" + (f": {ending.symptom}" if ending.symptom else ""))
    return "\n```\n" + "\n".join(lines) + "\n```\n"


def _position(subject: str) -> int:
    return _RUNGS.index(subject) if subject in _RUNGS else 0


def filled(text: str, ledger: Ledger) -> str:
    """The document with every marked place filled in. Raises ValueError for an unknown key."""
    makers: Mapping[str, Mapping[str, Callable[[], str]]] = {
        "figure": figures(ledger),
        "table": measurements.tables(),
        "program": {issue.id: partial(program_block, issue) for issue in ledger.issues},
        "answer": {issue.id: partial(answer_block, issue, ledger) for issue in ledger.issues},
    }

    def fill(place: re.Match[str]) -> str:
        kind, key = place["kind"], place["key"]
        if key not in makers[kind]:
            raise ValueError(f"there is no {kind} {key!r}")
        return f"<!-- {kind}: {key} -->{makers[kind][key]()}<!-- /{kind} -->"

    return _PLACE.sub(fill, text)


def documents() -> list[Path]:
    """README and the pages of docs that are written by hand."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="fill in every marked place")
    what.add_argument("--check", action="store_true", help="fail if a document is out of date")
    options = parser.parse_args()
    ledger, stale = load_ledger(), []
    for path in documents():
        old = path.read_text(encoding="utf-8")
        try:
            new = filled(old, ledger)
        except ValueError as error:
            sys.stderr.write(f"{path.relative_to(ROOT)}: {error}\n")
            return 1
        if new != old and options.write:
            path.write_text(new, encoding="utf-8")
        elif new != old:
            stale.append(str(path.relative_to(ROOT)))
    if stale:
        sys.stderr.write(f"out of date: {', '.join(stale)}: run docs/tools/figures.py --write (make fix does)\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
