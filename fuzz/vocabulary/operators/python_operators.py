"""Python's operators on tensors and numbers, and tensor methods without a function of the same name."""

from __future__ import annotations

from fuzz.draw.inputs.specs import FLOATS, INTEGERS
from fuzz.vocabulary.operators.build import ALL, INTEGRAL, NUMERIC, REAL, PartLike, call_of, op
from fuzz.vocabulary.operators.operands import a_divisor, a_number, either, number, other, x
from fuzz.vocabulary.operators.spec import OpSpec

_CATEGORY = "operator"


def _binary(name: str, dtypes: tuple[str, ...], second: PartLike, weight: float = 1.0) -> OpSpec:
    return op(f"operator.{name}", _CATEGORY, x(dtypes), second, weight=weight)


def _reflected(name: str, dtypes: tuple[str, ...], left: PartLike) -> OpSpec:
    """A number on the left: `2 - x`."""
    return OpSpec(
        name=f"operator.{name}(reflected)",
        category=_CATEGORY,
        draw_call=call_of(f"operator.{name}", (left, x(dtypes)), may_require_grad=name not in ("floordiv", "mod")),
        weight=0.6,
    )


PYTHON_OPERATORS = (
    _binary("add", ALL, other(ALL), 3),
    _binary("sub", NUMERIC, other(NUMERIC), 3),
    _binary("mul", ALL, other(ALL), 3),
    _binary("truediv", NUMERIC, other(NUMERIC), 2),
    op("operator.floordiv", _CATEGORY, x(FLOATS), other(FLOATS), weight=1.5, has_gradient=False),
    _binary("mod", FLOATS, other(FLOATS), 1.5),
    op("operator.floordiv", _CATEGORY, x(INTEGERS), a_divisor, name="operator.floordiv(int)"),
    op("operator.mod", _CATEGORY, x(INTEGERS), a_divisor, name="operator.mod(int)"),
    _binary("pow", NUMERIC, number(2, 3, 0, 1, 0.5), 2),
    *(_binary(name, INTEGRAL, other(INTEGRAL)) for name in ("and_", "or_", "xor")),
    op("operator.lshift", _CATEGORY, x(INTEGERS), number(1, 0, 3)),
    op("operator.rshift", _CATEGORY, x(INTEGERS), number(1, 0, 3)),
    *(_binary(name, REAL, other(REAL)) for name in ("lt", "le", "gt", "ge")),
    *(_binary(name, ALL, other(ALL)) for name in ("eq", "ne")),
    op("operator.neg", _CATEGORY, x(NUMERIC), weight=1.5),
    op("operator.pos", _CATEGORY, x(NUMERIC), weight=0.3),
    op("operator.invert", _CATEGORY, x(INTEGRAL)),
    _reflected("add", NUMERIC, either(1, 2.5, 1j)),
    _reflected("sub", NUMERIC, either(1, 2.5, -3)),
    _reflected("mul", NUMERIC, either(2, 0.5)),
    _reflected("truediv", NUMERIC, either(1, 2.5)),
    _reflected("floordiv", FLOATS, either(7, 2.5, -1.0)),
    _reflected("mod", FLOATS, either(7, 2.5, -1.0)),
    _reflected("pow", FLOATS, either(2, 0.5)),
    _reflected("and_", INTEGRAL, either(6, 1)),
    _reflected("lt", REAL, either(0, 1.5)),
    op("abs", _CATEGORY, x(NUMERIC), weight=0.5),
    op(".add", _CATEGORY, x(NUMERIC), other(NUMERIC)),
    op(".mul", _CATEGORY, x(NUMERIC), a_number),
    op(".sub", _CATEGORY, x(NUMERIC), other(NUMERIC), weight=0.7),
    op(".div", _CATEGORY, x(NUMERIC), other(NUMERIC), weight=0.7),
    op(".pow", _CATEGORY, x(NUMERIC), number(2, 3), weight=0.7),
    op(".square", _CATEGORY, x(NUMERIC), weight=0.3),
    op(".sigmoid", _CATEGORY, x(REAL), weight=0.5),
    op(".relu", _CATEGORY, x(REAL), weight=0.5),
    op(".abs", _CATEGORY, x(NUMERIC), weight=0.5),
    op(".exp", _CATEGORY, x(NUMERIC), weight=0.5),
)
