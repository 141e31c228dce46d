"""Fills: the contents of a tensor, described by JSON and a seed.

A fill describes the elements of a *storage*, in storage order; only `values` is in the logical (row-major) order of
the tensor. Random fills are drawn on the CPU, so that all devices get the same numbers, and depend only on the program's seed and
the tensor's path: adding an argument does not change the others.

| kind | fields (defaults) |
|---|---|
| normal | mean (0), std (1) |
| uniform | low (0), high (1) |
| integers | low (-9; 0 for unsigned), high (10), exclusive |
| bool | p (0.5) |
| arange | start (0), step (1) |
| full | value |
| values | values: one scalar per element; floats as numbers, "nan", "-inf" or hex text, complex as [real, imag] |
| special | a mix of NaN, infinities, signed zeros, denormals and extremes; `finite`: true leaves NaN and infinities out |
| choice | values: scalars as above; each element is one of them, drawn at random |
| raw | base64: the bytes of the storage, little endian |

Every fill takes `seed`, which replaces the seed from program and path.
"""

from __future__ import annotations

import base64
import binascii
import cmath
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import torch

from oracle.dtypes import FLOAT8
from oracle.errors import UsageError


def default_fill(dtype: torch.dtype) -> dict[str, Any]:
    """The fill of a spec that has none."""
    if dtype.is_floating_point or dtype.is_complex:
        return {"kind": "normal"}
    return {"kind": "bool"} if dtype is torch.bool else {"kind": "integers"}


def fill_elements(fill: Mapping[str, Any], *, count: int, dtype: torch.dtype, seed: int, path: str) -> torch.Tensor:
    """A new 1-D CPU tensor of `count` elements. Raises UsageError with `path` for an invalid fill.

    The kind `values` is left to the caller, which knows the logical order; see `parse_values`.
    """
    kind = fill.get("kind")
    if not isinstance(kind, str) or kind not in _RULES:
        raise bad_input(path, f"fill kind {kind!r}", f"one of {', '.join(sorted(_RULES))}, values")
    rule, fields = _RULES[kind]
    unknown = set(fill) - fields - {"kind", "seed"}
    if unknown:
        raise bad_input(path, f"fill fields {sorted(unknown)}", f"for {kind!r}: {sorted(fields | {'seed'})}")
    generator = torch.Generator().manual_seed(_seed_of(fill.get("seed", seed), "" if "seed" in fill else path))
    return rule(fill, count, dtype, generator, path)


def fill_source(fill: Mapping[str, Any], *, count: int, dtype: torch.dtype, seed: int, path: str) -> str:
    """A Python expression with torch only that draws the same elements; "" if the contents are not drawn.

    `fill` is as for `fill_elements`. For complex and one-byte dtypes the expression may draw other elements: compare before use.
    """
    generator = f"torch.Generator().manual_seed({_seed_of(fill.get('seed', seed), '' if 'seed' in fill else path)})"

    def number(name: str, default: float) -> str:
        value = parse_scalar(fill.get(name, default), path)
        return repr(value) if cmath.isfinite(value) else f"float('{value}')"

    match fill.get("kind"):
        case "normal":
            scaled = f".mul_({number('std', 1)}).add_({number('mean', 0)})" if {"std", "mean"} & set(fill) else ""
            return f"torch.randn({count}, dtype={_drawing_dtype(dtype)}, generator={generator}){scaled}.to({dtype})"
        case "uniform":
            low, high = parse_scalar(fill.get("low", 0), path), parse_scalar(fill.get("high", 1), path)
            scaled = f".mul_({high - low!r}).add_({low!r})" if {"low", "high"} & set(fill) else ""
            return f"torch.rand({count}, dtype={_drawing_dtype(dtype)}, generator={generator}){scaled}.to({dtype})"
        case "integers":
            low = number("low", 0 if dtype is torch.bool or not dtype.is_signed else -9)
            high = number("high", 2 if dtype is torch.bool else 10)
            return f"torch.randint({low}, {high}, ({count},), generator={generator}).to({dtype})"
        case "bool":
            return f"(torch.rand({count}, dtype=torch.float32, generator={generator}) < {number('p', 0.5)}).to({dtype})"
        case "arange":
            start, step = number("start", 0), number("step", 1)
            drawn = "torch.float64" if "." in start + step else "torch.int64"
            return f"(torch.arange({count}, dtype={drawn}) * {step} + {start}).to({dtype})"
        case "full":
            return f"torch.full(({count},), {number('value', 0)}, dtype={dtype})"
        case "choice":
            pool = [parse_scalar(value, path) for value in fill["values"]]
            texts = ", ".join(repr(value) if cmath.isfinite(value) else f"float('{value}')" for value in pool)
            places = f"torch.randint(0, {len(pool)}, ({count},), generator={generator})"
            return f"torch.tensor([{texts}], dtype={dtype})[{places}]"
        case _:
            return ""


