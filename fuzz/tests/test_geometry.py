"""Where elements lie: which tensors overlap themselves, and one another."""

from __future__ import annotations

import pytest
import torch

from fuzz.draw.geometry import overlaps_itself, partly_overlap, share_memory, share_storage


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x", False),
        ("x.t()", False),
        ("x[:, ::2]", False),
        ("x.expand(2, 2, 3)", True),
        ("x.as_strided((2, 2), (1, 1))", True),
        ("x.as_strided((2, 2), (3, 2))", False),
        ("x.as_strided((3, 2), (2, 1))", False),
        ("x.as_strided((2, 3), (2, 1))", True),
        ("x.as_strided((2, 2), (3, 1)).unfold(0, 1, 2)", False),
        ("x.as_strided((1, 1), (0, 0))", False),
        ("x[:0].expand(4, 0, 3)", False),
        ("x.view(-1).unfold(0, 3, 2)", True),
        ("x.view(-1).unfold(0, 2, 3)", False),
    ],
)
def test_tensors_that_overlap_themselves(text: str, expected: bool) -> None:
    assert overlaps_itself(eval(text, {"x": torch.zeros(2, 3, dtype=torch.float64)})) is expected


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("x[:3]", "x[1:]", True),
        ("x[:2]", "x[2:]", False),
        ("x", "x[:]", False),  # the same elements in the same order
        ("x", "x.flip(0)", False),  # a copy
        ("x[::2]", "x[1::2]", False),
        ("x", "x.view(torch.int32)", True),
        ("x.view(2, 2)", "x.view(2, 2).t()", True),
        ("x[:0]", "x", False),
    ],
)
def test_partly_overlapping_memory(one: str, other: str, expected: bool) -> None:
    scope = {"x": torch.arange(4.0), "torch": torch}
    assert partly_overlap(eval(one, scope), eval(other, scope)) is expected


def test_one_storage_need_not_mean_shared_memory() -> None:
    x = torch.arange(4.0)
    assert share_storage(x[:2], x[2:])
    assert not share_memory(x[:2], x[2:])
    assert not share_storage(x, x.clone())
