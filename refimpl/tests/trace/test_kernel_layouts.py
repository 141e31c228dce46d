"""Operators of several results, of several steps or of a format of their own: traced results have eager's strides, along sizes of
1 too."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import refimpl

aten = torch.ops.aten
Tensor = torch.Tensor


def _first() -> Tensor:
    return torch.zeros(1, dtype=torch.int64)


def _tensor(draw: random.Random, sizes: list[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Zeros and ones in a random order of dimensions, some with gaps or expanded."""
    strides, step = [0] * len(sizes), 1
    has_gaps = draw.random() < 0.3
    for dim in draw.sample(range(len(sizes)), len(sizes)):
        strides[dim] = step
        step *= sizes[dim] * (draw.choice([1, 1, 2]) if has_gaps else 1)
    strides = [0 if draw.random() < 0.08 else t for t in strides]
    strides = [draw.choice([t, t, 0, 1, 2, 7]) if n == 1 else t for n, t in zip(sizes, strides, strict=True)]
    return torch.randint(0, 2, (step + 8 * len(sizes),)).to(dtype).as_strided(sizes, strides)


def _row(x: Tensor) -> Tensor:
    return x[:1] * 2


# By the number of tensors of one shape and the least and most dimensions.
CALLS: dict[str, tuple[Callable[..., Any], int, int, int]] = {
    "native_dropout": (lambda x: aten.native_dropout(x, 0.5, True), 1, 1, 4),
    "native_dropout without": (lambda x: aten.native_dropout(x, 0.5, False), 1, 1, 4),
    "native_dropout_backward": (lambda x, y: aten.native_dropout_backward(x, y.bool(), 2.0), 2, 1, 4),
    "prelu": (lambda x: F.prelu(x, torch.ones(x.shape[1])), 1, 2, 4),
    "prelu_backward": (lambda x, y: aten._prelu_kernel_backward(x, y, torch.ones(1)), 2, 1, 4),
    "isinf": (torch.isinf, 1, 1, 4),
    "isinf of integers": (lambda x: x.long().isinf(), 1, 1, 4),
    "isin": (lambda x: torch.isin(x, torch.ones(1)), 1, 1, 4),
    "gelu_backward": (aten.gelu_backward, 2, 1, 4),
    "where": (lambda x, y, z: torch.where(x.bool(), y, z), 3, 1, 4),
    "where of an expanded condition": (lambda x, y: torch.where(x[:1].bool().expand(x.shape), y, 1.0), 2, 1, 4),
    "binary_cross_entropy": (lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="none"), 2, 1, 4),
    "mse_loss": (lambda x, y: F.mse_loss(x, y, reduction="none"), 2, 1, 4),
    "mse_loss, a mean": (F.mse_loss, 2, 1, 4),
    "smooth_l1_loss": (lambda x, y: F.smooth_l1_loss(x, y, reduction="none"), 2, 1, 4),
    "logsigmoid": (F.logsigmoid, 1, 1, 4),
    "nll_loss": (lambda x: F.nll_loss(x, x[:, 0].long() * 0, reduction="none"), 1, 4, 4),
    "glu_backward": (lambda x: aten.glu_backward(x, torch.cat([x, x], -1).mT.contiguous().mT, -1), 1, 2, 4),
    "unfold": (lambda x: F.unfold(x, 1), 1, 4, 4),
    "diag_embed": (torch.diag_embed, 1, 1, 4),
    "sort": (torch.sort, 1, 1, 4),
    "sort stable": (lambda x: torch.sort(x, dim=0, stable=True), 1, 1, 4),
    "index_add": (lambda x: x.index_add(0, _first(), _row(x)), 1, 1, 4),
    "index_copy": (lambda x: x.index_copy(0, _first(), _row(x)), 1, 1, 4),
    "index_fill": (lambda x: x.index_fill(0, _first(), 2), 1, 1, 4),
    "index_put": (lambda x: x.index_put([_first()], torch.ones(())), 1, 1, 4),
    "batch_norm": (lambda x: F.batch_norm(x, x.new_zeros(x.shape[1]), x.new_ones(x.shape[1])), 1, 2, 4),
    "layer_norm_backward": (
        lambda x, y: aten.native_layer_norm_backward(
            x, y, [y.shape[-1]], _row(y[..., :1]), _row(y[..., :1]), None, None, [True, False, False]
        )[0],
        2, 2, 4,
    ),
    "foreach": (lambda x, y: aten._foreach_add([x, y], 1.0), 2, 1, 4),
    "foreach of pairs": (lambda x, y: aten._foreach_mul([x, x], [y, x]), 2, 1, 4),
    "replication_pad2d": (lambda x: F.pad(x, (1, 0, 0, 1), mode="replicate"), 1, 3, 4),
    "replication_pad3d": (lambda x: F.pad(x, (1, 0, 0, 1, 0, 1), mode="replicate"), 1, 4, 5),
    "reflection_pad3d": (lambda x: F.pad(torch.cat([x] * 2, 1), (0, 0, 0, 0, 0, 0), mode="reflect"), 1, 4, 5),
    "replication_pad2d_backward": (lambda x, y: aten.replication_pad2d_backward(x, y, [0, 0, 0, 0]), 2, 3, 4),
    "replication_pad3d_backward": (lambda x, y: aten.replication_pad3d_backward(x, y, [0] * 6), 2, 4, 5),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_traced_results_have_eagers_strides(name: str) -> None:
    draw = random.Random(name)
    call, count, least, most = CALLS[name]
    found: list[list[tuple[int, ...]]] = []

    def program(*operands: Tensor) -> Any:
        results = call(*operands)
        tensors = results if isinstance(results, (tuple, list)) else [results]
        found.append([tuple(map(int, each.stride())) for each in tensors if isinstance(each, Tensor)])
        return results

    for _ in range(40):
        sizes = [draw.choice([1, 1, 2, 3]) for _ in range(draw.randint(least, most))]
        operands = [_tensor(draw, sizes) for _ in range(count)]
        found.clear()
        program(*operands)
        refimpl.make_fx(program, None, "fake")(*operands)
        assert found[1] == found[0], (sizes, [operand.stride() for operand in operands])


def test_a_backward_through_dropout_lies_as_what_it_is_given() -> None:
    gradient, mask = torch.rand(3, 4).t(), torch.rand(4, 3) > 0.5
    for tracing in ("fake", "symbolic"):
        graph = refimpl.make_fx(lambda x, y: aten.native_dropout_backward(x, y, 2.0), None, tracing)(
            gradient, mask
        ).graph
        (node,) = [node for node in graph.nodes if node.target is aten.native_dropout_backward.default]
        assert tuple(map(int, node.meta["val"].stride())) == gradient.stride()


@pytest.mark.parametrize(
    "make", [torch.zeros_like, torch.rand_like, torch.clone, torch.nan_to_num, lambda x: torch.full_like(x, 2)]
)
def test_copies_of_symbolic_sizes_have_eagers_strides_along_sizes_of_one(make: Callable[[Tensor], Tensor]) -> None:
    found: list[tuple[int, ...]] = []

    def program(x: Tensor) -> Tensor:
        result = make(x)
        found.append(tuple(map(int, result.stride())))
        return result

    for strides in ((3, 1, 7), (1, 4, 2), (3, 1, 3), (6, 1, 5), (0, 1, 7)):
        x = torch.rand(40).as_strided((4, 3, 1), strides)
        found.clear()
        program(x)
        refimpl.make_fx(program, None, "symbolic")(x)
        assert found[1] == found[0], strides
