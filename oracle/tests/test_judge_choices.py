"""Results with a choice in them: indices of ties, eigenvectors, undefined values, random numbers."""

from __future__ import annotations

import math

import pytest
import torch

from oracle.errors import UsageError
from oracle.judge.distribution import kolmogorov_smirnov
from oracle.observe.outcome import Returned
from oracle.program import ComparePolicy
from oracle.tests.outcomes import judged, returned
from oracle.verdict import Status


def seeded(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# ----------------------------------------------------------------------- indices


def index_policy(path: str = "output", **spec) -> ComparePolicy:
    return ComparePolicy(index_outputs={path: {"of": "args[0]", "dim": None, **spec}}, reason="ties")


TIES = torch.tensor([3.0, 7.0, 7.0, float("nan"), float("nan")])


@pytest.mark.parametrize(
    ("eager", "subject", "status"),
    [(1, 2, Status.PASS), (3, 4, Status.PASS), (1, 0, Status.FAIL_ACCURACY), (1, 3, Status.FAIL_ACCURACY),
     (1, 5, Status.FAIL_ACCURACY), (1, -4, Status.FAIL_ACCURACY)],
)  # fmt: skip
def test_an_index_of_a_tie_may_be_another_but_must_point_to_the_same_value(eager, subject, status):
    verdict = judged(
        returned(torch.tensor(eager), args=(TIES,)),
        returned(torch.tensor(subject), args=(TIES,)),
        policy=index_policy(),
    )
    assert verdict.status is status


def test_a_stable_index_output_is_exact():
    eager, subject = returned(torch.tensor(1), args=(TIES,)), returned(torch.tensor(2), args=(TIES,))
    assert judged(eager, subject, policy=index_policy(stable=True)).status is Status.FAIL_ACCURACY


def test_without_a_policy_indices_are_integers_and_exact():
    eager, subject = returned(torch.tensor(1), args=(TIES,)), returned(torch.tensor(2), args=(TIES,))
    assert judged(eager, subject).status is Status.FAIL_ACCURACY


@pytest.mark.parametrize("keepdim", [True, False])
def test_indices_along_a_dimension_are_looked_up_along_it(keepdim):
    x = torch.tensor([[5.0, 1.0], [5.0, 2.0], [0.0, 2.0]])
    eager = torch.tensor([0, 1])
    for subject, status in (([1, 2], Status.PASS), ([2, 1], Status.FAIL_ACCURACY), ([0, 0], Status.FAIL_ACCURACY)):
        a, b = eager, torch.tensor(subject)
        if keepdim:
            a, b = a.unsqueeze(0), b.unsqueeze(0)
        verdict = judged(returned(a, args=(x,)), returned(b, args=(x,)), policy=index_policy(dim=0))
        assert verdict.status is status


def test_sorted_indices_must_not_name_one_of_two_ties_twice():
    x = torch.tensor([2.0, 1.0, 2.0])
    eager = returned(torch.tensor([1, 0, 2]), args=(x,))
    assert judged(eager, returned(torch.tensor([1, 2, 0]), args=(x,)), policy=index_policy(dim=0)).status is Status.PASS
    verdict = judged(eager, returned(torch.tensor([1, 2, 2]), args=(x,)), policy=index_policy(dim=0))
    assert verdict.status is Status.FAIL_ACCURACY


GRADIENT_OF_TIES = {  # of [2, 1, 2, 5, nan, nan], beside eager's [3, 0, 4, 0, 6, 0] with the indices [0, 2, 4]
    "the other two": ([4.0, 0, 3, 0, 0, 6], [2, 0, 5], Status.PASS),
    "the same": ([3.0, 0, 4, 0, 6, 0], [0, 2, 4], Status.PASS),
    "another value": ([4.5, 0, 3, 0, 0, 6], [2, 0, 5], Status.FAIL_GRAD),
    "nothing": ([0.0, 0, 0, 0, 0, 0], [2, 0, 5], Status.FAIL_GRAD),
    "one twice": ([3.0, 0, 3, 0, 0, 6], [2, 0, 5], Status.FAIL_GRAD),
    "at an element of another value": ([0.0, 4, 3, 0, 0, 6], [2, 0, 5], Status.FAIL_GRAD),
    "at an element that only the other side took": ([3.0, 0, 4, 0, 0, 6], [2, 0, 5], Status.FAIL_GRAD),
    "on another line": ([4.0, 0, 3, 6, 0, 0], [2, 0, 5], Status.FAIL_GRAD),
}


@pytest.mark.parametrize("case", GRADIENT_OF_TIES)
@pytest.mark.parametrize("dim", [0, -1, 1])
def test_gradients_follow_the_choice_among_equal_elements(case, dim):
    """They are compared up to a permutation among these, and each where it says that it chose."""
    gradient, indices, status = GRADIENT_OF_TIES[case]

    def laid(*values, dtype=torch.float32):
        line = torch.tensor(values, dtype=dtype)
        return line if dim == 0 else torch.stack([line, line])

    x = laid(2.0, 1, 2, 5, float("nan"), float("nan"))
    eager = returned(laid(0, 2, 4, dtype=torch.int64), args=(x,), gradients={"args[0]": laid(3.0, 0, 4, 0, 6, 0)})
    other = returned(laid(*indices, dtype=torch.int64), args=(x,), gradients={"args[0]": laid(*gradient)})
    assert judged(eager, other, policy=index_policy(dim=dim)).status is status


def test_gradients_are_not_moved_to_equal_elements_of_another_line():
    x, index = torch.full((2, 2), 7.0), torch.tensor([[0], [0]])
    eager = returned(index, args=(x,), gradients={"args[0]": torch.tensor([[1.0, 0], [2, 0]])})
    for gradient, status in (([[0.0, 1], [0, 2]], Status.PASS), ([[0.0, 2], [0, 1]], Status.FAIL_GRAD)):
        other = returned(1 - index, args=(x,), gradients={"args[0]": torch.tensor(gradient)})
        assert judged(eager, other, policy=index_policy(dim=1)).status is status


def test_gradients_of_other_tensors_are_not_compared_where_the_choice_is_another():
    x, y = torch.tensor([2.0, 1.0, 2.0]), torch.zeros(3)
    gradients = [{"args[0]": g, "args[1]": g} for g in (torch.tensor([1.0, 0, 0]), torch.tensor([0.0, 0, 1]))]
    eager, other = (
        returned(torch.tensor([at]), args=(x, y), gradients=g) for at, g in zip((0, 2), gradients, strict=True)
    )
    assert judged(eager, other, policy=index_policy(dim=0)).status is Status.PASS
    wrong = returned(torch.tensor([0]), args=(x, y), gradients=gradients[1])
    assert judged(eager, wrong, policy=index_policy(dim=0)).status is Status.FAIL_GRAD


def test_indices_into_another_output_are_looked_up_in_it():
    """unique: values in another order, with an inverse that fits them."""
    policy = ComparePolicy(index_outputs={"output[1]": {"of": "output[0]", "dim": None}}, reason="inverse of unique")
    values = torch.tensor([4.0, 4.0, 6.0])
    eager = returned(values, torch.tensor([0, 2, 0]))
    assert judged(eager, returned(values, torch.tensor([1, 2, 1])), policy=policy).status is Status.PASS
    assert judged(eager, returned(values, torch.tensor([1, 1, 1])), policy=policy).status is Status.FAIL_ACCURACY


def test_a_policy_that_names_a_tensor_that_is_not_there_is_a_usage_error():
    policy = ComparePolicy(index_outputs={"output": {"of": "args[7]", "dim": None}}, reason="test")
    with pytest.raises(UsageError, match=r"args\[7\]"):
        judged(returned(torch.tensor(1)), returned(torch.tensor(2)), policy=policy)


# ----------------------------------------------------------------------- up to a symmetry


def up_to(name: str) -> ComparePolicy:
    return ComparePolicy(invariant=name, strides="ignore", reason="test")


def test_eigenvectors_may_have_another_sign():
    a = seeded(6, 6)
    values, vectors = torch.linalg.eigh(a + a.T)
    signs = torch.tensor([1.0, -1, -1, 1, 1, -1])
    verdict = judged(returned(values, vectors), returned(values, vectors * signs), policy=up_to("eigenvectors"))
    assert verdict.status is Status.PASS
    assert verdict.explained == ("call 0: outputs agree up to the choice that 'eigenvectors' leaves open",)
    assert judged(returned(values, vectors), returned(values, vectors * signs)).status is Status.FAIL_ACCURACY


def test_eigenvectors_may_have_another_phase():
    a = seeded(5, 5, dtype=torch.complex64)
    values, vectors = torch.linalg.eigh(a + a.mH)
    turned = vectors * torch.exp(1j * torch.arange(5.0))
    assert (
        judged(returned(values, vectors), returned(values, turned), policy=up_to("eigenvectors")).status is Status.PASS
    )


def test_a_degenerate_subspace_may_be_spanned_by_another_basis():
    values, vectors = torch.linalg.eigh(torch.diag(torch.tensor([1.0, 1.0, 3.0])))
    turn = torch.eye(3)
    turn[:2, :2] = torch.tensor([[math.cos(0.3), -math.sin(0.3)], [math.sin(0.3), math.cos(0.3)]])
    verdict = judged(returned(values, vectors), returned(values, vectors @ turn), policy=up_to("eigenvectors"))
    assert verdict.status is Status.PASS


@pytest.mark.parametrize("wrong", ["eigenvalue", "vector", "scale", "swapped", "nan"])
def test_a_wrong_eigendecomposition_is_found(wrong):
    a = seeded(6, 6)
    values, vectors = torch.linalg.eigh(a + a.T)
    bad_values, bad_vectors = values.clone(), -vectors
    if wrong == "eigenvalue":
        bad_values[3] += 1e-3
    elif wrong == "vector":
        bad_vectors[2, 1] += 1e-2
    elif wrong == "scale":
        bad_vectors = bad_vectors * 2
    elif wrong == "swapped":
        bad_vectors = bad_vectors[:, [1, 0, 2, 3, 4, 5]]
    else:
        bad_vectors[0, 0] = float("nan")
    verdict = judged(returned(values, vectors), returned(bad_values, bad_vectors), policy=up_to("eigenvectors"))
    assert verdict.status is Status.FAIL_ACCURACY


def test_the_eigenvectors_of_a_general_matrix_may_come_in_another_phase_and_order():
    values, vectors = torch.linalg.eig(seeded(5, 5, seed=2))
    order = torch.tensor([3, 0, 4, 1, 2])
    turned = vectors[:, order] * torch.exp(1j * torch.arange(5.0))
    policy = up_to("eigenvectors")
    assert judged(returned(values, vectors), returned(values[order], turned), policy=policy).status is Status.PASS
    assert judged(returned(values, vectors), returned(values, turned), policy=policy).status is Status.FAIL_ACCURACY
    doubled = order.clone()
    doubled[1] = doubled[0]
    twice = returned(values[doubled], vectors[:, doubled])
    assert judged(returned(values, vectors), twice, policy=policy).status is Status.FAIL_ACCURACY


def test_of_a_nearly_defective_matrix_the_eigenvalues_are_compared():
    values, vectors = torch.linalg.eig(torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 2.0]]))
    other_values, other_vectors = torch.linalg.eig(torch.tensor([[1.0, 1.0, 0.0], [1e-8, 1.0, 0.0], [0.0, 0.0, 2.0]]))
    eager, policy = returned(values, vectors), up_to("eigenvectors")
    assert judged(eager, returned(other_values, other_vectors), policy=policy).status is Status.PASS
    assert judged(eager, returned(other_values + 0.3, other_vectors), policy=policy).status is Status.FAIL_ACCURACY


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5), (2, 4, 3)])
@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("convention", ["linalg.svd", "svd"])
def test_singular_vectors_may_change_sign_together(shape, full, convention):
    u, s, vh = torch.linalg.svd(seeded(*shape), full_matrices=full)
    rank = s.shape[-1]
    signs = torch.where(torch.arange(rank) % 2 == 0, -1.0, 1.0)
    other_u, other_vh = u.clone(), vh.clone()
    other_u[..., :rank] *= signs
    other_vh[..., :rank, :] *= signs.unsqueeze(-1)
    wrong_vh = vh.clone()
    wrong_vh[..., :1, :] *= -1  # one side only
    if convention == "svd":
        vh, other_vh, wrong_vh = vh.mH, other_vh.mH, wrong_vh.mH
    eager = returned(u, s, vh)
    assert judged(eager, returned(other_u, s, other_vh), policy=up_to("svd")).status is Status.PASS
    assert judged(eager, returned(u, s, wrong_vh), policy=up_to("svd")).status is Status.FAIL_ACCURACY
    assert judged(eager, returned(other_u, s * 1.001, other_vh), policy=up_to("svd")).status is Status.FAIL_ACCURACY


