"""Fourier transforms and windows."""

from __future__ import annotations

from typing import Any

from fuzz.program.structure import Items
from fuzz.vocabulary.operators.build import op
from fuzz.vocabulary.operators.operands import dim, either, maybe_dtype, optional, x
from fuzz.vocabulary.operators.spec import OpSpec

_REAL = ("float32", "float64")
_ANY = (*_REAL, "complex64", "complex128", "int64")
_NORM = optional(either("ortho", "forward", "backward"))


def _fft(name: str, dtypes: tuple[str, ...], *, dims: int, weight: float = 0.6) -> OpSpec:
    """One-dimensional, two-dimensional or over any dimensions."""
    keywords: dict[str, Any] = {"norm": _NORM}
    if dims == 1:
        keywords |= {"n": optional(either(4, 7, 1)), "dim": optional(dim())}
    elif dims == 2:
        keywords |= {"s": optional(either(Items((4, 3), "tuple")), 0.3)}
    return op(f"torch.fft.{name}", "fft", x(dtypes, rank=(max(1, dims), 4)), weight=weight, **keywords)


_PERIODIC: dict[str, Any] = {"periodic": optional(either(False))}
FFT = (
    _fft("fft", _ANY, dims=1, weight=1),
    _fft("ifft", _ANY, dims=1),
    _fft("rfft", _REAL, dims=1, weight=1),
    _fft("irfft", _ANY, dims=1),
    _fft("hfft", _ANY, dims=1),
    _fft("ihfft", _REAL, dims=1),
    _fft("fft2", _ANY, dims=2),
    _fft("ifft2", _ANY, dims=2),
    _fft("rfft2", _REAL, dims=2),
    _fft("irfft2", _ANY, dims=2),
    _fft("hfft2", _ANY, dims=2, weight=0.3),
    _fft("ihfft2", _REAL, dims=2, weight=0.3),
    _fft("fftn", _ANY, dims=0),
    _fft("ifftn", _ANY, dims=0),
    _fft("rfftn", _REAL, dims=0),
    _fft("irfftn", _ANY, dims=0),
    _fft("hfftn", _ANY, dims=0, weight=0.3),
    _fft("ihfftn", _REAL, dims=0, weight=0.3),
    op("torch.fft.fftshift", "fft", x(_ANY, rank=(1, 4)), dim=optional(dim()), weight=0.6),
    op("torch.fft.ifftshift", "fft", x(_ANY, rank=(1, 4)), dim=optional(dim()), weight=0.6),
    op("torch.stft", "fft", x(_REAL, shape=lambda b: b.draw.choice(((32,), (2, 33)))), 8,
       hop_length=optional(either(4, 3)), center=either(True, False), onesided=optional(True), return_complex=True,
       weight=0.5),
    op("torch.fft.fftfreq", "creation", either(8, 5, 1), weight=0.3),
    op("torch.fft.rfftfreq", "creation", either(8, 5), d=optional(0.5), weight=0.3),
    *(
        op(f"torch.{name}", "creation", either(8, 5, 1, 0), dtype=maybe_dtype("float64"), weight=0.2, **_PERIODIC)
        for name in ("hann_window", "hamming_window", "blackman_window", "bartlett_window", "kaiser_window")
    ),
)  # fmt: skip
_WINDOWS: dict[str, dict[str, Any]] = {
    "bartlett": {}, "blackman": {}, "cosine": {}, "exponential": {"tau": either(1.0, 2.5)},
    "gaussian": {"std": either(1.0, 2.5)}, "general_cosine": {"a": Items((0.46, 0.23, 0.31))},
    "general_hamming": {"alpha": either(0.54, 0.7)}, "hamming": {}, "hann": {}, "kaiser": {"beta": 8.0}, "nuttall": {},
}  # fmt: skip
WINDOWS = tuple(
    op(f"torch.signal.windows.{name}", "creation", either(8, 5, 1), weight=0.15, sym=optional(either(False, True)),
       **extra)
    for name, extra in _WINDOWS.items()
)  # fmt: skip
