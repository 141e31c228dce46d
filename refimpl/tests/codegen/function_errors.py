"""Errors of functions in ulp beside their bounds: `python -m refimpl.tests.codegen.function_errors [--levels NAME] [--csv F]`.

Kernels of one function each run on levels: the emulator, Triton's interpreter, and a GPU where there is one. Arguments are all
values of float16 and bfloat16; of float32 and float64 every so many bits from one end of the dtype to the other, what lies around
small integers and multiples of pi, and special values. What is right is computed in float64 for the narrower dtypes, by mpmath
for float64, and rounded to the dtype.

On the CPU functions are those of torch, whose errors CUDA's table does not bound: a row above its bound says that about torch.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pandas as pd
import torch

from refimpl.codegen.emulator import POINTER_TYPES
from refimpl.codegen.kernel import Kernel, Level, LevelUnavailable, Parameter
from refimpl.codegen.levels.choice import level_named
from refimpl.codegen.printing.error_bounds import ERROR_BOUNDS, ErrorBound
from refimpl.codegen.printing.functions import TRITON_DTYPES, expression

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_BLOCK = 8192
_BITS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}
_PRECISION = 200  # bits of mpmath's numbers

Reference = Callable[..., Any]
# What is right: of float64 arrays, and of mpmath's numbers where it is not exact in float64.
ONE: dict[str, tuple[Reference, Reference | None]] = {
    "exp": (np.exp, mpmath.exp), "exp2": (np.exp2, lambda x: mpmath.power(2, x)), "expm1": (np.expm1, mpmath.expm1),
    "log": (np.log, mpmath.log), "log2": (np.log2, lambda x: mpmath.log(x, 2)), "log10": (np.log10, mpmath.log10),
    "log1p": (np.log1p, mpmath.log1p), "sqrt": (np.sqrt, mpmath.sqrt),
    "rsqrt": (lambda x: 1 / np.sqrt(x), lambda x: 1 / mpmath.sqrt(x)), "sin": (np.sin, mpmath.sin), "cos": (np.cos, mpmath.cos),
    "tan": (np.tan, mpmath.tan), "asin": (np.arcsin, mpmath.asin), "acos": (np.arccos, mpmath.acos),
    "atan": (np.arctan, mpmath.atan),
    "sinh": (np.sinh, mpmath.sinh), "cosh": (np.cosh, mpmath.cosh), "tanh": (np.tanh, mpmath.tanh),
    "asinh": (np.arcsinh, mpmath.asinh), "acosh": (np.arccosh, mpmath.acosh), "atanh": (np.arctanh, mpmath.atanh),
    "erf": (np.vectorize(math.erf, otypes=[float]), mpmath.erf), "erfc": (np.vectorize(math.erfc, otypes=[float]), mpmath.erfc),
    "erfinv": (lambda x: torch.erfinv(torch.from_numpy(x)).numpy(), mpmath.erfinv),
    "lgamma": (lambda x: torch.lgamma(torch.from_numpy(x)).numpy(), lambda x: mpmath.log(abs(mpmath.gamma(x)))),
    "floor": (np.floor, None), "ceil": (np.ceil, None), "trunc": (np.trunc, None), "rint": (np.rint, None),
    "neg": (np.negative, None), "abs": (np.abs, None),
}  # fmt: skip
TWO: dict[str, tuple[Reference, Reference | None]] = {
    "add": (np.add, lambda x, y: x + y), "sub": (np.subtract, lambda x, y: x - y), "mul": (np.multiply, lambda x, y: x * y),
    "div": (np.divide, lambda x, y: x / y), "pow": (np.power, mpmath.power), "atan2": (np.arctan2, mpmath.atan2),
    "fmod": (np.fmod, None), "maximum": (np.maximum, None), "minimum": (np.minimum, None), "copysign": (np.copysign, None),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measured:
    """The greatest error of one function on one level, and where it is."""

    function: str
    dtype: str
    level: str
    arguments: int
    ulp: int
    bound: float
    source: str
    outside: str
    at: str


def function_kernel(function: str, dtype: torch.dtype) -> Kernel:
    """A kernel of one function, as compiled graphs have it: half types are computed in float32 and rounded once more."""
    arity = 1 if function in ONE else 2
    compute = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    names = [f"t{at}" for at in range(arity)]
    loads = [f"    {name} = tl.load(x{at} + i).to({TRITON_DTYPES[compute]})" for at, name in enumerate(names)]
    text = expression(function, names, [compute] * arity, compute)
    pointers = [f"x{at}" for at in range(arity)]
    source = "\n".join(
        [
            "import triton", "import triton.language as tl", "from triton.language.extra import libdevice", "", "",
            "@triton.jit", f"def measured({', '.join(pointers)}, out, BLOCK: tl.constexpr):",
            "    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)", *loads, f"    value = {text}",
            f"    tl.store(out + i, value.to({TRITON_DTYPES[dtype]}))", "",
        ]
    )  # fmt: skip
    kind = POINTER_TYPES[dtype]
    return Kernel(
        "measured", source, (*(Parameter(name, kind) for name in [*pointers, "out"]), Parameter("BLOCK", "constexpr"))
    )


def arguments_of(dtype: torch.dtype, count: int) -> torch.Tensor:
    """All values of a half type, else about so many, from one end to the other, in whole blocks."""
    bits = _BITS[dtype]
    if bits == torch.int16:
        return torch.arange(-(2**15), 2**15).to(bits).view(dtype)
    info = torch.iinfo(bits)
    spread = torch.linspace(0, 1, count, dtype=torch.float64)
    every = ((spread - 0.5) * 2 * info.max).to(bits).view(dtype)
    whole = torch.arange(-64, 65, dtype=torch.float64)
    near = torch.cat([whole, whole * math.pi / 4, whole / 64, 2.0**whole, -(2.0**whole)]).to(dtype)
    near = torch.cat([near, near.nextafter(near + 1), near.nextafter(near - 1)])
    finfo = torch.finfo(dtype)
    special = [math.inf, -math.inf, math.nan, -0.0, finfo.max, finfo.min, finfo.tiny, finfo.tiny / 2, finfo.eps]
    values = torch.cat([every, near, torch.tensor(special, dtype=dtype)])
    return torch.cat([values, values.new_ones(-len(values) % _BLOCK)])


def distance(result: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """How many numbers of the dtype are between, int64; the largest of it where one is NaN and the other is not."""
    dtype = _BITS[result.dtype]

    def order(x: torch.Tensor) -> torch.Tensor:
        bits = x.view(dtype).to(torch.int64)
        return torch.where(bits < 0, torch.iinfo(dtype).min - bits, bits)

    apart = (order(result) - order(right)).abs()
    apart = torch.where(result.isnan() & right.isnan(), 0, apart)
    return torch.where(result.isnan() != right.isnan(), torch.iinfo(torch.int64).max, apart)


def right_results(function: str, arguments: Sequence[torch.Tensor]) -> torch.Tensor:
    """Correctly rounded to the arguments' dtype, but for ties in float64 that are none."""
    in_double, by_mpmath = {**ONE, **TWO}[function]
    dtype = arguments[0].dtype
    wide = [argument.double().numpy() for argument in arguments]
    with np.errstate(all="ignore"):
        rough = np.asarray(in_double(*wide), dtype=np.float64)
    if dtype != torch.float64 or by_mpmath is None:
        return torch.from_numpy(rough).to(dtype)
    exact = rough.copy()
    with mpmath.workprec(_PRECISION):
        for at in range(len(rough)):
            values = [float(argument[at]) for argument in wide]
            if math.isfinite(rough[at]) and all(map(math.isfinite, values)) and rough[at] != 0:
                exact[at] = _rounded(by_mpmath(*(mpmath.mpf(value) for value in values)))
    return torch.from_numpy(exact)