def parse_values(values: Any, *, count: int, dtype: torch.dtype, path: str) -> torch.Tensor:
    """The `values` of a fill as a 1-D CPU tensor of `count` elements."""
    if not isinstance(values, list) or len(values) != count:
        seen = f"{len(values)} values" if isinstance(values, list) else f"values {values!r}"
        raise bad_input(path, seen, f"a list of {count} scalars")
    scalars = [parse_scalar(value, path) for value in values]
    try:
        if dtype in FLOAT8:
            return torch.tensor(scalars, dtype=torch.float32, device="cpu").to(dtype)
        return torch.tensor(scalars, dtype=dtype, device="cpu")
    except (TypeError, RuntimeError, OverflowError, ValueError) as error:
        raise bad_input(path, f"values that are no {dtype}: {error}", f"{count} values of {dtype}") from error


def parse_scalar(value: Any, path: str) -> bool | int | float | complex:
    """A JSON scalar: a number, "nan", "inf", "-inf", hex text of a float, or [real, imag]."""
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, list) and len(value) == 2:
        real, imag = (parse_scalar(part, path) for part in value)
        if not isinstance(real, complex) and not isinstance(imag, complex):
            return complex(real, imag)
    if isinstance(value, str):
        try:
            return float.fromhex(value) if "0x" in value else float(value)
        except (ValueError, OverflowError) as error:
            raise bad_input(path, f"scalar {value!r}", "a number, 'nan', 'inf', '-inf' or a hex float") from error
    raise bad_input(path, f"scalar {value!r}", "a number, text of a float, or [real, imag]")


def bad_input(path: str, seen: str, expected: str) -> UsageError:
    """UsageError for a place in an input tree."""
    return UsageError(
        seen=f"input {path or 'tree'}: {seen}", expected=expected, do="correct the input specs of the program"
    )


