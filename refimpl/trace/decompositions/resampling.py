"""Decompositions of upsampling, max unpooling and affine grids.

Upsampling is separable: each spatial dimension in turn is read at positions, weighted, and summed; the backward accumulates at
the same positions. Positions are computed in float32 (float64 for float64 inputs), as in the kernels.

Note [Sizes that are kept]
With `scale_factor=1.25`, a dimension of 3 elements keeps its size, although the given scale is not 1. CPU kernels differ here:
- linear kernels ignore the scale, and read each element twice, with weights of 1 and 0 (so that an infinity becomes NaN);
- nearest kernels ignore the scale if the size is kept or doubled: in every backward, but in the forward only in the kernels for
  small images and for channels last;
- the cubic kernel ignores it in the backward only, if all sizes are kept;
- nearest-exact kernels use the scale.

Counterpart: torch/_decomp/decompositions.py, upsample_*, max_unpool*, affine_grid_generator
Differs: linear, bilinear, trilinear and bicubic share one rule, and their backward ops are decomposed as well.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from refimpl._torch import OpOverload
from refimpl.trace.decompositions.device_numerics import follows_cpu
from refimpl.trace.decompositions.layouts import laid_out_as, row_major
from refimpl.trace.decompositions.promotion import cast, computation_dtype
from refimpl.trace.decompositions.registry import aten, register, rule

Tensor = torch.Tensor
# Positions along a dimension, and the weight of the element at each; None is a weight of 1.
Taps = list[tuple[Tensor, "Tensor | None"]]
TapsOf = Callable[[Any, Any, "float | None", bool, torch.dtype, torch.device], Taps]


def _step(size: Any, out: Any, scale: float | None) -> Any:
    """The distance in the input between two neighbours of the output."""
    return 1.0 / scale if scale is not None and scale > 0 else size / out


def _nearest(
    size: Any, out: Any, scale: float | None, _: bool, dtype: torch.dtype, device: torch.device, *, shift: float
) -> Taps:
    i = torch.arange(out, dtype=torch.float32, device=device)
    step = torch.full((), _step(size, out, scale), dtype=torch.float32, device=device)
    positions = torch.floor((i + shift) * step) if shift else torch.floor(i * step)
    return [(torch.clamp(cast(positions, torch.int64), max=size - 1), None)]


def _source(
    size: Any, out: Any, scale: float | None, align_corners: bool, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """The real position in the input of each element of the output."""
    i = torch.arange(out, dtype=dtype, device=device)
    if align_corners:
        return i * ((size - 1) / (out - 1)) if out > 1 else i * 0.0
    return (i + 0.5) * _step(size, out, scale) - 0.5


def _linear(
    size: Any, out: Any, scale: float | None, align_corners: bool, dtype: torch.dtype, device: torch.device
) -> Taps:
    if follows_cpu(device) and size == out:  # Note [Sizes that are kept]
        here = torch.arange(out, device=device)
        return [(here, None), (here, torch.zeros(out, dtype=dtype, device=device))]
    source = torch.clamp(_source(size, out, scale, align_corners, dtype, device), min=0)
    lower = torch.clamp(cast(source, torch.int64), max=size - 1)
    upper = torch.clamp(lower + 1, max=size - 1)
    weight = torch.clamp(source - cast(lower, dtype), min=0, max=1)
    return [(lower, 1 - weight), (upper, weight)]


def _cubic(
    size: Any, out: Any, scale: float | None, align_corners: bool, dtype: torch.dtype, device: torch.device
) -> Taps:
    """Keys' cubic convolution with a = -0.75 over four neighbours; the border is replicated."""
    a = -0.75
    source = _source(size, out, scale, align_corners, dtype, device)
    floor = torch.clamp(torch.floor(source), max=size - 1)
    t = torch.clamp(source - floor, min=0, max=1)

    def near(d: Tensor) -> Tensor:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Tensor) -> Tensor:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    weights = [far(t + 1), near(t), near(1 - t), far(2 - t)]
    first = cast(floor, torch.int64) - 1
    return [(torch.clamp(first + k, min=0, max=size - 1), weight) for k, weight in enumerate(weights)]


def _shaped(weight: Tensor, dim: int, ndim: int) -> Tensor:
    return weight.reshape([-1 if d == dim else 1 for d in range(ndim)])


def _read(x: Tensor, dim: int, taps: Taps) -> Tensor:
    out = None
    for positions, weight in taps:
        term = torch.index_select(x, dim, positions)
        term = term if weight is None else term * _shaped(weight, dim, x.ndim)
        out = term if out is None else out + term
    assert out is not None
    return out


