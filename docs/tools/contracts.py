"""Writes docs/contracts.md: every contract of the reference implementation, its status, and the tests that show it.

The data is docs/contracts_status.toml. `--check` fails if a contract is missing, a status lacks what it needs, a named test does
not exist (looked up in the syntax tree, nothing is imported), or the page is out of date. `--write` makes the page. READ holds
what was found when each row was read against its tests once more, by someone who had not written them.
"""

from __future__ import annotations

import argparse
import ast
import csv
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

ROOT = Path(__file__).resolve().parents[2]
ROW_COUNTS = {"DY": 45, "UT": 57, "PX": 51, "EX": 57, "AO": 52, "XC": 19}
WEIGHTS = ("core", "supporting", "incidental")
STATUSES = ("done", "partial", "todo")
READ = "results/data/cpu-torch-2.13.0/contracts-read.csv"
ANSWERS = ("yes", "partly", "no")
FIELDS = {"title", "weight", "status", "reason", "tests", "note"}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One contract: its name, its status, and the tests that show it."""

    id: str
    title: str
    weight: str
    status: str
    reason: str = ""
    tests: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Status:
    """The whole data file: where the contracts were read from, and their rows in order."""

    sources: dict[str, str]
    rows: tuple[Row, ...]


def parse(text: str) -> tuple[Status, list[str]]:
    """Returns the content of the data file, and its errors."""
    data = tomllib.loads(text)
    reasons: dict[str, str] = data.pop("reasons", {})
    sources: dict[str, str] = data.pop("sources", {})
    rows: list[Row] = []
    problems = [f"[{prefix}] is not a known prefix" for prefix in data if prefix not in ROW_COUNTS]
    for prefix, count in ROW_COUNTS.items():
        section: dict[str, Any] = data.get(prefix, {})
        expected = [f"{prefix}-{number:02d}" for number in range(1, count + 1)]
        problems += [f"{id} is missing" for id in expected if id not in section]
        problems += [f"{id} is not a contract of [{prefix}]" for id in section if id not in expected]
        for id in expected:
            if id in section:
                row, found = parse_row(id, section[id], reasons)
                rows.append(row)
                problems += found
    return Status(sources=sources, rows=tuple(rows)), problems


def parse_row(id: str, fields: dict[str, Any], reasons: dict[str, str]) -> tuple[Row, list[str]]:
    """Reads one line of the data file. A reason may be a key of [reasons]."""
    reason: str = fields.get("reason", "")
    row = Row(
        id=id,
        title=fields.get("title", ""),
        weight=fields.get("weight", ""),
        status=fields.get("status", ""),
        reason=reasons.get(reason, reason),
        tests=tuple(fields.get("tests", ())),
        note=fields.get("note", ""),
    )
    problems = [f"{id}: unknown field {name!r}; known: {', '.join(sorted(FIELDS))}" for name in fields.keys() - FIELDS]
    if not row.title:
        problems.append(f"{id}: no title")
    if row.weight not in WEIGHTS:
        problems.append(f"{id}: weight is {row.weight!r}, but should be one of {', '.join(WEIGHTS)}")
    if row.status not in STATUSES:
        problems.append(f"{id}: status is {row.status!r}, but should be one of {', '.join(STATUSES)}")
    if row.status in ("todo", "partial") and not row.reason:
        problems.append(f"{id}: status {row.status} needs a reason")
    if row.status in ("done", "partial") and not row.tests:
        problems.append(f"{id}: status {row.status} needs the tests that show it")
    if row.status == "todo" and row.tests:
        problems.append(f"{id}: status todo names tests; is it partial?")
    return row, problems


def missing_tests(rows: tuple[Row, ...], root: Path) -> list[str]:
    """Returns one problem for each named test that does not exist."""
    known: dict[str, set[str] | None] = {}
    problems: list[str] = []
    for row in rows:
        for node_id in row.tests:
            path, _, name = node_id.partition("::")
            if path not in known:
                known[path] = tests_in(root / path)
            names = known[path]
            if names is None:
                problems.append(f"{row.id}: {node_id}: there is no file {path}")
            elif name.partition("[")[0] not in names:
                problems.append(f"{row.id}: {node_id}: {path} has no test {name.partition('[')[0]!r}")
    return problems


def tests_in(path: Path) -> set[str] | None:
    """Returns the tests of a file as `test_name` and `Class::test_name`, or None if there is no such file."""
    if not path.is_file():
        return None
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        names.update(names_of_tests([node]))
        if isinstance(node, ast.ClassDef):
            names.update(f"{node.name}::{name}" for name in names_of_tests(node.body))
    return names


def names_of_tests(body: list[ast.stmt]) -> list[str]:
    """Returns the names of the statements that pytest would collect as test functions."""
    functions = [node for node in body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return [function.name for function in functions if function.name.startswith("test")]


def read_answers(status: Status, root: Path) -> tuple[list[dict[str, str]], list[str]]:
    """Returns the rows of READ, and its errors. Contracts that hold across all modules (XC) are not in it."""
    path = root / READ
    if not path.is_file():
        return [], []
    with path.open(newline="", encoding="utf-8") as file:
        answers = list(csv.DictReader(file))
    problems: list[str] = []
    if {answer["id"] for answer in answers} != {row.id for row in status.rows if not row.id.startswith("XC")}:
        problems.append(f"{READ} should have one row for each contract but those of XC")
    for answer in answers:
        if answer["shown"] not in ANSWERS:
            problems.append(f"{READ}: {answer['id']}: shown is {answer['shown']!r}, but should be one of {ANSWERS}")
        elif (answer["shown"] == "yes") is bool(answer["missing"]):
            problems.append(
                f"{READ}: {answer['id']}: what is missing is said where the answer is not yes, and only there"
            )
    return answers, problems


def sentence_of_answers(answers: list[dict[str, str]]) -> str:
    """Returns the line that sums READ up."""
    counts = Counter(answer["shown"] for answer in answers)
    latest = max(answer["date"] for answer in answers)
    return (
        f"The rows but those of XC were read against their tests once more, strictly, up to {latest}: "
        f"{', '.join(f'{counts[word]} {word}' for word in ANSWERS)}. [What is missing](../{READ})."
    )


def render(status: Status, answers: list[dict[str, str]] | None = None) -> str:
    """Returns the page."""
    lines = [
        "# Contracts: what the reference implementation reproduces, and how far it is",
        "",
        "One row for each behaviour read off the upstream module named in the heading. *core*: right results depend on",
        "it; *supporting*: a core row needs it; *incidental*: logging, timing, debugging. A row is *done* when the",
        "named tests show all of it, *partial* when they show some of it.",
        "",
        "Made by `docs/tools/contracts.py` from `docs/contracts_status.toml`; do not edit.",
        "",
        *([sentence_of_answers(answers), ""] if answers else []),
        "| | rows | done | partial | todo |",
        "|---|---:|---:|---:|---:|",
    ]
    groups = [(prefix, [row for row in status.rows if row.id.startswith(prefix)]) for prefix in ROW_COUNTS]
    groups += [(weight, [row for row in status.rows if row.weight == weight]) for weight in WEIGHTS]
    for name, rows in [*groups, ("**all**", list(status.rows))]:
        counts = Counter(row.status for row in rows)
        lines.append(f"| {name} | {len(rows)} | " + " | ".join(str(counts[word]) for word in STATUSES) + " |")
    for prefix, rows in groups[: len(ROW_COUNTS)]:
        lines += ["", f"## {prefix}: {status.sources.get(prefix, '?')}", ""]
        lines += ["| id | contract | weight | status | tests, or why not |", "|---|---|---|---|---|"]
        lines += [f"| {row.id} | {row.title} | {row.weight} | {row.status} | {evidence(row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def evidence(row: Row) -> str:
    """Returns the last cell of a row: its tests, what is missing, and the note."""
    parts = [", ".join(f"`{test}`" for test in row.tests), row.reason, row.note]
    return "; ".join(part for part in parts if part).replace("|", "\\|")


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(description="Keep docs/contracts.md.")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="fail unless data, tests and page agree")
    action.add_argument("--write", action="store_true", help="make the page from the data")
    options = parser.parse_args(arguments)

    status, problems = parse((root / "docs/contracts_status.toml").read_text(encoding="utf-8"))
    problems += missing_tests(status.rows, root)
    answers, found = read_answers(status, root)
    problems += found
    page, text = root / "docs/contracts.md", render(status, answers)
    if options.write:
        page.write_text(text, encoding="utf-8")
    elif not page.is_file() or page.read_text(encoding="utf-8") != text:
        problems.append("docs/contracts.md is not what the data says; run `make fix`")
    for problem in problems:
        print(f"contracts: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
