"""Lowerings of elementwise operators, with PyTorch's type promotion. Arithmetic on half dtypes is in float32."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from refimpl.codegen.lowering.promotion import entering, float_promoted, is_single, promoted, rounded
from refimpl.codegen.lowering.state import (
    LoweringState,
    NotLowered,
    RuleTable,
    apply,
    broadcast_indices,
    cast,
    check_apart,
    computed_like,
    fake_of,
    literal,
    opmath,
)
from refimpl.codegen.scalars import ROUNDING_FUNCTIONS, Apply, Scalar
from refimpl.codegen.tensors import Computed, Indices, Stored, Tensor
from refimpl.trace.decompositions.device_numerics import fuses_products

aten = torch.ops.aten

RULES = RuleTable()

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integer dtype with as many bytes as a float."""

# Maps an operator's operands, in the dtype of the computation, to its result.
Formula = Callable[..., Scalar]


def pointwise(node: torch.fx.Node, formula: Formula, *operands: Any, compute: torch.dtype) -> Computed:
    """Applies a formula to tensors and numbers converted to `compute`, and converts the result to the node's dtype."""
    dtype = fake_of(node).dtype

    def value(indices: Indices) -> Scalar:
        scalars = [
            cast(operand.at(broadcast_indices(indices, operand.shape)), compute)
            if isinstance(operand, (Stored, Computed))
            else literal(operand, compute)
            for operand in operands
        ]
        return cast(formula(*scalars), dtype)

    for operand in operands:
        _check_number(operand)
    return computed_like(node, value, tensors_of(operands))


def _of_common(
    node: torch.fx.Node, formula: Formula, *operands: Any, dtype: torch.dtype, function: str = ""
) -> Computed:
    """Applies a formula to operands that eager converts to this dtype first. `promotion` says which operands of some functions
    are not."""
    given = entering(operands, dtype, fake_of(node).device, function)
    return pointwise(node, formula, *given, compute=opmath(dtype))


def _check_number(operand: Any) -> None:
    is_known = isinstance(operand, (Stored, Computed, bool, int, float)) or (
        isinstance(operand, sympy.Basic) and operand.is_integer
    )
    if not is_known:
        raise NotLowered(f"an operand of type {type(operand).__name__}")


def tensors_of(operands: Sequence[Any]) -> list[Tensor]:
    """The tensors among the operands."""
    return [operand for operand in operands if isinstance(operand, (Stored, Computed))]


def _unary(function: str) -> Formula:
    return lambda x: apply(function, x)


def _condition(function: str) -> Formula:
    return lambda *x: Apply(function, x, torch.bool)


# ---- one operand, computed in floating point


def _takes_one_tensor(function: str) -> bool:
    """Whether aten has an operator of this name that takes one tensor and nothing else, unlike `pow` and `atan2`."""
    overload = getattr(getattr(aten, function), "default", None)
    return overload is not None and len(overload._schema.arguments) == 1


def _one(x: Scalar) -> Scalar:
    return literal(1, x.dtype)


def _sigmoid(x: Scalar) -> Scalar:
    return apply("div", _one(x), apply("add", _one(x), apply("exp", apply("neg", x))))


_FLOAT_FORMULAS: dict[str, Formula] = {
    **{name: _unary(name) for name in ("sqrt", *ROUNDING_FUNCTIONS) if _takes_one_tensor(name)},
    "sigmoid": _sigmoid,
    "reciprocal": lambda x: apply("div", _one(x), x),
}


def _float_unary(formula: Formula) -> Any:
    def lower(state: LoweringState, node: torch.fx.Node, x: Tensor) -> Any:
        return pointwise(node, formula, x, compute=opmath(float_promoted(x)))

    return lower


for _name, _formula in _FLOAT_FORMULAS.items():
    RULES.rule(getattr(aten, _name).default)(_float_unary(_formula))


# ---- one operand, computed in its own dtype, half dtypes included, where that is exact and keeps the bits of NaN


def _rounding(function: str) -> Any:
    def lower(state: LoweringState, node: torch.fx.Node, x: Tensor) -> Any:
        formula = _unary(function) if x.dtype.is_floating_point else lambda value: value
        return pointwise(node, formula, x, compute=opmath(x.dtype))

    return lower


