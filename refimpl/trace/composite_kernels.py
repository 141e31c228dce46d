"""Kernels of composite operators in traces: eager's own, or refimpl's where eager's would read a size or a value as a number.

A composite operator is computed by other operators. torch registers Python kernels for some of them, which its traces run in
place of the C++ kernels; their values then differ from eager's here and there, and a mistake in one would be a mistake of every
trace. A trace of refimpl runs none of them. It runs the C++ kernel, which also takes symbolic sizes in most cases, and a kernel
of this package for the others:

| operators | what the C++ kernel does | kernel |
|---|---|---|
| upsampling `.vec`, `unsafe_chunk`, `pad_sequence`, `stft` | makes symbolic sizes numbers | here, where a size is a symbol |
| `matmul`, until torch 2.12 | makes symbolic sizes numbers | here, where a size is a symbol |
| `dropout` | asks whether the input is empty; keeps a mask of floats | here: one operator, with a mask of bools |
| the same in a branch or body | may return its input | here: a copy |
| `rnn_tanh`, `rnn_relu`, `gru`, `lstm` | makes symbolic sizes numbers | recurrent_kernels, where a size is a symbol |
| the same for packed sequences | reads how many sequences take part in each step | recurrent_kernels |
| `tensor_split` by a tensor, `istft`, `one_hot` | reads values, which fake tensors do not have | here |
| `native_batch_norm` | writes running statistics, which its schema does not say | here: the operator whose schema does |

Counterpart: torch/_decomp/decompositions.py, torch/_refs/__init__.py (py_impl of CompositeImplicitAutograd and Autograd)
"""

from __future__ import annotations

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, cast

import torch

from refimpl._torch import (
    OpOverload,
    active_fake_mode,
    enable_python_dispatcher,
    pytree,
    run_composite_kernel,
    with_kernels_of_composites,
)
from refimpl.trace.recurrent_kernels import by_batch_sizes, by_steps

_aten = torch.ops.aten
MATMUL_READS_SIZES = torch.__version__ < "2.13"


# Whether `dropout` that drops nothing copies its input, as its schema says. The C++ kernel returns the input itself.
_COPIES: contextvars.ContextVar[bool] = contextvars.ContextVar("refimpl_dropout_copies", default=False)


@contextlib.contextmanager
def composite_kernels(*, copies: bool = False) -> Iterator[None]:
    """Within, fake tensors and traces run the kernels that this module describes.

    copies: for a function of a higher-order operator, which may not return its operand. There torch's dropout copies too.
    """
    token = _COPIES.set(copies)
    try:
        with with_kernels_of_composites(_own_kernels()), enable_python_dispatcher():
            yield
    finally:
        _COPIES.reset(token)


def keeping_composite_kernels() -> contextlib.AbstractContextManager[None]:
    """Within, `composite_kernels` costs little: the kernels stay in place between its blocks."""
    return with_kernels_of_composites(_own_kernels())


def run_composite(operator: OpOverload, args: Any, kwargs: Any) -> Any:
    """The result of a composite operator by refimpl's kernel, or by eager's if it has none."""
    kernel = _own_kernels().get(operator)
    return run_composite_kernel(operator, args, kwargs) if kernel is None else kernel(*args, **kwargs)


def has_own_kernel(operator: OpOverload) -> bool:
    """Whether traces run a kernel of this module for the operator, so that no graph has it."""
    return operator in _own_kernels()


@cache
def _own_kernels() -> Mapping[OpOverload, Callable[..., Any]]:
    own: dict[OpOverload, Callable[..., Any]] = {
        _aten.tensor_split.tensor_indices_or_sections: _tensor_split,
        _aten.istft.default: _istft,
        _aten.one_hot.default: _one_hot,
        _aten.native_batch_norm.default: _native_batch_norm,
        _aten.dropout.default: _dropout,
        **by_batch_sizes(),
    }
    for operator, kernel in (
        (_aten.unsafe_chunk.default, _unsafe_chunk),
        (_aten.pad_sequence.default, _pad_sequence),
        (_aten.stft.center, _stft),
        *(((_aten.matmul.default, _matmul),) if MATMUL_READS_SIZES else ()),
        *((operator, _upsampling(operator)) for operator in _upsampling_operators()),
        *by_steps().items(),
    ):
        own[operator] = _where_a_size_is_a_symbol(operator, kernel)
    return MappingProxyType(own)


