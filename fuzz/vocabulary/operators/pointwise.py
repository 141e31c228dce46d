"""Pointwise operators of one, two and three tensors."""

from __future__ import annotations

from typing import Any

from fuzz.draw.inputs.specs import COMPLEX, FLOATS, INTEGERS
from fuzz.vocabulary.operators.build import ALL, DOUBLES, INEXACT, INTEGRAL, NUMERIC, REAL, op
from fuzz.vocabulary.operators.operands import (
    a_divisor,
    either,
    integer,
    mask,
    number,
    optional,
    other,
    x,
)
from fuzz.vocabulary.operators.spec import OpSpec

_CATEGORY = "pointwise"
_UNIT = {"domain": "defined on [-1, 1]; NaN elsewhere, which every second draw keeps"}
_POSITIVE = {"domain": "real for positive elements; NaN elsewhere, which every second draw keeps"}
_GAMMA = {
    "domain": "of positive numbers, in float32: in float64 there is nothing wider to measure two algorithms against"
}
_EXPONENTS = {"exponent": "small: others overflow, or are infinite almost everywhere"}


def _unary(names: str, dtypes: tuple[str, ...], *, domain: str = "any", weight: float = 1.0) -> tuple[OpSpec, ...]:
    why = {"unit": _UNIT, "positive": _POSITIVE}.get(domain)
    return tuple(
        op(f"torch.{name}", _CATEGORY, x(dtypes, domain=domain), weight=weight, why=why) for name in names.split()
    )


_ONE = (
    *_unary("sin cos exp tanh sigmoid abs neg square", NUMERIC, weight=1.6),
    *_unary("tan sinh cosh atan asinh expm1 reciprocal rad2deg deg2rad", REAL),
    *_unary("exp2 erf erfc sinc", REAL),
    *_unary("asin acos atanh erfinv", REAL, domain="unit"),
    *_unary("log log2 log10 log1p sqrt rsqrt acosh lgamma digamma", REAL, domain="positive"),
    *_unary("floor ceil trunc", REAL),
    *_unary("frac", FLOATS),
    *_unary("sign sgn signbit", REAL),
    *_unary("isnan isinf isfinite isreal", ALL),
    *_unary("isposinf isneginf", REAL),
    *_unary("angle conj_physical positive", NUMERIC),
    *_unary("logical_not", ALL),
    *_unary("bitwise_not", INTEGRAL),
    *_unary("i0", FLOATS),
    op("torch.round", _CATEGORY, x(REAL)),
    op("torch.round", _CATEGORY, x(FLOATS), decimals=either(0, 1, 3, -1), name="torch.round(decimals)"),
    op(
        "torch.logit",
        _CATEGORY,
        x(FLOATS, domain="probability"),
        eps=optional(either(1e-6, 0.1)),
        why={"domain": "defined on [0, 1]"},
    ),
    op(
        "torch.nan_to_num",
        _CATEGORY,
        x(ALL),
        nan=optional(either(0.0, 1.5)),
        posinf=optional(either(1.0, 100.0)),
        neginf=optional(either(-1.0, -100.0)),
        weight=1.5,
    ),
    op("torch.frexp", _CATEGORY, x(FLOATS, domain="small", is_strict=True), results="vv", why={
        "domain": "the exponent of an infinity or NaN is not specified"}),
    op("torch.polygamma", _CATEGORY, integer(0, 3), x(DOUBLES, domain="positive"), why={
        "domain": "poles at the non-positive integers"}),
    op("torch.mvlgamma", _CATEGORY, x(DOUBLES, domain="positive", is_strict=True), p=either(1, 2), why={
        "domain": "eager refuses elements of (p - 1) / 2 and below"}),
    op("torch.clone", _CATEGORY, x(ALL)),
    op("torch.celu", _CATEGORY, x(FLOATS), alpha=optional(either(1.0, 0.5, 2.0))),
)  # fmt: skip