def test_qr_may_change_the_signs_of_rows():
    q, r = torch.linalg.qr(seeded(5, 3))
    signs = torch.tensor([1.0, -1, -1])
    flipped = returned(q * signs, r * signs.unsqueeze(-1))
    assert judged(returned(q, r), flipped, policy=up_to("qr")).status is Status.PASS
    assert judged(returned(q, r), returned(q * signs, r), policy=up_to("qr")).status is Status.FAIL_ACCURACY
    mixed = torch.linalg.qr(seeded(3, 3, seed=1)).Q
    assert judged(returned(q, r), returned(q @ mixed, mixed.T @ r), policy=up_to("qr")).status is Status.FAIL_ACCURACY


def test_gradients_are_not_compared_where_another_phase_was_chosen():
    q, r = torch.linalg.qr(seeded(3, 3))
    eager = returned(q, r, gradients={"args[0]": q})
    verdict = judged(eager, returned(-q, -r, gradients={"args[0]": -q}), policy=up_to("qr"))
    assert verdict.status is Status.PASS
    assert "gradients depend on the choice" in verdict.explained[-1]
    verdict = judged(eager, returned(q, r, gradients={"args[0]": -q}), policy=up_to("qr"))
    assert verdict.status is Status.FAIL_GRAD


def test_a_collection_may_come_in_another_order_but_its_columns_stay_together():
    values, counts = torch.tensor([1.5, 2.5, 2.5]), torch.tensor([3, 1, 2])
    order = torch.tensor([2, 0, 1])
    eager, policy = returned(values, counts), up_to("order")
    assert judged(eager, returned(values[order], counts[order]), policy=policy).status is Status.PASS
    assert judged(eager, returned(values[order], counts), policy=policy).status is Status.FAIL_ACCURACY
    assert judged(eager, returned(values[order] + 1, counts[order]), policy=policy).status is Status.FAIL_ACCURACY


