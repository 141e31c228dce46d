"""Operators made of others are taken apart where autograd does not do it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from oracle.reruns.composite import is_composite
from oracle.reruns.noise import RoundingNoise

aten = torch.ops.aten
X = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))


def _moved(fn: Callable[[], torch.Tensor]) -> torch.Tensor:
    with RoundingNoise(3):
        return fn()


def _running_mean() -> torch.Tensor:
    norm = torch.nn.BatchNorm1d(6)
    norm(X)
    assert norm.running_mean is not None
    return norm.running_mean


@pytest.mark.parametrize(
    "fn",
    [lambda: F.linear(X, X, X[0]), lambda: torch.einsum("ij,jk->ki", X, X), _running_mean],
    ids=["linear", "einsum", "batch_norm"],
)
def test_in_inference_mode_noise_moves_the_same_operators(fn: Callable[[], torch.Tensor]) -> None:
    with torch.no_grad():
        expected = _moved(fn)
        assert not torch.equal(expected, fn())
    with torch.inference_mode():
        assert torch.equal(_moved(fn), expected)


def test_operators_with_kernels_of_their_own_are_whole() -> None:
    assert is_composite(aten.batch_norm.default)
    assert not is_composite(aten.native_batch_norm.default)
    assert not is_composite(aten.add.Tensor)
