"""The examples in the documents and in public docstrings run, and print what they say."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

import oracle.checking

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("path", ["docs/emulator.md", "docs/walkthrough.md"])
def test_examples_of_a_document(path: str) -> None:
    results = doctest.testfile(str(ROOT / path), module_relative=False)
    assert results.attempted > 0
    assert results.failed == 0


def test_examples_of_the_python_interface() -> None:
    results = doctest.testmod(oracle.checking)
    assert results.attempted > 0
    assert results.failed == 0