def test_an_unknown_invariant_is_a_usage_error():
    with pytest.raises(UsageError, match="eigenvectors, order, qr, svd"):
        judged(returned(torch.ones(1)), returned(torch.ones(1)), policy=up_to("schur"))


# ----------------------------------------------------------------------- undefined values


def test_undefined_values_are_not_compared_but_their_metadata_is():
    policy = ComparePolicy(undefined_outputs=("output",), reason="torch.empty")
    verdict = judged(returned(torch.ones(3)), returned(torch.zeros(3)), policy=policy)
    assert verdict.status is Status.PASS
    assert verdict.compared.elements == 0
    assert verdict.explained == ("call 0: output has undefined values: only its metadata was compared",)
    assert judged(returned(torch.ones(3)), returned(torch.zeros(4)), policy=policy).status is Status.FAIL_METADATA


def test_only_the_named_outputs_are_undefined():
    policy = ComparePolicy(undefined_outputs=("output[1]",), reason="test")
    x = torch.ones(3)
    assert judged(returned(x, x + 1), returned(x, x + 2), policy=policy).status is Status.PASS
    assert judged(returned(x, x + 1), returned(x + 1, x + 1), policy=policy).status is Status.FAIL_ACCURACY
    ten = [x] * 11
    assert judged(returned(*ten), returned(*ten[:10], x + 1), policy=policy).status is Status.FAIL_ACCURACY


