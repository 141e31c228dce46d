"""Decompositions of reflection and replication padding, and of im2col and col2im (unfold and fold).

Counterpart: torch/_decomp/decompositions.py, _reflection_pad, _replication_pad, im2col, col2im
Differs: padding is an index per dimension, and its backward accumulates into the same indices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from refimpl.trace.decompositions.layouts import laid_out_as, row_major
from refimpl.trace.decompositions.promotion import cast, computation_dtype
from refimpl.trace.decompositions.registry import aten, rule

Tensor = torch.Tensor
Positions = Callable[[Any, Any, Any, torch.device], Tensor]


def _reflected(length: Any, before: Any, after: Any, device: torch.device) -> Tensor:
    """Indices of a reflected dimension: positions -2 -1 0 1 2 become 2 1 0 1 2, and the other end likewise."""
    i = torch.arange(-before, length + after, device=device)
    return (length - 1) - torch.abs(torch.abs(i) - (length - 1))


def _replicated(length: Any, before: Any, after: Any, device: torch.device) -> Tensor:
    return torch.clamp(torch.arange(-before, length + after, device=device), min=0, max=length - 1)


def _indices(x_shape: Sequence[Any], padding: Sequence[Any], positions: Positions, device: torch.device) -> list[Any]:
    """An index per padded dimension, shaped so that they broadcast against each other; None for the others."""
    n = len(padding) // 2
    first = len(x_shape) - n
    indices: list[Any] = [None] * first
    for k in range(n):
        before, after = padding[2 * (n - 1 - k)], padding[2 * (n - 1 - k) + 1]  # pairs count from the last dimension
        index = positions(x_shape[first + k], before, after, device)
        indices.append(index.reshape([-1] + [1] * (n - 1 - k)))
    return indices


def _padded(x: Tensor, padding: Sequence[Any], positions: Positions) -> Tensor:
    out = aten.index.Tensor(x, _indices(x.shape, padding, positions, x.device))
    return laid_out_as(out, x)


def _unpadded(grad: Tensor, x: Tensor, padding: Sequence[Any], positions: Positions) -> Tensor:
    dtype = computation_dtype(x.dtype)
    zeros = torch.zeros(x.shape, dtype=dtype, device=x.device)
    out = aten.index_put.default(zeros, _indices(x.shape, padding, positions, x.device), cast(grad, dtype), True)
    return laid_out_as(cast(out, x.dtype), x)


def _is_reflectable(x: Tensor, padding: Sequence[Any]) -> bool:
    """Whether each padded dimension has more elements than are added on a side."""
    sizes = [x.shape[x.ndim - 1 - i // 2] for i in range(len(padding))]
    return all(pad < size for pad, size in zip(padding, sizes, strict=True))


def _is_replicable(x: Tensor, padding: Sequence[Any]) -> bool:
    """Whether each padded dimension has an element to replicate."""
    return all(x.shape[x.ndim - 1 - i] > 0 for i in range(len(padding) // 2))


@rule(aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default)
def reflection_pad(x: Tensor, padding: Sequence[Any]) -> Tensor:
    return _padded(x, padding, _reflected) if _is_reflectable(x, padding) else NotImplemented


@rule(
    aten.reflection_pad1d_backward.default,
    aten.reflection_pad2d_backward.default,
    aten.reflection_pad3d_backward.default,
)
def reflection_pad_backward(grad: Tensor, x: Tensor, padding: Sequence[Any]) -> Tensor:
    return _unpadded(grad, x, padding, _reflected) if _is_reflectable(x, padding) else NotImplemented


@rule(aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default)
def replication_pad(x: Tensor, padding: Sequence[Any]) -> Tensor:
    return _padded(x, padding, _replicated) if _is_replicable(x, padding) else NotImplemented


@rule(
    aten.replication_pad1d_backward.default,
    aten.replication_pad2d_backward.default,
    aten.replication_pad3d_backward.default,
)
def replication_pad_backward(grad: Tensor, x: Tensor, padding: Sequence[Any]) -> Tensor:
    return _unpadded(grad, x, padding, _replicated) if _is_replicable(x, padding) else NotImplemented


def _window_positions(size: Any, kernel: int, dilation: int, stride: int, device: torch.device) -> Tensor:
    """A (kernel, windows) tensor: the position of element k of window w in a padded dimension of that size."""
    windows = (size - dilation * (kernel - 1) - 1) // stride + 1
    starts = torch.arange(windows, device=device) * stride
    return torch.arange(kernel, device=device).unsqueeze(1) * dilation + starts


@rule(aten.im2col.default)
def im2col(
    x: Tensor, kernel_size: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> Tensor:
    """(N, C, H, W) to (N, C * kh * kw, windows)."""
    if x.ndim not in (3, 4):
        return NotImplemented
    batched = x if x.ndim == 4 else x.unsqueeze(0)
    padded = aten.constant_pad_nd.default(batched, [padding[1], padding[1], padding[0], padding[0]])
    n, c, h, w = padded.shape
    rows = _window_positions(h, kernel_size[0], dilation[0], stride[0], x.device)  # kh, oh
    columns = _window_positions(w, kernel_size[1], dilation[1], stride[1], x.device)  # kw, ow
    picked = aten.index.Tensor(padded, [None, None, rows[:, :, None, None], columns])  # n, c, kh, oh, kw, ow
    kh, oh, kw, ow = picked.shape[2:]
    out = row_major(picked.permute(0, 1, 2, 4, 3, 5).reshape(n, c * kh * kw, oh * ow))
    return out if x.ndim == 4 else out.squeeze(0)


@rule(aten.col2im.default)
def col2im(
    x: Tensor,
    output_size: Sequence[Any],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Tensor:
    """(N, C * kh * kw, windows) to (N, C, H, W): overlapping windows are summed."""
    if x.ndim not in (2, 3):
        return NotImplemented
    batched = x if x.ndim == 3 else x.unsqueeze(0)
    (kh, kw), (ph, pw) = kernel_size, padding
    h, w = output_size[0] + 2 * ph, output_size[1] + 2 * pw
    rows = _window_positions(h, kh, dilation[0], stride[0], x.device)
    columns = _window_positions(w, kw, dilation[1], stride[1], x.device)
    oh, ow = rows.shape[1], columns.shape[1]
    n, c = batched.shape[0], batched.shape[1] // (kh * kw)
    dtype = computation_dtype(x.dtype)
    windows = cast(batched, dtype).reshape(n, c, kh, kw, oh, ow).permute(0, 1, 2, 4, 3, 5)  # n, c, kh, oh, kw, ow
    zeros = torch.zeros([n, c, h, w], dtype=dtype, device=x.device)
    out = aten.index_put.default(zeros, [None, None, rows[:, :, None, None], columns], windows, True)
    out = row_major(cast(out[:, :, ph : h - ph, pw : w - pw], x.dtype))
    return out if x.ndim == 3 else out.squeeze(0)
