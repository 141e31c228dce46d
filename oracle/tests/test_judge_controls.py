"""What must not be reported: differences that a correct compiler may make. Beside each, the wrong answer that looks alike."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from oracle.judge import Evidence, Runs, judge
from oracle.tests.outcomes import judged, noise_runs, noisy, observation, returned, returned_calls, truth_of
from oracle.verdict import Status


def seeded(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# ----------------------------------------------------------------------- comparisons of nearly equal floats


def interpolated_gt(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """pytorch/pytorch#145268: upsampling by other arithmetic moves the last bit, and `gt` of equal numbers flips."""
    up = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
    return up > y


def interpolation_case() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, y, and the interpolation of x by weights in another order, where y is eager's interpolation."""
    x = seeded(1, 1, 8, 8)
    y = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
    rows = F.interpolate(x, size=(16, 8), mode="bilinear", align_corners=False)
    other = F.interpolate(rows, size=(16, 16), mode="bilinear", align_corners=False)
    return x, y, other


def test_a_gt_of_two_nearly_equal_floats_after_an_interpolation_may_flip():
    x, y, other = interpolation_case()
    eager, subject = interpolated_gt(x, y), other > y
    assert not torch.equal(eager, subject), "the control must flip something"
    verdict = judged(
        returned(eager),
        returned(subject),
        truth=truth_of(interpolated_gt, x, y),
        noise=noise_runs(interpolated_gt, x, y, runs=8),
    )
    assert verdict.status is Status.PASS
    assert verdict.compared.unstable_elements > 0
    assert "eager itself flips under rounding noise or in fp64" in verdict.explained[0]


def test_a_gt_that_flips_far_from_equality_is_found():
    x, y, _ = interpolation_case()
    y = y + torch.where(seeded(*y.shape, seed=3) > 0, 0.1, -0.1)
    eager = interpolated_gt(x, y)
    subject = eager.clone()
    subject[0, 0, 5, 6] = ~subject[0, 0, 5, 6]
    verdict = judged(
        returned(eager),
        returned(subject),
        truth=truth_of(interpolated_gt, x, y),
        noise=noise_runs(interpolated_gt, x, y),
    )
    assert verdict.status is Status.FAIL_ACCURACY
    assert verdict.symptom.startswith("call 0: output[0, 0, 5, 6] is ")


@pytest.mark.parametrize(
    "run", [lambda x: (x * 1.1 / 1.1).round(), lambda x: (x * 1.1 / 1.1).floor(), lambda x: (x * 1.1 / 1.1).ceil()]
)
def test_a_rounding_of_a_float_beside_a_jump_may_land_on_the_other_side(run):
    x = torch.tensor([0.5, 1.5, 2.5, 3.0, 3.7])
    eager = run(x)
    jumped = torch.where(torch.tensor([True, True, True, True, False]), run(x * (1 - 2**-23)), run(x))
    noise = [returned(run(x * (1 + delta * 2**-22))) for delta in (-1, 1)]
    assert judged(returned(eager), returned(jumped), truth=truth_of(run, x), noise=noise).status is Status.PASS
    wrong = eager.clone()
    wrong[4] += 1
    verdict = judged(returned(eager), returned(wrong), truth=truth_of(run, x), noise=noise)
    assert verdict.status is Status.FAIL_ACCURACY
    assert verdict.worst is not None
    assert verdict.worst.index == (4,)


def test_floor_division_of_exact_inputs_is_no_discontinuity_when_neither_noise_nor_fp64_flips_it():
    """pytorch/pytorch#197895: `1.0 // 0.1` is 9; 10 is wrong. Noise leaves an exact op of exact inputs alone."""
    a, b = torch.tensor([1.0, 7.0]), torch.tensor([0.1, 2.0])
    eager = a // b
    verdict = judged(
        returned(eager),
        returned(torch.tensor([10.0, 3.0])),
        truth=truth_of(torch.floor_divide, a, b),
        noise=[returned(eager)] * 4,
    )
    assert verdict.symptom.startswith("call 0: output[0] is 10, but should be 9 (fp64 9.0)")