def _where_a_size_is_a_symbol(operator: OpOverload, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel for arguments with a symbolic size; eager's own for others."""

    def choose(*args: Any, **kwargs: Any) -> Any:
        if any(map(_is_symbolic, pytree.tree_leaves((args, kwargs)))):
            return kernel(*args, **kwargs)
        return run_composite_kernel(operator, args, kwargs)

    return choose


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(isinstance(extent, torch.SymInt) for extent in value.shape)
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


# --------------------------------------------------------------------------------------------------------------- upsampling


def _upsampling_operators() -> list[OpOverload]:
    """Operators that take an output size or scale factors, and become the one that takes the output size."""
    names = [name for name in dir(_aten) if "upsample_" in name and not name.endswith("_backward")]
    packets = [getattr(_aten, name) for name in names]
    return [packet.vec for packet in packets if "vec" in packet.overloads()]


def _upsampling(operator: OpOverload) -> Callable[..., Any]:
    by_size = operator.overloadpacket.default

    def kernel(input: torch.Tensor, output_size: Any, *options: Any) -> torch.Tensor:
        *rest, scale_factors = options
        spatial = input.shape[2:]
        if (output_size is None) is (scale_factors is None):
            raise RuntimeError("Must specify exactly one of output_size and scale_factors")
        given = output_size if scale_factors is None else scale_factors
        _require(len(given) == len(spatial), f"expected {len(spatial)} values, got {len(given)}")
        if scale_factors is None:
            return by_size(input, list(output_size), *rest)
        sizes = [torch.sym_int(extent * factor) for extent, factor in zip(spatial, scale_factors, strict=True)]
        return by_size(input, sizes, *rest, *scale_factors)

    return kernel


# ---------------------------------------------------------------------------------------------------------------- products


def _matmul(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The operators that the C++ kernel calls, which depend on strides and on which of the two requires a gradient."""
    left, right = self.dim(), other.dim()
    _require(
        left > 0 and right > 0, f"both arguments to matmul need to be at least 1D, but they are {left}D and {right}D"
    )
    if left <= 2 and right <= 2:
        if left == right == 1:
            return self.dot(other)
        if right == 1:
            return self.mv(other)
        return self.mm(other) if left == 2 else self.unsqueeze(0).mm(other).squeeze(0)
    if _is_folded(self, other):
        return _folded_matmul(self, other) if left >= right else _folded_matmul_of_the_right(self, other)
    if left == right == 3 and self.shape[0] != other.shape[0]:
        if _is_known(self.shape[0] == 1):  # in a trace; eager does so if this operand requires a gradient
            return _matmul(self.squeeze(0), other)
        if _is_known(other.shape[0] == 1):
            return _matmul(self, other.squeeze(0))
    return _batched_matmul(self, other)


def _is_folded(self: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the larger of the two is made a matrix, so that `mm` or `mv` computes the product.

    If the smaller one requires a gradient, a batched product would expand it, and its gradient would be large.
    """
    larger, smaller = (self, other) if self.dim() >= other.dim() else (other.mT, self)
    if larger.dim() < 3 or smaller.dim() > 2:
        return False
    if smaller.requires_grad:
        return True
    if self.dim() == 2:
        return False
    sizes, strides = larger.shape, larger.stride()
    return all(strides[i] == strides[i + 1] * sizes[i + 1] for i in range(larger.dim() - 2))


def _folded_matmul(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    *rows, width = self.shape
    matrix = self.reshape(math.prod(rows), width)
    if other.dim() == 1:
        return _aten._unsafe_view.default(matrix.mv(other), rows)
    return _aten._unsafe_view.default(matrix.mm(other), [*rows, other.shape[1]])


def _folded_matmul_of_the_right(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    product = _folded_matmul(other.mT, self.t() if self.dim() == 2 else self)
    return product.mT.contiguous() if self.dim() == 2 else product


def _batched_matmul(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    is_row, is_column = self.dim() == 1, other.dim() == 1
    matrices = (self.unsqueeze(0) if is_row else self, other.unsqueeze(1) if is_column else other)
    batch = list(torch.broadcast_shapes(*(matrix.shape[:-2] for matrix in matrices)))
    left, right = (m.expand(*batch, *m.shape[-2:]).reshape(math.prod(batch), *m.shape[-2:]) for m in matrices)
    product = left.bmm(right)
    sizes = [*batch, *([] if is_row else [left.shape[1]]), *([] if is_column else [right.shape[2]])]
    return _aten._unsafe_view.default(product.squeeze(-1) if is_column else product, sizes)


# ------------------------------------------------------------------------------------------------------- parts of a tensor


def _unsafe_chunk(self: torch.Tensor, chunks: int, dim: int = 0) -> Any:
    _require(self.dim() > 0, "chunk expects at least a 1-dimensional tensor")
    _require(chunks > 0, f"chunk expects `chunks` to be greater than 0, got: {chunks}")
    return _aten.unsafe_split.Tensor(self, (self.shape[dim] + chunks - 1) // chunks, dim)


def _tensor_split(self: torch.Tensor, tensor_indices_or_sections: torch.Tensor, dim: int = 0) -> Any:
    places = tensor_indices_or_sections
    _require(places.device.type == "cpu", f"tensor_split expected a tensor on the CPU, got {places.device}")
    _require(places.dtype is torch.int64, f"tensor_split expected a tensor of int64, got {places.dtype}")
    _require(places.dim() < 2, f"tensor_split expected at most one dimension, got {places.dim()}")
    if places.dim() == 0:
        return _aten.tensor_split.sections(self, places.item(), dim)
    fake_mode = active_fake_mode()
    shape_env: Any = None if fake_mode is None else fake_mode.shape_env
    # slices make symbols of their own for the sizes of the parts: those of the places are in no result
    with contextlib.nullcontext() if shape_env is None else shape_env.ignore_fresh_unbacked_symbols():
        numbers = [place.item() for place in places.unbind()]
    return _aten.tensor_split.indices(self, numbers, dim)


def _pad_sequence(
    sequences: list[torch.Tensor], batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right"
) -> torch.Tensor:
    _require(len(sequences) > 0, "received an empty list of sequences")
    _require(
        padding_side in ("left", "right"),
        f"Expected padding_side to be one of left or right, but got {padding_side}.",
    )
    first = sequences[0]
    longest: Any = first.shape[0]
    for sequence in sequences[1:]:
        longest = torch.sym_max(longest, sequence.shape[0])
    head = (len(sequences), longest) if batch_first else (longest, len(sequences))
    padded = torch.full((*head, *first.shape[1:]), padding_value, dtype=first.dtype, device=first.device)
    for place, sequence in enumerate(sequences):
        row = padded.select(0 if batch_first else 1, place)
        length = sequence.shape[0]
        row.narrow(0, longest - length if padding_side == "left" else 0, length).copy_(sequence)
    return padded


def _one_hot(self: torch.Tensor, num_classes: Any = -1) -> torch.Tensor:
    """Checks values when the graph runs, since the trace does not know them."""
    _require(self.dtype is torch.int64, "one_hot is only applicable to index tensor of type LongTensor.")
    if not isinstance(num_classes, torch.SymInt) and num_classes == -1:
        num_classes = self.max().item() + 1
    _aten._assert_async.msg(self.ge(0).all(), "one_hot: Class values must be non-negative.")
    count = cast("int", num_classes)  # a symbol too
    _aten._assert_async.msg(self.lt(count).all(), "one_hot: Class values must be smaller than num_classes.")
    classes = torch.arange(count, dtype=self.dtype, device=self.device)
    return self.unsqueeze(-1).eq(classes).to(torch.int64)


def _native_batch_norm(
    input: torch.Tensor,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    if running_mean is None and running_var is None:
        return _aten._native_batch_norm_legit.no_stats(input, weight, bias, training, momentum, eps)
    statistics = running_mean, running_var
    if any(statistic is None for statistic in statistics):
        raise RuntimeError("running_mean and running_var should both be None or both be provided.")
    if training:
        return _aten._native_batch_norm_legit.default(input, weight, bias, *statistics, training, momentum, eps)
    return _aten._native_batch_norm_legit_no_training.default(input, weight, bias, *statistics, momentum, eps)


def _dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    _require(0 <= p <= 1, f"dropout probability has to be between 0 and 1, but got {p}")
    if not train or p == 0 or _is_known(input.numel() == 0):
        return input.clone() if _COPIES.get() else input
    if p == 1:
        return input.mul(torch.zeros([], dtype=input.dtype, device=input.device))
    return _aten.native_dropout.default(input, p, True)[0]


def _require(condition: Any, problem: str) -> None:
    if not condition:
        raise RuntimeError(problem)


def _is_known(condition: Any) -> bool:
    return condition if isinstance(condition, bool) else condition.node.guard_or_false("", 0)


# ------------------------------------------------------------------------------------------------ short-time Fourier transform

_BY_ROOT, _BY_LENGTH = 1, 2  # how the transform is normalised; 0: not at all


def _stft(
    self: torch.Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None,
    window: torch.Tensor | None = None, center: bool = True, pad_mode: str = "reflect", normalized: bool = False,
    onesided: bool | None = None, return_complex: bool | None = None, align_to_window: bool | None = None,
) -> torch.Tensor:  # fmt: skip
    hop = n_fft // 4 if hop_length is None else hop_length
    width = n_fft if win_length is None else win_length
    is_complex = self.is_complex() or (window is not None and window.is_complex())
    if return_complex is None:
        return_complex = is_complex
        _require(
            is_complex,
            "stft requires the return_complex parameter be given for real inputs, and will further require that "
            "return_complex=True in a future PyTorch release.",
        )
    _require(self.dim() in (1, 2), f"stft: expected a 1D or 2D tensor, got {self.dim()}D")
    _require(hop > 0, f"stft: expected hop_length > 0, but got hop_length={hop}")
    _require(0 < width <= n_fft, f"stft: expected 0 < win_length <= n_fft, but got win_length={width}")
    _require(not align_to_window, "stft: align_to_window is not supported with symbolic sizes")
    signal = self.unsqueeze(0) if self.dim() == 1 else self
    if center:
        signal = torch.nn.functional.pad(signal.unsqueeze(1), [n_fft // 2] * 2, mode=pad_mode).squeeze(1)
    length = signal.shape[1]
    _require(n_fft > 0, f"stft: expected n_fft > 0, but got n_fft={n_fft}")
    _require(n_fft <= length, f"stft: expected n_fft={n_fft} to be at most the length of the signal")
    if not center and not signal.is_contiguous():
        # eager views memory: elements in one place share one gradient, which has the strides of the signal
        signal = signal.as_strided(signal.shape, signal.stride(), signal.storage_offset())
    frames = signal.unfold(-1, n_fft, hop)
    if window is not None or width < n_fft:
        frames = frames * _padded_window(window, width, n_fft, self)
    norm = _BY_ROOT if normalized else 0
    if frames.is_complex():
        _require(not onesided, "Cannot have onesided output if window or input is complex")
        spectrum = _aten._fft_c2c.default(frames, [2], norm, True)
    else:
        spectrum = _aten._fft_r2c.default(frames, [2], norm, onesided is None or onesided)
    spectrum.transpose_(1, 2)  # in place, as in eager: the result is no view
    if self.dim() == 1:
        spectrum.squeeze_(0)
    return spectrum if return_complex else torch.view_as_real(spectrum)


def _padded_window(window: torch.Tensor | None, width: int, n_fft: int, like: torch.Tensor) -> torch.Tensor:
    """The window in the middle of `n_fft` zeros; ones without a window."""
    if window is None:
        window = torch.ones([width], dtype=like.real.dtype, device=like.device)
    _require(window.dim() == 1, f"expected a 1D window tensor, but got {window.dim()}D")
    _require(window.shape[0] == width, f"expected a window of size win_length={width}, got {window.shape[0]}")
    left = (n_fft - width) // 2
    return torch.nn.functional.pad(window, [left, n_fft - width - left]) if width < n_fft else window


def _istft(
    self: torch.Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None,
    window: torch.Tensor | None = None, center: bool = True, normalized: bool = False, onesided: bool | None = None,
    length: int | None = None, return_complex: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Checks that the windows cover the signal when the graph runs, since the trace does not know their values."""
    hop = n_fft // 4 if hop_length is None else hop_length
    width = n_fft if win_length is None else win_length
    _require(
        self.is_complex(),
        "istft requires a complex-valued input tensor matching the output from stft with return_complex=True.",
    )
    _require(self.dim() in (2, 3), f"istft: expected a tensor with 2 or 3 dimensions, got {self.dim()}")
    _require(0 < hop <= width, f"istft: expected 0 < hop_length <= win_length, got {hop}")
    _require(0 < width <= n_fft, f"istft: expected 0 < win_length <= n_fft, got {width}")
    spectrum = (self.unsqueeze(0) if self.dim() == 2 else self).transpose(1, 2)
    frames, bins = spectrum.shape[1], spectrum.shape[2]
    if onesided is None:
        onesided = bool(bins != n_fft)
    expected = n_fft // 2 + 1 if onesided else n_fft
    _require(bins == expected, f"istft: expected {expected} frequencies, got {bins}")
    is_complex_window = window is not None and window.is_complex()
    _require(not (return_complex and onesided), "cannot have onesided output if window or input is complex")
    _require(return_complex or not is_complex_window, "Complex windows are incompatible with return_complex=False")
    taps = _padded_window(window, width, n_fft, self)
    norm = _BY_ROOT if normalized else _BY_LENGTH
    if return_complex:
        pieces = _aten._fft_c2c.default(spectrum, [2], norm, False)
    else:
        half = spectrum if onesided else spectrum.narrow(2, 0, n_fft // 2 + 1)
        pieces = _aten._fft_c2r.default(half, [2], norm, n_fft)
    total: Any = n_fft + hop * (frames - 1)
    signal = _overlapped(pieces * taps.view(1, 1, n_fft), total, n_fft, hop)
    envelope = _overlapped(taps.pow(2).expand(1, frames, n_fft), total, n_fft, hop)
    start = n_fft // 2 if center else 0
    wanted = total - start - (n_fft // 2 if center else 0) if length is None else length
    kept: Any = wanted if length is None else torch.sym_min(wanted, total - start)
    signal, envelope = signal.narrow(1, start, kept), envelope.narrow(1, start, kept)
    _aten._assert_async.msg((envelope.abs().min() > 1e-11).all(), "window overlap add min: 1")
    signal = signal / envelope
    if length is not None:
        signal = torch.nn.functional.pad(signal, [0, wanted - kept])
    return signal.squeeze(0) if self.dim() == 2 else signal


def _overlapped(frames: torch.Tensor, total: Any, n_fft: int, hop: int) -> torch.Tensor:
    """The sum of frames, each at its place in a signal."""
    return _aten.unfold_backward.default(frames, [frames.shape[0], total], 1, n_fft, hop)