_ARITHMETIC = (
    op("torch.add", _CATEGORY, x(ALL), other(ALL), weight=4),
    op("torch.sub", _CATEGORY, x(NUMERIC), other(NUMERIC), weight=3),
    op("torch.mul", _CATEGORY, x(ALL), other(ALL), weight=4),
    op("torch.add", _CATEGORY, x(NUMERIC), other(NUMERIC), alpha=either(2, -1, 0, 3), name="torch.add(alpha)"),
    op("torch.sub", _CATEGORY, x(NUMERIC), other(NUMERIC), alpha=either(2, -1, 0, 3), name="torch.sub(alpha)"),
    op("torch.rsub", _CATEGORY, x(NUMERIC), other(NUMERIC), alpha=optional(either(2, 3))),
    op("torch.div", _CATEGORY, x(ALL), other(NUMERIC), weight=3),
    op("torch.true_divide", _CATEGORY, x(NUMERIC), other(NUMERIC), weight=0.5),
    op("torch.div", _CATEGORY, x(FLOATS), other(FLOATS), rounding_mode=either("trunc", "floor", None),
       name="torch.div(rounding_mode)", weight=1.5),
    op("torch.floor_divide", _CATEGORY, x(FLOATS), other(FLOATS), weight=1.5, has_gradient=False),
    op("torch.remainder", _CATEGORY, x(FLOATS), other(FLOATS), weight=1.5),
    op("torch.fmod", _CATEGORY, x(FLOATS), other(FLOATS), weight=1.5),
    op("torch.pow", _CATEGORY, x(FLOATS, domain="positive"), other(FLOATS), weight=1.5, why=_POSITIVE),
    op("torch.pow", _CATEGORY, x(NUMERIC), number(2, 3, 0, 1, 0.5, -1, -0.5, 4), name="torch.pow(Scalar)", weight=2,
       why=_EXPONENTS),
    op("torch.pow", _CATEGORY, either(2.0, 0.5, 1, 3), x(FLOATS), name="torch.pow(Scalar base)"),
    op("torch.float_power", _CATEGORY, x(REAL, domain="positive"), number(2, 0.5, -1, 3.0), why=_POSITIVE),
    op("torch.maximum", _CATEGORY, x(REAL), other(REAL, numbers=0), weight=1.5),
    op("torch.minimum", _CATEGORY, x(REAL), other(REAL, numbers=0), weight=1.5),
    op("torch.fmax", _CATEGORY, x(REAL), other(REAL, numbers=0)),
    op("torch.fmin", _CATEGORY, x(REAL), other(REAL, numbers=0)),
    op("torch.atan2", _CATEGORY, x(REAL), other(REAL, numbers=0)),
    op("torch.hypot", _CATEGORY, x(FLOATS), other(FLOATS, numbers=0, mixes=0)),
    op("torch.copysign", _CATEGORY, x(REAL), other(REAL)),
    op("torch.nextafter", _CATEGORY, x(FLOATS[:3]), other(FLOATS, numbers=0, mixes=0)),
    op("torch.logaddexp", _CATEGORY, x(DOUBLES), other(FLOATS, numbers=0, mixes=0)),
    op("torch.logaddexp2", _CATEGORY, x(DOUBLES), other(FLOATS, numbers=0, mixes=0)),
    op("torch.xlogy", _CATEGORY, x(REAL), other(REAL, domain="positive"), why=_POSITIVE),
    op("torch.heaviside", _CATEGORY, x(REAL), other(REAL, numbers=0, mixes=0), has_gradient=False),
    op("torch.ldexp", _CATEGORY, x(FLOATS), other(INTEGERS, numbers=0), why=_EXPONENTS),
    op("torch.gcd", _CATEGORY, x(INTEGERS), other(INTEGERS, numbers=0)),
    op("torch.lcm", _CATEGORY, x(INTEGERS, domain="nonzero", is_strict=True),
       other(INTEGERS, numbers=0, domain="nonzero", is_strict=True, mixes=0), why={
        "domain": "the least common multiple of large numbers overflows"}),
    op("torch.igamma", _CATEGORY, x(("float32",), domain="positive", is_strict=True, requires_grad=False),
       other(("float32",), numbers=0, domain="positive", is_strict=True, mixes=0), weight=0.5,
       why=_GAMMA),
    op("torch.igammac", _CATEGORY, x(("float32",), domain="positive", is_strict=True, requires_grad=False),
       other(("float32",), numbers=0, domain="positive", is_strict=True, mixes=0), weight=0.5,
       why=_GAMMA),
)  # fmt: skip

_NONZERO = {"divisor": "no zero among integers, and not -1, by which the least integer cannot be divided"}
_DIVISIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("torch.floor_divide", {}),
    ("torch.remainder", {}),
    ("torch.fmod", {}),
    ("torch.div", {"rounding_mode": either("floor", "trunc")}),
)
_INTEGER_DIVISION = tuple(
    op(target, _CATEGORY, x(INTEGERS), second, name=f"{target}({kind} divisor)", weight=0.8, why=_NONZERO, **keywords)
    for target, keywords in _DIVISIONS
    for kind, second in (
        ("integer", other(INTEGERS, numbers=0, mixes=0.1, domain="nonzero", is_strict=True)),
        ("number", a_divisor),
    )
)