def test_an_argmax_of_nearly_equal_values_may_choose_the_other():
    x = torch.tensor([1.0, 1.0 + 2**-23, 0.0])
    eager = returned(x.argmax())
    noise = noise_runs(lambda t: t.argmax(), x, runs=8)
    assert any(run.calls[0].outputs[0].value.item() != 1 for run in noise), "the control must be unstable"
    verdict = judged(eager, returned(torch.tensor(0)), truth=truth_of(lambda t: t.argmax(), x), noise=noise)
    assert verdict.status is Status.PASS_DUE_TO_SKIP, "its only element is unstable"
    stable = judged(eager, returned(torch.tensor(2)), truth=eager, noise=[eager] * 4)
    assert stable.status is Status.FAIL_ACCURACY


def test_an_argmax_that_fp64_answers_otherwise_is_explained():
    x = returned(torch.tensor([3, 1]), torch.ones(4))
    truth = returned(torch.tensor([2, 1]), torch.ones(4, dtype=torch.float64))
    assert judged(x, returned(torch.tensor([2, 1]), torch.ones(4)), truth=truth).status is Status.PASS


def test_loud_noise_is_asked_for_what_lies_a_few_roundings_from_a_jump_and_only_then():
    """4 eps from the jump: noise of one eps does not cross it, an error of 8 times as much upstream does."""
    x = torch.tensor([3 * (1 - 2**-21), 5.5, 1.0])
    eager, subject = (
        returned(x.floor(), x > 3),
        returned(torch.tensor([3.0, 5.0, 1.0]), torch.tensor([True, True, False])),
    )
    quiet = [returned(noisy(x, seed=seed).floor(), noisy(x, seed=seed) > 3) for seed in range(4)]
    loud = [returned(noisy(x, seed=seed, size=8).floor(), noisy(x, seed=seed, size=8) > 3) for seed in range(16)]
    truth = returned(x.double().floor(), x > 3)
    assert judged(eager, subject, truth=truth, noise=quiet).status is Status.FAIL_ACCURACY
    verdict = judged(eager, subject, truth=truth, noise=quiet, loud_noise=loud)
    assert verdict.status is Status.PASS, verdict.symptom
    assert "elements that noise of 8 times eager's rounding moves as far" in verdict.explained[0]
    for wrong, index in (
        (returned(torch.tensor([3.0, 6.0, 1.0]), torch.tensor([True, True, False])), (1,)),
        (returned(torch.tensor([3.0, 5.0, 1.0]), torch.tensor([True, True, True])), (2,)),
    ):
        worst = judged(eager, wrong, truth=truth, noise=quiet, loud_noise=loud).worst
        assert worst is not None
        assert worst.index == index


def test_a_python_int_downstream_of_floats_may_flip_where_noise_flips_it():
    noise = [returned(3, torch.ones(2)), returned(2, torch.ones(2))]
    assert judged(returned(2, torch.ones(2)), returned(3, torch.ones(2)), noise=noise).status is Status.PASS
    verdict = judged(returned(2, torch.ones(2)), returned(3, torch.ones(2)), noise=noise[1:])
    assert verdict.symptom == "call 0: output[0] is 3, but should be 2"


# ----------------------------------------------------------------------- reductions in another order


def blocked_sum(x: torch.Tensor, block: int) -> torch.Tensor:
    return torch.stack([part.sum() for part in x.split(block)]).sum()