# ----------------------------------------------------------------------- random programs


def own(**options):
    return {"is_random": True, "rng": "own", **options}


@pytest.mark.parametrize(
    "draw", [torch.randn, torch.rand, lambda n, generator: torch.rand(n, generator=generator) < 0.3]
)
def test_a_random_program_under_another_generator_is_the_same_program(draw):
    eager, subject = (draw(5000, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    verdict = judged(returned(eager, rng="a"), returned(subject, rng="b"), **own())
    assert verdict.status is Status.PASS
    assert verdict.compared.elements == 5000


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: x + 0.5,
        lambda x: x * 2,
        lambda x: x.abs(),
        lambda x: torch.zeros_like(x),
        lambda x: x.masked_fill(x > 2, math.nan),
    ],
)
def test_another_distribution_is_found(wrong):
    eager, subject = seeded(5000, seed=1), wrong(seeded(5000, seed=2))
    verdict = judged(returned(eager), returned(subject), **own())
    assert verdict.status is Status.FAIL_ACCURACY


def test_the_same_seed_without_the_same_values_is_wrong_for_a_subject_that_promises_eagers_numbers():
    verdict = judged(returned(seeded(100, seed=1)), returned(seeded(100, seed=2)), is_random=True, rng="eager")
    assert verdict.status is Status.FAIL_ACCURACY


