"""Tolerances: one table with a row per dtype, each with its reason. No operator or program has a row of its own.

An element is right if it satisfies one of three bounds, tried in the order of their cost (see oracle.judge.values):

1. close to eager: `|subject - eager| <= relative_eps * (eps * |eager| + tiny)`, where `tiny` is the smallest subnormal, since
   subnormal values have no relative precision. There is no other absolute term: a fixed 1e-5 would accept zeros instead of
   values around 1e-6;
2. no further from fp64 than `k` times eager's error;
3. no further from eager than `k` times the distance that rounding noise moves that element in eager.

The whole tensor's root mean square error is bounded too, by the smaller factor `rmse`: over many elements chance averages out,
and a loss of one bit everywhere shows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from oracle.dtypes import ARITHMETIC_FLOATS, COMPLEX, FLOAT8, SIGNED_FLOAT8, in_order


@dataclass(frozen=True, slots=True, kw_only=True)
class ToleranceRow:
    """Tolerances of one dtype. `eps` is the gap between 1 and the next value, `tiny` the smallest subnormal."""

    name: str
    eps: float
    tiny: float
    smallest_normal: float
    relative_eps: float  # bound 1, in eps of the dtype
    k: float  # bounds 2 and 3
    rmse: float  # factor of the whole tensor's bound, for many elements
    reason: str

    @property
    def rtol(self) -> float:
        return self.relative_eps * self.eps

    @property
    def atol(self) -> float:
        return self.relative_eps * self.tiny

    def rmse_factor(self, effective_elements: float) -> float:
        """`k` for a single element, falling to `rmse` for many with the square root of their number, as chance does."""
        return self.rmse + (self.k - self.rmse) / math.sqrt(max(effective_elements, 1.0))


_DOUBLE = ToleranceRow(
    name="float64", eps=2.0**-52, tiny=2.0**-1074, smallest_normal=2.0**-1022, relative_eps=16, k=8, rmse=3,
    reason="4 bits: one elementary function of another library (1-4 ULP) after a few reordered additions. There is no wider "
    "dtype, so eager is the ground truth and noise the only further bound",
)  # fmt: skip
_SINGLE = ToleranceRow(
    name="float32", eps=2.0**-23, tiny=2.0**-149, smallest_normal=2.0**-126, relative_eps=16, k=8, rmse=3,
    reason="4 bits, 1.9e-6: vectorised exp, tanh, erf are good to 4 ULP, contracted multiply-adds and short reductions to a "
    "few more. Longer reductions are judged against fp64",
)  # fmt: skip
_HALF = ToleranceRow(
    name="float16", eps=2.0**-10, tiny=2.0**-24, smallest_normal=2.0**-14, relative_eps=4, k=4, rmse=2,
    reason="2 bits: eager rounds after each op, a fused kernel once at the end, which moves an element by an ULP or two. A "
    "whole op in half is computed in float32 on both sides",
)  # fmt: skip
_BRAIN = ToleranceRow(
    name="bfloat16", eps=2.0**-7, tiny=2.0**-133, smallest_normal=2.0**-126, relative_eps=2, k=4, rmse=2,
    reason="1 bit, 1.6 %: as float16, but with 8 bits of significand two more would already be 6 %",
)  # fmt: skip


def _byte(dtype: torch.dtype) -> ToleranceRow:
    """The row of a float8. torch.finfo has the wrong eps for float8_e5m2fnuz, so the value after 1 is asked."""
    after_one = torch.ones(1, dtype=dtype, device="cpu").view(torch.uint8) + 1
    eps = after_one.view(dtype).item() - 1
    smallest_normal = torch.finfo(dtype).smallest_normal
    if dtype not in SIGNED_FLOAT8:
        return ToleranceRow(
            name=str(dtype).removeprefix("torch."), eps=eps, tiny=0.0, smallest_normal=smallest_normal,
            relative_eps=0, k=1, rmse=1,
            reason="a power of two, a scale factor: the neighbour is twice as much, so it is exact",
        )  # fmt: skip
    return ToleranceRow(
        name=str(dtype).removeprefix("torch."), eps=eps, tiny=smallest_normal * eps, smallest_normal=smallest_normal,
        relative_eps=1, k=2, rmse=1.5,
        reason="the neighbouring value: a float8 is made by one conversion, and only a tie can round either way",
    )  # fmt: skip


_ROWS = {row.name: row for row in (_DOUBLE, _SINGLE, _HALF, _BRAIN)}
TABLE: dict[torch.dtype, ToleranceRow] = {
    **{dtype: _ROWS[str(dtype.to_real()).removeprefix("torch.")] for dtype in in_order(ARITHMETIC_FLOATS | COMPLEX)},
    **{dtype: _byte(dtype) for dtype in in_order(FLOAT8)},
}

PYTHON_NUMBER = _SINGLE
"""The row of Python floats and complex numbers in outputs: most come from `.item()` of float32 tensors."""
