"""The features suite: every program runs in eager, repeats itself, and raises only where it says so."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from oracle.errors import InternalError, UsageError
from oracle.program import Program
from oracle.program.snippets import parse_snippet
from suites.base import Selection
from suites.features import TAGS
from suites.features.suite import FeaturesSuite, snippets
from suites.tests.plain_runner import run, same

SUITE = FeaturesSuite()


def _program(group: str) -> Program:
    (found,) = SUITE.programs(Selection(), group)
    return found.program


@pytest.mark.parametrize("group", list(snippets()))
def test_a_program_runs_in_eager_and_repeats_itself(group: str) -> None:
    torch.compiler.reset()  # torch.cond compiles itself in eager: sizes that other programs gave it would be symbols
    program = _program(group)
    first = run(program)
    assert len(first) == len(program.calls)
    assert isinstance(first[-1], str) == program.expects_raise, f"{group}: {first[-1]}"
    assert not any(isinstance(call, str) for call in first[:-1])
    assert same(first, run(program)), f"{group} does not repeat itself"


def test_a_run_in_between_changes_nothing() -> None:
    """Programs keep their state in their own namespace: a second run starts afresh."""
    program = _program("global_state")
    before = run(program)
    run(program)
    assert same(before, run(program))


def test_names_are_unique_and_there_are_at_least_40() -> None:
    selection = Selection()
    names = [found.program.name for group in SUITE.groups(selection) for found in SUITE.programs(selection, group)]
    assert len(names) >= 40
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_every_tag_is_explained_and_used() -> None:
    assert {tag for snippet in snippets().values() for tag in snippet.tags} == set(TAGS)


def test_every_program_says_what_it_checks() -> None:
    assert [name for name, snippet in snippets().items() if not snippet.doc.endswith(".")] == []


def test_tags_and_directions_select() -> None:
    assert "closure_cell" in SUITE.groups(Selection(tags=("closures",)))
    assert "closure_cell" not in SUITE.groups(Selection(tags=("hooks",)))
    assert "closure_cell" not in SUITE.groups(Selection(directions=("backward",)))
    assert SUITE.groups(Selection(match=("tied_weights/backward",))) == ["tied_weights"]


def test_another_device_is_written_into_the_source() -> None:
    (found,) = SUITE.programs(Selection(device="cuda"), "closure_cell")
    assert 'DEVICE = "cuda"' in found.program.source
    assert 'DEVICE = "cpu"' not in found.program.source


def test_an_unknown_feature_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no_such_feature"):
        list(SUITE.programs(Selection(), "no_such_feature"))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('DEVICE = "cpu"\nPROGRAM = {"tags": ("a",)}\n', "docstring"),
        ('"""Doc."""\nPROGRAM = {"tags": ("a",)}\n', "DEVICE"),
        ('"""Doc."""\nDEVICE = "cpu"\n', "PROGRAM"),
        ('"""Doc."""\nDEVICE = "cpu"\nPROGRAM = {"tags": ("a",), "call": []}\n', "'call'"),
        ('"""Doc."""\nDEVICE = "cpu"\nPROGRAM = {"calls": []}\n', "tags"),
        ('"""Doc."""\nDEVICE = "cpu"\nPROGRAM = {"tags": ("a",), "policy": {"strides": "ignore"}}\n', "reason"),
    ],
)
def test_a_snippet_out_of_form_is_refused(source: str, message: str) -> None:
    with pytest.raises(InternalError, match=message):
        parse_snippet("example", source)