def test_a_subject_with_numbers_of_its_own_must_still_be_exact_in_a_program_without_random_numbers():
    verdict = judged(returned(seeded(100, seed=1)), returned(seeded(100, seed=2)), is_random=False, rng="own")
    assert verdict.status is Status.FAIL_ACCURACY


def test_the_shape_and_dtype_of_random_numbers_are_compared():
    assert judged(returned(seeded(100)), returned(seeded(99)), **own()).status is Status.FAIL_METADATA
    assert judged(returned(seeded(100)), returned(seeded(100).double()), **own()).status is Status.FAIL_METADATA


def test_elements_that_depend_on_one_another_are_measured_against_eager_under_another_seed():
    x = seeded(2000)
    eager, subject, other = (x + shift for shift in (0.1, 0.9, -0.8))
    assert judged(returned(eager), returned(subject), **own()).status is Status.FAIL_ACCURACY
    verdict = judged(returned(eager), returned(subject), **own(other_seed=lambda: returned(other)))
    assert verdict.status is Status.PASS


def test_few_random_numbers_behind_many_elements_are_measured_against_eager_under_many_seeds():
    """Channels that drop out as a whole: one other seed may happen to be near."""

    def channels(seed):
        kept = torch.rand(5, 1, generator=torch.Generator().manual_seed(seed)) < 0.5
        return (torch.linspace(-1, 3, 5)[:, None] + seeded(5 * 200).view(5, 200) / 10) * kept

    runs = [returned(channels(seed)) for seed in range(2, 40)]
    eager, near, subject = returned(channels(0)), returned(channels(0)), returned(channels(1))
    assert judged(eager, subject, **own(other_seed=lambda: near)).status is Status.FAIL_ACCURACY
    judged_by_many = own(other_seed=lambda: near, many_seeds=lambda: runs)
    assert judged(eager, subject, **judged_by_many).status is Status.PASS
    assert judged(eager, returned(channels(1) + 9), **judged_by_many).status is Status.FAIL_ACCURACY


def test_an_overflow_by_chance_is_one_that_eager_has_under_some_seed():
    eager, subject = torch.tensor([0.0, 5.0]), torch.tensor([math.inf, 0.0])
    runs = [returned(torch.tensor([0.0, 0.0])), returned(torch.tensor([-math.inf, 5.0]))]
    assert judged(returned(eager), returned(subject), **own(many_seeds=lambda: runs)).status is Status.PASS
    for wrong, seen in ((subject, runs[:1]), (torch.tensor([math.nan, 0.0]), runs)):
        verdict = judged(returned(eager), returned(wrong), **own(many_seeds=lambda seen=seen: seen))
        assert verdict.status is Status.FAIL_ACCURACY


def test_two_runs_of_a_random_eager_need_not_agree():
    eager, again = returned(seeded(100, seed=1)), returned(seeded(100, seed=2))
    assert judged(eager, eager, eager_again=again, is_random=True).status is Status.PASS


def dropout(x: torch.Tensor, seed: int) -> torch.Tensor:
    return torch.where(torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)) < 0.5, 2.0, 0.0)


