"""Runs of eager under a mode: which elements the mode itself changes, and what the runs show there."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from oracle.judge.tolerance import PYTHON_NUMBER
from oracle.judge.trust import TrustedRuns
from oracle.judge.values import GivenRuns

NAN, INF = math.nan, math.inf


def trusted(
    eager: Tensor,
    still: Tensor | None,
    *,
    truth: Tensor | None = None,
    noise: Sequence[Tensor] = (),
    loud_noise: Sequence[Tensor] = (),
    other_kernels: Sequence[Tensor] = (),
) -> TrustedRuns:
    runs = GivenRuns(
        truth=lambda: truth, noise=lambda: noise, loud_noise=lambda: loud_noise, other_kernels=lambda: other_kernels
    )
    return TrustedRuns(eager, runs, still=lambda: still)


def distrusted(eager: Sequence[float], still: Sequence[float], *noise: Sequence[float]) -> int:
    """How many elements the mode changes, by quiet noise around the run without noise."""
    runs = trusted(torch.tensor(eager), torch.tensor(still), noise=[torch.tensor(run) for run in noise])
    runs.noise()
    return runs.distrusted


def test_where_a_mode_changes_eager_every_run_shows_eagers_number() -> None:
    eager, still = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 2.0], [9.0, 4.0]])
    moved = still + 1e-6
    runs = trusted(
        eager, still, truth=moved.double(), noise=[moved, moved], loud_noise=[moved], other_kernels=[moved, moved]
    )
    assert runs.distrusted == 0, "nobody asked"
    expected = moved.clone()
    expected[1, 0] = 3.0
    truth = runs.truth()
    assert truth is not None
    assert truth.dtype is torch.float64
    assert torch.equal(truth.float(), expected)
    for found, count in ((runs.noise(), 2), (runs.loud_noise(), 1), (list(runs.other_kernels()), 2)):
        assert len(found) == count
        assert all(torch.equal(run, expected) for run in found)
    assert runs.distrusted == 1
    assert moved[1, 0] > 8.0, "the runs themselves stay as they are"


def test_a_mode_that_changes_nothing_leaves_every_run_what_it_is() -> None:
    eager, run, longer = torch.ones(2), torch.full((2,), 7.0), torch.ones(3)
    runs = trusted(eager, eager.clone(), truth=run, noise=[run, longer])
    assert runs.truth() is run
    assert runs.noise()[0] is run
    assert runs.noise()[1] is longer
    assert runs.distrusted == 0


def test_runs_of_another_shape_are_left_out_where_a_mode_changes_eager() -> None:
    eager, still = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 9.0])
    runs = trusted(eager, still, truth=torch.ones(3).double(), noise=[still, torch.ones(3)])
    assert runs.truth() is None
    assert len(runs.noise()) == 1
    assert trusted(eager, still).truth() is None


@pytest.mark.parametrize(
    "still", [None, torch.ones(3), torch.full((2, 1), 9.0), torch.full((2,), 9.0, dtype=torch.float64)]
)
def test_without_a_run_of_this_tensor_everything_is_trusted(still: Tensor | None) -> None:
    run = torch.full((2,), 9.0)
    runs = trusted(torch.ones(2), still, noise=[run])
    assert runs.noise() == [run]
    assert runs.distrusted == 0


# ---------------------------------------------------------------------------------------------------- what is not rounding


def test_what_noise_moves_as_far_is_rounding() -> None:
    assert distrusted([1.0, 1.0], [1.5, 1.0], [1.5, 1.0]) == 1
    assert distrusted([1.0, 1.0], [1.5, 1.0], [1.4, 1.0]) == 0
    assert distrusted([-5.0, 1.0], [5.0, 1.0], [5.0, 1.0]) == 1


def test_what_loud_noise_moves_is_rounding() -> None:
    eager, still = torch.tensor([1.0, 1.0]), torch.tensor([1.5, 1.0])
    loud = [torch.tensor([1.0, 1.0])]
    runs = trusted(eager, still, noise=[still], loud_noise=loud)
    runs.noise()
    assert runs.distrusted == 0
    elsewhere = trusted(eager, still, noise=[still], loud_noise=[torch.tensor([1.5, 1.1])])
    elsewhere.noise()
    assert elsewhere.distrusted == 0, "noise moves another element by an eighth of this"


@pytest.mark.parametrize(
    ("noise", "count"),
    [
        ([[1.5, 1.0, 1.0]], 1),
        ([[1.5, 1.0, 1.07]], 0),  # more than an eighth of the difference, at another element
        ([[1.5, 1.0, 1.0], [1.5, 1.07, 1.0]], 0),
        ([[1.5, 1.07, 1.0], [1.5, 1.0, 1.0]], 0),
        ([[1.5, 1.0, 1.06]], 1),
    ],
)
def test_the_largest_move_of_any_element_counts(noise: list[list[float]], count: int) -> None:
    assert distrusted([1.0, 1.0, 1.0], [1.5, 1.0, 1.0], *noise) == count


@pytest.mark.parametrize("special", [NAN, INF, -INF])
def test_elements_without_a_number_hide_no_change_of_a_small_one(special: float) -> None:
    eager, still = [1e-12, special], [5e-12, special]
    assert distrusted(eager, still, still) == 1
    assert distrusted([1e-12, 1e-12], [5e-12, 1e-12], [5e-12, special]) == 1


@pytest.mark.parametrize(
    ("noise", "count"),
    [
        ([[1.0, 1.0], [1.0, 1.0]], 1),
        ([[1.0, NAN], [1.0, 1.0]], 0),  # noise makes NaN of numbers somewhere
        ([[1.0, 1.0], [1.0, INF]], 0),
    ],
)
def test_a_number_that_the_mode_makes_of_nan_is_rounding_where_noise_makes_nan(
    noise: list[list[float]], count: int
) -> None:
    assert distrusted([NAN, 1.0], [1.0, 1.0], *noise) == count


def test_an_integer_is_changed_by_the_mode_where_noise_moves_none_at_all() -> None:
    eager, still, moved = torch.tensor([3, 5]), torch.tensor([2, 5]), torch.tensor([2, 6])
    for noise, count in (([still, still], 1), ([still, moved], 0), ([moved, still], 0), ([], 1)):
        runs = trusted(eager, still, noise=noise, truth=still)
        truth = runs.truth()
        assert truth is not None
        assert truth.tolist() == ([3, 5] if count else [2, 5])
        assert runs.distrusted == count


def test_the_row_of_python_numbers_says_what_is_rounding() -> None:
    eager, still = (torch.tensor([number], dtype=torch.float64) for number in (1.0, 1 + 1e-6))
    runs = GivenRuns(truth=lambda: still)
    for row, count in ((None, 1), (PYTHON_NUMBER, 0)):
        given = TrustedRuns(eager, runs, still=lambda: still, row=row)
        given.truth()
        assert given.distrusted == count
    far = torch.tensor([1 + 3e-6], dtype=torch.float64)
    near = TrustedRuns(
        eager, GivenRuns(truth=lambda: far, noise=lambda: [far + 4e-7]), still=lambda: far, row=PYTHON_NUMBER
    )
    near.truth()
    assert near.distrusted == 0
