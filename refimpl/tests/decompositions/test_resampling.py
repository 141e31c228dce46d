"""Resized images beside eager: sizes that are kept, scales that are not theirs, infinities and NaN.

Counterpart: none
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import refimpl
from refimpl.pipeline import compile_aot
from refimpl.trace.decompositions import decomposition_table

aten = torch.ops.aten
# Of an input, of its output; all steps are exact in binary. Of others a kernel that fuses a product with a sum, which not every
# CPU has, finds weights that are almost 0 in place of weights of 0, which are as much as others to infinity.
SIZES = ((1, 1), (2, 2), (3, 3), (3, 4), (4, 2), (2, 4))
SCALES = (None, 1.6, 0.8)
KERNELS = {
    "upsample_nearest1d": (1, False),
    "upsample_nearest2d": (2, False),
    "upsample_nearest3d": (3, False),
    "_upsample_nearest_exact1d": (1, False),
    "_upsample_nearest_exact2d": (2, False),
    "_upsample_nearest_exact3d": (3, False),
    "upsample_linear1d": (1, True),
    "upsample_bilinear2d": (2, True),
    "upsample_trilinear3d": (3, True),
    "upsample_bicubic2d": (2, True),
}


def laid_out(x: torch.Tensor, last: bool) -> torch.Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.contiguous(memory_format=formats[x.dim()]) if last else x


def assert_as_eager(overload: Any, *args: Any) -> None:
    expected, actual = overload(*args), decomposition_table[overload](*args)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert actual.stride() == expected.stride()


@pytest.mark.fractional
@pytest.mark.parametrize("value", [0.5, float("inf"), float("nan")])
@pytest.mark.parametrize("name", KERNELS)
def test_sizes_that_are_kept_are_read_as_eager_reads_them(name: str, value: float) -> None:
    spatial, has_corners = KERNELS[name]
    forward, backward = getattr(aten, name).default, getattr(aten, name + "_backward").default
    pairs = [(pair,) * spatial for pair in SIZES] + [
        ((3, 3), *[(4, 2)] * (spatial - 1)),
        (*[(2, 4)] * (spatial - 1), (2, 2)),
    ]
    layouts = (False, True) if spatial > 1 else (False,)
    for sizes, last, channels, scale in itertools.product(pairs, layouts, (2, 5), SCALES):
        ins, outs = [pair[0] for pair in sizes], [pair[1] for pair in sizes]
        rest = [*([False] if has_corners else []), *[scale] * spatial]
        for position in (0, 1):
            x, grad = (
                torch.linspace(-1, 1, channels * torch.Size(s).numel()).view(1, channels, *s) for s in (ins, outs)
            )
            x[0, 0].view(-1)[min(position, x[0, 0].numel() - 1)] = value
            grad[0, 0].view(-1)[min(position, grad[0, 0].numel() - 1)] = value
            assert_as_eager(forward, laid_out(x, last), outs, *rest)
            assert_as_eager(backward, laid_out(grad, last), outs, [1, channels, *ins], *rest)


@pytest.mark.parametrize("height", [63, 64, 65])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("channels", [3, 4])
def test_the_kernel_for_large_images_goes_by_the_scale(height: int, last: bool, channels: int) -> None:
    x = laid_out(torch.arange(1.0, 1 + channels * height * 64).view(1, channels, height, 64), last)
    assert_as_eager(aten.upsample_nearest2d.default, x, [height, 64], 1.015, 1.015)


@pytest.mark.fractional
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_a_size_that_is_kept_is_eagers_and_so_is_its_gradient(mode: str, dynamic: bool) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=1.25, mode=mode)

    compiled = compile_aot(program, decompositions=decomposition_table, dynamic=dynamic)
    for sizes in ((3, 3), (3, 6), (7, 5), (2, 3)):
        found = []
        for function in (program, compiled):
            x = torch.linspace(-1, 1, 2 * torch.Size(sizes).numel()).view(1, 2, *sizes).requires_grad_()
            out = function(x)
            found.append((out, *torch.autograd.grad(out, x, out.detach().cos())))
        torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("name", [name for name in KERNELS if name.endswith("3d")])
@pytest.mark.parametrize("tracing", ["fake", "symbolic"])
def test_a_gradient_of_channels_last_is_laid_out_as_eagers(name: str, tracing: str) -> None:
    backward = getattr(aten, name + "_backward").default

    def program(grad: torch.Tensor) -> tuple[int, ...]:
        rest = [False] if KERNELS[name][1] else []
        sizes = [size // 2 for size in grad.shape[2:]]
        return tuple(map(int, backward(grad, grad.shape[2:], [*grad.shape[:2], *sizes], *rest).stride()))

    strides = []

    def traced(grad: torch.Tensor) -> torch.Tensor:
        strides.append(program(grad))
        return grad

    grad = laid_out(torch.ones(1, 2, 4, 4, 4), True)
    refimpl.make_fx(traced, None, tracing)(grad)
    assert strides[0] == program(grad)