def test_a_shape_that_follows_a_branch_on_chance_is_not_asked_of_a_subject_with_numbers_of_its_own():
    eager, subject = returned(seeded(100)), returned(seeded(50))
    assert judged(eager, subject, **own()).status is Status.FAIL_METADATA
    other_ways = [returned(seeded(100, seed=3)), returned(seeded(50, seed=4))]
    assert judged(eager, subject, **own(many_seeds=lambda: other_ways)).status is Status.PASS_DUE_TO_SKIP
    same_ways = [returned(seeded(100, seed=seed)) for seed in range(3, 20)]
    assert judged(eager, subject, **own(many_seeds=lambda: same_ways)).status is Status.FAIL_METADATA


def test_chance_in_one_output_excuses_nothing_in_another():
    def outcome(length: int, right: torch.Tensor, seed: int = 1) -> Returned:
        return returned(seeded(length, seed=seed), right)

    x = torch.linspace(0.0, 1.0, 2000)
    eager, other_ways = outcome(100, x), [outcome(100, x, seed=3), outcome(50, x, seed=4)]
    for wrong, status in (
        (x + 1, Status.FAIL_ACCURACY),
        (x[:5], Status.FAIL_METADATA),
        (x.double(), Status.FAIL_METADATA),
    ):
        for length in (100, 50):
            verdict = judged(eager, outcome(length, wrong, seed=2), **own(many_seeds=lambda: other_ways))
            assert verdict.status is status, verdict
            assert "[1]" in verdict.symptom


def test_a_gradient_with_the_mask_of_its_own_forward_is_right():
    x = seeded(200)
    eager, subject = dropout(x, 1), dropout(x, 2)
    right = returned(x * eager, gradients={"args[0]": eager})
    assert judged(right, returned(x * subject, gradients={"args[0]": subject}), **own()).status is Status.PASS


def test_a_gradient_with_a_fresh_mask_is_found():
    """pytorch/pytorch#190758: dropout recomputed in the backward with other random numbers."""
    x = seeded(200)
    right = returned(x * dropout(x, 1), gradients={"args[0]": dropout(x, 1)})
    verdict = judged(right, returned(x * dropout(x, 2), gradients={"args[0]": dropout(x, 3)}), **own())
    assert verdict.status is Status.FAIL_GRAD
    assert "grad of args[0]: the mask of the gradient is not the mask of the forward, but should be" in verdict.symptom


def test_masks_that_coincide_under_one_seed_only_say_nothing():
    x = torch.cat([torch.zeros(1), seeded(40)])

    def outcome(seed: int, gradient_seed: int | None = None) -> Returned:
        mask = dropout(x, seed)
        return returned(x * mask, gradients={"args[0]": mask if gradient_seed is None else dropout(x, gradient_seed)})

    drops_first = [seed for seed in range(40) if dropout(x, seed)[0] == 0]
    keeps_first = [seed for seed in range(40) if dropout(x, seed)[0] != 0]
    eager, subject = outcome(drops_first[0]), outcome(keeps_first[0])
    assert judged(eager, subject, **own()).status is Status.FAIL_GRAD
    runs = [outcome(seed) for seed in range(40)]
    assert judged(eager, subject, **own(many_seeds=lambda: runs)).status is Status.PASS
    same_masks = [outcome(seed) for seed in drops_first]
    wrong = outcome(drops_first[0], gradient_seed=drops_first[1])
    assert judged(eager, wrong, **own(many_seeds=lambda: same_masks)).status is Status.FAIL_GRAD


def test_fp64_of_a_random_program_counts_only_if_it_drew_the_same_numbers():
    """Its numbers differ from eager's by as much as any wrong answer: as a ground truth it would excuse everything."""
    x = seeded(100)
    wrong = x.clone()
    wrong[3] += 1
    drew_others = returned(seeded(100, seed=5).double(), rng="other")
    assert judged(returned(x), returned(wrong), truth=drew_others, is_random=True).status is Status.FAIL_ACCURACY
    unsure = (x.double() + 1e-5).float()
    drew_the_same = returned(x.double() + 1e-5)
    assert judged(returned(x), returned(unsure), truth=drew_the_same, is_random=True).status is Status.PASS


def test_kolmogorov_smirnov_is_the_largest_distance_of_two_distributions():
    distance, _ = kolmogorov_smirnov(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([3.5, 4.5]))
    assert distance == pytest.approx(0.75)
    assert kolmogorov_smirnov(torch.ones(5), torch.ones(7)) == (0.0, 0.0)
