"""Choices that a definition leaves open: in batches, of every size, and what is said of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from oracle.observe.outcome import Returned
from oracle.program import ComparePolicy
from oracle.tests.outcomes import judged, returned
from oracle.verdict import Status, Verdict


def up_to(name: str) -> ComparePolicy:
    return ComparePolicy(invariant=name, strides="ignore", reason="test")


def seeded(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("name", ["svd", "qr", "eigenvectors"])
def test_what_is_allowed_grows_with_the_matrix(name: str, scale: float) -> None:
    a = scale * seeded(6, 6)
    function = {"svd": torch.linalg.svd, "qr": torch.linalg.qr, "eigenvectors": lambda a: torch.linalg.eigh(a + a.T)}[
        name
    ]
    eager, rounded, wrong = (function(a * factor) for factor in (1.0, 1 + 2**-22, 1.001))
    assert judged(returned(*eager), returned(*rounded), policy=up_to(name)).status is Status.PASS
    assert judged(returned(*eager), returned(*wrong), policy=up_to(name)).status is Status.FAIL_ACCURACY


def test_eigenvectors_of_a_general_matrix_have_eagers_length() -> None:
    values, vectors = torch.linalg.eig(seeded(5, 5))
    verdict = judged(returned(values, vectors), returned(values, 2 * vectors), policy=up_to("eigenvectors"))
    assert verdict.status is Status.FAIL_ACCURACY
    assert any("the norms of the eigenvectors differ" in text for text in verdict.explained)


@pytest.mark.parametrize("name", ["svd", "qr", "eigenvectors"])
def test_a_rule_for_another_number_of_outputs_excuses_nothing(name: str) -> None:
    q, r = torch.linalg.qr(seeded(3, 3))
    outputs = [q] if name != "svd" else [q, r]
    verdict = judged(returned(*outputs), returned(*(-one for one in outputs)), policy=up_to(name))
    assert verdict.status is Status.FAIL_ACCURACY
    assert any(f"has {len(outputs)} outputs, but should have " in text for text in verdict.explained)


def batch_of(values: Tensor, vectors: Tensor, *, is_second_wrong: bool) -> Returned:
    """Two decompositions; nothing of the first is a number."""
    both = [torch.stack([torch.full_like(part, torch.nan), part]) for part in (values, vectors)]
    if is_second_wrong:
        both[1][1] *= -2
    return returned(*both)


def test_a_matrix_without_eigenvectors_excuses_no_other_of_its_batch() -> None:
    a = seeded(3, 3)
    parts = torch.linalg.eigh(a + a.T)
    eager, wrong = (batch_of(*parts, is_second_wrong=is_wrong) for is_wrong in (False, True))
    assert judged(eager, wrong, policy=up_to("eigenvectors")).status is Status.FAIL_ACCURACY


def test_a_matrix_without_singular_vectors_excuses_no_other_of_its_batch() -> None:
    parts = [torch.stack([torch.full_like(part, torch.nan), part]) for part in torch.linalg.svd(seeded(3, 3))]
    flipped, wrong = ([parts[0] * factor, parts[1], parts[2] * factor] for factor in (-1, 2))
    assert judged(returned(*parts), returned(*flipped), policy=up_to("svd")).status is Status.PASS
    assert judged(returned(*parts), returned(*wrong), policy=up_to("svd")).status is Status.FAIL_ACCURACY


# ------------------------------------------------------------------------------------------------------------------ indices


def judged_index(eager: Returned, subject: Returned, dim: int | None) -> Verdict:
    spec = {"of": "args[0]", "dim": dim}
    return judged(eager, subject, policy=ComparePolicy(index_outputs={"output": spec}, reason="ties"))


def test_how_many_indices_differ_is_told() -> None:
    x = torch.tensor([2.0, 1.0, 2.0])
    eager, subject = (returned(torch.tensor(index), args=(x,)) for index in ([0, 1, 2], [2, 1, 0]))
    assert judged_index(eager, subject, 0).explained == (
        "call 0: output differs in 2 of 3 indices that point to the same values of args[0]",
    )


def test_gradients_follow_an_index_into_all_elements() -> None:
    x = torch.full((2, 2), 7.0)
    eager = returned(torch.tensor(0), args=(x,), gradients={"args[0]": torch.tensor([[3.0, 0], [0, 0]])})
    for gradient, status in (([[0.0, 0], [0, 3]], Status.PASS), ([[0.0, 3], [0, 0]], Status.FAIL_GRAD)):
        subject = returned(torch.tensor(3), args=(x,), gradients={"args[0]": torch.tensor(gradient)})
        assert judged_index(eager, subject, None).status is status


def test_the_sign_of_a_zero_among_gradients_of_ties_is_not_owed() -> None:
    x = torch.tensor([2.0, 1.0, 2.0])
    eager = returned(torch.tensor([0]), args=(x,), gradients={"args[0]": torch.zeros(3)})
    subject = returned(torch.tensor([2]), args=(x,), gradients={"args[0]": -torch.zeros(3)})
    assert judged_index(eager, subject, 0).status is Status.PASS


# -------------------------------------------------------------------------------------------------- triangles and collections


def test_a_triangle_without_its_rotation_is_compared_up_to_the_signs_of_its_rows() -> None:
    r, none = torch.linalg.qr(seeded(5, 3)).R, torch.zeros(0)
    signs = torch.tensor([1.0, -1, -1]).unsqueeze(-1)
    eager, policy = returned(none, r), up_to("qr")
    rounded = signs * r * (1 + 2**-22)
    assert judged(eager, returned(none, rounded), policy=policy).status is Status.PASS
    assert judged(eager, returned(none, signs * r * 1.001), policy=policy).status is Status.FAIL_ACCURACY
    full = rounded.clone()
    full[2, 0] = 1e-3
    assert judged(eager, returned(none, full), policy=policy).status is Status.FAIL_ACCURACY


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.complex64, torch.int64, torch.bool], ids=str)
def test_collections_of_every_dtype_may_come_in_another_order(dtype: torch.dtype) -> None:
    rows = torch.tensor([[1, 0], [1, 1], [0, 1], [0, 0]]).to(dtype)
    counts, order, single = torch.arange(4), torch.tensor([2, 0, 3, 1]), torch.tensor(7)
    eager, policy = returned(rows, counts, single), up_to("order")
    assert judged(eager, returned(rows[order], counts[order], single), policy=policy).status is Status.PASS
    for wrong in (
        returned(rows[order], counts, single),
        returned(rows[order], counts[order], single + 1),
        returned(rows[order].flip(1), counts[order], single),
    ):
        assert judged(eager, wrong, policy=policy).status is Status.FAIL_ACCURACY


def test_collections_of_other_lengths_are_ordered_by_themselves_and_empty_ones_are_equal() -> None:
    one, two, none = torch.arange(3), torch.arange(5), torch.zeros(0, 2)
    eager, policy = returned(one, two, none), up_to("order")
    assert judged(eager, returned(one.flip(0), two.roll(1), none.clone()), policy=policy).status is Status.PASS
    assert judged(eager, returned(one.flip(0), two + 1, none.clone()), policy=policy).status is Status.FAIL_ACCURACY
