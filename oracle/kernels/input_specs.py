"""The arguments of a launcher: a line of text that describes them, and random arguments drawn from it.

    x: f32|f16[M, N], w: f32[N]!, index: i64[K] < M, eps: 1e-5, k: int 1..8, scale: float

A name, then a tensor (dtypes, sizes in brackets), a number that is always the same, or a kind of number. Sizes are numbers or
names; one name is one size. `!` asks for a contiguous tensor, `< M` for integers from 0 to below a size, `dtype` for one of
f32, f16 and bf16 that is the same for all tensors that say `dtype`.
"""

from __future__ import annotations

import ast
import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from oracle.dtypes import ARITHMETIC_FLOATS, ARITHMETIC_INTEGERS, in_order, short_name
from oracle.errors import UsageError
from oracle.program.fills import fill_elements
from oracle.program.inputs import contiguous_stride

DTYPES: Mapping[str, torch.dtype] = {
    short_name(dtype): dtype for dtype in (*in_order(ARITHMETIC_FLOATS), *in_order(ARITHMETIC_INTEGERS), torch.bool)
}
_LONG_NAMES = {str(dtype).removeprefix("torch."): name for name, dtype in DTYPES.items()}  # "float32": "f32"
_SHARED = ("f32", "f16", "bf16")
SIZES = (
    1,
    2,
    3,
    5,
    7,
    8,
    15,
    16,
    17,
    31,
    32,
    33,
    63,
    64,
    65,
    100,
    127,
    128,
    129,
    255,
    256,
    257,
    500,
    1000,
    1023,
    1024,
    1025,
)
# No largest numbers: sums of these overflow in one order and not in another, and both are right. Denormals of fp32 and of fp16.
_CORNERS = (0.0, -0.0, 1.0, -1.0, 0.5, -1.5, 1e-40, -3e-7, 1e-3, 200.0)
_FILLS: tuple[tuple[int, dict[str, Any]], ...] = (  # weight, fill of floats
    (10, {"kind": "normal"}),
    (2, {"kind": "normal", "std": 100.0}),
    (2, {"kind": "integers", "low": -4, "high": 5}),
    (2, {"kind": "choice", "values": list(_CORNERS)}),
    (2, {"kind": "choice", "values": [*_CORNERS, "nan", "inf", "-inf"]}),
    (1, {"kind": "uniform", "low": -1e-3, "high": 1e-3}),
    (1, {"kind": "full", "value": 0}),
)
_EXAMPLE = "for example --inputs 'x: f32|f16[M, N], w: f32[N], eps: 1e-5'"


