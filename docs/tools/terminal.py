"""Draws the output of a run as a terminal in SVG, and keeps the run's figures.

    torch-oracle sweep --db sweep.db
    python docs/tools/terminal.py --db sweep.db

It writes docs/images/sweep.svg (the output of `torch-oracle show` for the latest run), and the whole text and the run's figures
to results/data, from which docs/tools/figures.py fills them into the documents.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import io
import json
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from oracle.verdict import Status
from results.store import Store

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "images" / "sweep.svg"
FIGURES = ROOT / "results" / "data" / "cpu-torch-2.13.0" / "default-sweep.json"
TEXT = FIGURES.with_suffix(".txt")
COLUMNS = 118
LINES = 40  # the picture is cut after this; the text file has everything
_THEME = TerminalTheme(
    (30, 34, 42),
    (220, 223, 228),
    [(30, 34, 42), (224, 108, 117), (152, 195, 121), (229, 192, 123)] + [(97, 175, 239)] * 4,
)


def shown(db: str) -> str:
    """The output of `torch-oracle show` for the latest run of a database, in COLUMNS columns."""
    done = subprocess.run(
        [sys.executable, "-m", "oracle.cli", "show", "--db", db],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": str(COLUMNS), "NO_COLOR": "1"},
    )
    return done.stdout


def figures_of(db: str) -> dict[str, object]:
    """Cases, verdicts and minutes of the latest run. Raises ValueError for one that has not ended."""
    with Store.open(db, create=False, read_only=True) as store:
        run = store.run()
        if not run.is_complete or run.ended_at is None:
            raise ValueError(f"the latest run of {db} is {run.state}, not complete")
        statuses = [record.verdict.status for record in store.records(run.run_id)]
        started, ended = (datetime.datetime.fromisoformat(text) for text in (run.started_at, run.ended_at))
        return {
            "torch": run.environment["worker"]["torch"],
            "cases": len(statuses),
            "known": statuses.count(Status.KNOWN),
            "passed": statuses.count(Status.PASS),
            "minutes": round((ended - started).total_seconds() / 60, 1),
        }


def picture(command: str, text: str) -> str:
    """A command and its output as SVG."""
    lines = text.rstrip().splitlines()
    lines = [*lines[:LINES], "..."] if len(lines) > LINES else lines
    # The console also writes to its file, which is not used.
    with contextlib.closing(io.StringIO()) as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere)
        console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
        for line in lines:
            console.print(Text(line, style=_style(line), no_wrap=True, overflow="ellipsis"))
        return console.export_svg(title="torch-oracle", theme=_THEME, unique_id="sweep")


def _style(line: str) -> str:
    if line[:1].strip() and not line.startswith("run "):
        return "bold yellow"  # a heading
    return "red" if "fail_" in line else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--db", required=True, help="the database of a default sweep")
    options = parser.parse_args()
    text, figures = shown(options.db), figures_of(options.db)
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture("torch-oracle sweep", text), encoding="utf-8")
    TEXT.write_text(text, encoding="utf-8")
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
