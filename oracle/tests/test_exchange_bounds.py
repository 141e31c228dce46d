"""How far a run may be from eager's runs before it stands out, by each of the numbers that sum it up.

Eager's runs are laid out so that each has the same numbers: blocks of elements are high and low in turn, the other way round
in every second run. So nothing but what the subject changes is seen.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from oracle.judge.exchange import stands_out

BLOCK, BLOCKS, RUNS = 16, 160, 80
ELEMENTS = BLOCK * BLOCKS  # a mean of as many ranks moves by 1/160 times 0.5 where a low block becomes high


def layout(run: int, levels: int = 2, *, block: int = BLOCK) -> Tensor:
    """Levels of the elements of a run: 0, 1, ..., the same all over a block."""
    return (torch.arange(ELEMENTS) // block + run) % levels


def eager_runs(levels: int = 2, *, block: int = BLOCK) -> list[Tensor]:
    return [layout(run, levels, block=block) for run in range(RUNS)]


def raised(run: Tensor, blocks: int, *, low: int = 0, high: int = 1, seed: int = 0) -> Tensor:
    """Another run, in which some of the low blocks are high."""
    rows = run.clone().reshape(-1, BLOCK)
    at = (rows[:, 0] == low).nonzero().squeeze(-1)
    rows[at[torch.randperm(len(at), generator=torch.Generator().manual_seed(seed))[:blocks]]] = high
    return rows.reshape(-1)


def numbers(levels: Tensor, scale: float = 1.0) -> Tensor:
    """Numbers that are one per cent apart, so that none lies beyond what eager gives; one is never drawn."""
    ramp = torch.linspace(1, 3, ELEMENTS).double()
    ramp[ELEMENTS // 2] = 0.0
    return scale * ramp * (1 + 0.01 * levels)


def what_stands_out(subject: Tensor, runs: list[Tensor], scale: float = 1.0) -> str:
    return stands_out([numbers(subject, scale), *(numbers(run, scale) for run in runs)])


@pytest.mark.parametrize(("blocks", "is_found"), [(0, False), (11, False), (12, True)])
@pytest.mark.parametrize("scale", [1.0, 1e-3, -1.0])
def test_larger_elements_stand_out_beyond_six_deviations_of_a_mean(
    blocks: int, scale: float, *, is_found: bool
) -> None:
    """1.75 / sqrt(2560) is 11.07 blocks."""
    found = what_stands_out(raised(layout(0), blocks), eager_runs(), scale)
    assert ("too large, or too small" in found) is is_found, found
    assert bool(found) is is_found


@pytest.mark.parametrize(("blocks", "is_found"), [(11, False), (12, True)])
def test_elements_further_from_zero_stand_out_as_well(blocks: int, *, is_found: bool) -> None:
    """Every second pair of blocks is negative: the mean of all ranks stays what it is."""
    sign = torch.where(torch.arange(ELEMENTS) // BLOCK % 4 < 2, 1e-3, -1e-3).double()
    levels = layout(0).reshape(-1, BLOCK)
    for positive in (True, False):
        is_here = (sign.reshape(-1, BLOCK)[:, 0] > 0) == positive
        levels[((levels[:, 0] == 0) & is_here).nonzero().squeeze(-1)[: blocks // 2 + (blocks % 2) * positive]] = 1
    found = stands_out([numbers(run) * sign for run in (levels.reshape(-1), *eager_runs())])
    assert ("too far from 0, or too near" in found) is is_found, found


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_elements_that_are_not_finite_hide_nothing(number: float) -> None:
    """Eleven elements are beyond all that eager gives anywhere."""
    rows = [run.double() for run in (layout(0), *eager_runs())]
    rows[0][64:75] = -2.0
    for row in rows:
        row[1000] = number
    assert "eager gives anywhere" in stands_out(rows)
    rows[0][64:75] = 3.0
    assert "eager gives anywhere" in stands_out(rows)


@pytest.mark.parametrize(("blocks", "is_found"), [(12, False), (16, True)])
def test_elements_at_the_ends_stand_out(blocks: int, *, is_found: bool) -> None:
    """Elements have four levels, and those of the middle levels move to the ends. A square rises by about 0.13."""
    subject = raised(raised(layout(0, 4), blocks // 2, low=1, high=0), blocks // 2, low=2, high=3)
    found = what_stands_out(subject, eager_runs(4))
    assert ("too often at the ends" in found) is is_found, found


@pytest.mark.parametrize(("pairs", "is_found"), [(32, False), (38, True)])
def test_neighbours_that_are_alike_stand_out(pairs: int, *, is_found: bool) -> None:
    """Every element is another one than its neighbours. Two products rise by 0.125 for each that is exchanged."""
    subject = layout(0, block=1)
    at = torch.arange(pairs) * 20
    subject[at], subject[at + 9] = 1, 0
    found = what_stands_out(subject, eager_runs(block=1))
    assert ("neighbouring elements" in found) is is_found, found


@pytest.mark.parametrize(("rows", "is_found"), [(2, False), (6, True)])
def test_rows_that_are_alike_stand_out(rows: int, *, is_found: bool) -> None:
    """Rows of 16, each another one than its neighbours: all elements of neighbouring rows become alike."""
    subject = layout(0).reshape(-1, BLOCK)
    subject[20 : 20 + 20 * rows : 20] = 1 - subject[20 : 20 + 20 * rows : 20]
    subject[31 : 31 + 20 * rows : 20] = 1 - subject[31 : 31 + 20 * rows : 20]
    shaped = [numbers(run.reshape(-1)).reshape(-1, BLOCK) for run in (subject, *eager_runs())]
    found = stands_out(shaped)
    assert ("rows are too much alike" in found) is is_found, found
    assert stands_out([run.reshape(-1) for run in shaped]) == ""
    assert stands_out([run.reshape(-1, 1) for run in shaped]) == ""


@pytest.mark.parametrize(("count", "is_found"), [(10, False), (11, True)])
@pytest.mark.parametrize(("factor", "words"), [(1.1, "gives there"), (0.9, "gives there"), (5.0, "gives there")])
def test_eleven_elements_that_no_run_of_eager_has_stand_out(
    count: int, factor: float, words: str, *, is_found: bool
) -> None:
    constant = torch.linspace(1, 3, ELEMENTS).double()
    subject = constant.clone()
    subject[100 : 100 + count] *= factor
    found = stands_out([subject, *([constant] * 16)])
    assert (words in found) is is_found, found


@pytest.mark.parametrize(("count", "is_found"), [(10, False), (11, True)])
@pytest.mark.parametrize("sign", [1, -1])
def test_eleven_elements_beyond_all_elements_of_eager_stand_out(count: int, sign: int, *, is_found: bool) -> None:
    """Each lies within three times what its own element moves."""
    levels, *runs = (run.double() * sign for run in (layout(0), *eager_runs()))
    subject = levels.clone()
    at = (levels != 0).nonzero().squeeze(-1)[:count]
    subject[at] *= 1.5
    found = stands_out([subject, *runs])
    assert ("eager gives anywhere" in found) is is_found, found


@pytest.mark.parametrize("sign", [1, -1])
def test_a_rounding_of_what_is_the_same_in_every_run_is_not_beyond(sign: int) -> None:
    constant = sign * torch.linspace(1, 3, ELEMENTS).double()
    subject = constant.clone()
    subject[100:120] *= 1.019
    assert stands_out([subject, *([constant] * 16)]) == ""
    subject[100:120] = constant[100:120] * 1.021
    assert "gives there" in stands_out([subject, *([constant] * 16)])


@pytest.mark.parametrize(("number", "is_found"), [(3.4, False), (3.6, True), (-2.4, False), (-2.6, True)])
def test_elements_further_than_three_widths_from_the_middle_stand_out(number: float, *, is_found: bool) -> None:
    """Eager gives 0 and 1 there, and 100 and -100 elsewhere."""
    rows = [run.double() for run in (layout(0), *eager_runs())]
    for row in rows:
        row[:2] = torch.tensor([100.0, -100.0])
    rows[0][64:76] = number
    assert ("gives there" in stands_out(rows)) is is_found


# ------------------------------------------------------------------------------------------------- beside eager's own spread


@pytest.mark.parametrize(("blocks", "is_found"), [(30, False), (35, True)])
def test_a_run_stands_out_beyond_eight_deviations(blocks: int, *, is_found: bool) -> None:
    """Every second run of eager has 8 blocks raised: a deviation of 4."""
    runs = [raised(run, 8 * (at % 2), seed=at) for at, run in enumerate(eager_runs())]
    found = what_stands_out(raised(layout(0), blocks, seed=1000), runs)
    assert ("too large, or too small" in found) is is_found, found


@pytest.mark.parametrize(("blocks", "is_found"), [(44, False), (53, True)])
@pytest.mark.parametrize("is_below", [True, False])
def test_a_run_stands_out_beyond_twice_eagers_furthest_run(blocks: int, *, is_below: bool, is_found: bool) -> None:
    """One run of eager has 24 blocks raised or lowered: a deviation of 2.7."""
    runs = eager_runs()
    low, high = (1, 0) if is_below else (0, 1)
    runs[7] = raised(runs[7], 24, low=low, high=high)
    found = what_stands_out(raised(layout(0), blocks, seed=1000), runs)
    assert ("too large, or too small" in found) is is_found, found


# ---------------------------------------------------------------------------------------------------- what is looked at


def test_eight_runs_and_thirty_two_elements_are_enough() -> None:
    constant = torch.linspace(1, 3, 32).double()
    assert stands_out([2 * constant, *([constant] * 8)]) != ""
    assert stands_out([2 * constant, *([constant] * 7)]) == ""
    assert stands_out([2 * constant[1:], *([constant[1:]] * 8)]) == ""


@pytest.mark.parametrize("shape", [(199, 101), (20099,)])
def test_of_large_tensors_a_sample_is_looked_at(shape: tuple[int, ...]) -> None:
    constant = torch.linspace(1, 3, 20099).double().reshape(shape)
    assert stands_out([-constant, *([constant] * 8)]) != ""
    other = constant.reshape(-1).clone()
    other[1::2] *= -1  # between the elements of the sample
    assert stands_out([other.reshape(shape), *([constant] * 8)]) == ""
    full = torch.linspace(1, 3, 1 << 14).double()
    odd = full.clone()
    odd[1::2] *= -1
    assert stands_out([odd, *([full] * 8)]) != ""


def test_other_tensors_of_another_shape_or_of_fewer_runs_are_left_out() -> None:
    runs = [numbers(run) for run in (layout(0), *eager_runs())]
    short, longer = runs[:5], [torch.cat([run, run]) for run in runs]
    assert stands_out(runs, {"a": short, "b": longer}) == ""


@pytest.mark.parametrize(("blocks", "is_found"), [(8, False), (12, True)])
def test_what_two_tensors_have_in_common_may_differ_as_far_as_a_mean_of_products(
    blocks: int, *, is_found: bool
) -> None:
    """Both are high and low in the same blocks: a product falls by 0.125 where one of them is not."""
    runs = [layout(0), *eager_runs()]
    half = blocks // 2
    levels = layout(0).reshape(-1, BLOCK).clone()
    levels[: 4 * half : 4], levels[81 : 81 + 4 * half : 4] = (
        1 - levels[: 4 * half : 4],
        1 - levels[81 : 81 + 4 * half : 4],
    )
    subject = [numbers(levels.reshape(-1)), *(numbers(run) for run in runs[1:])]
    found = stands_out(subject, {"output[0]": [numbers(run) for run in runs]})
    assert ("too much like those of output[0]" in found) is is_found, found
