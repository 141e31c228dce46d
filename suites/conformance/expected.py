"""Tests that are known not to pass with refimpl, each with its reason: `expected/SUITE.toml`, committed.

    [[failure]]
    tests = ["test_x.TestClass.test_name", "test_x.TestClass.test_op_*"]
    category = "refimpl"
    reason = "one sentence"
    tree = "2.1*"        # optional: only for trees of such a version
    torch = "2.13.*"     # optional: only on such a torch

A test of the denominator that does not pass and has no row makes the run fail. A row whose tests pass now is reported.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from oracle.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]  # installed on Python 3.10 only

FOLDER = Path(__file__).parent / "expected"
CATEGORIES = {
    "refimpl": "refimpl is wrong or lacks something, and should be fixed",
    "text": "the test asserts names, order or wording of upstream, and refimpl's graph or message means the same",
    "counts": "the test counts graphs, nodes or frames of upstream; refimpl's are others, and compute the same",
    "internals": "the test reads attributes of upstream's objects that refimpl does not offer",
    "fake-kernels": "torch's fake kernels say something that only upstream's tracer repairs",
    "stock": "stock torch passes by luck, or the test asserts what is not so",
    "limits": "time or memory of the machine",
}
_FIELDS = {"tests", "category", "reason", "tree", "torch"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedFailure:
    """One row."""

    tests: tuple[str, ...]
    category: str
    reason: str
    tree: str = "*"
    torch: str = "*"

    def covers(self, test: str) -> bool:
        return any(fnmatchcase(test, glob) for glob in self.tests)


def read_expected(suite: str, *, tree: str, torch: str, folder: Path = FOLDER) -> tuple[ExpectedFailure, ...]:
    """The rows for this tree and torch; none if the suite has no file. Raises UsageError if the file is invalid."""
    path = folder / f"{suite}.toml"
    if not path.is_file():
        return ()
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(seen=f"{path}: {error}", expected="TOML", do="correct it") from error
    rows = tuple(_row(path, fields) for fields in data.get("failure", ()))
    return tuple(row for row in rows if fnmatchcase(tree, row.tree) and fnmatchcase(torch, row.torch))


def _row(path: Path, fields: dict[str, Any]) -> ExpectedFailure:
    lacking = {"tests", "category", "reason"} - set(fields)
    if lacking or set(fields) - _FIELDS or fields["category"] not in CATEGORIES:
        raise UsageError(
            seen=f"{path}: the row {fields}",
            expected=f"tests, category (one of {', '.join(CATEGORIES)}), reason, and perhaps tree and torch",
            do="correct the row",
        )
    return ExpectedFailure(**{**fields, "tests": tuple(fields["tests"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A run compared with the table."""

    reasons: dict[str, ExpectedFailure]
    """Failed tests that have a row."""
    unexpected: tuple[str, ...]
    """Failed tests that have none."""
    stale: tuple[ExpectedFailure, ...]
    """Rows all of whose selected tests are in the denominator and pass."""


def judge_failures(expected: tuple[ExpectedFailure, ...], *, failed: list[str], passed: list[str]) -> Judgement:
    """Compare failures with the table. The first row that covers a test gives its reason."""
    reasons = {test: row for test in failed if (row := next((r for r in expected if r.covers(test)), None))}
    stale = [row for row in expected if any(map(row.covers, passed)) and not any(map(row.covers, failed))]
    return Judgement(
        reasons=reasons, unexpected=tuple(test for test in failed if test not in reasons), stale=tuple(stale)
    )