for _name, _function in (("ceil", "ceil"), ("floor", "floor"), ("trunc", "trunc"), ("round", "rint")):
    RULES.rule(getattr(aten, _name).default)(_rounding(_function))


@RULES.rule(aten.neg.default)
def _neg(state: LoweringState, node: torch.fx.Node, x: Tensor) -> Any:
    return pointwise(node, _unary("neg"), x, compute=x.dtype)


@RULES.rule(aten.abs.default)
def _abs(state: LoweringState, node: torch.fx.Node, x: Tensor) -> Any:
    if x.dtype in (torch.bool, torch.uint8):
        return pointwise(node, lambda value: value, x, compute=x.dtype)
    return pointwise(node, _unary("abs"), x, compute=x.dtype)


@RULES.rule(aten.relu.default)
def _relu(state: LoweringState, node: torch.fx.Node, x: Tensor) -> Any:
    return pointwise(node, lambda value: _clamped(value, literal(0, value.dtype), None), x, compute=x.dtype)


@RULES.rule(aten.square.default)
def _square(state: LoweringState, node: torch.fx.Node, x: Tensor) -> Any:
    if x.dtype == torch.bool:
        raise NotLowered("square of bool")
    return pointwise(node, lambda value: apply("mul", value, value), x, compute=opmath(x.dtype))


@RULES.rule(aten.sign.default, aten.sgn.default)
def _sign(state: LoweringState, node: torch.fx.Node, x: Tensor) -> Any:
    if x.dtype == torch.bool:
        return pointwise(node, lambda value: value, x, compute=x.dtype)

    def formula(value: Scalar) -> Scalar:
        zero, one = literal(0, value.dtype), literal(1, value.dtype)
        negative = apply("where", Apply("lt", (value, zero), torch.bool), apply("neg", one), zero, dtype=value.dtype)
        return apply("where", Apply("gt", (value, zero), torch.bool), one, negative, dtype=value.dtype)

    return pointwise(node, formula, x, compute=x.dtype)


@RULES.rule(aten.bitwise_not.default)
def _bitwise_not(state: LoweringState, node: torch.fx.Node, x: Tensor) -> Any:
    return pointwise(node, _unary("not"), x, compute=x.dtype)


@RULES.rule(aten.logical_not.default)
def _logical_not(state: LoweringState, node: torch.fx.Node, x: Tensor) -> Any:
    return pointwise(node, _unary("not"), x, compute=torch.bool)


@RULES.rule(aten.isnan.default)
def _isnan(state: LoweringState, node: torch.fx.Node, x: Tensor) -> Any:
    return pointwise(node, lambda value: Apply("ne", (value, value), torch.bool), x, compute=opmath(x.dtype))


@RULES.rule(aten.signbit.default)
def _signbit(state: LoweringState, node: torch.fx.Node, x: Tensor) -> Any:
    if x.dtype is torch.bool:
        return pointwise(node, lambda value: literal(False, torch.bool), x, compute=x.dtype)

    def formula(value: Scalar) -> Scalar:
        """Reads the sign bit, because a comparison with zero ignores the sign of zero and of NaN."""
        if value.dtype.is_floating_point:
            value = Apply("bitcast", (value,), _BITS[value.dtype.itemsize])
        return Apply("lt", (value, literal(0, value.dtype)), torch.bool)

    return pointwise(node, formula, x, compute=x.dtype)


@RULES.rule(aten.isinf.default)
def _isinf(state: LoweringState, node: torch.fx.Node, x: Tensor) -> Any:
    if not x.dtype.is_floating_point:
        return pointwise(node, lambda value: literal(False, torch.bool), x, compute=x.dtype)

    def formula(value: Scalar) -> Scalar:
        return Apply("eq", (apply("abs", value), literal(float("inf"), value.dtype)), torch.bool)

    return pointwise(node, formula, x, compute=opmath(x.dtype))


@RULES.rule(
    aten.clone.default, aten.detach.default, aten.alias.default, aten.lift_fresh_copy.default, aten.positive.default
)
def _clone(state: LoweringState, node: torch.fx.Node, x: Tensor, *, memory_format: Any = None) -> Any:
    if not isinstance(x, Stored) or node.target in (aten.detach.default, aten.alias.default):
        return x
    return pointwise(node, lambda value: value, x, compute=x.dtype)


