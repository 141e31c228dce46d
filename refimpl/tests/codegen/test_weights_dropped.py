"""Attention whose weights are dropped out becomes kernels without scores in memory, where what is kept is drawn by itself."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from refimpl.tests.codegen.region_checks import Function, compiled_with, qkv, results_of


def _dropout(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.dropout((q @ k.mT).softmax(-1), 0.5, train=True) @ v


def _dropout_of_a_gpu(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.native_dropout((q @ k.mT).softmax(-1, dtype=torch.float32).to(q.dtype), 0.3, True)[0] @ v


def _seeded(functions: Sequence[Function], inputs: Sequence[torch.Tensor], wanted: int) -> list[list[torch.Tensor]]:
    found = []
    for one in functions:
        torch.manual_seed(0)
        found.append(results_of(one, inputs, wanted))
    return found


@pytest.mark.parametrize("wanted", [0, 3])
def test_what_dropout_keeps_is_a_factor(wanted: int) -> None:
    compiled, backend = compiled_with(_dropout)
    for ours, theirs in zip(*_seeded([compiled, _dropout], qkv(), wanted), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert backend.regions == [{"forward": 1}, {"gradients": 1}][: 1 + (wanted > 0)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("function", [_dropout, _dropout_of_a_gpu], ids=lambda f: f.__name__)
def test_dropout_of_kernels_draws_what_it_does_without_regions(function: Function, dtype: torch.dtype) -> None:
    """No weights are saved, but a mask, of truth values where eager's is."""
    fused, backend = compiled_with(function, random="philox")
    pieces, other = compiled_with(function, random="philox", fuse_attention=False)
    least = 16 * torch.finfo(dtype).eps
    for ours, theirs in zip(*_seeded([fused, pieces], qkv(dtype=dtype), 3), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=least, atol=least * theirs.abs().max().item())
    assert backend.regions == [{"forward": 1}, {"gradients": 1}]
    assert [len(graph.kernels) for graph in backend.graphs] == [2, 3]
    is_bool = function is _dropout_of_a_gpu
    assert [fake.dtype for fake in backend.returned if fake.numel() == 2 * 3 * 24 * 40] == [
        torch.bool if is_bool else dtype
    ]
    assert sum(sum(graph.fallbacks.values()) for graph in (*backend.graphs, *other.graphs)) == 0


def test_a_dropout_that_an_operator_draws_is_left_alone() -> None:
    compiled, backend = compiled_with(_dropout_of_a_gpu)
    for ours, theirs in zip(*_seeded([compiled, _dropout_of_a_gpu], qkv(), 3), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert backend.regions == [{"left: weights that are computed with": 1}, {}]