def _seed_of(seed: int, path: str) -> int:
    digest = hashlib.blake2b(f"{seed}:{path}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # manual_seed takes 63 unsigned bits


def _drawing_dtype(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return torch.complex128 if dtype is torch.complex128 else torch.complex64
    return torch.float64 if dtype is torch.float64 else torch.float32


def _require_float(kind: str, dtype: torch.dtype, path: str) -> None:
    if not (dtype.is_floating_point or dtype.is_complex):
        raise bad_input(path, f"fill {kind!r} for {dtype}", "a float or complex dtype; 'integers' or 'bool' for others")


def _number(fill: Mapping[str, Any], name: str, default: float, path: str) -> Any:
    return parse_scalar(fill.get(name, default), f"{path}.fill.{name}")


def _normal(fill: Mapping[str, Any], count: int, dtype: torch.dtype, g: torch.Generator, path: str) -> torch.Tensor:
    _require_float("normal", dtype, path)
    drawn = torch.randn(count, dtype=_drawing_dtype(dtype), generator=g, device="cpu")
    return drawn.mul_(_number(fill, "std", 1, path)).add_(_number(fill, "mean", 0, path)).to(dtype)


def _uniform(fill: Mapping[str, Any], count: int, dtype: torch.dtype, g: torch.Generator, path: str) -> torch.Tensor:
    _require_float("uniform", dtype, path)
    low, high = _number(fill, "low", 0, path), _number(fill, "high", 1, path)
    drawn = torch.rand(count, dtype=_drawing_dtype(dtype), generator=g, device="cpu").mul_(high - low)
    if dtype.is_complex:  # the same interval in both parts
        torch.view_as_real(drawn).add_(low)
        return drawn.to(dtype)
    return drawn.add_(low).to(dtype)


def _integers(fill: Mapping[str, Any], count: int, dtype: torch.dtype, g: torch.Generator, path: str) -> torch.Tensor:
    low = _number(fill, "low", 0 if dtype is torch.bool or not dtype.is_signed else -9, path)
    high = _number(fill, "high", 2 if dtype is torch.bool else 10, path)
    if not isinstance(low, int) or not isinstance(high, int) or low >= high:
        raise bad_input(path, f"integers from {low!r} below {high!r}", "integers low < high")
    if not -(2**63) <= low < high <= 2**63 - 1:
        raise bad_input(path, f"integers from {low} below {high}", "bounds of int64; use 'raw' for others")
    if not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool):
        info = torch.iinfo(dtype)
        if low < info.min or high - 1 > info.max:
            raise bad_input(
                path, f"integers from {low} below {high}", f"the range of {dtype}: {info.min} to {info.max}"
            )
    return torch.randint(low, high, (count,), generator=g, device="cpu", dtype=torch.int64).to(dtype)


def _bool(fill: Mapping[str, Any], count: int, dtype: torch.dtype, g: torch.Generator, path: str) -> torch.Tensor:
    return (torch.rand(count, generator=g, device="cpu", dtype=torch.float32) < _number(fill, "p", 0.5, path)).to(dtype)


def _arange(fill: Mapping[str, Any], count: int, dtype: torch.dtype, g: torch.Generator, path: str) -> torch.Tensor:
    start, step = _number(fill, "start", 0, path), _number(fill, "step", 1, path)
    is_integer = isinstance(start, int) and isinstance(step, int)
    positions = torch.arange(count, device="cpu", dtype=torch.int64 if is_integer else torch.float64)
    return (positions * step + start).to(dtype)


def _full(fill: Mapping[str, Any], count: int, dtype: torch.dtype, g: torch.Generator, path: str) -> torch.Tensor:
    return parse_values([fill.get("value", 0)], count=1, dtype=dtype, path=path).repeat(count)


def _special(fill: Mapping[str, Any], count: int, dtype: torch.dtype, g: torch.Generator, path: str) -> torch.Tensor:
    if dtype is torch.bool:
        return _bool(fill, count, dtype, g, path)
    if not (dtype.is_floating_point or dtype.is_complex):
        info = torch.iinfo(dtype)
        pool = torch.tensor([0, 1, info.min, min(info.max, 2**63 - 1)], dtype=torch.int64, device="cpu").to(dtype)
        return pool[torch.randint(0, len(pool), (count,), generator=g, device="cpu")]
    real = dtype.to_real() if dtype.is_complex else dtype
    pool = _special_floats(real, finite=bool(fill.get("finite", False)))
    if dtype.is_complex:
        return torch.complex(*(_choose(pool, count, g).to(_drawing_dtype(real)) for _ in range(2))).to(dtype)
    return _choose(pool, count, g).to(real)


def _special_floats(dtype: torch.dtype, *, finite: bool) -> torch.Tensor:
    info = torch.finfo(dtype)
    values = [0.0, -0.0, 1.0, -1.0, 0.5, -1.5, info.max, info.min, info.tiny, -info.tiny, info.eps, 1.0 + info.eps]
    values += [info.smallest_normal / 2, -info.smallest_normal / 4]  # denormals
    if not finite:
        values += [float("nan"), float("inf"), float("-inf")]
    return torch.tensor(values, dtype=torch.float64, device="cpu")


def _choose(pool: torch.Tensor, count: int, g: torch.Generator) -> torch.Tensor:
    return pool[torch.randint(0, len(pool), (count,), generator=g, device="cpu")]


def _choice(fill: Mapping[str, Any], count: int, dtype: torch.dtype, g: torch.Generator, path: str) -> torch.Tensor:
    values = fill.get("values")
    if not isinstance(values, list) or not values:
        raise bad_input(path, f"choice among {values!r}", "a list of at least one scalar")
    pool = parse_values(values, count=len(values), dtype=dtype, path=path)
    return pool[torch.randint(0, len(pool), (count,), generator=g, device="cpu")]


def _raw(fill: Mapping[str, Any], count: int, dtype: torch.dtype, g: torch.Generator, path: str) -> torch.Tensor:
    try:
        data = base64.b64decode(fill.get("base64", ""), validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise bad_input(path, f"raw data that is not base64: {error}", "base64 text") from error
    if len(data) != count * dtype.itemsize:
        raise bad_input(path, f"{len(data)} bytes of raw data", f"{count * dtype.itemsize} bytes: {count} x {dtype}")
    if not data:
        return torch.empty(0, dtype=dtype, device="cpu")
    if dtype is torch.bool and max(data) > 1:
        raise bad_input(path, f"a bool byte of {max(data)}", "0 or 1")
    elements = torch.frombuffer(bytearray(data), dtype=torch.uint8).clone()  # copied into memory of torch
    return elements.view(dtype)


_Rule = Callable[[Mapping[str, Any], int, torch.dtype, torch.Generator, str], torch.Tensor]
_RULES: dict[str, tuple[_Rule, frozenset[str]]] = {  # with the fields of a fill besides "kind" and "seed"
    "normal": (_normal, frozenset({"mean", "std"})),
    "uniform": (_uniform, frozenset({"low", "high"})),
    "integers": (_integers, frozenset({"low", "high"})),
    "bool": (_bool, frozenset({"p"})),
    "arange": (_arange, frozenset({"start", "step"})),
    "full": (_full, frozenset({"value"})),
    "special": (_special, frozenset({"finite"})),
    "choice": (_choice, frozenset({"values"})),
    "raw": (_raw, frozenset({"base64"})),
}
