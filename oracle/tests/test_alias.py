"""Aliases: memory must be shared as in eager, views have its offsets, and each difference is reported once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from oracle.observe.outcome import Returned
from oracle.program import ComparePolicy
from oracle.tests.outcomes import judged, observation, returned, returned_calls
from oracle.verdict import Status, Verdict


def symptoms(verdict: Verdict) -> list[str]:
    return [verdict.symptom, *verdict.also] if verdict.symptom else []


def overwritten(*paths: str) -> Returned:
    call = observation(torch.ones(2))
    return returned_calls(replace(call, aliases=replace(call.aliases, overwritten=paths)))


@pytest.mark.parametrize(
    ("eager", "subject", "expected"),
    [
        ((), (), []),
        (("output",), ("output",), []),
        ((), ("output",), ["call 0: output is overwritten by a later call, but should not be"]),
        (("output",), (), ["call 0: output is not changed by a later call, but should be"]),
        (
            ("a", "b"),
            ("b", "c"),
            [
                "call 0: c is overwritten by a later call, but should not be",
                "call 0: a is not changed by a later call, but should be",
            ],
        ),
    ],
)
def test_results_are_overwritten_by_later_calls_as_in_eager(
    eager: tuple[str, ...], subject: tuple[str, ...], expected: list[str]
) -> None:
    verdict = judged(overwritten(*eager), overwritten(*subject))
    assert symptoms(verdict) == expected
    assert verdict.status is (Status.FAIL_ALIAS if expected else Status.PASS)
    ignored = judged(
        overwritten(*eager), overwritten(*subject), policy=ComparePolicy(aliases=False, reason="views are copies")
    )
    assert symptoms(ignored) == expected


def test_each_pair_that_no_longer_shares_memory_is_told_once() -> None:
    base, other = torch.arange(6.0), torch.arange(6.0)
    eager = returned(base[:3], base[3:], args=(base,))
    verdict = judged(eager, returned(base[:3], other[3:], args=(base,)))
    assert symptoms(verdict) == [
        "call 0: output[0] does not share the storage of output[1], but should",
        "call 0: output[1] does not share the storage of args[0], but should",
    ]


def test_each_pair_that_shares_memory_and_should_not_is_told_once() -> None:
    base, other = torch.arange(6.0), torch.arange(6.0)
    subject = returned(base[:3], base[3:], args=(base,))
    verdict = judged(returned(base[:3], other[3:], args=(base,)), subject)
    assert symptoms(verdict) == [
        "call 0: output[0] shares the storage of output[1], but should not",
        "call 0: output[1] shares the storage of args[0], but should not",
    ]


def test_inputs_are_named_before_outputs_where_a_result_shares_memory_with_both() -> None:
    base = torch.arange(6.0)
    eager = returned(base[:3], base[3:], args=(base,))
    verdict = judged(eager, returned(base[:3].clone(), base[3:], args=(base,)))
    assert symptoms(verdict) == [
        "call 0: output[0] does not share the storage of args[0], but should",
        "call 0: output[0] does not share the storage of output[1], but should",
    ]


def test_a_result_that_is_missing_is_told_as_such_and_not_as_an_alias() -> None:
    base = torch.arange(6.0)
    verdict = judged(returned(base[:3], base[3:]), returned(base[:3], torch.ones(()), base[3:]))
    assert not any("should" in text and "storage of output[2]" in text for text in symptoms(verdict))
    short = judged(returned(base, base), returned_calls(observation((base,))))
    assert not any("share" in text for text in symptoms(short)), symptoms(short)


# -------------------------------------------------------------------------------------------------------- where views lie


def viewed(base: Tensor, *views: Tensor) -> Returned:
    return returned(*views, args=(base,))


def test_views_lie_where_eagers_lie_relative_to_their_base() -> None:
    base, longer = torch.zeros(8), torch.zeros(20)
    eager = viewed(base[1:7], base[2:4], base[4:6])
    inside = longer[5:13]
    assert judged(eager, viewed(inside[1:7], inside[2:4], inside[4:6])).status is Status.PASS
    verdict = judged(eager, viewed(inside[1:7], inside[3:5], inside[4:6]))
    assert symptoms(verdict) == ["call 0: output[0].storage_offset in the storage it shares is 2, but should be 1"]


def test_of_a_view_of_another_shape_only_the_shape_is_told() -> None:
    base = torch.zeros(8)
    verdict = judged(viewed(base, base[1:3]), viewed(base, base[2:6]))
    assert symptoms(verdict) == ["call 0: output.shape is (4,), but should be (2,)"]


def test_views_of_one_element_lie_somewhere() -> None:
    base = torch.zeros(8)
    verdict = judged(viewed(base, base[1:2]), viewed(base, base[2:3]))
    assert symptoms(verdict) == ["call 0: output.storage_offset in the storage it shares is 2, but should be 1"]


def test_the_same_object_without_elements_may_begin_anywhere() -> None:
    base = torch.zeros(8)
    assert judged(viewed(base, base[1:1], base[2:]), viewed(base, base[3:3], base[2:])).status is Status.PASS


@pytest.mark.parametrize(("strides", "status"), [("exact", Status.FAIL_ALIAS), ("ignore", Status.PASS)])
def test_strides_of_views_are_owed_unless_the_policy_says_otherwise(strides: Any, status: Status) -> None:
    base = torch.zeros(4)
    policy = ComparePolicy(strides=strides, reason="test")
    subject = viewed(base, base.view(2, 2).t())
    verdict = judged(viewed(base, base.view(2, 2)), subject, policy=policy)
    assert verdict.status is status
    if status is not Status.PASS:
        assert symptoms(verdict) == ["call 0: output.stride() in the storage it shares is (1, 2), but should be (2, 1)"]


@pytest.mark.parametrize(("is_of_input", "status"), [(True, Status.FAIL_STRIDE), (False, Status.PASS)])
def test_a_policy_on_views_is_one_on_views_of_inputs(is_of_input: bool, status: Status) -> None:
    base = torch.zeros(4)
    views, transposed = (base.view(2, 2), base[:2]), (base.view(2, 2).t(), base[:2])
    policy = ComparePolicy(strides="views", aliases=False, reason="test")
    args = (base,) if is_of_input else ()
    assert judged(returned(*views, args=args), returned(*transposed, args=args), policy=policy).status is status


def test_a_tensor_of_another_layout_has_no_strides_to_compare() -> None:
    dense = torch.eye(3)
    for eager, subject in ((dense, dense.to_sparse()), (dense.to_sparse(), dense)):
        verdict = judged(returned(eager), returned(subject))
        assert verdict.status is Status.FAIL_METADATA
        assert not any("stride()" in text for text in symptoms(verdict))


def test_a_sparse_tensor_beside_views_has_no_place_in_a_storage() -> None:
    base = torch.zeros(4)
    dense, sparse = torch.ones(2), torch.ones(2).to_sparse()
    assert judged(viewed(base, base[1:], sparse), viewed(base, base[1:], sparse)).status is Status.PASS
    call = observation((base[1:], dense), args=(base,))
    grouped = replace(call.aliases, storages=(("args[0]", "output[0]", "output[1]"),))
    hidden = tuple(
        replace(leaf, facts=replace(leaf.facts, storage_offset=None))
        if leaf.path == "output[1]" and leaf.facts is not None
        else leaf
        for leaf in call.outputs
    )
    one, two = replace(call, aliases=grouped), replace(call, aliases=grouped, outputs=hidden)
    for eager, subject in ((one, two), (two, one), (two, two)):
        status = judged(returned_calls(eager), returned_calls(subject)).status
        assert status in (Status.PASS, Status.FAIL_METADATA)
    nowhere = replace(two, aliases=replace(grouped, storages=(("output[1]", "output[2]"),)))
    assert judged(returned_calls(nowhere), returned_calls(nowhere)).status is Status.PASS