ORDERS = {
    "backwards": lambda x: x.flip(0).contiguous().sum(),
    "shuffled": lambda x: x[torch.randperm(x.numel(), generator=torch.Generator().manual_seed(9))].sum(),
    "in blocks of 64": lambda x: blocked_sum(x, 64),
    "in blocks of 1000": lambda x: blocked_sum(x, 1000),
    "as a dot product": lambda x: x @ torch.ones_like(x),
    "in 16 lanes": lambda x: x.reshape(-1, 16).sum(0).sum(),
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS.keys())
@pytest.mark.parametrize("kind", ["positive", "of both signs", "cancelling to zero"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_sum_in_another_order_is_the_same_sum(order, kind, dtype):
    x = seeded(64_000, seed=1, dtype=dtype)
    if kind == "positive":
        x = x.abs()
    if kind == "cancelling to zero":
        half = x[:32_000]
        x = torch.cat([half, -half])[torch.randperm(64_000, generator=torch.Generator().manual_seed(2))]
    verdict = judged(
        returned(x.sum()),
        returned(order(x)),
        truth=truth_of(torch.sum, x),
        noise=noise_runs(torch.sum, x, runs=4),
    )
    assert verdict.status is not Status.FAIL_ACCURACY, verdict.symptom


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_sum_that_forgets_one_term_is_found(dtype):
    x = seeded(64_000, seed=1, dtype=dtype)
    noise = noise_runs(torch.sum, x)
    verdict = judged(returned(x.sum()), returned(x[1:].sum()), truth=truth_of(torch.sum, x), noise=noise)
    assert verdict.status is Status.FAIL_ACCURACY


def test_a_matrix_product_in_another_order_is_the_same_product():
    a, b = seeded(128, 512, seed=1), seeded(512, 96, seed=2)
    other = torch.stack([a[:, at : at + 32] @ b[at : at + 32] for at in range(0, 512, 32)]).flip(0).sum(0)
    noise, truth = noise_runs(torch.matmul, a, b), truth_of(torch.matmul, a, b)
    verdict = judged(returned(a @ b), returned(other), truth=truth, noise=noise)
    assert verdict.status is Status.PASS, verdict.symptom
    wrong = other.clone()
    wrong[17, 5] += 1e-3
    assert judged(returned(a @ b), returned(wrong), truth=truth, noise=noise).status is Status.FAIL_ACCURACY


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_fused_chain_that_rounds_once_agrees_with_eager_that_rounds_after_each_op(dtype):
    def chain(t: torch.Tensor) -> torch.Tensor:
        return (t.exp() * 0.3 + t).tanh() / (t.abs() + 1)

    x = seeded(4096, seed=4).to(dtype)
    eager, fused = chain(x), chain(x.float()).to(dtype)
    verdict = judged(returned(eager), returned(fused), truth=truth_of(chain, x), noise=noise_runs(chain, x))
    assert verdict.status is Status.PASS, verdict.symptom
    verdict = judged(returned(eager), returned(fused * 1.1), truth=truth_of(chain, x), noise=noise_runs(chain, x))
    assert verdict.status is Status.FAIL_ACCURACY


def test_an_ill_conditioned_op_may_differ_as_far_as_its_own_noise():
    x = torch.tensor([1.5707963, 0.3, 3.1415927, 0.7])
    moved = torch.nextafter(x, torch.tensor(9.0))
    noise = noise_runs(torch.tan, x, runs=6)
    verdict = judged(returned(x.tan()), returned(moved.tan()), truth=truth_of(torch.tan, x), noise=noise)
    assert verdict.status is Status.PASS, verdict.symptom
    wrong = x.tan()
    wrong[1] *= 1.0001
    assert (
        judged(returned(x.tan()), returned(wrong), truth=truth_of(torch.tan, x), noise=noise).status
        is Status.FAIL_ACCURACY
    )


@pytest.mark.parametrize("seed", range(8))
def test_float32_results_that_differ_by_rounding_alone_agree(seed):
    def layer(t: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.softmax(F.layer_norm(t @ w, (64,)), -1)

    x, w = seeded(32, 48, seed=seed), seeded(48, 64, seed=seed + 100)
    subject = layer(noisy(x, seed=seed + 5000, size=0.5), w)
    verdict = judged(
        returned(layer(x, w)), returned(subject), truth=truth_of(layer, x, w), noise=noise_runs(layer, x, w)
    )
    assert verdict.status is Status.PASS, verdict.symptom


# ----------------------------------------------------------------------- NaN, infinity, zero, subnormal


def test_nan_where_fp64_is_nan_too_is_right():
    eager, subject = torch.tensor([0.5, 1.0]), torch.tensor([float("nan"), 1.0])
    truth = returned(torch.tensor([float("nan"), 1.0], dtype=torch.float64))
    assert judged(returned(eager), returned(subject), truth=truth).status is Status.PASS


def test_nan_where_eager_and_fp64_are_not_is_found():
    eager, subject = torch.tensor([0.5, 1.0]), torch.tensor([float("nan"), 1.0])
    verdict = judged(returned(eager), returned(subject), truth=returned(eager.double()), noise=[returned(eager)])
    assert verdict.symptom.startswith("call 0: output[0] is nan, but should be 0.5 (fp64 0.5): error not finite")


@pytest.mark.parametrize("special", [float("nan"), float("inf"), -float("inf")])
def test_a_number_where_eager_has_none_is_found(special):
    eager, subject = torch.tensor([special, 1.0]), torch.tensor([0.5, 1.0])
    for truth in (None, returned(eager.double())):
        assert (
            judged(returned(eager), returned(subject), truth=truth, noise=[returned(eager)]).status
            is Status.FAIL_ACCURACY
        )


@pytest.mark.parametrize(("one", "other"), [("nan", "inf"), ("inf", "-inf"), ("inf", "3.4e38"), ("-inf", "nan")])
def test_specials_of_another_kind_are_found(one, other):
    eager, subject = torch.tensor([float(one)]), torch.tensor([float(other)])
    assert judged(returned(eager), returned(subject), truth=returned(eager.double())).status is Status.FAIL_ACCURACY


def test_specials_of_the_same_kind_agree_and_nan_payloads_do_not_count():
    eager = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0])
    subject = eager.clone()
    subject.view(torch.int32)[0] = 0x7FC12345
    assert judged(returned(eager), returned(subject)).status is Status.PASS


def test_a_number_where_eager_overflows_and_fp64_does_not_is_right():
    """float16: `x * x / x` overflows after each op in eager and not in a fused kernel."""
    eager, subject = (
        torch.tensor([float("inf"), 2.0], dtype=torch.float16),
        torch.tensor([300.0, 2.0], dtype=torch.float16),
    )
    truth = returned(torch.tensor([300.0, 2.0], dtype=torch.float64))
    assert judged(returned(eager), returned(subject), truth=truth).status is Status.PASS
    wrong = torch.tensor([310.0, 2.0], dtype=torch.float16)
    assert judged(returned(eager), returned(wrong * 2), truth=truth).status is Status.FAIL_ACCURACY


def test_overflows_of_another_kind_on_the_way_to_a_number_are_right():
    """float32: partial sums of 3e38, 3e38, -3e38, -3e38 overflow to inf, -inf or NaN by their order; the sum is 0."""
    eager, truth = torch.tensor([float("nan")]), returned(torch.tensor([0.5], dtype=torch.float64))
    for other in ("inf", "-inf"):
        verdict = judged(returned(eager), returned(torch.tensor([float(other)])), truth=truth)
        assert verdict.status is Status.PASS_DUE_TO_SKIP
    wrong = judged(returned(torch.tensor([0.5])), returned(eager), truth=truth, noise=[returned(torch.tensor([0.5]))])
    assert wrong.status is Status.FAIL_ACCURACY
    beyond = returned(
        torch.tensor([1e39], dtype=torch.float64)
    )  # not a number that the dtype holds: inf is right, NaN is not
    infinite = torch.tensor([float("inf")])
    assert judged(returned(infinite), returned(eager), truth=beyond).status is Status.FAIL_ACCURACY


def test_infinity_where_fp64_is_beyond_the_range_of_the_dtype_is_right():
    eager, subject = torch.tensor([65504.0], dtype=torch.float16), torch.tensor([float("inf")], dtype=torch.float16)
    truth = returned(torch.tensor([65600.0], dtype=torch.float64))
    assert judged(returned(eager), returned(subject), truth=truth).status is Status.PASS
    near = returned(torch.tensor([65400.0], dtype=torch.float64))
    assert (
        judged(returned(eager), returned(subject), truth=near, noise=[returned(eager)]).status is Status.FAIL_ACCURACY
    )


def test_an_element_that_noise_turns_to_nan_is_left_out_and_counted():
    eager, subject = torch.tensor([1.0, 5.0]), torch.tensor([1.0, float("nan")])
    noise = [returned(torch.tensor([1.0, float("nan")])), returned(eager)]
    verdict = judged(returned(eager), returned(subject), noise=noise)
    assert verdict.status is Status.PASS
    assert verdict.compared.unstable_elements == 1


def test_when_every_element_is_unstable_nothing_was_shown():
    eager, subject = torch.tensor([5.0]), torch.tensor([float("nan")])
    verdict = judged(returned(eager), returned(subject), noise=[returned(subject)])
    assert verdict.status is Status.PASS_DUE_TO_SKIP
    assert verdict.symptom == "too little was compared: eager does not determine a digit of 1 of 1 numbers"


def test_a_zero_of_the_other_sign_is_found_where_fp64_and_noise_keep_the_sign():
    eager, subject = torch.tensor([-0.0, 1.0]), torch.tensor([0.0, 1.0])
    verdict = judged(returned(eager), returned(subject), truth=returned(eager.double()), noise=[returned(eager)] * 2)
    assert verdict.status is Status.FAIL_ACCURACY
    assert "(the sign of zero, which fp64 and rounding noise keep; 1 of 2 elements)" in verdict.symptom


@pytest.mark.parametrize(
    ("truth", "noise"),
    [
        (torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0])),
        (torch.tensor([-1e-9, 1.0]), torch.tensor([-0.0, 1.0])),
        (torch.tensor([-0.0, 1.0]), torch.tensor([1e-9, 1.0])),
        (torch.tensor([-0.0, 1.0]), torch.tensor([0.0, 1.0])),
    ],
)
def test_a_zero_of_the_other_sign_is_explained_where_fp64_or_noise_has_another(truth, noise):
    eager, subject = torch.tensor([-0.0, 1.0]), torch.tensor([0.0, 1.0])
    verdict = judged(returned(eager), returned(subject), truth=returned(truth.double()), noise=[returned(noise)])
    assert verdict.status is Status.PASS
    assert verdict.explained == ("call 0: output has 1 of 2 zeros of the other sign, which eager does not define",)


