"""Checks the PyTorch source tree that the user names, and finds its version and the test files of a suite."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from oracle.errors import UsageError
from suites.conformance.table import ConformanceSuite


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTree:
    """A tree that has the files of a suite."""

    root: Path
    version: str
    """The version in its version.txt; "unknown" if it has none."""
    content: str
    """Hash over the test files of the suite: outcomes are kept for these texts only."""

    @property
    def tests(self) -> Path:
        return self.root / "test"


def open_tree(root: Path, suite: ConformanceSuite) -> SourceTree:
    """Raises UsageError if `root` is not a PyTorch source tree, or lacks a file of the suite."""
    if not root.is_dir():
        raise _not_a_tree(root, "which is no folder")
    if not (root / "test").is_dir():
        raise _not_a_tree(root, "which has no folder `test`")
    missing = [name for name in suite.files if not (root / "test" / name).is_file()]
    if missing:
        raise _not_a_tree(root, f"which lacks {', '.join(f'test/{name}' for name in missing)}")
    digest = hashlib.blake2b(digest_size=8)
    for name in suite.files:
        digest.update(name.encode() + b"\0" + (root / "test" / name).read_bytes() + b"\0")
    version = root / "version.txt"
    return SourceTree(
        root=root.resolve(),
        version=version.read_text(encoding="utf-8").strip() if version.is_file() else "unknown",
        content=digest.hexdigest(),
    )


def _not_a_tree(root: Path, seen: str) -> UsageError:
    return UsageError(
        seen=f"--pytorch-src {root}, {seen}",
        expected="the root of a PyTorch source tree, of 2.1 to 2.13",
        do="unpack a source release of PyTorch, or clone it at a release tag, and name that folder",
    )
