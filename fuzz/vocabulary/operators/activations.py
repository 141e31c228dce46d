"""Activations and softmax."""

from __future__ import annotations

from typing import Any

from fuzz.draw.inputs.specs import FLOATS
from fuzz.vocabulary.operators.build import INEXACT, REAL, CallBuilder, PartLike, op
from fuzz.vocabulary.operators.operands import dim, either, maybe_dtype, of_shape, optional, x
from fuzz.vocabulary.operators.spec import OpSpec

_CATEGORY = "activation"
_F = "torch.nn.functional"


def _f(name: str, *parts: PartLike, weight: float = 1.0, **keywords: Any) -> OpSpec:
    return op(f"{_F}.{name}", _CATEGORY, x(FLOATS), *parts, weight=weight, **keywords)


_SLOPE = optional(either(0.01, 0.2, -0.5))


def _channels(builder: CallBuilder) -> tuple[int, ...]:
    """One weight, or one per channel."""
    main = builder.main
    return (main.shape[1],) if main.dim() > 1 and builder.draw.chance(0.6) else (1,)


ACTIVATIONS = (
    op("torch.relu", _CATEGORY, x(REAL), weight=2),
    op(f"{_F}.relu", _CATEGORY, x(REAL), weight=2),
    op("torch.softmax", _CATEGORY, x(FLOATS), dim(), maybe_dtype("float32", "float64"), weight=2),
    op("torch.log_softmax", _CATEGORY, x(FLOATS), dim(), weight=1.5),
    _f("softmax", dim=dim(), weight=1.5),
    _f("log_softmax", dim=dim()),
    _f("softmin", dim=dim(), weight=0.6),
    _f("relu6"),
    _f("elu", alpha=optional(either(1.0, 0.5, 2.0))),
    _f("celu", alpha=optional(either(1.0, 0.5))),
    _f("selu"),
    _f("leaky_relu", _SLOPE),
    _f("gelu", approximate=optional(either("tanh", "none"), 0.6), weight=1.5),
    _f("silu", weight=1.5),
    op(f"{_F}.silu", _CATEGORY, x(INEXACT), name=f"{_F}.silu(complex)", weight=0.3),
    _f("mish"),
    _f("hardswish"),
    _f("hardsigmoid"),
    _f("hardtanh", optional(either(-2.0, -1.0)), max_val=optional(either(0.5, 1.0))),
    _f("hardshrink", optional(either(0.5, 0.0))),
    _f("softshrink", optional(either(0.5, 0.0))),
    _f("tanhshrink"),
    _f("softplus", beta=optional(either(1, 2, 0.5)), threshold=optional(either(20, 1))),
    _f("softsign"),
    _f("logsigmoid"),
    _f("sigmoid", weight=0.5),
    _f("tanh", weight=0.5),
    _f("threshold", either(0.0, 0.5), either(0.0, -1.0)),
    op(f"{_F}.glu", _CATEGORY, x(FLOATS, rank=(1, 3), shape=lambda b: (*b.draw.choice(((), (3,), (2, 3))), 4))),
    op(f"{_F}.prelu", _CATEGORY, x(FLOATS, rank=(1, 4)), of_shape(_channels)),
    op("torch.prelu", _CATEGORY, x(FLOATS, rank=(2, 4)), of_shape(lambda b: (1,)), weight=0.4),
    op(f"{_F}.rrelu", _CATEGORY, x(FLOATS), 0.1, 0.3, training=False, weight=0.5),
)  # fmt: skip
