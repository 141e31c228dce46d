"""Factory functions, and `*_like` functions."""

from __future__ import annotations

from typing import Any

from fuzz.draw.inputs.specs import DTYPE_WEIGHTS
from fuzz.program.structure import Items, Operand
from fuzz.vocabulary.operators.build import ALL, DOUBLES, INTEGRAL, REAL, CallBuilder, Part, PartLike, op
from fuzz.vocabulary.operators.operands import a_number, either, integer, maybe_dtype, optional, x
from fuzz.vocabulary.operators.spec import OpSpec

_CATEGORY = "creation"
_DTYPE = maybe_dtype("float64", "int64", "bfloat16", "bool", "complex64", chance=0.5)
_REAL_DTYPE = maybe_dtype("float64", "int64", "int32", "float32", chance=0.4)


def _size(builder: CallBuilder) -> Items:
    """A size of up to two dimensions, each from the program's pool of sizes."""
    draw = builder.draw
    return Items(tuple(draw.choice(builder.scene.sizes) for _ in range(draw.integer(0, 2))), "tuple")


def _make(target: str, *parts: PartLike, weight: float = 0.5, name: str = "", **keywords: Any) -> OpSpec:
    return op(target, _CATEGORY, *parts, weight=weight, name=name, **keywords)


def _any_dtype() -> Part:
    return maybe_dtype(*(name for name in DTYPE_WEIGHTS if name in ALL), chance=0.4)


def _own_size(builder: CallBuilder) -> Operand:
    return Items(tuple(builder.main.shape), "tuple")


CREATION = (
    _make("torch.zeros", _size, dtype=_DTYPE, weight=0.7),
    _make("torch.ones", _size, dtype=_DTYPE, weight=0.7),
    _make("torch.full", _size, either(1.5, 3, True, -0.0, float("inf")), dtype=maybe_dtype("float64", "float32")),
    _make("torch.eye", integer(0, 5), dtype=_DTYPE),
    _make("torch.eye", integer(1, 4), integer(1, 5), name="torch.eye(rectangular)"),
    _make("torch.arange", either(5, 0, 8, 2.5), dtype=_REAL_DTYPE, weight=0.8),
    _make("torch.arange", either(0, -3, 1.5), either(9, 4.0), either(2, 1, 0.5), dtype=_REAL_DTYPE,
          name="torch.arange(step)"),
    _make("torch.range", 1, 5, either(1, 2), weight=0.1),
    _make("torch.linspace", either(0, -1.5), either(1, 10), integer(0, 7), dtype=maybe_dtype("float64", "int64")),
    _make("torch.logspace", either(0, -1), either(1, 2), integer(0, 5), base=optional(either(2.0, 10.0))),
    op("torch.linspace", _CATEGORY, x(DOUBLES, rank=(0, 0), domain="small"), either(4.0, 1), integer(0, 6),
       name="torch.linspace(Tensor)", weight=0.3),
    _make("torch.tril_indices", integer(1, 4), integer(1, 4), optional(either(1, -1))),
    _make("torch.triu_indices", integer(1, 4), integer(1, 4), optional(either(1, -1))),
    _make("torch.scalar_tensor", either(2.5, 3, True), dtype=maybe_dtype("float64"), weight=0.3),
    _make("torch.tensor", either(2.5, 3, True, Items((1, 2, 3)), Items((1.5, -0.0))), dtype=maybe_dtype("float64")),
    op("torch.zeros_like", _CATEGORY, x(ALL), dtype=_any_dtype(), weight=0.7),
    op("torch.ones_like", _CATEGORY, x(ALL), dtype=_any_dtype(), weight=0.7),
    op("torch.full_like", _CATEGORY, x(ALL), a_number, dtype=maybe_dtype("float64", "float32"), weight=0.7),
    op(".new_zeros", _CATEGORY, x(ALL), _size, dtype=_DTYPE, weight=0.4),
    op(".new_ones", _CATEGORY, x(ALL), _own_size, weight=0.4),
    op(".new_full", _CATEGORY, x(ALL), _size, a_number, weight=0.4),
    op(".new_tensor", _CATEGORY, x(REAL), either(2.5, Items((1, 2))), weight=0.2),
    op("torch.fill", _CATEGORY, x(ALL), a_number, weight=0.5),
    op("torch.asarray", _CATEGORY, x(ALL), weight=0.2),
    op("torch.as_tensor", _CATEGORY, x(ALL), weight=0.2),
    op("torch.numel", _CATEGORY, x(INTEGRAL), weight=0.1),
    op(".size", _CATEGORY, x(ALL, rank=(1, 4)), either(0, -1), weight=0.3),
    op(".stride", _CATEGORY, x(ALL, rank=(1, 4)), either(0, -1), weight=0.1),
)  # fmt: skip
