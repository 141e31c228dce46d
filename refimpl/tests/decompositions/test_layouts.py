"""What decompositions make lies in memory as what kernels make, along sizes of 1 too, whatever the inputs' layout is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import refimpl
from refimpl.trace.decompositions import decomposition_table

LAYOUTS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((2, 2, 1, 1), (1, 2, 1, 1)),
    ((2, 2, 1, 1), (2, 1, 2, 2)),
    ((1, 4, 1, 1), (4, 1, 4, 4)),
    ((2, 1, 2, 2), (4, 1, 2, 1)),
    ((1, 4, 2, 2), (16, 1, 8, 4)),
    ((1, 4, 2, 2), (7, 4, 2, 1)),
    ((2, 4, 1, 2), (8, 2, 7, 1)),
    ((2, 4, 2, 2), (1, 2, 16, 8)),
    ((2, 4, 2, 2), (1, 2, 8, 16)),
    ((2, 4, 2, 2), (0, 4, 2, 1)),
    ((2, 4, 2, 2), (32, 8, 4, 2)),
]
PLACE, NO_PLACES = torch.tensor([0]), torch.zeros(0, dtype=torch.int64)
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "im2col, of one place": lambda x: F.unfold(x, 1),
    "im2col, in steps": lambda x: F.unfold(x, 1, stride=2),
    "col2im": lambda x: F.fold(F.unfold(x, 1), x.shape[2:], 1),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2) if x.shape[1] == 4 else F.pixel_shuffle(x, 1),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, x.shape[-1]) if x.shape[2] == x.shape[3] else x + 0,
    "channel_shuffle": lambda x: F.channel_shuffle(x, x.shape[1]),
    "native_channel_shuffle": lambda x: torch.native_channel_shuffle(x, 2) if x.shape[1] == 4 else x + 0,
    "roll": lambda x: x.roll(1, 0),
    "tril": lambda x: x.tril(),
    "diag_embed": lambda x: torch.diag_embed(x),
    "put": lambda x: x.put(PLACE, torch.ones(1)),
    "put nothing": lambda x: x.put(NO_PLACES, torch.ones(0)),
    "take": lambda x: torch.arange(65).take(x.long()),
    "masked_fill": lambda x: x.masked_fill(x > 3, 1.0),
    "index_add": lambda x: x.index_add(1, PLACE, x[:, :1]),
    "index_copy": lambda x: x.index_copy(1, PLACE, x[:, :1]),
    "isin": lambda x: torch.isin(x, 2),
    "reflection_pad3d": lambda x: F.pad(x, (0, 0, 0, 0, 0, 0), mode="reflect"),
    "replication_pad2d": lambda x: F.pad(x, (1, 0, 1, 0), mode="replicate"),
    "upsample_nearest2d": lambda x: F.interpolate(x, x.shape[2:], mode="nearest"),
    "upsample_bilinear2d": lambda x: F.interpolate(x, (1, 1), mode="bilinear"),
    "max_unpool2d": lambda x: F.max_unpool2d(
        x, torch.arange(x[0, 0].numel()).view(x.shape[2:]).expand(x.shape), (1, 1)
    ),
    "renorm": lambda x: torch.renorm(x, 2, 0, 1.0),
    "batch_norm": lambda x: F.batch_norm(x, torch.zeros(x.shape[1]), torch.ones(x.shape[1])),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "log_softmax": lambda x: x.log_softmax(0),
    "softmax": lambda x: x.softmax(1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_new_memory_is_laid_out_as_by_the_kernel(name: str) -> None:
    """Fake tensors have no sizes of 1: along these the fake kernels in which rules end choose other strides."""
    function = FUNCTIONS[name]
    for shape, strides in LAYOUTS:
        x = torch.arange(1.0, 65.0).as_strided(shape, strides)
        expected = function(x)
        for mode in ("real", "fake"):
            actual = refimpl.make_fx(function, decomposition_table, mode, _allow_non_fake_inputs=True)(x)(x)
            steps = [tensor.stride() if mode == "real" else _steps(tensor) for tensor in (actual, expected)]
            assert steps[0] == steps[1], f"strides of {name} of {shape}, {strides} [{mode}]"
            assert actual.data_ptr() != x.data_ptr()
            torch.testing.assert_close(actual, expected, equal_nan=True)


def _steps(x: torch.Tensor) -> list[int]:
    return [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size != 1]


@pytest.mark.parametrize("name", ["im2col, of one place", "channel_shuffle", "col2im", "upsample_nearest2d"])
def test_sizes_of_1_beside_symbolic_ones_are_laid_out_as_by_the_kernel(name: str) -> None:
    function = FUNCTIONS[name]
    x, other = (torch.arange(1.0, 65.0).as_strided((n, 4, 1, 2), (8, 2, 7, 1)) for n in (3, 5))
    graph = refimpl.make_fx(function, decomposition_table, "symbolic", _allow_non_fake_inputs=True)(x)
    for given in (x, other):
        assert graph(given).stride() == function(given).stride()
