"""Reports of a run: tables for the terminal, CSV or JSON lines with one row per test, a section of the page of results."""

from __future__ import annotations

import csv
import json
import platform
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from oracle.errors import UsageError
from results.render import TextTable, markdown, shorten
from suites.conformance.expected import CATEGORIES, Judgement
from suites.conformance.run import ConformanceRequest, ConformanceResult

COLUMNS: tuple[str, ...] = (
    "test", "stock", "stand_in", "subject", "in_denominator", "passed",
    "category", "reason", "error", "where", "seconds",
)  # fmt: skip
FORMATS = (".csv", ".jsonl")
SHOWN_FAILURES = 60


def figure(result: ConformanceResult) -> str:
    """ "1912 of 2011 (95.1 %)"."""
    share = f"{100 * result.passed / result.denominator:.1f} %" if result.denominator else "nothing to pass"
    return f"{result.passed} of {result.denominator} ({share})"


def class_table(result: ConformanceResult, title: str) -> TextTable:
    """One row per test class, and their sum."""
    tests: Counter[str] = Counter()
    stock: Counter[str] = Counter()
    denominator: Counter[str] = Counter()
    passed: Counter[str] = Counter()
    for row in result.rows:
        for name in (row.test_class, "all"):
            tests[name] += 1
            stock[name] += row.stock.ending.is_passed
            denominator[name] += row.is_in_denominator
            passed[name] += row.is_passed
    names = [*(name for name in tests if name != "all"), *(["all"] if tests else [])]
    return TextTable(
        title=title,
        columns=("class", "tests", "pass with stock", "denominator", "pass", "pass %"),
        rows=tuple(
            (
                name,
                str(tests[name]),
                str(stock[name]),
                str(denominator[name]),
                str(passed[name]),
                f"{100 * passed[name] / denominator[name]:.1f}" if denominator[name] else "-",
            )
            for name in names
        ),
        right=frozenset(range(1, 6)),
    )


def failure_table(result: ConformanceResult, judgement: Judgement, *, limit: int | None = None) -> TextTable:
    """Tests of the denominator that do not pass. Those without a row in the committed table come first."""
    failed = [row for row in result.rows if row.is_failed]
    failed.sort(key=lambda row: row.test in judgement.reasons)
    shown = failed[:limit]
    note = f"and {len(failed) - len(shown)} more: --output FILE has all" if len(shown) < len(failed) else ""
    return TextTable(
        title=f"do not pass ({len(failed)})",
        columns=("test", "ends as", "category", "reason", "says"),
        rows=tuple(
            (
                row.test.partition(".")[2],
                row.subject.ending.value if row.subject else "-",
                judgement.reasons[row.test].category if row.test in judgement.reasons else "NOT EXPECTED",
                judgement.reasons[row.test].reason if row.test in judgement.reasons else "-",
                shorten(row.subject.error if row.subject else "", 140),
            )
            for row in shown
        ),
        prose=frozenset({3, 4}),
        note=note,
    )


def records(result: ConformanceResult, judgement: Judgement) -> Iterator[dict[str, Any]]:
    """One per selected test, with the keys COLUMNS."""
    for row in result.rows:
        reason = judgement.reasons.get(row.test)
        decisive = row.subject or row.stand_in or row.stock  # the outcome in the last pass that ran it
        yield {
            "test": row.test,
            "stock": row.stock.ending.value,
            "stand_in": row.stand_in.ending.value if row.stand_in else "",
            "subject": row.subject.ending.value if row.subject and row.is_in_denominator else "",
            "in_denominator": row.is_in_denominator,
            "passed": row.is_passed,
            "category": reason.category if reason else "",
            "reason": reason.reason if reason else "",
            "error": "" if row.is_passed else decisive.error,
            "where": "" if row.is_passed else decisive.where,
            "seconds": round(decisive.seconds, 3),
        }


def check_output(path: Path) -> None:
    """Check the path before anything runs. Raises UsageError if the table could not be written."""
    if path.suffix not in FORMATS:
        raise UsageError(
            seen=f"--output {path}", expected=f"a name that ends in {' or '.join(FORMATS)}", do="rename it"
        )
    if not path.parent.is_dir():
        raise UsageError(seen=f"--output {path}", expected="a file in an existing folder", do=f"make {path.parent}")


def write_records(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """CSV or JSON lines, by suffix."""
    with path.open("w", encoding="utf-8", newline="") as file:
        if path.suffix == ".jsonl":
            file.writelines(json.dumps(row) + "\n" for row in rows)
            return
        writer = csv.DictWriter(file, fieldnames=COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def page_section(request: ConformanceRequest, result: ConformanceResult, judgement: Judgement) -> str:
    """The section of one suite on the page of results (results/data)."""
    torch = result.described.torch
    left_out = Counter(row.stock.ending.value for row in result.rows if not row.stock.ending.is_passed)
    unaffected = sum(row.stock.ending.is_passed and not row.is_in_denominator for row in result.rows)
    missing = [name for name in request.suite.needs if name not in result.described.names]
    lines = [
        f"**{figure(result)}** of the tests that depend on the {len(result.described.names)} names that refimpl stands in for.",
        "",
        f"Tests of PyTorch {request.tree.version}, torch {torch}, Python {platform.python_version()}, CPU. "
        f"{len(result.rows)} tests: {sum(left_out.values())} do not pass with stock torch "
        f"({', '.join(f'{count} {word}' for word, count in sorted(left_out.items())) or 'none'}), "
        f"{unaffected} pass without the substituted names.",
        "",
    ]
    if missing:
        lines += [f"Exploratory: refimpl has no counterpart of {', '.join(missing)} yet.", ""]
    by_category = Counter(row.category for row in judgement.reasons.values())
    lines += [
        f"* {category}: {by_category[category]}. {text[0].upper()}{text[1:]}."
        for category, text in CATEGORIES.items()
        if by_category[category]
    ]
    tables = (class_table(result, "By class"), failure_table(result, judgement))
    text = "\n".join([*lines, "", *(markdown(table, level=3) for table in tables)])
    return text.replace("\n\n\n", "\n\n").rstrip() + "\n"


def write_page(path: Path, suite: str, section: str) -> None:
    """Replace the suite's section of the page, between two comments. Raises UsageError if the page lacks them."""
    begin, end = f"<!-- begin {suite} -->\n", f"<!-- end {suite} -->\n"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise UsageError(
            seen=f"--page {path}",
            expected=f"a page with the lines {begin.strip()} and {end.strip()}",
            do="add them where the table should stand",
        )
    head, tail = text[: text.index(begin)], text[text.index(end) :]
    path.write_text(f"{head}{begin}\n{section}\n{tail}", encoding="utf-8")
