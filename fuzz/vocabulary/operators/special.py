"""`torch.special`: mathematical functions, mostly pointwise, in float32 and float64 only."""

from __future__ import annotations

from fuzz.draw.inputs.specs import FLOATS
from fuzz.vocabulary.operators.build import DOUBLES, REAL, op
from fuzz.vocabulary.operators.operands import either, integer, other, x
from fuzz.vocabulary.operators.spec import OpSpec

_POSITIVE = {"domain": "real for positive elements"}
_UNIT = {"domain": "defined on [0, 1], or of interest on [-1, 1] only: polynomials grow fast outside"}


def _ones(names: str, domain: str = "any", dtypes: tuple[str, ...] = DOUBLES) -> tuple[OpSpec, ...]:
    why = _POSITIVE if domain == "positive" else _UNIT if domain != "any" else None
    return tuple(
        op(f"torch.special.{name}", "special", x(dtypes, domain=domain), weight=0.4, why=why) for name in names.split()
    )


_POLYNOMIALS = (
    "chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w hermite_polynomial_h "
    "hermite_polynomial_he laguerre_polynomial_l legendre_polynomial_p shifted_chebyshev_polynomial_t "
    "shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v shifted_chebyshev_polynomial_w"
)

SPECIAL = (
    *_ones("erf erfc erfcx exp2 expm1 expit i0 i0e i1 i1e ndtr log_ndtr sinc round entr", dtypes=FLOATS[:2]),
    *_ones("gammaln digamma psi log1p", "positive"),
    *_ones("ndtri logit", "probability"),
    *_ones("erfinv", "unit"),
    *_ones("airy_ai bessel_j0 bessel_j1 modified_bessel_i0 modified_bessel_i1 spherical_bessel_j0", "small"),
    *_ones("bessel_y0 bessel_y1 modified_bessel_k0 modified_bessel_k1", "positive"),
    *_ones("scaled_modified_bessel_k0 scaled_modified_bessel_k1", "positive"),
    *(
        op(f"torch.special.{name}", "special", x(DOUBLES, domain="unit", is_strict=True, requires_grad=False),
           integer(0, 5), weight=0.15, why=_UNIT)
        for name in _POLYNOMIALS.split()
    ),
    op("torch.special.xlog1py", "special", x(REAL), other(REAL, domain="positive"), weight=0.5, why=_POSITIVE),
    op("torch.special.xlogy", "special", x(REAL), other(REAL, domain="positive"), weight=0.5, why=_POSITIVE),
    op("torch.special.zeta", "special", x(DOUBLES, domain="positive", requires_grad=False), either(2.0, 3.5, 1.5),
       weight=0.4, why={"domain": "real for positive elements; gradients of zeta are not implemented"}),
    op("torch.special.polygamma", "special", integer(0, 2), x(DOUBLES, domain="positive"), weight=0.4, why=_POSITIVE),
    op("torch.special.multigammaln", "special", x(DOUBLES, domain="positive", is_strict=True), either(1,),
       weight=0.3, why=_POSITIVE),
    op("torch.special.gammainc", "special", x(("float32",), domain="positive", is_strict=True, requires_grad=False),
       other(("float32",), numbers=0, mixes=0, domain="positive", is_strict=True), weight=0.3, why=_POSITIVE),
    op("torch.special.log_softmax", "special", x(FLOATS, rank=(1, 4)), -1, weight=0.4),
    op("torch.special.softmax", "special", x(FLOATS, rank=(1, 4)), -1, weight=0.4),
    op("torch.special.logsumexp", "special", x(FLOATS, rank=(1, 4)), -1, weight=0.4),
)  # fmt: skip
