"""Part of the battery: the judge finds every wrong subject and passes every right one, but for those that are listed."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from oracle.tests.battery.baseline import FALSE_ALARMS, MISSES, read, selection
from oracle.tests.battery.entries import Entry
from oracle.tests.battery.run import States, all_entries, answers


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@functools.cache
def selected() -> tuple[Entry, ...]:
    return tuple(selection(all_entries()))


@pytest.fixture(scope="module")
def states() -> States:
    """Eager's runs, half of the work: entries of several classes change the same programs."""
    return States(keeps_all=True)


# Of wrong random numbers each takes up to 64 runs of eager: half of the time of this file. `make battery` has them, too.
_SLOW = ("random",)


def entries_of(kind: str, *, is_wrong: bool) -> list[Entry]:
    return [entry for entry in selected() if entry.kind == kind and entry.is_wrong is is_wrong]


def halves(*, is_wrong: bool) -> list[Any]:
    """Every kind of subjects with its even places, and with its odd ones, which are slow."""
    return [
        pytest.param(kind, half, marks=[pytest.mark.slow] if half or (is_wrong and kind in _SLOW) else [])
        for kind in sorted({entry.kind for entry in selected() if entry.is_wrong is is_wrong})
        for half in (0, 1)
        if len(entries_of(kind, is_wrong=is_wrong)) > half
    ]


def answered(kind: str, half: int, states: States, *, is_wrong: bool) -> tuple[set[str], set[str]]:
    """The ids that the judge answers rightly, and those it does not. What is not as it claims to be here is in neither."""
    entries = entries_of(kind, is_wrong=is_wrong)[half::2]
    judged = [given for given in answers(entries, states=states) if given.verdict is not None]
    assert judged, f"nothing of {kind} is what it claims to be"
    right = {given.entry.id for given in judged if given.is_right}
    return right, {given.entry.id for given in judged} - right


@pytest.mark.parametrize(("kind", "half"), halves(is_wrong=True))
def test_wrong_subjects_are_found(kind: str, half: int, states: States) -> None:
    found, missed = answered(kind, half, states, is_wrong=True)
    listed = set(read(MISSES))
    assert sorted(missed - listed) == []
    assert sorted(found & listed) == [], "found by now: take them out of known_misses.txt"


@pytest.mark.parametrize(("kind", "half"), halves(is_wrong=False))
def test_right_subjects_pass(kind: str, half: int, states: States) -> None:
    passed, alarmed = answered(kind, half, states, is_wrong=False)
    listed = set(read(FALSE_ALARMS))
    assert sorted(alarmed - listed) == []
    assert sorted(passed & listed) == [], "passed by now: take them out of known_false_alarms.txt"


@pytest.mark.parametrize("path", [MISSES, FALSE_ALARMS])
def test_every_listed_id_is_a_subject_of_the_selection_and_has_a_reason(path: object) -> None:
    assert path in (MISSES, FALSE_ALARMS)
    known = {entry.id: entry.is_wrong for entry in selected()}
    listed = read(MISSES if path is MISSES else FALSE_ALARMS)
    assert [name for name in listed if known.get(name) is not (path is MISSES)] == []
    assert [name for name, reason in listed.items() if not reason] == []


def test_ids_are_unique() -> None:
    ids = [entry.id for entry in all_entries()]
    assert len(ids) == len(set(ids))
