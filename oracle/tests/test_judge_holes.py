"""Wrong answers that PyTorch's own comparison lets pass (design: `torch._dynamo.utils.same`), each with its right twin."""

from __future__ import annotations

import pytest
import torch

from oracle.tests.outcomes import judged, observation, raised, returned, returned_calls
from oracle.verdict import Status


def test_int64_off_by_fifty_thousand_is_found():
    big = 1 << 40
    verdict = judged(returned(torch.tensor([0, big])), returned(torch.tensor([0, big + 50_000])))
    assert verdict.status is Status.FAIL_ACCURACY
    assert verdict.symptom == f"call 0: output[1] is {big + 50_000}, but should be {big} (1 of 2 elements differ)"
    assert verdict.worst is not None
    assert verdict.worst.subject_error == 50_000


def test_one_element_of_ten_million_wrong_by_three_is_found_and_rounding_of_all_others_is_not():
    eager = torch.linspace(-1.0, 1.0, 10_000_000)
    rounded = torch.nextafter(eager, torch.tensor(9.0))
    assert judged(returned(eager), returned(rounded)).status is Status.PASS
    rounded[7_654_321] += 3.0
    verdict = judged(returned(eager), returned(rounded), truth=returned(eager.double()))
    assert verdict.status is Status.FAIL_ACCURACY
    assert verdict.worst is not None
    assert verdict.worst.index == (7_654_321,)
    assert verdict.worst.subject_error == pytest.approx(3.0)
    assert verdict.compared.elements == 10_000_000


def test_an_output_missing_at_the_end_is_found():
    x = torch.ones(2)
    verdict = judged(returned(x, x + 1, x + 2), returned(x, x + 1))
    assert verdict.status is Status.FAIL_METADATA
    assert "call 0: output[2] is missing, but should be torch.Tensor of shape (2,)" in verdict.also[0]


def test_an_output_too_many_is_found():
    x = torch.ones(2)
    verdict = judged(returned(x, x + 1), returned(x, x + 1, x + 2))
    assert verdict.status is Status.FAIL_METADATA
    assert "output[2] is torch.Tensor of shape (2,) and dtype torch.float32, but should not be there" in verdict.also[0]


def test_an_output_beyond_the_end_of_the_fp64_outputs_is_judged_all_the_same():
    x = torch.ones(2)
    truth = returned_calls(observation((x.double(),)))
    verdict = judged(returned(x, x + 1), returned(x, x + 1.5), truth=truth)
    assert verdict.symptom.startswith("call 0: output[1][0] is 2.5, but should be 2")


def test_a_subject_that_compiled_no_graph_is_not_agreement():
    verdict = judged(returned(torch.ones(2)), returned(torch.ones(2)), graphs=0)
    assert verdict.status is Status.PASS_DUE_TO_SKIP
    assert verdict.compared.tensors == 1


def test_a_subject_that_raises_as_eager_does_agrees_with_or_without_a_graph():
    verdict = judged(raised(ValueError("x")), raised(ValueError("x")), graphs=0, expects_raise=True)
    assert verdict.status is Status.PASS


def test_a_subject_that_compiled_no_graph_and_is_wrong_is_wrong():
    assert judged(returned(torch.ones(2)), returned(torch.zeros(2)), graphs=0).status is Status.FAIL_ACCURACY


@pytest.mark.parametrize("magnitude", [1e-6, 1e-12, 1e-30, 1e20])
def test_no_absolute_tolerance_hides_wrong_values_of_any_magnitude(magnitude):
    x = torch.full((8,), magnitude)
    assert judged(returned(x), returned(x * 1.001), truth=returned(x.double())).status is Status.FAIL_ACCURACY
    assert judged(returned(x), returned(torch.zeros(8)), truth=returned(x.double())).status is Status.FAIL_ACCURACY
    assert judged(returned(x), returned(x * (1 + 2**-22)), truth=returned(x.double())).status is Status.PASS


def test_large_noisy_elements_do_not_hide_an_error_among_small_exact_ones():
    eager = torch.cat([torch.full((1000,), 1e9), torch.ones(10)])
    noise = [returned(torch.cat([eager[:1000] * (1 + 1e-3 * seed), eager[1000:]])) for seed in (-1, 1, 2)]
    subject = eager.clone()
    subject[1003] = 2.0
    verdict = judged(returned(eager), returned(subject), truth=returned(eager.double()), noise=noise)
    assert verdict.status is Status.FAIL_ACCURACY
    assert verdict.worst is not None
    assert verdict.worst.index == (1003,)


def test_a_loss_of_precision_everywhere_is_found_by_the_root_mean_square_error():
    """Every element passes by itself: no more than 8 times eager's own error. All of them together are not chance."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.rand(100_000, generator=generator, dtype=torch.float64) + 1
    sign = torch.where(torch.rand(100_000, generator=generator) < 0.5, -1.0, 1.0)
    eager = (truth + sign * 1e-5).float()
    subject = (truth + sign * 6e-5).float()
    verdict = judged(returned(eager), returned(subject), truth=returned(truth))
    assert verdict.status is Status.FAIL_ACCURACY
    assert verdict.symptom.startswith("call 0: output.rmse against fp64 is 6e-05, but should be at most 3.0")
    twice = (truth + sign * 2e-5).float()
    assert judged(returned(eager), returned(twice), truth=returned(truth)).status is Status.PASS