def _add_back(grad: Tensor, dim: int, size: Any, taps: Taps) -> Tensor:
    shape = [size if d == dim else n for d, n in enumerate(grad.shape)]
    out = torch.zeros(shape, dtype=grad.dtype, device=grad.device)
    for positions, weight in taps:
        term = grad if weight is None else grad * _shaped(weight, dim, grad.ndim)
        out = aten.index_add.default(out, dim, positions, term)
    return out


def _all_taps(
    taps_of: TapsOf,
    input_size: Sequence[Any],
    output_size: Sequence[Any],
    align_corners: bool,
    scales: Sequence[float | None],
    dtype: torch.dtype,
    device: torch.device,
) -> list[Taps]:
    return [
        taps_of(size, out, scale, align_corners, dtype, device)
        for size, out, scale in zip(input_size, output_size, scales, strict=True)
    ]


def _scales_that_count(
    scales: Sequence[float | None], input_size: Sequence[Any], output_size: Sequence[Any]
) -> list[float | None]:
    """The scales, with None for sizes that are kept or doubled, whose scales nearest kernels ignore."""
    return [
        None if scale is None or out == size or out == 2 * size else scale
        for scale, size, out in zip(scales, input_size, output_size, strict=True)
    ]


def _copies_nearest(x: Tensor, output_size: Sequence[Any]) -> bool:
    """Whether the nearest kernel that a CPU chooses for this input ignores the scales of sizes that are kept or doubled."""
    if len(output_size) == 1 or not follows_cpu(x.device):
        return False
    if len(output_size) == 2 and sum(output_size) <= 128:
        return True
    last = torch.channels_last if len(output_size) == 2 else torch.channels_last_3d
    return x.shape[1] > 3 and x.is_contiguous(memory_format=last)


def _are_sizes_of(spatial: int, input_size: Sequence[Any], output_size: Sequence[Any]) -> bool:
    """Whether both sizes are of images with `spatial` spatial dimensions, none of them empty."""
    if len(input_size) != spatial + 2 or len(output_size) != spatial:
        return False
    return all(size > 0 for size in (*input_size[2:], *output_size))


def _upsample(
    x: Tensor,
    output_size: Sequence[Any],
    *rest: Any,
    taps_of: TapsOf,
    has_corners: bool,
    spatial: int,
    **named: Any,
) -> Tensor:
    if (has_corners and not x.is_floating_point()) or x.numel() == 0:
        return NotImplemented  # kernels for integer images have their own rounding
    if not _are_sizes_of(spatial, x.shape, output_size):
        return NotImplemented  # eager raises
    align_corners, scales = _options(rest, named, has_corners, spatial)
    if taps_of is _AT_START and any(scales) and _copies_nearest(x, output_size):
        scales = _scales_that_count(scales, x.shape[2:], output_size)
    dtype = computation_dtype(x.dtype) if has_corners else x.dtype
    z = cast(x, dtype)
    all_taps = _all_taps(taps_of, x.shape[2:], output_size, align_corners, scales, dtype, x.device)
    for dim, taps in reversed(list(enumerate(all_taps, start=2))):
        z = _read(z, dim, taps)
    return laid_out_as(cast(z, x.dtype), x)


def _upsample_backward(
    grad: Tensor,
    output_size: Sequence[Any],
    input_size: Sequence[Any],
    *rest: Any,
    taps_of: TapsOf,
    has_corners: bool,
    spatial: int,
    **named: Any,
) -> Tensor:
    if grad.numel() == 0 or not _are_sizes_of(spatial, input_size, output_size):
        return NotImplemented
    if tuple(grad.shape) != (*input_size[:2], *output_size):
        return NotImplemented  # eager raises
    align_corners, scales = _options(rest, named, has_corners, spatial)
    if follows_cpu(grad.device):
        if taps_of is _AT_START:
            scales = _scales_that_count(scales, input_size[2:], output_size)
        elif taps_of is _cubic and all(size == out for size, out in zip(input_size[2:], output_size, strict=True)):
            return aten.clone.default(grad, memory_format=torch.contiguous_format)
    dtype = computation_dtype(grad.dtype)
    z = cast(grad, dtype)
    all_taps = _all_taps(taps_of, input_size[2:], output_size, align_corners, scales, dtype, grad.device)
    for dim, taps in enumerate(all_taps, start=2):
        z = _add_back(z, dim, input_size[dim], taps)
    out = cast(z, grad.dtype)
    is_row_major = taps_of is _cubic or (spatial == 3 and taps_of is not _linear)
    return row_major(out) if is_row_major else laid_out_as(out, grad)


