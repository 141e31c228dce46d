"""Random results of a subject that draws its own numbers: how far its distribution may be from eager's."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from oracle.judge import distribution
from oracle.judge.distribution import kolmogorov_smirnov
from oracle.observe.outcome import Returned
from oracle.tests.outcomes import judged, returned
from oracle.verdict import Status, Verdict

EVEN = torch.arange(1000.0)


def verdict_on(eager: Any, subject: Any, **runs: Any) -> Verdict:
    """Each of the further runs is given as one tensor, or as several."""
    given: dict[str, Any] = {}
    for name, run in runs.items():
        outcomes = [returned(one) for one in (run if isinstance(run, list) else [run])]
        given[name] = (lambda found=outcomes: found) if isinstance(run, list) else (lambda found=outcomes: found[0])
    return judged(returned(eager), returned(subject), is_random=True, rng="own", **given)


# ------------------------------------------------------------------------------------------------------------- the distance


@pytest.mark.parametrize(
    ("left", "right", "distance", "scaled"),
    [
        ([1.0, 2, 3, 4], [3.5, 4.5], 0.75, 0.75 * math.sqrt(8 / 6)),
        ([3.5, 4.5], [1.0, 2, 3, 4], 0.75, 0.75 * math.sqrt(8 / 6)),
        ([1.0, 2, math.nan, math.nan], [3.0, 4], 1.0, 1.0),
        ([1.0, math.inf], [1.0, 2], 0.5, 0.5),
        ([1.0, 2], [1.0, -math.inf], 0.5, 0.5),
        ([math.nan], [1.0], 0.0, 0.0),
        ([1.0], [], 0.0, 0.0),
        ([], [1.0], 0.0, 0.0),
    ],
)
def test_the_distance_of_two_samples(left: list[float], right: list[float], distance: float, scaled: float) -> None:
    assert kolmogorov_smirnov(torch.tensor(left), torch.tensor(right)) == pytest.approx((distance, scaled))


def test_truth_values_and_integers_have_a_distance() -> None:
    some, all_of_them = torch.tensor([True, False, False, True]), torch.ones(2, 2, dtype=torch.bool)
    assert kolmogorov_smirnov(some, all_of_them)[0] == 0.5
    assert kolmogorov_smirnov(some.int(), all_of_them.int())[0] == 0.5


def test_of_large_samples_a_part_is_looked_at_that_is_spread_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribution, "_AT_MOST", 1000)
    left, right = torch.arange(5500.0), torch.arange(5500.0) + 2750
    distance, scaled = kolmogorov_smirnov(left, right)
    assert distance == pytest.approx(0.5, abs=0.01)
    assert 0.5 * math.sqrt(400) < scaled <= 0.5 * math.sqrt(500)
    whole, _ = kolmogorov_smirnov(EVEN, torch.where(torch.arange(1000) % 2 == 1, 0.0, EVEN))
    assert whole == pytest.approx(0.5, abs=0.01), "1000 elements are not too many"


# ------------------------------------------------------------------------------------------------------------ the threshold


@pytest.mark.parametrize(("shift", "status"), [(119.0, Status.PASS), (121.0, Status.FAIL_ACCURACY)])
@pytest.mark.parametrize("sign", [1, -1])
def test_two_samples_are_of_one_distribution_unless_chance_is_one_in_a_million(
    shift: float, sign: int, status: Status
) -> None:
    """For samples of 1000 elements each, this is a distance of 0.1204."""
    verdict = verdict_on(EVEN, EVEN + sign * shift)
    assert verdict.status is status
    if status is not Status.PASS:
        assert "but should be at most 0.12 (p = 1e-6)" in verdict.symptom


@pytest.mark.parametrize(("elements", "status"), [(31, Status.PASS), (32, Status.FAIL_ACCURACY)])
def test_thirty_two_elements_have_a_distribution(elements: int, status: Status) -> None:
    assert verdict_on(EVEN[:elements], EVEN[:elements] + 100).status is status


@pytest.mark.parametrize(
    ("other", "subject", "status"),
    [
        (100.0, 190.0, Status.PASS),  # eager itself moves by half of this
        (100.0, 210.0, Status.FAIL_ACCURACY),
        (150.0, 990.0, Status.PASS),  # eager itself is of another distribution
        (0.0, 130.0, Status.FAIL_ACCURACY),
    ],
)
def test_a_run_under_another_seed_tells_how_far_eager_moves(other: float, subject: float, status: Status) -> None:
    assert verdict_on(EVEN, EVEN + subject, other_seed=EVEN + other).status is status


@pytest.mark.parametrize(("furthest", "status"), [(199.0, Status.FAIL_ACCURACY), (201.0, Status.PASS)])
def test_the_furthest_of_many_seeds_may_be_exceeded_by_half(furthest: float, status: Status) -> None:
    runs = [EVEN + 10, EVEN - furthest, EVEN]
    assert verdict_on(EVEN, EVEN + 300, many_seeds=runs).status is status


def test_seeds_of_another_dtype_tell_nothing() -> None:
    assert verdict_on(EVEN, EVEN + 300, other_seed=EVEN.double() + 150).status is Status.FAIL_ACCURACY


@pytest.mark.parametrize("turn", [1, 1j])
def test_of_complex_numbers_both_parts_have_a_distribution(turn: complex) -> None:
    eager = torch.complex(EVEN, EVEN)
    assert verdict_on(eager, eager + 119 * turn).status is Status.PASS
    wrong = verdict_on(eager, eager + 300 * turn)
    assert wrong.status is Status.FAIL_ACCURACY
    assert f"output.{'real' if turn == 1 else 'imag'} is of another distribution" in wrong.symptom
    assert verdict_on(eager, eager + 300 * turn, other_seed=eager + 150 * turn).status is Status.PASS
    assert verdict_on(eager, eager + 300 * turn, many_seeds=[eager + 250 * turn]).status is Status.PASS


@pytest.mark.parametrize("turn", [1, 1j])
def test_how_far_one_part_of_a_complex_number_moves_excuses_nothing_in_the_other(turn: complex) -> None:
    eager = torch.complex(EVEN, EVEN + 5000)
    runs = [eager + 250 * turn * 1j, eager]
    assert verdict_on(eager, eager + 300 * turn, many_seeds=runs).status is Status.FAIL_ACCURACY


def test_what_is_counted_is_all_that_was_compared() -> None:
    verdict = verdict_on((EVEN, 3, True), (EVEN + 1, 3, True))
    assert verdict.status is Status.PASS
    assert verdict.witnesses == (("distribution", 1000),)
    assert (verdict.compared.tensors, verdict.compared.elements, verdict.compared.others) == (1, 1000, 2)


# ------------------------------------------------------------------------------------------------------- what is not finite


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_wrong_where_eager_has_none(number: float) -> None:
    wrong = EVEN.clone()
    wrong[[3, 5]] = number
    verdict = verdict_on(EVEN, wrong)
    assert verdict.symptom == "call 0: output has 2 of 1000 elements that are not finite, but should have none"
    assert verdict_on(wrong, wrong.roll(7)).status is Status.PASS
    assert verdict_on(wrong, EVEN).status is Status.PASS


@pytest.mark.parametrize(
    ("subject", "runs", "status"),
    [
        ([math.nan, math.inf], [[math.nan, 1.0], [1.0, -math.inf]], Status.PASS),
        ([math.nan, math.inf], [[math.nan, 1.0], [math.nan, 1.0]], Status.FAIL_ACCURACY),
        ([math.nan, 1.0], [[math.inf, 1.0]], Status.FAIL_ACCURACY),
        ([1.0, math.inf], [[math.nan, 1.0]], Status.FAIL_ACCURACY),
        ([1.0, math.inf], [], Status.FAIL_ACCURACY),
    ],
)
def test_each_kind_of_number_that_is_not_finite_must_be_one_of_eagers(
    subject: list[float], runs: list[list[float]], status: Status
) -> None:
    many = [torch.tensor(run) for run in runs]
    assert verdict_on(torch.ones(2), torch.tensor(subject), many_seeds=many).status is status


def test_a_distribution_is_asked_for_beside_numbers_that_are_not_finite_by_chance() -> None:
    eager, run, subject = EVEN, EVEN.clone(), EVEN + 300
    run[0], subject[0] = math.nan, math.nan
    assert verdict_on(eager, subject, many_seeds=[run]).status is Status.FAIL_ACCURACY


# -------------------------------------------------------------------------------------------------------------------- masks


def masked(output: Tensor, gradient: Tensor | None, **more: Any) -> Returned:
    return returned(output, gradients={"args[0]": gradient, **more})


def mask_of(seed: int, elements: int = 200) -> Tensor:
    return (torch.rand(elements, generator=torch.Generator().manual_seed(seed)) < 0.5).float()


def judged_masks(eager: Returned, subject: Returned, *runs: Returned) -> Verdict:
    return judged(eager, subject, is_random=True, rng="own", many_seeds=lambda: runs)


def test_masks_of_another_shape_or_dtype_have_nothing_in_common() -> None:
    one, two, three = mask_of(1), mask_of(2), mask_of(3)
    assert judged_masks(masked(one, one), masked(two, three)).status is Status.FAIL_GRAD
    whole = judged_masks(masked(one, one.reshape(2, 100)), masked(two, three.reshape(2, 100)))
    assert whole.status is Status.PASS
    counted = judged_masks(masked(one.int(), one), masked(two.int(), three))
    assert counted.status is Status.PASS


@pytest.mark.parametrize("eager", [torch.zeros(200), torch.ones(200)])
def test_a_result_of_zeros_only_or_of_none_is_no_mask(eager: Tensor) -> None:
    assert judged_masks(masked(eager, eager), masked(eager, torch.ones(200) - eager)).status is not Status.PASS
    nearly = torch.cat([eager[:199], 1 - eager[199:]])
    assert "mask of the gradient" not in judged_masks(masked(eager, eager), masked(nearly, eager)).symptom
    assert "mask of the gradient" in judged_masks(masked(nearly, nearly), masked(nearly, nearly.roll(1))).symptom


def test_a_gradient_that_has_another_mask_in_eager_owes_none() -> None:
    one, two, three = mask_of(1), mask_of(2), mask_of(3)
    assert judged_masks(masked(one, two), masked(two, three)).status is Status.PASS


def test_each_gradient_and_each_output_owes_its_mask() -> None:
    one, two, three = mask_of(1), mask_of(2), mask_of(3)
    eager = returned(three, one, gradients={"args[0]": two, "args[1]": one})
    right = returned(one, two, gradients={"args[0]": three, "args[1]": two})
    wrong = returned(one, two, gradients={"args[0]": three, "args[1]": three})
    assert judged_masks(eager, right).status is Status.PASS
    verdict = judged_masks(eager, wrong)
    differing = int((two != three).sum())
    assert verdict.symptom == (
        "call 0: grad of args[1]: the mask of the gradient is not the mask of the forward, but should be: zeros differ "
        f"from those of output[1] in {differing} of 200 elements"
    )


def test_masks_that_one_run_of_eager_has_otherwise_are_explained() -> None:
    one, two, three = mask_of(1), mask_of(2), mask_of(3)
    same, apart = masked(two, two), masked(two, three)
    assert judged_masks(masked(one, one), masked(two, three), same, same).status is Status.FAIL_GRAD
    verdict = judged_masks(masked(one, one), masked(two, three), same, apart)
    assert verdict.status is Status.PASS
    assert verdict.explained[-1] == (
        "call 0: the zeros of output and of grad of args[0] coincide under some seeds only, in eager too"
    )


def test_a_mask_that_is_not_there_is_told_as_such() -> None:
    one, two, three = mask_of(1), mask_of(2), mask_of(3)
    eager = masked(one, one)
    for subject in (masked(two, None), returned(None, gradients={"args[0]": three}), masked(two.int(), three)):
        verdict = judged_masks(eager, subject)
        assert verdict.status in (Status.FAIL_METADATA, Status.FAIL_GRAD)
        assert not any("mask of the gradient" in text for text in (verdict.symptom, *verdict.also))
    shorter = judged_masks(eager, masked(two, three[:100]))
    assert not any("mask of the gradient" in text for text in (shorter.symptom, *shorter.also))


def test_a_run_without_a_mask_says_nothing_of_chance() -> None:
    one, two, three = mask_of(1), mask_of(2), mask_of(3)
    for run in (masked(two, None), masked(two.int(), three), masked(two, three.int())):
        assert judged_masks(masked(one, one), masked(two, three), run).status is Status.FAIL_GRAD