@RULES.rule(aten._to_copy.default, torch.ops.prims.convert_element_type.default)
def _to_copy(state: LoweringState, node: torch.fx.Node, x: Any, *_: Any, **keywords: Any) -> Any:
    if keywords.get("layout") not in (None, torch.strided):
        raise NotLowered(f"layout {keywords['layout']}")
    return _copied(node, x)


def _copied(node: torch.fx.Node, source: Tensor | sympy.Expr | float) -> Computed:
    """Elements, or a number, in the node's dtype."""
    is_tensor = isinstance(source, (Stored, Computed))
    return pointwise(node, lambda value: value, source, compute=source.dtype if is_tensor else fake_of(node).dtype)


# ---- two operands


def _arithmetic(state: LoweringState, node: torch.fx.Node, function: str, x: Any, y: Any) -> Any:
    dtype = promoted(x, y)
    if dtype == torch.bool:
        of_booleans = {"add": "or", "mul": "and", "maximum": "or", "minimum": "and"}
        if function not in of_booleans:
            raise NotLowered(f"{function} of bool")
        function = of_booleans[function]
    return _of_common(node, lambda a, b: apply(function, a, b), x, y, dtype=dtype, function=function)


@RULES.rule(aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar)
def _add(state: LoweringState, node: torch.fx.Node, x: Any, y: Any, alpha: Any = 1) -> Any:
    is_add = node.target in (aten.add.Tensor, aten.add.Scalar)
    if isinstance(alpha, (int, float)) and not isinstance(alpha, bool) and alpha == 1:
        return _arithmetic(state, node, "add" if is_add else "sub", x, y)
    dtype = promoted(x, y)
    if dtype == torch.bool or (isinstance(alpha, float) and not dtype.is_floating_point):
        raise NotLowered(f"alpha={alpha} in {dtype}")

    def formula(a: Scalar, b: Scalar) -> Scalar:
        if is_fused:
            return apply("fma", b, literal(factor, a.dtype), a)
        product = apply("mul", literal(factor, a.dtype), b)
        return apply("add", a, cast(cast(product, dtype), a.dtype) if dtype.is_floating_point else product)

    _check_number(alpha)
    device = fake_of(node).device
    is_fused = dtype.is_floating_point and fuses_products(dtype, device)
    factor = alpha if is_add else -alpha  # an integer zero has no sign
    factor = rounded(factor, dtype, device) if device.type == "cpu" and isinstance(factor, (int, float)) else factor
    return _of_common(node, formula, x, y, dtype=dtype, function="add")


@RULES.rule(aten.addcmul.default)
def _addcmul(state: LoweringState, node: torch.fx.Node, x: Any, a: Any, b: Any, *, value: Any = 1) -> Any:
    dtype = promoted(x, a, b)
    if dtype == torch.bool or (isinstance(value, float) and not dtype.is_floating_point):
        raise NotLowered(f"value={value} in {dtype}")
    _check_number(value)
    is_fused = dtype.is_floating_point and fuses_products(opmath(dtype), fake_of(node).device)

    def formula(x: Scalar, a: Scalar, b: Scalar) -> Scalar:
        factor = a if value == 1 else apply("mul", literal(value, a.dtype), a)
        if is_fused:  # the last product is not rounded on its own
            return apply("fma", factor, b, x)
        return apply("add", x, apply("mul", factor, b))

    return _of_common(node, formula, x, a, b, dtype=dtype)


@RULES.rule(aten.mul.Tensor, aten.mul.Scalar, aten.maximum.default, aten.minimum.default)
def _arithmetic_alone(state: LoweringState, node: torch.fx.Node, x: Any, y: Any) -> Any:
    return _arithmetic(state, node, node.target._opname, x, y)  # type: ignore[union-attr]


@RULES.rule(aten.div.Tensor, aten.div.Scalar)
def _div(state: LoweringState, node: torch.fx.Node, x: Any, y: Any) -> Any:
    return _of_common(node, lambda a, b: apply("div", a, b), x, y, dtype=float_promoted(x, y), function="div")