def _options(rest: Sequence[Any], named: dict[str, Any], has_corners: bool, n: int) -> tuple[bool, list[Any]]:
    """`align_corners` and one scale per dimension, from the arguments scales, scales_d, scales_h and scales_w."""
    values = list(rest)
    align_corners = bool(values.pop(0)) if has_corners and values else bool(named.pop("align_corners", False))
    names = {1: ["scales"], 2: ["scales_h", "scales_w"], 3: ["scales_d", "scales_h", "scales_w"]}[n]
    values += [named.get(name) for name in names[len(values) :]]
    return align_corners, values


def _register_pair(forward: OpOverload, backward: OpOverload, taps_of: TapsOf, has_corners: bool) -> None:
    pairs: tuple[tuple[OpOverload, Callable[..., Tensor]], ...] = ((forward, _upsample), (backward, _upsample_backward))
    for overload, function in pairs:
        spatial = sum(argument.name.startswith("scales") for argument in overload._schema.arguments)
        register(overload, functools.partial(function, taps_of=taps_of, has_corners=has_corners, spatial=spatial))


_AT_START, _AT_CENTRE = functools.partial(_nearest, shift=0.0), functools.partial(_nearest, shift=0.5)
for _forward, _backward, _taps_of, _has_corners in (
    (aten.upsample_nearest1d.default, aten.upsample_nearest1d_backward.default, _AT_START, False),
    (aten.upsample_nearest2d.default, aten.upsample_nearest2d_backward.default, _AT_START, False),
    (aten.upsample_nearest3d.default, aten.upsample_nearest3d_backward.default, _AT_START, False),
    (aten._upsample_nearest_exact1d.default, aten._upsample_nearest_exact1d_backward.default, _AT_CENTRE, False),
    (aten._upsample_nearest_exact2d.default, aten._upsample_nearest_exact2d_backward.default, _AT_CENTRE, False),
    (aten._upsample_nearest_exact3d.default, aten._upsample_nearest_exact3d_backward.default, _AT_CENTRE, False),
    (aten.upsample_linear1d.default, aten.upsample_linear1d_backward.default, _linear, True),
    (aten.upsample_bilinear2d.default, aten.upsample_bilinear2d_backward.default, _linear, True),
    (aten.upsample_trilinear3d.default, aten.upsample_trilinear3d_backward.default, _linear, True),
    (aten.upsample_bicubic2d.default, aten.upsample_bicubic2d_backward.default, _cubic, True),
):
    _register_pair(_forward, _backward, _taps_of, _has_corners)


@rule(aten.max_unpool2d.default)
def max_unpool2d(x: Tensor, indices: Tensor, output_size: Sequence[Any]) -> Tensor:
    out = _unpooled(x, indices, output_size)
    return out if out is NotImplemented else laid_out_as(out, x)


@rule(aten.max_unpool3d.default)
def max_unpool3d(
    x: Tensor, indices: Tensor, output_size: Sequence[Any], stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    return _unpooled(x, indices, output_size)


def _unpooled(x: Tensor, indices: Tensor, output_size: Sequence[Any]) -> Tensor:
    """Scatter each value to its index in a flattened channel of zeros."""
    n = len(output_size)
    if x.numel() == 0 or x.shape != indices.shape or not x.is_floating_point() or indices.dtype is not torch.int64:
        return NotImplemented
    batch = list(x.shape[: x.ndim - n])
    length = 1
    for size in output_size:
        length = length * size
    zeros = torch.zeros([*batch, length], dtype=x.dtype, device=x.device)
    flat = aten.scatter.src(zeros, -1, indices.reshape([*batch, -1]), x.reshape([*batch, -1]))
    return flat.view([*batch, *output_size])


@rule(aten.affine_grid_generator.default)
def affine_grid_generator(theta: Tensor, size: Sequence[Any], align_corners: bool) -> Tensor:
    """Homogeneous coordinates (x, y[, z], 1) of every pixel in [-1, 1], transformed by theta (N, d, d + 1)."""
    spatial = list(size[2:])
    axes = []
    for n in reversed(spatial):  # x first
        line = torch.linspace(-1, 1, n, dtype=theta.dtype, device=theta.device)
        axes.append(line if align_corners else line * ((n - 1) / n))
    d = len(spatial)
    shaped = [axis.reshape([-1 if k == d - 1 - i else 1 for k in range(d)]) for i, axis in enumerate(axes)]
    grid = torch.stack(
        [*(axis.expand(spatial) for axis in shaped), torch.ones_like(theta[0, 0, 0]).expand(spatial)], -1
    )
    flat = grid.reshape(1, -1, d + 1).expand(size[0], -1, d + 1)
    return torch.bmm(flat, theta.transpose(1, 2)).view([size[0], *spatial, d])
