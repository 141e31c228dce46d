"""Keeps outcomes between runs, as JSON lines in one file for each pass.

The file's name holds everything that an outcome depends on: the suite, the tree and the content of its test files, torch, Python,
the substituted names for the stand-in, and refimpl's source for refimpl. Lines are appended as tests end, so an interrupted run
continues where it stopped. A file can be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Sequence
from pathlib import Path

from suites.conformance.outcomes import TestOutcome
from suites.conformance.tree import SourceTree

RUNNER_VERSION = 2  # raised when a change here, or a new shim, may change how tests end with stock or stand-in


class OutcomeCache:
    """The kept outcomes of one pass."""

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
