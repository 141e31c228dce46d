"""Functions of floats: those of triton.language.math and of libdevice, as far as torch has them.

Counterpart: triton/language/math.py; triton/language/extra/cuda/libdevice.py
Differs: functions are torch's on the CPU, within an ULP or two; the device's exp2 and the like are approximate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from refimpl.codegen.emulator.arithmetic import abs_, cast, fma, truediv, umulhi
from refimpl.codegen.emulator.types import Type, fp32, fp64, int32, int64, promote, uint32
from refimpl.codegen.emulator.values import Rejected, Unsupported, Value, align, cast_value, method, to_value

_FLOATS = (fp32, fp64)


def _promoted(name: str, args: tuple[Any, ...], allowed: tuple[Type, ...] = _FLOATS) -> tuple[list[Tensor], Type]:
    """Data of all arguments in their common type. Raises Rejected if the compiler has no function of that type."""
    values = [to_value(arg) for arg in args]
    kinds = [value.dtype for value in values if isinstance(value.dtype, Type)]
    if len(kinds) != len(values):
        raise Rejected(f"{name} of a pointer")
    blocks = [
        v.dtype for v, arg in zip(values, args, strict=True) if isinstance(arg, Value) and isinstance(v.dtype, Type)
    ]
    type_ = blocks[0] if blocks else kinds[0]
    for kind in blocks[1:]:
        type_ = promote(type_, kind, is_division=False)
    if type_ not in allowed:
        raise Rejected(f"{name} of {type_}; expected {' or '.join(map(str, allowed))}")
    data = [cast_value(value, type_).data for value in values]
    return (data if len(data) == 1 else align(data)), type_


def _unary(
    name: str, function: Callable[[Tensor], Tensor], allowed: tuple[Type, ...] = _FLOATS
) -> Callable[[Any], Value]:
    def apply(x: Any) -> Value:
        (data,), type_ = _promoted(name, (x,), allowed)
        result = function(data)
        return Value(result if result.dtype == data.dtype else result.to(data.dtype), type_)

    apply.__name__ = name
    return apply


def _test(name: str, function: Callable[[Tensor], Tensor]) -> Callable[[Any], Value]:
    """A test such as isnan, whose result is int32 as in libdevice."""

    def apply(x: Any) -> Value:
        (data,), _ = _promoted(name, (x,))
        return Value(function(data).to(torch.int32), int32)

    return apply


def _several(name: str, function: Callable[..., Tensor]) -> Callable[..., Value]:
    def apply(*args: Any) -> Value:
        data, type_ = _promoted(name, args)
        return Value(function(*data).to(type_.carrier), type_)

    return apply


def _in_double(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: function(x.to(torch.float64))


def _rounded_away(x: Tensor) -> Tensor:
    whole = torch.trunc(x)
    return torch.where((x - whole).abs() >= 0.5, whole + torch.sign(x), whole).copysign(x)


def _cbrt(x: Tensor) -> Tensor:
    root = x.to(torch.float64).abs().pow(1.0 / 3.0)
    return root.copysign(x.to(torch.float64))


def _tgamma(x: Tensor) -> Tensor:
    wide = x.to(torch.float64)
    size = torch.lgamma(wide).exp()
    is_negative = (wide < 0) & (torch.floor(wide) % 2 != 0)
    result = torch.where(is_negative, -size, size)
    return torch.where((wide < 0) & (wide == wide.trunc()), math.nan, result)


def _logb(x: Tensor) -> Tensor:
    _, exponent = torch.frexp(x)
    result = (exponent - 1).to(x.dtype)
    result = torch.where(x == 0, -math.inf, result)
    return torch.where(x.isinf(), math.inf, torch.where(x.isnan(), x, result))


def _remainder(x: Tensor, y: Tensor) -> Tensor:
    """The remainder of IEEE 754: the quotient is rounded to nearest even."""
    rest = torch.fmod(x.abs(), 2 * y.abs())
    half = y.abs() / 2
    rest = torch.where(rest > half, rest - y.abs(), rest)
    rest = torch.where(rest >= half, rest - y.abs(), rest)
    return torch.where(x.signbit(), -rest, rest)


def _ldexp(x: Any, exponent: Any) -> Value:
    (data,), type_ = _promoted("ldexp", (x,))
    steps = cast_value(to_value(exponent), int32).data
    data, steps = align((data, steps))
    return Value(torch.ldexp(data.to(torch.float64), steps).to(type_.carrier), type_)


def _to_long(name: str, function: Callable[[Tensor], Tensor]) -> Callable[[Any], Value]:
    def apply(x: Any) -> Value:
        (data,), type_ = _promoted(name, (x,))
        return cast_value(Value(function(data), type_), int64)

    return apply


def _pow(x: Any, y: Any) -> Value:
    if isinstance(y, Value) and y.dtype is int32:  # libdevice has powi, too
        y = cast_value(y, to_value(x).dtype)
    return _several("pow", _quiet_pow)(x, y)


def _quiet_pow(x: Tensor, y: Tensor) -> Tensor:
    """1 ** NaN is 1. C libraries give NaN for a signalling NaN, which GPUs do not have: multiplying by 1 makes it a quiet one."""
    return torch.pow(x, y * 1.0)


def _popc(x: Any) -> Value:
    value = to_value(x)
    bits = value.data.to(torch.int64) & ((1 << 32) - 1 if value.dtype is int32 else -1)
    count = torch.zeros_like(bits)
    for shift in range(64):
        count += (bits >> shift) & 1
    return Value(count.to(torch.int32), int32)


def _sqrt(x: Tensor) -> Tensor:
    """Correctly rounded. Torch's own is off by an ulp in the vector code of some CPUs."""
    with np.errstate(invalid="ignore"):
        return torch.from_numpy(np.asarray(np.sqrt(x.numpy())))


