"""Leaves of a call: missing ones, metadata, parts of a tensor, values of Python."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.two_tensor import TwoTensor

from oracle.observe.outcome import CallObservation, Leaf, Returned
from oracle.tests.outcomes import judged, leaf, observation, returned, returned_calls
from oracle.tests.test_judge_systematic import noisy, truths
from oracle.verdict import Status, Verdict

X = torch.arange(4.0)


def symptoms(verdict: Verdict) -> list[str]:
    return [verdict.symptom, *verdict.also] if verdict.symptom else []


def with_leaves(section: str, *leaves: Leaf) -> Returned:
    """A call whose structure is always the same, whatever its leaves are."""
    call = observation(X)
    sections: dict[str, Any] = {section: (*getattr(call, section), *leaves)}
    return returned_calls(replace(call, **sections))


@pytest.mark.parametrize(
    ("section", "status"),
    [
        ("outputs", Status.FAIL_METADATA),
        ("inputs_after", Status.FAIL_MUTATION),
        ("gradients", Status.FAIL_GRAD),
        ("module_state", Status.FAIL_STATE),
    ],
)
def test_leaves_that_one_side_has_not_are_told(section: str, status: Status) -> None:
    one, two = with_leaves(section), with_leaves(section, leaf("b", X.clone()), leaf("c", None), leaf("d", 3))
    missing, extra = judged(two, one), judged(one, two)
    assert symptoms(missing) == [
        "call 0: b is missing, but should be torch.Tensor of shape (4,) and dtype torch.float32",
        "call 0: c is missing, but should be None",
        "call 0: d is missing, but should be int 3",
    ]
    assert symptoms(extra) == [
        "call 0: b is torch.Tensor of shape (4,) and dtype torch.float32, but should not be there",
        "call 0: c is None, but should not be there",
        "call 0: d is int 3, but should not be there",
    ]
    assert missing.status is extra.status is status


@pytest.mark.parametrize(("length", "text"), [(78, "x" * 78), (79, "x" * 76 + "...")])
def test_long_values_are_shortened_to_eighty_characters(length: int, text: str) -> None:
    verdict = judged(with_leaves("outputs"), with_leaves("outputs", leaf("b", "x" * length)))
    shown = f"'{text}'" if length == 78 else f"'{text}"
    assert verdict.symptom == f"call 0: b is str {shown}, but should not be there"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"dtype": "float64"}, ["dtype is torch.float64, but should be torch.float32"]),
        ({"device": "cuda:0"}, ["device is cuda:0, but should be cpu"]),
        ({"layout": "sparse_coo"}, ["layout is sparse_coo, but should be strided"]),
        ({"requires_grad": True}, ["requires_grad is True, but should be False"]),
        ({"is_leaf": False}, ["is_leaf is False, but should be True"]),
        ({"is_conj": True}, ["is_conj is True, but should be False"]),
        ({"is_neg": True}, ["is_neg is True, but should be False"]),
        ({"is_inference": True}, ["is_inference is True, but should be False"]),
        ({"quantizer": "q"}, ["quantizer is q, but should be None"]),
        ({"type_name": "A"}, ["type_name is A, but should be torch.Tensor"]),
        (
            {"device": "cuda:0", "requires_grad": True},
            ["device is cuda:0, but should be cpu", "requires_grad is True, but should be False"],
        ),
    ],
)
def test_every_other_fact_of_an_output_is_told(change: dict[str, Any], expected: list[str]) -> None:
    plain = leaf("b", X.clone())
    assert plain.facts is not None
    other = replace(plain, facts=replace(plain.facts, **change))
    verdict = judged(with_leaves("outputs", plain), with_leaves("outputs", other))
    assert symptoms(verdict) == [f"call 0: b.{text}" for text in expected]
    assert verdict.status is Status.FAIL_METADATA
    of_gradients = judged(with_leaves("gradients", plain), with_leaves("gradients", other))
    is_owed = change.keys() & {"dtype", "device", "layout", "type_name"}
    assert of_gradients.status is (Status.FAIL_GRAD if is_owed else Status.PASS)


def test_where_a_flag_differs_values_are_compared_and_where_a_shape_does_they_are_not() -> None:
    flagged = returned((X + 1).requires_grad_())
    assert len(symptoms(judged(returned(X), flagged))) == 2
    assert len(symptoms(judged(returned(X), returned((X + 1).double())))) == 1


# --------------------------------------------------------------------------------------------------------- parts of a tensor


def two(a: Tensor, b: Tensor) -> Tensor:
    return TwoTensor(a, b)


def test_every_part_of_a_wrapper_is_told() -> None:
    eager = returned(two(X, X))
    verdict = judged(eager, returned(two(X + 1, X + 2)))
    assert len(symptoms(verdict)) == 2
    assert verdict.symptom.startswith("call 0: output.a[0] is 1, but should be 0")
    assert verdict.also[0].startswith("call 0: output.b[0] is 2, but should be 0")


def coo(indices: list[int], values: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(torch.tensor([indices]), values, (9,), is_coalesced=True)


def test_parts_of_other_shapes_are_told_and_the_others_compared() -> None:
    eager, values = coo([0, 1], torch.ones(2)), torch.ones(3)
    verdict = judged(returned(eager), returned(coo([0, 1, 2], values)))
    assert symptoms(verdict) == [
        "call 0: output.indices() is (1, 3) of torch.int64, but should be (1, 2) of torch.int64",
        "call 0: output.values() is (3,) of torch.float32, but should be (2,) of torch.float32",
    ]


def observed(value: Tensor, as_if: Tensor) -> Returned:
    """A call that returns `value`, with the metadata of another tensor."""
    call: CallObservation = observation(as_if)
    return returned_calls(replace(call, outputs=tuple(replace(one, value=value) for one in call.outputs)))


def test_parts_of_other_dtypes_are_told() -> None:
    verdict = judged(observed(X, X), observed(X.double(), X))
    assert verdict.symptom == "call 0: output is (4,) of torch.float64, but should be (4,) of torch.float32"
    shorter = judged(observed(X, X), observed(X[:3], X))
    assert shorter.symptom == "call 0: output is (3,) of torch.float32, but should be (4,) of torch.float32"


def test_further_runs_of_wrappers_are_taken_apart_as_well() -> None:
    subject, truth = two(X, X + 1e-3), two(X.double(), (X + 1e-3).double())
    assert judged(returned(two(X, X)), returned(subject)).status is Status.FAIL_ACCURACY
    assert judged(returned(two(X, X)), returned(subject), truth=returned(truth)).status is Status.PASS
    assert judged(returned(two(X, X)), returned(two(X + 1e-3, X)), truth=returned(truth)).status is Status.FAIL_ACCURACY
    fewer = judged(returned(two(X, X)), returned(subject), truth=returned(X.double() + 1e-3))
    assert fewer.status is Status.FAIL_ACCURACY


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta")
def test_parts_of_compressed_tensors_have_their_names() -> None:
    dense, moved = torch.eye(3), torch.eye(3)
    moved[0, 0], moved[1, 0] = 0.0, 1.0
    rows = judged(returned(dense.to_sparse_csr()), returned(moved.to_sparse_csr()))
    assert rows.symptom.startswith("call 0: output.crow_indices()[1] is 0, but should be 1")
    columns = judged(returned(dense.to_sparse_csc()), returned(moved.T.to_sparse_csc()))
    assert columns.symptom.startswith("call 0: output.ccol_indices()[1] is 0, but should be 1")


# ------------------------------------------------------------------------------------------------------ zeros and whole tensors


def test_the_sign_of_a_zero_is_owed_of_results_and_not_of_gradients() -> None:
    zeros = torch.zeros(2)
    runs: dict[str, Any] = {}
    for gradients, status in ((False, Status.FAIL_ACCURACY), (True, Status.PASS)):

        def outcome(value: Tensor, is_gradient: bool = gradients) -> Returned:
            return returned(X, gradients={"args[0]": value}) if is_gradient else returned(value)

        runs = {"truth": outcome(zeros.double()), "noise": [outcome(zeros)]}
        assert judged(outcome(zeros), outcome(-zeros), **runs).status is status


def test_a_systematic_error_that_another_kernel_excuses_is_told() -> None:
    truth = truths()
    moves = torch.rand((2, *truth.shape), generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 2 - 1
    coarse, subject = ((truth * (1 + 2 * 2**-7 * move)).bfloat16() for move in moves)
    eager = returned(truth.bfloat16())
    runs: dict[str, Any] = {"truth": returned(truth), "noise": [returned(run) for run in noisy(truth, torch.bfloat16)]}
    assert judged(eager, returned(subject), **runs).status is Status.FAIL_ACCURACY
    verdict = judged(eager, returned(subject), **runs, other_kernels=lambda name: returned(coarse))
    assert verdict.status is Status.PASS
    assert any(text.endswith("and eager's other kernels err as much") for text in verdict.explained)


# ------------------------------------------------------------------------------------------------------------ Python values


@pytest.mark.parametrize(("expected", "seen"), [(1.0, 1.001), (1j, 1.001j)])
def test_python_numbers_are_excused_by_eagers_other_runs(expected: Any, seen: Any) -> None:
    eager, subject = returned(X, expected), returned(X, seen)
    assert judged(eager, subject).status is Status.FAIL_ACCURACY
    given: list[dict[str, Any]] = [
        {"truth": returned(X.double(), seen)},
        {"noise": [returned(X, seen)]},
        {"loud_noise": [returned(X, seen)], "noise": [eager]},
        {"other_kernels": lambda name: returned(X, seen)},
    ]
    for runs in given:
        assert judged(eager, subject, **runs).status is Status.PASS, runs
    still = judged(eager, subject, noise=[returned(X, seen)], still=lambda: returned(X, seen))
    assert still.status is Status.FAIL_ACCURACY, "the mode gives it, and noise moves it no further"


def test_python_integers_are_excused_by_eagers_other_runs() -> None:
    eager, subject = returned(X, 3), returned(X, 5)
    assert judged(eager, subject).symptom == "call 0: output[1] is 5, but should be 3"
    assert judged(eager, subject, noise=[returned(X, 5)]).status is Status.PASS
    assert judged(eager, subject, truth=returned(X.double(), 5)).status is Status.PASS
    assert judged(eager, subject, noise=[returned(X, 5)], still=lambda: subject).status is Status.FAIL_ACCURACY
    assert judged(eager, subject, noise=[returned(X, 5.0)]).status is Status.FAIL_ACCURACY


@pytest.mark.parametrize("number", [1000, 2**62 + 1, -(2**62) - 1])
def test_large_python_integers_are_excused_as_well(number: int) -> None:
    eager, subject = returned(X, number), returned(X, number + 2)
    assert judged(eager, subject).status is Status.FAIL_ACCURACY
    assert judged(eager, subject, noise=[subject]).status is Status.PASS
    assert judged(eager, subject, noise=[returned(X, 1 << 80)]).status is Status.FAIL_ACCURACY


def test_python_numbers_are_counted_as_others() -> None:
    verdict = judged(returned(1.0, 3), returned(1.0 + 1e-6, 3))
    assert verdict.status is Status.PASS
    assert (verdict.compared.elements, verdict.compared.others, verdict.max_ulp) == (0, 2, None)


def test_what_a_mode_does_to_a_python_number_is_rounding_of_float32() -> None:
    eager, still, far = (returned(X, number) for number in (1.0, 1.0 + 1e-6, 1.001))
    assert judged(eager, far, truth=far, noise=[still], still=lambda: still).status is Status.PASS


def test_texts_that_eager_does_not_repeat_are_not_owed() -> None:
    eager, again, subject = (returned(X, text) for text in "abc")
    assert judged(eager, subject, eager_again=again).status is Status.EAGER_TWO_RUNS_DIFFER
    assert judged(eager, returned(X + 1, "c"), eager_again=again).status is Status.FAIL_ACCURACY


def test_addresses_in_texts_are_not_compared() -> None:
    eager = returned(X, "<Thing at 0x7f01>")
    verdict = judged(eager, returned(X, "<Thing at 0xABC>"))
    assert verdict.status is Status.PASS
    assert judged(eager, returned(X, "<Thing>")).status is Status.PASS
    assert judged(returned(X, "x at 0x7f01"), returned(X, "x at 0x7f02")).status is Status.FAIL_ACCURACY
    assert judged(eager, returned(X, "<Other at 0x7f01>")).explained == ()