@RULES.rule(aten.atan2.default)
def _atan2(state: LoweringState, node: torch.fx.Node, x: Any, y: Any) -> Any:
    return _of_common(node, lambda a, b: apply("atan2", a, b), x, y, dtype=float_promoted(x, y))


@RULES.rule(aten.copysign.Tensor, aten.copysign.Scalar)
def _copysign(state: LoweringState, node: torch.fx.Node, x: Any, y: Any) -> Any:
    dtype = float_promoted(x, y)
    return pointwise(node, _signed_bits if dtype.itemsize == 2 else _signed, x, y, compute=dtype)


def _signed(size: Scalar, sign: Scalar) -> Scalar:
    return apply("copysign", size, sign)


def _signed_bits(size: Scalar, sign: Scalar) -> Scalar:
    """For half dtypes, which have no such function. A conversion to float32 would lose the sign of NaN."""
    size_bits, sign_bits = (Apply("bitcast", (value,), torch.int16) for value in (size, sign))
    size_bits = apply("and", size_bits, literal(0x7FFF, torch.int16))
    sign_bits = apply("and", sign_bits, literal(-0x8000, torch.int16))
    return Apply("bitcast", (apply("or", size_bits, sign_bits),), size.dtype)


@RULES.rule(aten.fmod.Tensor, aten.fmod.Scalar)
def _fmod(state: LoweringState, node: torch.fx.Node, x: Any, y: Any) -> Any:
    dtype = promoted(x, y)
    if dtype == torch.bool:
        raise NotLowered("fmod of bool")
    function = "fmod" if dtype.is_floating_point else "mod"
    _check_divisor(node, dtype, y)
    return _of_common(node, lambda a, b: apply(function, a, b), x, y, dtype=dtype)


def _check_divisor(node: torch.fx.Node, dtype: torch.dtype, y: Any) -> None:
    """Raises NotLowered for integer division by what may be zero on the CPU: eager raises, and a kernel cannot."""
    is_safe = isinstance(y, int) and y % (1 << 8 * dtype.itemsize) != 0  # in the dtype
    if not dtype.is_floating_point and not is_safe and fake_of(node).device.type == "cpu":
        raise NotLowered("division of integers by what may be zero, on the CPU")


@RULES.rule(aten.remainder.Tensor, aten.remainder.Scalar)
def _remainder(state: LoweringState, node: torch.fx.Node, x: Any, y: Any) -> Any:
    dtype = promoted(x, y)
    if dtype == torch.bool:
        raise NotLowered("remainder of bool")
    _check_divisor(node, dtype, y)
    function = "fmod" if dtype.is_floating_point else "mod"
    return _of_common(node, lambda a, b: _with_sign_of(apply(function, a, b), b), x, y, dtype=dtype)


def _with_sign_of(rest: Scalar, divisor: Scalar) -> Scalar:
    """The remainder of truncating division, moved to the divisor's side of zero."""
    zero = literal(0, rest.dtype)
    differs = apply(
        "xor", Apply("lt", (rest, zero), torch.bool), Apply("lt", (divisor, zero), torch.bool), dtype=torch.bool
    )
    moves = apply("and", Apply("ne", (rest, zero), torch.bool), differs, dtype=torch.bool)
    return apply("where", moves, apply("add", rest, divisor), rest, dtype=rest.dtype)