def _fmod(x: Tensor, y: Tensor) -> Tensor:
    """Exact. Torch's vector code gives NaN where the quotient overflows the dtype."""
    with np.errstate(invalid="ignore"):
        return torch.from_numpy(np.asarray(np.fmod(x.numpy(), y.numpy())))


def _maps_elements(name: str) -> bool:
    """Whether torch has a pointwise operator of this name with one argument, other than tests such as `isnan`."""
    overload = getattr(getattr(torch.ops.aten, name, None), "default", None)
    return (
        overload is not None
        and torch.Tag.pointwise in overload.tags
        and len(overload._schema.arguments) == 1
        and not name.startswith("is")
    )


# The emulator runs without Triton, so that it cannot ask which functions libdevice has. It has C's, as Python's `math` does
# (`exp2` from 3.11 on), and torch's of the same name are their meaning. The others have entries: those that begin with `fast_` or
# end in `_rn` are the ones without.
_AS_TORCH = (*filter(_maps_elements, vars(math)), "erfinv", "exp2")
_AS_TORCH_IN_DOUBLE = ("cosh", "lgamma", "rsqrt", "sinh")
_FAST = (
    "fast_cosf", "fast_exp10f", "fast_expf", "fast_log10f", "fast_log2f", "fast_logf", "fast_sinf", "fast_tanf", "fast_tanhf",
)  # fmt: skip
_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    **{name: getattr(torch, name) for name in _AS_TORCH},
    **{name: _in_double(getattr(torch, name)) for name in _AS_TORCH_IN_DOUBLE},
    **{name: getattr(torch.special, f"bessel_{name}") for name in ("j0", "j1", "y0", "y1")},
    "cbrt": _cbrt,
    "rcbrt": _in_double(lambda x: 1.0 / _cbrt(x)),
    "cospi": _in_double(lambda x: torch.cos(math.pi * torch.fmod(x, 2.0))),
    "sinpi": _in_double(lambda x: torch.sin(math.pi * torch.fmod(x, 2.0))),
    "cyl_bessel_i0": torch.special.i0,
    "cyl_bessel_i1": torch.special.i1,
    "erfcinv": _in_double(lambda x: torch.erfinv(1 - x)),
    "erfcx": torch.special.erfcx,
    "exp10": _in_double(lambda x: torch.pow(10.0, x)),
    "logb": _logb,
    "nearbyint": torch.round,
    "rint": torch.round,
    "round": _rounded_away,
    "normcdf": torch.special.ndtr,
    "normcdfinv": torch.special.ndtri,
    "rcp_rn": torch.reciprocal,
    "saturatef": lambda x: torch.nan_to_num(x, nan=0.0).clamp(0.0, 1.0),
    "sqrt": _sqrt,
    "tgamma": _tgamma,
}
_UNARY |= {name: _UNARY[name.removeprefix("fast_").removesuffix("f")] for name in _FAST}
_UNARY |= {name: _UNARY[name.removesuffix("_rn")] for name in ("rsqrt_rn", "sqrt_rn")}
_SEVERAL: Mapping[str, Callable[..., Tensor]] = {
    **{name: getattr(torch, name) for name in ("atan2", "copysign", "hypot", "nextafter")},
    **{name: getattr(torch, name.removesuffix("_rn")) for name in ("add_rn", "sub_rn", "mul_rn", "div_rn")},
    "fdim": lambda x, y: torch.where(x > y, x - y, torch.where(x.isnan() | y.isnan(), x + y, 0.0)),
    "fmod": _fmod,
    "remainder": _remainder,
    "rhypot": lambda x, y: 1.0 / torch.hypot(x.to(torch.float64), y.to(torch.float64)),
    "fast_dividef": torch.div,
    "fast_powf": torch.pow,
    "norm3d": lambda x, y, z: (x.double() ** 2 + y.double() ** 2 + z.double() ** 2).sqrt(),
}