def _bad(text: str, seen: str, expected: str) -> UsageError:
    return UsageError(seen=f"--inputs {text!r}: {seen}", expected=expected, do=_EXAMPLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """A tensor argument: dtypes to choose from ("dtype": the shared one), sizes, and what its values are."""

    name: str
    dtypes: tuple[str, ...]
    sizes: tuple[int | str, ...]
    is_contiguous: bool = False
    below: int | str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberSpec:
    """A number: always `value`, or drawn: an integer from `low` to `high`, or a float."""

    name: str
    kind: str  # "constant", "int", "float"
    value: Any = None
    low: int = 0
    high: int = 0


Spec = TensorSpec | NumberSpec

_TENSOR = re.compile(
    r"^(?P<dtypes>[a-z0-9]+(?:\s*\|\s*[a-z0-9]+)*)\s*\[(?P<sizes>[^\]]*)\]\s*(?P<whole>!?)\s*(?:<\s*(?P<below>\w+))?$"
)
_INTEGER = re.compile(r"^int(?:\s+(?P<low>-?\d+)\.\.(?P<high>-?\d+))?$")


def parse_inputs(text: str) -> tuple[Spec, ...]:
    """The arguments that a line describes. UsageError with the part that is wrong."""
    specs = tuple(_parse(part.strip(), text) for part in _split(text) if part.strip())
    if not specs:
        raise _bad(text, "no argument", "at least one")
    names = [spec.name for spec in specs]
    if len(set(names)) != len(names):
        raise _bad(text, f"the names {names}", "each name once")
    known = {size for spec in specs if isinstance(spec, TensorSpec) for size in spec.sizes}
    for spec in specs:
        if isinstance(spec, TensorSpec) and isinstance(spec.below, str) and spec.below not in known:
            raise _bad(
                text, f"{spec.name} < {spec.below}", f"a size of some tensor: {', '.join(sorted(map(str, known)))}"
            )
    return specs


def _split(text: str) -> list[str]:
    """The parts of the text between commas that are outside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _parse(part: str, text: str) -> Spec:
    name, colon, rest = (piece.strip() for piece in part.partition(":"))
    if not colon or not name.isidentifier():
        raise _bad(text, repr(part), "NAME: DTYPE[SIZES] or NAME: NUMBER")
    integer = _INTEGER.match(rest)
    if integer:
        low, high = (int(integer[group] or default) for group, default in (("low", 1), ("high", 16)))
        if low > high:
            raise _bad(text, repr(part), "int LOW..HIGH with LOW <= HIGH")
        return NumberSpec(name=name, kind="int", low=low, high=high)
    if rest == "float":
        return NumberSpec(name=name, kind="float")
    tensor = _TENSOR.match(rest)
    if tensor is None:
        try:
            return NumberSpec(name=name, kind="constant", value=ast.literal_eval(rest))
        except (ValueError, SyntaxError) as error:
            raise _bad(text, repr(part), "DTYPE[SIZES], int LOW..HIGH, float, or a constant") from error
    given = [dtype.strip() for dtype in tensor["dtypes"].split("|")]
    dtypes = tuple(_LONG_NAMES.get(dtype, dtype) for dtype in given)
    for dtype in dtypes:
        if dtype not in DTYPES and not (dtype == "dtype" and len(dtypes) == 1):
            raise _bad(text, f"dtype {dtype!r} of {name}", f"one of {', '.join(DTYPES)}, or dtype")
    sizes = tuple(_size(size.strip(), name, text) for size in tensor["sizes"].split(",") if size.strip())
    below = _size(tensor["below"], name, text) if tensor["below"] else None
    if below is not None and any(dtype == "dtype" or DTYPES[dtype].is_floating_point for dtype in dtypes):
        raise _bad(text, repr(part), "an integer dtype before <")
    return TensorSpec(name=name, dtypes=dtypes, sizes=sizes, is_contiguous=bool(tensor["whole"]), below=below)


def _size(size: str, name: str, text: str) -> int | str:
    if size.isdigit():
        return int(size)
    if size.isidentifier():
        return size
    raise _bad(text, f"size {size!r} of {name}", "a number or a name")


def default_inputs(names: Sequence[str]) -> tuple[Spec, ...]:
    """The inputs if --inputs is not given: one shape and dtype for every argument, which suits elementwise functions."""
    return tuple(TensorSpec(name=name, dtypes=("dtype",), sizes=("...",)) for name in names)


# ----------------------------------------------------------------------------------------------------------------- drawing


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnTensor:
    """A description of a tensor, to make it again and to print it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    fill: Mapping[str, Any]
    seed: int

    def __str__(self) -> str:
        is_plain = self.stride == contiguous_stride(self.shape) and self.offset == 0
        layout = "" if is_plain else f" stride {list(self.stride)} offset {self.offset}"
        options = "".join(f" {key}={value}" for key, value in self.fill.items() if key != "kind")
        return f"{self.name}: {self.dtype}{list(self.shape)}{layout}, {self.fill['kind']}{options} seed {self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnNumber:
    """A number argument."""

    name: str
    value: Any

    def __str__(self) -> str:
        return f"{self.name}: {self.value!r}"


Drawn = DrawnTensor | DrawnNumber


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnCase:
    """The arguments of one call, and the sizes they were drawn with."""

    arguments: tuple[Drawn, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)
    shared_dtype: str = "f32"

    def __str__(self) -> str:
        return "\n".join(f"  {argument}" for argument in self.arguments)


def draw(specs: Sequence[Spec], rng: random.Random, *, largest: int) -> DrawnCase:
    """Random arguments; no tensor has more than about `largest` elements."""
    tensors = [spec for spec in specs if isinstance(spec, TensorSpec)]
    common = _draw_shape(rng, largest)
    names = sorted({size for spec in tensors for size in spec.sizes if isinstance(size, str) and size != "..."})
    sizes = {name: rng.choice(SIZES) for name in names}
    for name in names:
        if rng.random() < 0.02:
            sizes[name] = 0
    while any(_numel(spec, sizes) > largest for spec in tensors) and any(size > 1 for size in sizes.values()):
        longest = max(sizes, key=lambda name: sizes[name])
        sizes[longest] = max(1, sizes[longest] // 2)
    shared = rng.choice(_SHARED)
    drawn = tuple(_draw_one(spec, rng, sizes, common, shared) for spec in specs)
    return DrawnCase(arguments=drawn, sizes=sizes, shared_dtype=shared)


def _numel(spec: TensorSpec, sizes: Mapping[str, int]) -> int:
    return math.prod(size if isinstance(size, int) else sizes.get(size, 1) for size in spec.sizes)


def _draw_shape(rng: random.Random, largest: int) -> tuple[int, ...]:
    shape: list[int] = []
    for _ in range(rng.choice((1, 1, 2, 2, 3))):
        room = largest // max(1, math.prod(shape))
        shape.append(rng.choice([size for size in SIZES if size <= room] or [1]))
    return tuple(shape)


def _draw_one(spec: Spec, rng: random.Random, sizes: Mapping[str, int], common: tuple[int, ...], shared: str) -> Drawn:
    if isinstance(spec, NumberSpec):
        if spec.kind == "int":
            return DrawnNumber(name=spec.name, value=rng.randint(spec.low, spec.high))
        if spec.kind == "float":
            return DrawnNumber(name=spec.name, value=rng.choice((0.5, 1.0, -1.5, 0.0, 1e-3, 3.25, 100.0)))
        return DrawnNumber(name=spec.name, value=spec.value)
    dtype = shared if spec.dtypes == ("dtype",) else rng.choice(spec.dtypes)
    shape = tuple(
        part
        for size in spec.sizes
        for part in (common if size == "..." else (size if isinstance(size, int) else sizes[size],))
    )
    stride, offset = _draw_layout(spec, rng, shape)
    fill = _draw_fill(spec, rng, DTYPES[dtype], sizes)
    return DrawnTensor(
        name=spec.name, dtype=dtype, shape=shape, stride=stride, offset=offset, fill=fill, seed=rng.randrange(1 << 30)
    )


def _draw_layout(spec: TensorSpec, rng: random.Random, shape: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    plain = contiguous_stride(shape)
    if spec.is_contiguous or rng.random() < 0.5 or not shape:
        return plain, 0
    order = list(range(len(shape)))
    if rng.random() < 0.5:
        rng.shuffle(order)  # a permuted tensor
    stride, step = [0] * len(shape), rng.choice((1, 1, 2))
    for axis in reversed(order):
        stride[axis] = step
        step *= max(shape[axis], 1) + rng.choice((0, 0, 1, 3))  # strides of a part of a larger tensor
    return tuple(stride), rng.choice((0, 0, 1, 4))


def _draw_fill(spec: TensorSpec, rng: random.Random, dtype: torch.dtype, sizes: Mapping[str, int]) -> dict[str, Any]:
    if spec.below is not None:
        bound = spec.below if isinstance(spec.below, int) else sizes[spec.below]
        return {"kind": "integers", "low": 0, "high": max(1, bound)}
    if dtype is torch.bool:
        return {"kind": "bool"}
    if not dtype.is_floating_point:
        return {"kind": "integers"}
    return dict(rng.choices([fill for _, fill in _FILLS], weights=[weight for weight, _ in _FILLS])[0])


def build(drawn: Drawn) -> Any:
    """The argument itself: a CPU tensor with its strides, or the number."""
    if isinstance(drawn, DrawnNumber):
        return drawn.value
    dtype = DTYPES[drawn.dtype]
    reach = sum((n - 1) * s for n, s in zip(drawn.shape, drawn.stride, strict=True))
    extent = 0 if 0 in drawn.shape else 1 + reach
    count = drawn.offset + extent
    storage = fill_elements(drawn.fill, count=count, dtype=dtype, seed=drawn.seed, path=drawn.name)
    return torch.as_strided(storage, drawn.shape, drawn.stride, drawn.offset)


# --------------------------------------------------------------------------------------------------------------- shrinking


def simpler(case: DrawnCase, specs: Sequence[Spec]) -> list[DrawnCase]:
    """Cases that are simpler in one way each: plain values, plain strides, fp32, smaller sizes."""
    found: list[DrawnCase] = []
    for i, argument in enumerate(case.arguments):
        if not isinstance(argument, DrawnTensor):
            continue
        if argument.fill["kind"] not in ("normal", "integers", "bool") or "std" in argument.fill:
            found.append(_with(case, i, replace(argument, fill={"kind": "normal"})))
        if argument.stride != contiguous_stride(argument.shape) or argument.offset:
            found.append(_with(case, i, replace(argument, stride=contiguous_stride(argument.shape), offset=0)))
    shared = [i for i, spec in enumerate(specs) if isinstance(spec, TensorSpec) and spec.dtypes == ("dtype",)]
    if shared and case.shared_dtype != "f32":
        arguments = tuple(
            replace(a, dtype="f32") if i in shared and isinstance(a, DrawnTensor) else a
            for i, a in enumerate(case.arguments)
        )
        found.append(replace(case, arguments=arguments, shared_dtype="f32"))
    for name, size in case.sizes.items():
        found += [_resized(case, specs, name, smaller) for smaller in _smaller(size)]
    found += _smaller_common(case, specs)
    return found


def _smaller(size: int) -> list[int]:
    return [smaller for smaller in (1, 2, size // 2, size - 1) if 0 < smaller < size]


def _stride_like(argument: DrawnTensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides for another shape: plain ones stay plain, others keep their order and have gaps."""
    if argument.stride == contiguous_stride(argument.shape) or len(shape) != len(argument.shape):
        return contiguous_stride(shape)
    order = sorted(range(len(shape)), key=lambda axis: argument.stride[axis])
    stride, step = [0] * len(shape), min(argument.stride, default=1)
    for axis in order:
        stride[axis] = step
        step *= shape[axis] + 1
    return tuple(stride)


def _with(case: DrawnCase, index: int, argument: Drawn) -> DrawnCase:
    return replace(case, arguments=(*case.arguments[:index], argument, *case.arguments[index + 1 :]))


def _resized(case: DrawnCase, specs: Sequence[Spec], name: str, size: int) -> DrawnCase:
    sizes = {**case.sizes, name: size}
    arguments = []
    for spec, argument in zip(specs, case.arguments, strict=True):
        if isinstance(spec, TensorSpec) and isinstance(argument, DrawnTensor) and name in (*spec.sizes, spec.below):
            shape = tuple(part if isinstance(part, int) else sizes[part] for part in spec.sizes)
            fill = dict(argument.fill)
            if spec.below == name:
                fill["high"] = size
            argument = replace(argument, shape=shape, stride=_stride_like(argument, shape), fill=fill)
        arguments.append(argument)
    return replace(case, arguments=tuple(arguments), sizes=sizes)


def _smaller_common(case: DrawnCase, specs: Sequence[Spec]) -> list[DrawnCase]:
    """Smaller versions of the common shape that arguments have without --inputs."""
    common = [i for i, spec in enumerate(specs) if isinstance(spec, TensorSpec) and "..." in spec.sizes]
    if not common:
        return []
    first = case.arguments[common[0]]
    assert isinstance(first, DrawnTensor)
    shapes = [
        (*first.shape[:a], smaller, *first.shape[a + 1 :]) for a, n in enumerate(first.shape) for smaller in _smaller(n)
    ]
    shapes += [first.shape[1:]] if len(first.shape) > 1 else []
    return [
        replace(
            case,
            arguments=tuple(
                replace(a, shape=shape, stride=_stride_like(a, shape))
                if i in common and isinstance(a, DrawnTensor)
                else a
                for i, a in enumerate(case.arguments)
            ),
        )
        for shape in shapes
    ]