@RULES.rule(aten.div.Tensor_mode, aten.div.Scalar_mode)
def _div_mode(state: LoweringState, node: torch.fx.Node, x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return _div(state, node, x, y)
    dtype = promoted(x, y)
    if dtype == torch.bool:
        raise NotLowered("rounded division of bool")
    if dtype.is_floating_point:
        is_kept = is_single(y, is_cpu=fake_of(node).device.type == "cpu")
        step = functools.partial(_step, dtype=opmath(dtype) if is_kept else dtype)
        formula = _floor_div_float if rounding_mode == "floor" else _trunc_div_float
        return _of_common(node, functools.partial(formula, step), x, y, dtype=dtype, function="div")
    _check_divisor(node, dtype, y)
    formula = _floor_div_int if rounding_mode == "floor" else lambda a, b: apply("truncdiv", a, b)
    return pointwise(node, formula, x, y, compute=dtype)


def _floor_div_int(a: Scalar, b: Scalar) -> Scalar:
    quotient, rest, zero = apply("truncdiv", a, b), apply("mod", a, b), literal(0, a.dtype)
    if not a.dtype.is_signed:
        return quotient
    differs = apply("xor", Apply("lt", (a, zero), torch.bool), Apply("lt", (b, zero), torch.bool), dtype=torch.bool)
    lowers = apply("and", Apply("ne", (rest, zero), torch.bool), differs, dtype=torch.bool)
    return apply("where", lowers, apply("sub", quotient, literal(1, a.dtype)), quotient, dtype=a.dtype)


def _step(function: str, *operands: Scalar, dtype: torch.dtype) -> Scalar:
    """A function's result rounded to the dtype, in the dtype of the computation."""
    return cast(cast(apply(function, *operands), dtype), operands[0].dtype)


def _trunc_div_float(step: Formula, a: Scalar, b: Scalar) -> Scalar:
    return apply("trunc", step("div", a, b))


def _floor_div_float(step: Formula, a: Scalar, b: Scalar) -> Scalar:
    """Floor division through the exact remainder, as in eager, so that a quotient rounded up to an integer is corrected."""
    dtype, zero, one = a.dtype, literal(0, a.dtype), literal(1, a.dtype)
    rest = apply("fmod", a, b)
    quotient = step("div", step("sub", a, rest), b)
    differs = apply("xor", Apply("lt", (b, zero), torch.bool), Apply("lt", (rest, zero), torch.bool), dtype=torch.bool)
    lowers = apply("and", Apply("ne", (rest, zero), torch.bool), differs, dtype=torch.bool)
    quotient = apply("where", lowers, step("sub", quotient, one), quotient, dtype=dtype)
    floor = apply("floor", quotient)
    is_off = Apply("gt", (apply("sub", quotient, floor), literal(0.5, dtype)), torch.bool)
    floor = apply("where", is_off, apply("add", floor, one), floor, dtype=dtype)
    signed_zero = apply("copysign", zero, apply("div", a, b))
    floor = apply("where", Apply("ne", (quotient, zero), torch.bool), floor, signed_zero, dtype=dtype)
    return apply("where", Apply("eq", (b, zero), torch.bool), apply("div", a, b), floor, dtype=dtype)


def _comparison(function: str) -> Any:
    def lower(state: LoweringState, node: torch.fx.Node, x: Any, y: Any) -> Any:
        dtype = promoted(x, y)
        if dtype.is_complex:
            raise NotLowered(f"a comparison of {dtype}")
        if isinstance(y, (int, float)) and not isinstance(y, bool) and not dtype.is_floating_point:
            info = torch.iinfo(dtype) if dtype != torch.bool else None
            if info is not None and not info.min <= y <= info.max:
                raise NotLowered(f"{y} compared with {dtype}")
        return _of_common(node, _condition(function), x, y, dtype=dtype)

    return lower


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    RULES.rule(getattr(aten, _name).Tensor, getattr(aten, _name).Scalar)(_comparison(_name))


def _logical(function: str) -> Any:
    def lower(state: LoweringState, node: torch.fx.Node, x: Any, y: Any) -> Any:
        return pointwise(node, lambda a, b: apply(function, a, b), x, y, compute=torch.bool)

    return lower


def _bitwise(function: str) -> Any:
    def lower(state: LoweringState, node: torch.fx.Node, x: Any, y: Any) -> Any:
        dtype = promoted(x, y)
        if dtype.is_floating_point:
            raise NotLowered(f"bitwise_{function} of {dtype}")
        return pointwise(node, lambda a, b: apply(function, a, b), x, y, compute=dtype)

    return lower


for _name in ("and", "or", "xor"):
    RULES.rule(getattr(aten, f"logical_{_name}").default)(_logical(_name))
    _packet = getattr(aten, f"bitwise_{_name}")
    RULES.rule(_packet.Tensor, _packet.Scalar)(_bitwise(_name))


# ---- three operands


@RULES.rule(aten.where.self)
def _where(state: LoweringState, node: torch.fx.Node, condition: Tensor, x: Any, y: Any) -> Any:
    if condition.dtype != torch.bool:
        raise NotLowered(f"where with a condition of {condition.dtype}")
    dtype = promoted(x, y)

    def value(indices: Indices) -> Scalar:
        chosen, a, b = (operand.at(broadcast_indices(indices, operand.shape)) for operand in (condition, x, y))
        return apply("where", chosen, cast(a, dtype), cast(b, dtype), dtype=dtype)

    return computed_like(node, value, [condition, x, y])


def _clamped(value: Scalar, low: Scalar | None, high: Scalar | None) -> Scalar:
    """NaN in the value or in a bound propagates."""
    if low is not None:
        value = apply("maximum", value, low)
    return value if high is None else apply("minimum", value, high)


@RULES.rule(aten.clamp.default, aten.clamp.Tensor)
def _clamp(state: LoweringState, node: torch.fx.Node, x: Tensor, low: Any = None, high: Any = None) -> Any:
    bounds = [bound for bound in (low, high) if bound is not None]
    dtype = promoted(x, *bounds)
    if dtype == torch.bool:
        raise NotLowered("clamp of bool")

    def formula(value: Scalar, *given: Scalar) -> Scalar:
        rest = list(given)
        return _clamped(value, None if low is None else rest.pop(0), None if high is None else rest.pop(0))

    return pointwise(node, formula, x, *bounds, compute=dtype)


@RULES.rule(aten.pow.Tensor_Scalar)
def _pow_scalar(state: LoweringState, node: torch.fx.Node, x: Tensor, exponent: Any) -> Any:
    dtype = promoted(x, exponent)
    # After each product, as in eager's kernel.
    is_rounded = dtype == torch.bfloat16 and fake_of(node).device.type == "cpu"
    if isinstance(exponent, (int, float)) and (exponent in (1, 2, 3) or (exponent == -2 and is_rounded)):
        count = abs(int(exponent))

        def formula(value: Scalar) -> Scalar:
            result = value
            for _ in range(count - 1):
                result = apply("mul", result, value)
                result = cast(cast(result, dtype), value.dtype) if is_rounded else result
            return result if exponent > 0 else apply("div", _one(value), result)

        if dtype == torch.bool:
            raise NotLowered("pow of bool")
        return pointwise(node, formula, x, compute=opmath(dtype))
    return _pow(state, node, x, exponent)


@RULES.rule(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def _pow(state: LoweringState, node: torch.fx.Node, x: Any, exponent: Any) -> Any:
    dtype = promoted(x, exponent)
    if not dtype.is_floating_point:
        raise NotLowered(f"pow in {dtype}")
    roots = {
        0.5: "sqrt",
        -0.5: "rsqrt",
    }  # differ from pow for -0.0 and -inf; eager computes pow for float16 on the CPU
    is_power = dtype == torch.float16 and fake_of(node).device.type == "cpu"
    if isinstance(exponent, float) and exponent in roots and not is_power:
        return pointwise(node, _unary(roots[exponent]), x, compute=opmath(dtype))
    return _of_common(node, lambda a, b: apply("pow", a, b), x, exponent, dtype=dtype)


# ---- constants, and uninitialized tensors


@RULES.rule(aten.copy.default)
def _copy(state: LoweringState, node: torch.fx.Node, x: Tensor, source: Any, non_blocking: bool = False) -> Any:
    return _copied(node, source)


@RULES.rule(
    aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default, aten.new_empty.default,
    aten.new_empty_strided.default, aten.empty_permuted.default,
)  # fmt: skip
def _empty(state: LoweringState, node: torch.fx.Node, *arguments: Any, **keywords: Any) -> Any:
    """An uninitialized tensor is zeros, which need no memory."""
    check_apart(node)
    return computed_like(node, lambda indices: literal(0, fake_of(node).dtype), [], cost=0)


@RULES.rule(aten.fill.Scalar, aten.full.default, aten.full_like.default, aten.scalar_tensor.default)
def _filled(state: LoweringState, node: torch.fx.Node, *arguments: Any, **keywords: Any) -> Any:
    fill = arguments[-1]
    _check_number(fill)
    return computed_like(node, lambda indices: literal(fill, fake_of(node).dtype), [], cost=0)