_BITS = (
    *(op(f"torch.bitwise_{name}", _CATEGORY, x(INTEGRAL), other(INTEGRAL)) for name in ("and", "or", "xor")),
    *(
        op(
            f"torch.bitwise_{side}_shift",
            _CATEGORY,
            x(INTEGERS),
            other(INTEGERS, mixes=0, domain="index:7", is_strict=True, numbers=0),
            why={"shift": "below the width of the narrowest dtype; C leaves the others open"},
        )
        for side in ("left", "right")
    ),
    *(op(f"torch.logical_{name}", _CATEGORY, x(ALL), other(ALL, numbers=0)) for name in ("and", "or", "xor")),
)

_THREE = (
    op("torch.addcmul", _CATEGORY, x(NUMERIC), other(NUMERIC, numbers=0, mixes=0), other(NUMERIC, numbers=0, mixes=0),
       value=optional(either(2, -1, 0)), weight=1.5),
    op("torch.addcdiv", _CATEGORY, x(INEXACT), other(INEXACT, numbers=0, mixes=0),
       other(INEXACT, numbers=0, mixes=0), value=optional(either(2, -1, 0.5)), weight=1.5),
    op("torch.lerp", _CATEGORY, x(FLOATS), other(FLOATS, numbers=0, mixes=0), either(0.25, 0.5, 0.75, 1.0, 0.0, 2.0)),
    op("torch.lerp", _CATEGORY, x(FLOATS), other(FLOATS, numbers=0, mixes=0), other(FLOATS, numbers=0, mixes=0),
       name="torch.lerp(Tensor)", weight=1.5),
    op("torch.clamp", _CATEGORY, x(REAL), min=either(-1, 0, 0.5), max=optional(either(1, 2)), weight=2),
    op("torch.clamp", _CATEGORY, x(REAL), min=either(1, 3), max=either(-1, 0), name="torch.clamp(min above max)",
       weight=0.3),
    op("torch.clamp", _CATEGORY, x(REAL), other(REAL, numbers=0), optional(other(REAL, numbers=0)),
       name="torch.clamp(Tensor)", weight=1.5),
    op("torch.clip", _CATEGORY, x(REAL), max=either(1, 0, 2.5), weight=0.5),
    op("torch.clamp_min", _CATEGORY, x(REAL), other(REAL, mixes=0)),
    op("torch.clamp_max", _CATEGORY, x(REAL), other(REAL, mixes=0)),
    op("torch.where", _CATEGORY, x(("bool",)), other(ALL, mixes=1), other(ALL, mixes=0.8), weight=2),
    op("torch.where", _CATEGORY, x(("bool",)), other(FLOATS, mixes=1, numbers=0),
       either(0.0, 1, -1.5, float("-inf")), name="torch.where(Scalar)"),
    op(".where", _CATEGORY, x(ALL), mask(), other(ALL)),
)  # fmt: skip

_COMPARISON = (
    *(
        op(f"torch.{name}", "comparison", x(ALL if name in ("eq", "ne") else REAL), other(REAL), weight=1.2)
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
    ),
    op("torch.isclose", "comparison", x(REAL), other(REAL, numbers=0, mixes=0), rtol=optional(either(0.1, 0.0)),
       equal_nan=optional(True)),
    op("torch.equal", "comparison", x(ALL), other(ALL, numbers=0, mixes=0), weight=0.3),
    op("torch.allclose", "comparison", x(REAL), other(REAL, numbers=0, mixes=0), equal_nan=optional(True), weight=0.3),
)  # fmt: skip

_COMPLEX = (
    op("torch.real", "complex", x(COMPLEX)),
    op("torch.imag", "complex", x(COMPLEX)),
    op("torch.conj", "complex", x(NUMERIC)),
    op("torch.view_as_real", "complex", x(COMPLEX), is_view=True),
    op("torch.view_as_complex", "complex", x(DOUBLES, rank=(1, 4), shape=lambda b: (*b.draw.choice(((3,), (2, 3), ())), 2),
                                            layouts=("contiguous",)), is_view=True),
    op("torch.complex", "complex", x(DOUBLES), other(DOUBLES, numbers=0, mixes=0)),
    op("torch.polar", "complex", x(DOUBLES), other(DOUBLES, numbers=0, mixes=0)),
    op("torch.resolve_conj", "complex", x(COMPLEX)),
    op("torch.resolve_neg", "complex", x(NUMERIC), weight=0.5),
    op("torch.adjoint", "complex", x(COMPLEX, rank=(2, 4)), is_view=True),
)  # fmt: skip

POINTWISE = (*_ONE, *_ARITHMETIC, *_INTEGER_DIVISION, *_BITS, *_THREE, *_COMPARISON, *_COMPLEX)