class Libdevice(SimpleNamespace):
    """The module `libdevice`. A function that it lacks raises Unsupported when it is read."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Unsupported(f"libdevice.{name}")


def make_libdevice() -> Libdevice:
    functions: dict[str, Any] = {name: _unary(name, function) for name, function in _UNARY.items()}
    functions |= {name: _several(name, function) for name, function in _SEVERAL.items()}
    functions |= {"isnan": _test("isnan", torch.isnan), "isinf": _test("isinf", torch.isinf)}
    functions |= {"signbit": _test("signbit", torch.signbit), "finitef": _test("finitef", torch.isfinite)}
    functions |= {"isfinited": _test("isfinited", torch.isfinite), "ilogb": _test("ilogb", _logb)}
    functions |= {"llrint": _to_long("llrint", torch.round), "llround": _to_long("llround", _rounded_away)}
    functions |= {"abs": abs_, "fma": fma, "fma_rn": fma, "pow": _pow, "ldexp": _ldexp, "scalbn": _ldexp, "popc": _popc}
    functions |= {"mulhi": umulhi}
    functions |= {
        "float_as_int": lambda x: cast(x, int32, bitcast=True),
        "float_as_uint": lambda x: cast(x, uint32, bitcast=True),
        "int_as_float": lambda x: cast(x, fp32, bitcast=True),
        "double_as_longlong": lambda x: cast(x, int64, bitcast=True),
        "longlong_as_double": lambda x: cast(x, fp64, bitcast=True),
        "float2int_rn": lambda x: cast_value(_unary("rint", torch.round)(x), int32),
        "float2int_rz": lambda x: cast_value(x, int32),
        "int2float_rn": lambda x: cast_value(x, fp32),
    }
    return Libdevice(**functions)


# ------------------------------------------------------------------------------------------------- triton.language.math

LANGUAGE = {
    name: _unary(name, _UNARY[name])
    for name in ("exp", "exp2", "log", "log2", "cos", "sin", "sqrt", "rsqrt", "erf", "floor", "ceil")
}
LANGUAGE["sqrt_rn"] = _unary("sqrt_rn", _sqrt, (fp32,))
for _name, _function in LANGUAGE.items():
    method(_name)(_function)


def div_rn(x: Any, y: Any) -> Value:
    data, type_ = _promoted("div_rn", (x, y), (fp32,))
    return Value(data[0] / data[1], type_)


def fdiv(x: Any, y: Any, ieee_rounding: bool = False) -> Value:
    values = [to_value(x), to_value(y)]
    if any(not isinstance(v.dtype, Type) or not v.dtype.is_floating() for v in values):
        raise Rejected(f"fdiv of {values[0].type} and {values[1].type}; expected floats")
    return truediv(*values)


@method("sigmoid")
def sigmoid(x: Any) -> Value:
    (data,), type_ = _promoted("sigmoid", (x,))
    return Value(1 / (1 + torch.exp(-data)), type_)
