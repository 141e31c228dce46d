"""Operators that draw random numbers. They are drawn rarely, since the judge compares their values only if the subject uses the
generator like eager, and else only distributions.
"""

from __future__ import annotations

from typing import Any

import torch

from fuzz.draw.inputs.specs import FLOATS
from fuzz.program.structure import Items
from fuzz.vocabulary.operators.build import DOUBLES, CallBuilder, PartLike, call_of
from fuzz.vocabulary.operators.operands import either, flag, integer, maybe_dtype, of_shape, optional, x
from fuzz.vocabulary.operators.spec import OpSpec
from fuzz.vocabulary.operators.writing import target

_F = "torch.nn.functional"
_RATES = {"domain": "a rate is not negative, a probability is within [0, 1]"}


def _size(builder: CallBuilder) -> Items:
    draw = builder.draw
    return Items(tuple(draw.choice(builder.scene.sizes) for _ in range(draw.integer(1, 2))), "tuple")


def _row(
    name: str,
    *parts: PartLike,
    weight: float = 0.6,
    spec: str = "",
    results: str = "v",
    writes: bool = False,
    **keywords: Any,
) -> OpSpec:
    return OpSpec(
        name=spec or name,
        category="random",
        draw_call=call_of(name, parts, keywords, results=results),
        weight=weight,
        is_random=True,
        writes=writes,
        meta=_RATES,
    )


# The target's strides decide which element gets which number; only for contiguous targets all kernels agree.
_PLAIN_TARGET = target(FLOATS, condition=torch.Tensor.is_contiguous, layouts=("contiguous", "offset"))
_DTYPE = maybe_dtype("float64", "bfloat16")
_INTO = (
    ("uniform_", (-1.0, 2.0)), ("normal_", (1.0, 0.5)), ("bernoulli_", (0.3,)), ("exponential_", (2.0,)),
    ("log_normal_", ()), ("cauchy_", ()), ("geometric_", (0.4,)), ("random_", (0, 9)),
)  # fmt: skip

RANDOM_NUMBERS = (
    _row("torch.rand", _size, dtype=_DTYPE),
    _row("torch.randn", _size, dtype=_DTYPE),
    _row("torch.randint", 0, either(9, 2), _size),
    _row("torch.randperm", integer(0, 9)),
    _row("torch.rand_like", x(FLOATS), dtype=_DTYPE),
    _row("torch.randn_like", x(FLOATS), dtype=_DTYPE),
    _row("torch.randint_like", x(FLOATS), 0, either(9, 2)),
    _row("torch.bernoulli", x(FLOATS, domain="probability", is_strict=True)),
    _row("torch.bernoulli", x(FLOATS), either(0.3, 0.5), spec="torch.bernoulli(p)"),
    _row("torch.multinomial", x(DOUBLES, rank=(1, 2), domain="positive", is_strict=True, condition=lambda t: t.shape[-1] > 1),
         either(1, 2), replacement=flag()),
    _row("torch.normal", x(DOUBLES, domain="small", is_strict=True), either(0.5, 1.0)),
    _row("torch.normal", x(DOUBLES, domain="small", is_strict=True),
         of_shape(lambda b: b.main.shape, domain="positive", is_strict=True), spec="torch.normal(Tensor)"),
    _row("torch.normal", 0.0, 1.0, _size, spec="torch.normal(size)"),
    _row("torch.poisson", x(DOUBLES, domain="positive", is_strict=True)),
    _row(f"{_F}.dropout", x(FLOATS), either(0.5, 0.2), weight=1.2),
    _row(f"{_F}.dropout1d", x(FLOATS, shape=lambda b: (2, 3, 4)), either(0.5, 0.2), weight=0.3),
    _row(f"{_F}.dropout2d", x(FLOATS, shape=lambda b: (2, 3, 4, 4)), either(0.5, 0.2), weight=0.4),
    _row(f"{_F}.dropout3d", x(FLOATS, shape=lambda b: (2, 3, 2, 2, 4)), either(0.5, 0.2), weight=0.3),
    _row(f"{_F}.alpha_dropout", x(FLOATS), either(0.5, 0.2), training=True, weight=0.4),
    _row(f"{_F}.feature_alpha_dropout", x(FLOATS, shape=lambda b: (2, 3, 4)), either(0.5, 0.2), training=True, weight=0.3),
    _row(f"{_F}.rrelu", x(FLOATS), training=True, weight=0.4, spec=f"{_F}.rrelu(training)"),
    _row(f"{_F}.gumbel_softmax", x(DOUBLES, rank=(1, 3)), tau=optional(either(1, 0.5)), hard=flag(), weight=0.4),
    _row("torch.native_dropout", x(FLOATS), either(0.5, 0.2), True, results="vv", weight=0.4),
    _row(f"{_F}.fractional_max_pool2d", x(DOUBLES, shape=lambda b: (2, 3, 6, 6)), 2, output_size=Items((3, 3)), weight=0.3),
    *(_row(f".{name}", _PLAIN_TARGET, *args, results="?", writes=True, weight=0.4) for name, args in _INTO),
    _row(f"{_F}.dropout", _PLAIN_TARGET, 0.4, True, True, results="?", writes=True, weight=0.3,
         spec=f"{_F}.dropout(inplace)"),
    _row(".bernoulli_", _PLAIN_TARGET, of_shape(lambda b: b.main.shape, ("float32",), domain="probability", is_strict=True),
         results="?", writes=True, weight=0.2, spec=".bernoulli_(Tensor)"),
)  # fmt: skip
