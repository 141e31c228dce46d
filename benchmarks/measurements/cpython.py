"""CPython's own tests under refimpl's capture: `python -m benchmarks.measurements.cpython --csv FILE --tests FILE`.

The tests are the interpreter's (`Lib/test`); nothing of them is in this repository. A test method that passes as it is runs again
under `refimpl.compile`, and passes if it raises nothing. A row is a file; the last is all of them. `--tests FILE` also writes a
row for each method that does not pass. Each file runs in a process of its own, again from the next test on after a crash.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import signal
import subprocess
import sys
import unittest
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.measurements.frame import options_of, shown, write_rows
from refimpl.capture.compile import compile
from refimpl.capture.entry_points.reset import reset

_NAMES = """
baseexception bool collections complex contextlib defaultdict deque dict dictcomps dictviews enumerate except_star
exception_variations exceptions float generator_stop generators heapq int iter itertools list math operator ordered_dict raise
range set slice sort tuple userdict userlist with yield_from
"""
FILES = tuple(f"test_{name}" for name in _NAMES.split())
LIMIT_S = 20.0  # processor time of one test


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One file. `tests`: methods that pass without capture; `limit`: too slow, or the process ended."""

    file: str
    tests: int
    passed: int
    failed: int
    limit: int
    percent: float


class Outcome(unittest.TestResult):
    """How a test ends: the last line of its error; None if it passes."""

    def __init__(self) -> None:
        super().__init__()
        self.error: str | None = None
        self.is_skipped = False

    def _note(self, error: Any) -> None:
        self.error = "limit" if error[0] is OutOfTime else f"{error[0].__name__}: {str(error[1]).splitlines()[-1:]}"

    def addError(self, test: Any, err: Any) -> None:  # noqa: N802 - a name of unittest
        self._note(err)

    def addFailure(self, test: Any, err: Any) -> None:  # noqa: N802 - a name of unittest
        self._note(err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:  # noqa: N802 - a name of unittest
        if err is not None:
            self._note(err)

    def addSkip(self, test: Any, reason: str) -> None:  # noqa: N802 - a name of unittest
        self.is_skipped = True

    def addExpectedFailure(self, test: Any, err: Any) -> None:  # noqa: N802 - a name of unittest
        self.is_skipped = True


class OutOfTime(BaseException):
    """A test used more processor time than it may."""


def ended(test: unittest.TestCase) -> Outcome:
    """Run one test."""
    outcome = Outcome()

    def stop(*_: Any) -> None:
        raise OutOfTime

    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
    quiet = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
    try:
        with warnings.catch_warnings(), quiet[0], quiet[1]:
            test.run(outcome)
    except OutOfTime:
        outcome.error = "limit"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return outcome


def methods(suite: Any) -> Iterator[Any]:
    """The tests of a suite, without those of docstrings."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from methods(test)
        elif (
            isinstance(test, unittest.TestCase)
            and hasattr(test, "_testMethodName")
            and "DocTest" not in type(test).__name__
        ):
            yield test


def child(file: str, begin: int) -> None:
    """Print a line for each test from this number on: its number and name as it begins, and how it ended."""
    module = importlib.import_module(f"test.{file}")
    tests = sorted(methods(unittest.defaultTestLoader.loadTestsFromModule(module)), key=lambda test: test.id())
    for number, test in enumerate(tests[begin:], start=begin):
        class_, name = type(test), test._testMethodName
        print(json.dumps([number, test.id(), "begun"]), flush=True)
        class_.setUpClass()
        plain = ended(class_(name))
        found = "not counted"
        if plain.error is None and not plain.is_skipped:
            reset()
            captured = class_(name)
            setattr(captured, name, compile(getattr(captured, name), backend=lambda graph, inputs: graph.forward))
            found = ended(captured).error or "pass"
        class_.tearDownClass()
        print(json.dumps([number, test.id(), found]), flush=True)


def endings(file: str) -> dict[str, str]:
    """How each test of a file ends; a test during which the process ended has `limit`."""
    found: dict[str, str] = {}
    begin = 0
    while True:
        command = [sys.executable, "-m", "benchmarks.measurements.cpython", "--child", file, str(begin)]
        lines = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False
        ).stdout
        begun = [json.loads(line) for line in lines.splitlines() if line.startswith("[")]
        found |= {name: ending for _, name, ending in begun}
        if not begun or begun[-1][2] != "begun":
            return found
        found[begun[-1][1]] = "limit"
        begin = begun[-1][0] + 1


def row_of(file: str, found: Sequence[str]) -> Row:
    """The counts of a file."""
    counts = Counter(ending for ending in found if ending != "not counted")
    tests, passed, limit = counts.total(), counts["pass"], counts["limit"]
    percent = round(100 * passed / max(tests, 1), 1)
    return Row(file=file, tests=tests, passed=passed, failed=tests - passed - limit, limit=limit, percent=percent)


def main() -> None:
    parser: argparse.ArgumentParser = options_of(__doc__, only=True)
    parser.add_argument("--tests", help="a table of the methods that do not pass")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.child:
        child(options.child[0], int(options.child[1]))
        return
    every: list[str] = []
    failing: list[dict[str, str]] = []

    def rows() -> Iterator[Row]:
        for file in [file for file in FILES if options.only in file]:
            found = endings(file)
            every.extend(found.values())
            failing.extend(
                {"test": name, "error": text} for name, text in found.items() if text not in ("pass", "not counted")
            )
            write_rows(failing, options.tests)
            yield row_of(file, [*found.values()])
        yield row_of("all", every)

    shown(rows(), options.csv)


if __name__ == "__main__":
    main()
