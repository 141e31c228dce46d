"""Numbers among the arguments: what eager refuses is refused, what it rounds is rounded, in programs and in kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import refimpl
from refimpl.codegen.compile import compile_graph
from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.pipeline import compile_aot
from refimpl.trace.decompositions import decomposition_table
from refimpl.trace.refusals import number_fits

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)
DTYPES = (
    *HALF,
    torch.float32,
    torch.float64,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
)
NUMBERS = (
    *(0, 127, 128, -128, -129, 255, -255, 256, -256, 2**31 - 1, 2**31, -(2**31) - 1, 2**63 - 1, -(2**63)),
    *(0.5, -0.5, 127.5, -128.5, 255.5, 2.0**31, 2.0**63, 1e19, 65504.0, 65519.9, 3.3895e38, 3.4e38, 1e39),
    *(math.inf, -math.inf, math.nan, True),
)
NARROW = torch.tensor([255, 0, 7], dtype=torch.uint8)
X = torch.linspace(-2, 2, 12)
MASK = X > 0


@pytest.mark.fractional
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("number", NUMBERS, ids=str)
def test_a_number_fits_where_eager_converts_it(number: float, dtype: torch.dtype) -> None:
    try:
        torch.empty(3, dtype=dtype).fill_(number)
    except RuntimeError:
        assert not number_fits(number, dtype)
    else:
        assert number_fits(number, dtype)


REFUSED: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "a factor": (lambda x: torch.add(x, x, alpha=1e6), X.half()),
    "a factor of a subtraction": (lambda x: torch.rsub(x, 2.7, alpha=1e6), X.half()),
    "a truth value as a factor": (lambda x: torch.add(x, 1.5, alpha=True), X),
    "a factor of a product": (lambda x: torch.addcmul(x, x, x, value=1e39), X),
    "a limit": (lambda x: x.clamp(max=1e6), X.half()),
    "a limit of integers": (lambda x: x.clamp(max=300), NARROW),
    "an exponent": (lambda x: x**1e6, X.half()),
    "a constant": (lambda x: torch.full_like(x, 1e39), X),
    "a constant of integers": (lambda x: torch.full_like(x, -256), NARROW),
    "what is filled in": (lambda x: x.masked_fill(x > 0, 1e6), X.half()),
    "what is filled in at places": (lambda x: x.index_fill(0, torch.tensor([1]), 300), NARROW),
    "what is chosen": (lambda x: torch.where(x > 0, 300, x), NARROW),
    "what stands around": (lambda x: F.pad(x, (1, 1), value=1e6), X.half()),
    "what is scattered": (lambda x: x.scatter(0, torch.tensor([1]), 1e6), X.half()),
    "a threshold's value": (lambda x: F.threshold(x, 1.0, 1e6), X.half()),
    "a width": (lambda x: F.hardshrink(x, 1e6), X.half()),
    "ends of a range": (lambda x: x + torch.linspace(0, 1e39, 12), X),
    "an integer that is zero in the dtype": (lambda x: torch.fmod(x, 256), NARROW),
    "negative limits of unsigned integers": (lambda x: F.hardtanh(x, -1, 3), NARROW),
    "a negative width": (lambda x: F.softshrink(x, -0.5), X),
    "a negative width of a loss": (lambda x: F.smooth_l1_loss(x, -x, beta=-0.5), X),
    "no width of a loss": (lambda x: F.huber_loss(x, -x, delta=0.0), X),
    "a negative norm": (lambda x: torch.renorm(x.reshape(3, 4), 2, 0, -1), X),
    "how far to go": (lambda x: torch.lerp(x, -x, 1e39), X),
    "a slope": (lambda x: F.rrelu(x, 0.1, 1e39), X),
    "a distance of no order": (lambda x: torch.cdist(x.reshape(3, 4), x.reshape(3, 4), -1.0), X),
    "a norm of no order": (lambda x: torch.renorm(x.reshape(3, 4), 0, 0, 1), X),
    "a range of truth values": (lambda x: x * torch.arange(0, 2, dtype=torch.bool).any(), X),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_eager_refuses_of_its_numbers_is_refused(what: str) -> None:
    function, x = REFUSED[what]
    with pytest.raises((RuntimeError, NotImplementedError, ValueError)) as expected:
        function(x)
    with pytest.raises((RuntimeError, NotImplementedError, ValueError)) as actual:
        refimpl.compile(function, backend="triton")(x)
    assert (actual.type, str(actual.value)) == (expected.type, str(expected.value))


def _compiled(function: Callable[..., Any]) -> Any:
    return compile_aot(function, backend=compile_graph, decompositions=codegen_decompositions())


SQUARE = torch.cat([20 * X, torch.tensor([65000.0, -3.0, 2.5, 1e-3])]).reshape(4, 4)

ROUNDED: dict[str, Callable[[torch.Tensor], Any]] = {
    "ranges": lambda x: (
        torch.linspace(-0.3, 2.7, 40, dtype=x.dtype),
        torch.linspace(True, -7.1, 2100, dtype=x.dtype),
        torch.arange(-0.3, 3.7, 0.1, dtype=x.dtype),
        torch.arange(1, 5000, 3, dtype=x.dtype),
        torch.arange(-20, 20, dtype=x.dtype),
    ),
    "outer products": lambda x: (
        torch.addr(x, x[0], x[1], alpha=2.7),
        torch.addr(x, x[0], x[1], beta=0.1, alpha=1e-3),
        torch.addr(x, x[0], x[1], beta=0),
    ),
    "limits of probabilities": lambda x: [torch.logit(x.sigmoid(), eps) for eps in (None, 1e-3, 1e-9, 0.7, -0.3)],
    "norms": lambda x: (torch.renorm(x, 2, 0, 2.7), torch.renorm(x, True, 1, 0.1)),
    "powers": lambda x: [x**exponent for exponent in (3, -2, 2, -1, 1)],
    "signs of zeros": lambda x: (torch.sub(x * 0, x, alpha=0).signbit(), torch.sub(x * 0, x, alpha=0.0).signbit()),
    "widths": lambda x: (F.softshrink(x, True), F.hardshrink(x, 0.1), F.threshold(x, 0.1, 2.7)),
    "what is no number": lambda x: (
        torch.nan_to_num(torch.log(x), math.inf, 1.0, 2.0),
        torch.nan_to_num(torch.log(x), -math.inf),
        torch.nan_to_num(torch.log(x * 0), 3.0, -math.inf, math.inf),
    ),
}  # fmt: skip


@pytest.mark.fractional
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("name", ROUNDED)
def test_numbers_beside_half_types_are_rounded_as_in_eager(name: str, dtype: torch.dtype) -> None:
    x = SQUARE.to(dtype)
    for a, b in zip(ROUNDED[name](x), _compiled(ROUNDED[name])(x), strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [*HALF, torch.float32], ids=str)
def test_quotients_become_whole_numbers_after_the_roundings_of_eager(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = (300 * torch.randn(500, generator=generator)).to(dtype), torch.randn(500, generator=generator).to(dtype)

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        def trunc(x: torch.Tensor, y: Any) -> torch.Tensor:
            return torch.div(x, y, rounding_mode="trunc")

        return x // y, trunc(x, y), 300 // y, x[0] // y, trunc(x, y[:1]), x // y[0], x // 0.7, trunc(x, 0.7)

    for a, b in zip(function(x, y), _compiled(function)(x, y), strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=0)


@pytest.mark.parametrize("table", ["kernels", "decompositions"])
def test_factors_reach_products_beyond_a_half_type(table: str) -> None:
    """The product alone is infinite, what it is scaled to is not."""
    x, big = torch.ones(4).half(), torch.full((4, 4), 300.0).half()

    def function(x: torch.Tensor, big: torch.Tensor) -> Any:
        return (
            torch.addmv(x, big, big[0], alpha=0.1),
            torch.addmv(x[0], big, big[0], beta=0.5, alpha=0.1),
            torch.addbmm(big, big.expand(2, 4, 4), big.expand(2, 4, 4), alpha=1e-2),
            torch.baddbmm(big, big.expand(2, 4, 4), big.expand(2, 4, 4), alpha=0.1),
        )

    if table == "kernels":
        compiled = _compiled(function)
    else:
        compiled = compile_aot(function, backend=lambda gm, _: gm, decompositions=decomposition_table)
    for a, b in zip(function(x, big), compiled(x, big), strict=True):
        assert b.isfinite().all()
        torch.testing.assert_close(b, a, rtol=1e-3, atol=0)


WIDE: dict[str, Callable[[torch.Tensor], Any]] = {
    "ranges": lambda x: (
        torch.linspace(0.1, -0.3, 41, dtype=x.dtype),
        torch.linspace(x[0], 2.7, 41),
        torch.arange(-0.3, 3.7, 0.1, dtype=x.dtype),
        torch.arange(0.5, 40, 0.25, dtype=x.dtype),
    ),
    "what is no number": lambda x: (torch.nan_to_num(x.log(), 1e39), torch.nan_to_num(1 / (x - x[0]), posinf=-1e39)),
    "truth values as numbers": lambda x: (
        F.multi_margin_loss(x.reshape(3, 4), torch.tensor([0, 2, 3]), margin=True),
        F.softshrink(x, True),
    ),
    "products that are not computed": lambda x: (
        torch.addmm(x[:4], x.log().reshape(4, 3), x.reshape(3, 4), alpha=0),
        torch.addmv(x[:4], x.log().reshape(4, 3), x[:3], beta=0.5, alpha=0),
        torch.addmv(x[:4], x.log().reshape(4, 3), x[:3], beta=0, alpha=0),
        torch.addbmm(x[:4], x.log().reshape(1, 4, 3), x.reshape(1, 3, 4), alpha=0.0),
        torch.addmm(-0.0 * x[8:], x.reshape(4, 3), x.reshape(3, 4), alpha=0).signbit(),
        torch.addmm(x[:4], -x.abs().reshape(4, 3), x.abs().reshape(3, 4), beta=0, alpha=0).signbit(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", WIDE)
def test_numbers_beside_wide_types_are_taken_as_in_eager(name: str, dtype: torch.dtype) -> None:
    """The emulator rounds a product and a sum of float64 twice."""
    x, tolerance = X.to(dtype), 1e-15 if dtype is torch.float64 else 0
    for a, b in zip(WIDE[name](x), _compiled(WIDE[name])(x), strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=tolerance, equal_nan=True)


INTEGERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "a threshold": lambda x: (F.threshold(x, 2, -3), torch.threshold(x, 2.7, 0.1)),
    "limits": lambda x: (F.hardtanh(x, -2.7, 3.5), x.clamp(-2, 300)),
    "probabilities": lambda x: (torch.logit(x, True), torch.logit(x, 0.25)),
    "numbers beyond float32": lambda x: (torch.xlogy(x, 1e39), torch.remainder(1e39, x + 0.5)),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_numbers_beside_integers_are_taken_as_in_eager(name: str) -> None:
    x = torch.tensor([2**31 - 1, -(2**31), 2, 3, 2**24 + 1, 0], dtype=torch.int32)
    for a, b in zip(INTEGERS[name](x), _compiled(INTEGERS[name])(x), strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=0, equal_nan=True)
