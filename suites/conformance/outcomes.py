"""Outcomes of PyTorch's tests, the denominator, and the cache of outcomes.

A test counts as passed in unittest's terms: `pass`, and `xfail` (a failure that the file expects). The denominator holds the
tests that pass with stock torch and do not pass when every substituted entry point raises. A test that never reaches an entry
point passes in both and is left out, and so is one that is expected to fail, since raising is also a failure.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from suites.conformance.tree import SourceTree

RUNNER_VERSION = 2  # raised when a change here, or a new shim, may change how tests end with stock or stand-in


class Ending(str, Enum):
    """How a test ended."""

    PASS = "pass"
    XFAIL = "xfail"  # failed, as the file says it should
    FAIL = "fail"  # an assertion of the test
    ERROR = "error"  # any other exception
    XPASS = "xpass"  # passed, though the file says it should fail
    SKIP = "skip"
    TIMEOUT = "timeout"
    CRASH = "crash"  # the process died
    MEMORY = "memory"  # over the memory limit
    BREACH = "breach"  # refimpl called code that it is compared with

    @property
    def is_passed(self) -> bool:
        return self in (Ending.PASS, Ending.XFAIL)


@dataclass(frozen=True, slots=True, kw_only=True)
class TestOutcome:
    """One test in one pass."""

    __test__ = False  # tells pytest that this is no test class

    test: str
    """The name that unittest uses: file.Class.method."""
    ending: Ending
    seconds: float = 0.0
    error: str = ""
    """Exception type and first line; what was skipped and why; the signal that ended the process."""
    where: str = ""
    """The innermost frame of the subject, or else of the test file: file:line function."""

    def to_json(self) -> dict[str, Any]:
        return {
            "test": self.test,
            "ending": self.ending.value,
            "seconds": round(self.seconds, 3),
            "error": self.error,
            "where": self.where,
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> TestOutcome:
        return cls(**{**fields, "ending": Ending(fields["ending"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRow:
    """One test in all passes."""

    stock: TestOutcome
    stand_in: TestOutcome | None
    """None where stock does not pass."""
    subject: TestOutcome | None
    """None where the test is not in the denominator."""

    @property
    def test(self) -> str:
        return self.stock.test

    @property
    def test_class(self) -> str:
        return self.test.rsplit(".", 2)[-2]

    @property
    def is_in_denominator(self) -> bool:
        return self.stock.ending.is_passed and self.stand_in is not None and not self.stand_in.ending.is_passed

    @property
    def is_passed(self) -> bool:
        return self.is_in_denominator and self.subject is not None and self.subject.ending.is_passed

    @property
    def is_failed(self) -> bool:
        return self.is_in_denominator and not self.is_passed


class OutcomeCache:
    """Keeps the outcomes of one pass between runs, as a file of JSON lines.

    The file's name holds everything that an outcome depends on: the suite, the tree and the content of its test files, torch,
    Python, the substituted names for the stand-in, and refimpl's source for refimpl. Lines are appended as tests end, so an
    interrupted run continues where it stopped. A file can be deleted at any time.
    """

    def __init__(
        self,
        folder: Path,
        *,
        tree: SourceTree,
        suite: str,
        torch: str,
        names: Sequence[str] | None,
        subject: str = "",
    ) -> None:
        """
        names: the names for which the stand-in raises; None for stock torch.
        subject: for refimpl, a text that identifies its code and how it is run.
        """
        place = [str(tree.root), tree.content, torch, platform.python_version(), str(RUNNER_VERSION), *(names or ())]
        if subject:
            place.append(subject)
        digest = hashlib.blake2b("\0".join(place).encode(), digest_size=6).hexdigest()
        what = "stock" if names is None else "refimpl" if subject else "stand-in"
        self.path = folder / f"{suite}-{tree.version}-torch-{torch}-{what}-{digest}.jsonl"

    def read(self) -> dict[str, TestOutcome]:
        """Outcomes by test; the last one if a test occurs twice. A line cut off by an interrupt is dropped."""
        if not self.path.is_file():
            return {}
        kept: dict[str, TestOutcome] = {}
        text = self.path.read_text(encoding="utf-8")
        for line in text[: text.rfind("\n") + 1].splitlines():
            outcome = TestOutcome.from_json(json.loads(line))
            kept[outcome.test] = outcome
        return kept

    def add(self, outcome: TestOutcome) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(outcome.to_json()) + "\n")