def _rounded(value: Any) -> float:
    return float(value.real if isinstance(value, mpmath.mpc) else value)


def measure(function: str, dtype: torch.dtype, levels: dict[str, Level], count: int) -> list[Measured]:
    """One row for each level."""
    x = arguments_of(dtype, 1024 if dtype == torch.float64 else count)
    arguments = [x]
    if function in TWO:
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
        arguments = [x, x[order]]
    bound = ERROR_BOUNDS[function][dtype]
    right = right_results(function, arguments)
    rows = []
    for name, level in levels.items():
        out = _launched(function, dtype, arguments, level, name)
        apart = distance(out, right)
        if bound.outside is not None:
            low, high = bound.outside
            apart = torch.where((x.double() > low) & (x.double() < high), 0, apart)
        worst = int(apart.argmax())
        rows.append(_row(function, dtype, name, apart, worst, arguments, bound))
    return rows


def _launched(
    function: str, dtype: torch.dtype, arguments: Sequence[torch.Tensor], level: Level, name: str
) -> torch.Tensor:
    device = "cuda" if name == "device" else "cpu"
    given = [argument.to(device) for argument in arguments]
    out = torch.empty_like(given[0])
    level.launch(function_kernel(function, dtype), (len(out) // _BLOCK,), [*given, out], {"BLOCK": _BLOCK})
    return out.cpu()


def _row(
    function: str,
    dtype: torch.dtype,
    level: str,
    apart: torch.Tensor,
    worst: int,
    arguments: Sequence[torch.Tensor],
    bound: ErrorBound,
) -> Measured:
    return Measured(
        function=function,
        dtype=str(dtype).removeprefix("torch."),
        level=level,
        arguments=len(apart),
        ulp=int(apart[worst]),
        bound=bound.ulp,
        source=bound.source,
        outside="" if bound.outside is None else f"{bound.outside[0]} to {bound.outside[1]}",
        at=", ".join(repr(argument[worst].item()) for argument in arguments) if apart[worst] else "",
    )


def main() -> None:
    """Print a table, one row for each function, dtype and level."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levels", default="emulator,interpreter,device")
    parser.add_argument("--functions", default=",".join([*ONE, *TWO]))
    parser.add_argument("--count", type=int, default=1 << 16, help="arguments of float32")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    levels: dict[str, Level] = {}
    for name in options.levels.split(","):
        try:
            levels[name] = level_named(name)
        except LevelUnavailable as error:
            print(f"without level {name}: {error.seen}")
    rows: list[Measured] = []
    for function in options.functions.split(","):
        for dtype in DTYPES:
            rows += measure(function, dtype, levels, options.count)
            for row in rows[-len(levels) :]:
                mark = "" if row.ulp <= row.bound else "  above"
                print(f"{row.function:9s} {row.dtype:9s} {row.level:12s} {row.ulp:6d} of {row.bound:g}{mark}  {row.at}")
    if options.csv is not None:
        pd.DataFrame(rows).to_csv(options.csv, index=False)


if __name__ == "__main__":
    main()