def test_a_flushed_subnormal_is_wrong():
    eager, flushed = torch.tensor([1e-40, 1.0]), torch.tensor([0.0, 1.0])
    verdict = judged(returned(eager), returned(flushed), truth=returned(eager.double()), noise=[returned(eager)])
    assert verdict.status is Status.FAIL_ACCURACY


# ----------------------------------------------------------------------- eager itself


def test_small_differences_between_eagers_own_runs_are_explained():
    x = seeded(100)
    again = torch.nextafter(x, torch.tensor(9.0))
    verdict = judged(returned(x), returned(x), eager_again=returned(again))
    assert verdict.status is Status.PASS
    assert verdict.explained == ("eager's own two runs differ by up to 1 ULP, within the tolerance row",)


def test_large_differences_between_eagers_own_runs_say_that_eager_is_no_measure():
    x = seeded(100)
    verdict = judged(returned(x), returned(x), eager_again=returned(x + 1))
    assert verdict.status is Status.EAGER_TWO_RUNS_DIFFER
    assert not verdict.status.is_finding


def test_the_expensive_runs_are_not_started_when_nothing_differs():
    def never():
        raise AssertionError("started")

    x = seeded(10)
    for outcome in (returned(x), returned(torch.nextafter(x, torch.tensor(9.0)))):
        verdict = judge_with(returned(x), outcome, truth=never, noise=never)
        assert verdict.status is Status.PASS


def judge_with(eager, subject, *, truth, noise):
    return judge(Evidence(eager=eager, again=eager, subject=subject, runs=Runs(truth=truth, noise=noise)))


def test_a_subject_with_a_generator_of_its_own_owes_no_generator_state_where_eager_draws_in_vain() -> None:
    """Pooling with random regions that turn out the same: eager takes numbers on which the result does not depend."""
    eager = returned_calls(observation(torch.ones(2), rng="cpu=1"))
    subject = returned_calls(observation(torch.ones(2), rng="cpu=2"))
    assert judged(eager, subject, rng="own", eager_draws=True).status is Status.PASS
    assert judged(eager, subject, rng="own").status is Status.FAIL_RNG
    assert judged(eager, subject, rng="eager", eager_draws=True).status is Status.FAIL_RNG
