"""The regressions are reported, each with its symptom, and what agrees is not: through the whole tool."""

from __future__ import annotations

import functools
import importlib.metadata
import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pytest
import torch

from oracle.tests.command_here import run_here
from suites.regressions.suite import expected

IS_MEASURED = importlib.metadata.version("torch").startswith("2.13.")
is_measured = pytest.mark.skipif(
    not IS_MEASURED,
    reason="what is expected was measured with torch 2.13; others have other bugs",
)

TOGETHER = ("dynamo", "aot_eager")  # nearly every program was measured on both
QUICK = (*TOGETHER, "export")  # subjects that compile no C++
SUBJECTS = ("inductor", *QUICK)

# Six programs that differ, on the rung that first shows them.
FIRST_SIX = {
    "197829/shifted_slice_copy": ("inductor", "fail_accuracy"),
    "197895/float_floor_division": ("inductor", "fail_accuracy"),
    "183894/argmin_of_transpose": ("inductor", "fail_accuracy"),
    "190758/dropout_memory_budget": ("aot_eager", "fail_grad"),
    "197859/dict_shadows_submodule": ("dynamo", "fail_guard"),
    "139805/export_same_tensor_twice": ("export", "fail_guard"),
}

# Programs that differ only where eager multiplies and adds in one step, as it does on processors that can.
OF_ONE_STEP = {"fuzzed/addcmul_near_overflow"}


def expected_of(subject: str) -> dict[str, str]:
    """The status words of a subject, without programs that eager does not show on this processor."""
    largest = torch.full((16,), torch.finfo(torch.float32).max)
    hidden = set() if torch.sub(largest, largest, alpha=2).isfinite().all() else OF_ONE_STEP
    return {
        name: by_subject[subject]
        for name, by_subject in expected().items()
        if subject in by_subject and name not in hidden
    }


def some_of(subject: str) -> dict[str, str]:
    """Two programs for each way to end on a subject, with their status words: the first and the last by name."""
    by_status: dict[str, list[str]] = {}
    for name, status in sorted(expected_of(subject).items()):
        by_status.setdefault(status, []).append(name)
    chosen = {status: {names[0], names[-1]} for status, names in by_status.items()}
    return {name: status for status, names in chosen.items() for name in sorted(names)}


def statuses(tmp_path: Path, subjects: Sequence[str], names: Collection[str]) -> dict[str, dict[str, str]]:
    """Subject -> program name -> status word, of one sweep in isolated workers."""
    command = ["sweep", "--suite", "regressions", "--json", "--known", "none", "--subject", ",".join(subjects)]
    command += [word for name in sorted(names) for word in ("--match", name)]
    done = run_here(*command, "--db", str(tmp_path / "x.db"))
    assert done.returncode in (0, 1), done.stderr[-3000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    seen: dict[str, dict[str, str]] = {subject: {} for subject in subjects}
    for row in rows:
        if "verdict" in row:
            seen[row["subject"]][row["name"]] = row["verdict"]["status"]
    return seen


def first_of(subject: str) -> dict[str, str]:
    """Those of the six programs that this rung is the first to show, with their status words."""
    return {name: status for name, (rung, status) in FIRST_SIX.items() if rung == subject}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, str]]:
    """Program name -> status word, by subject: one sweep of isolated workers for Dynamo and AOT, and one for each other subject.

    A worker runs eager mode once for all subjects of a program. Few programs were measured on `export`, and it gets no others.
    """

    def names_of(subject: str) -> set[str]:
        return {*first_of(subject), *(some_of(subject) if IS_MEASURED and subject in QUICK else ())}

    of_quick = set().union(*map(names_of, QUICK))

    @functools.cache
    def sweep(subjects: tuple[str, ...]) -> dict[str, dict[str, str]]:
        names = set().union(*map(names_of, subjects))
        for subject in {*subjects} & {*QUICK}:
            names |= of_quick & expected_of(subject).keys()
        seen = statuses(tmp_path_factory.mktemp("sweep"), subjects, names)
        assert {subject: set(found) for subject, found in seen.items()} == dict.fromkeys(subjects, names)
        return seen

    return lambda subject: sweep(TOGETHER if subject in TOGETHER else (subject,))[subject]


@is_measured
@pytest.mark.parametrize("subject", QUICK)
def test_programs_of_every_status_end_as_expected(swept: Callable[[str], dict[str, str]], subject: str) -> None:
    """Where a program of another subject was measured on this one, too, it counts."""
    seen = swept(subject)
    expected = {name: status for name, status in expected_of(subject).items() if name in seen}
    assert expected.keys() >= some_of(subject).keys()
    assert {name: seen[name] for name in expected} == expected


@pytest.mark.parametrize("subject", SUBJECTS)
def test_the_first_six_are_reported_on_their_rung(swept: Callable[[str], dict[str, str]], subject: str) -> None:
    expected = first_of(subject)
    seen = swept(subject)
    assert {name: seen[name] for name in expected} == expected


@is_measured
@pytest.mark.slow  # some hundred programs on each subject, and Inductor compiles C++ for every one
@pytest.mark.parametrize("subject", [*SUBJECTS, "export[strict=false]"])
def test_every_program_ends_as_expected(tmp_path: Path, subject: str) -> None:
    expected = expected_of(subject)
    assert statuses(tmp_path, [subject], expected) == {subject: expected}
