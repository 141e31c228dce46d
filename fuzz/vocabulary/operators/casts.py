"""Changes of dtype, in every spelling."""

from __future__ import annotations

from fuzz.draw.inputs.specs import COMPLEX, FLOATS, is_float
from fuzz.draw.scene import dtype_name
from fuzz.program.structure import Expr, Ref
from fuzz.vocabulary.operators.build import ALL, INTEGRAL, NUMERIC, CallBuilder, Part, op
from fuzz.vocabulary.operators.operands import flag, optional, x
from fuzz.vocabulary.operators.spec import OpSpec

_CATEGORY = "cast"
_SMALL = {"domain": "a float that the integer dtype cannot hold has no defined conversion: only small ones are cast"}
_FLOAT_METHODS = ("float", "double", "half", "bfloat16")
_INTEGER_METHODS = ("long", "int", "short", "char")


def _to_any() -> Part:
    """A dtype; the source is chosen so that the conversion is defined."""

    def part(builder: CallBuilder) -> Expr:
        names = _targets_of(dtype_name(builder.main))
        return Expr(f"torch.{builder.draw.choice(names)}")

    return part


def _targets_of(source: str) -> tuple[str, ...]:
    if source.startswith("complex"):
        return COMPLEX
    if is_float(source):
        return (*FLOATS, "bool", "complex64", "complex128")
    return (*FLOATS, *INTEGRAL, "complex64")


def _as_other(builder: CallBuilder) -> Ref:
    """A tensor to whose dtype the first one is converted."""
    targets = _targets_of(dtype_name(builder.main))
    return builder.take(builder.find(targets))


def _memory_format(builder: CallBuilder) -> Expr:
    return Expr("torch.channels_last" if builder.main.dim() == 4 else "torch.contiguous_format")


CASTS: tuple[OpSpec, ...] = (
    op(".to", _CATEGORY, x(ALL), _to_any(), copy=flag(0.2), weight=4),
    op(".to", _CATEGORY, x(FLOATS, domain="small", is_strict=True), Expr("torch.int32"), name=".to(float to int)",
       why=_SMALL),
    op(".to", _CATEGORY, x(ALL), _as_other, name=".to(other)"),
    op(".type_as", _CATEGORY, x(ALL), _as_other),
    *(op(f".{name}", _CATEGORY, x((*ALL[:-1 - len(COMPLEX)], "bool"))) for name in _FLOAT_METHODS),
    *(op(f".{name}", _CATEGORY, x(INTEGRAL), name=f".{name}(int)", weight=0.7) for name in _INTEGER_METHODS),
    *(op(f".{name}", _CATEGORY, x(FLOATS, domain="small", is_strict=True), weight=0.7, why=_SMALL)
      for name in _INTEGER_METHODS),
    op(".byte", _CATEGORY, x(FLOATS, domain="positive", is_strict=True), weight=0.7, why=_SMALL),
    op(".byte", _CATEGORY, x(INTEGRAL), name=".byte(int)", weight=0.5),
    op(".bool", _CATEGORY, x(ALL)),
    op(".cfloat", _CATEGORY, x(NUMERIC), weight=0.5),
    op(".cdouble", _CATEGORY, x(NUMERIC), weight=0.3),
    op(".type", _CATEGORY, x(ALL), _to_any(), weight=0.4),
    op(".to", _CATEGORY, x(FLOATS, domain="small"), Expr("torch.float8_e4m3fn"), name=".to(float8_e4m3fn)", weight=0.4),
    op(".to", _CATEGORY, x(FLOATS, domain="small"), Expr("torch.float8_e5m2"), name=".to(float8_e5m2)", weight=0.4),
    op("torch.ops.aten._to_copy", _CATEGORY, x(ALL), dtype=_to_any(), weight=0.4, aten=("aten._to_copy.default",)),
    op(".contiguous", _CATEGORY, x(ALL), weight=1.5),
    op(".contiguous", _CATEGORY, x(ALL, rank=(4, 4)), memory_format=_memory_format, name=".contiguous(channels_last)"),
    op(".clone", _CATEGORY, x(ALL), memory_format=optional(Expr("torch.contiguous_format"))),
    op(".detach", _CATEGORY, x(ALL), is_view=True),
    op(".cpu", _CATEGORY, x(ALL), weight=0.3),
)  # fmt: skip
