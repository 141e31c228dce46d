"""Parts: each function makes a `Part`, which draws one operand of a call so that it fits the call's first tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fuzz.draw.choices import Draw
from fuzz.draw.inputs.shapes import draw_broadcastable, draw_size
from fuzz.draw.inputs.specs import is_inexact
from fuzz.draw.scene import dtype_name
from fuzz.program.structure import Expr, Items, Operand, Ref
from fuzz.vocabulary.operators.build import ALL, OMIT, CallBuilder, Part, PartLike, Unfit, draw_part

# ---------------------------------------------------------------------------------------------------------- tensors


def x(
    dtypes: Sequence[str] = ALL,
    *,
    rank: tuple[int, int] = (0, 6),
    shape: Callable[[CallBuilder], Sequence[int]] | None = None,
    domain: str = "any",
    is_strict: bool = False,
    condition: Callable[[torch.Tensor], bool] = lambda tensor: True,
    layouts: Sequence[str] = (),
    is_dense: bool = False,
    requires_grad: bool | None = None,
) -> Part:
    """Any live tensor that fits, or a new argument. With `shape` always of that shape."""

    def part(builder: CallBuilder) -> Ref:
        return builder.take(
            builder.find(
                dtypes,
                rank=rank,
                shape=None if shape is None else shape(builder),
                condition=condition,
                domain=domain,
                is_strict=is_strict,
                layouts=layouts,
                is_dense=is_dense,
                requires_grad=requires_grad,
            )
        )

    return part


def other(
    dtypes: Sequence[str] = ALL,
    *,
    mixes: float = 0.2,
    numbers: float = 0.15,
    broadcasts: float = 0.4,
    domain: str = "any",
    is_strict: bool = False,
) -> Part:
    """A tensor that broadcasts with the first one, of its dtype except for `mixes`; sometimes a Python number."""

    def part(builder: CallBuilder) -> Operand:
        draw, main = builder.draw, builder.main
        if draw.chance(numbers):
            return a_number(builder) if domain == "any" else a_divisor(builder)
        allowed = dtypes if draw.chance(mixes) else (dtype_name(main),)
        if dtype_name(main) not in dtypes:
            allowed = dtypes
        shape = draw_partner(draw, main.shape, builder.scene.sizes) if draw.chance(broadcasts) else main.shape
        return builder.take(builder.find(allowed, shape=shape, domain=domain, is_strict=is_strict))

    return part


def same(*, broadcasts: float = 0.0, domain: str = "any", is_strict: bool = False, dtype: str = "") -> Part:
    """A tensor of the first one's dtype and shape (or one that broadcasts to it)."""
    return other(
        (dtype,) if dtype else ALL, mixes=0, numbers=0, broadcasts=broadcasts, domain=domain, is_strict=is_strict
    )


def of_shape(
    shape: Callable[[CallBuilder], Sequence[int]],
    dtypes: Sequence[str] | None = None,
    *,
    domain: str = "any",
    is_strict: bool = False,
) -> Part:
    """A tensor whose shape follows from the first one's, of its dtype unless said."""

    def part(builder: CallBuilder) -> Ref:
        allowed = dtypes or (dtype_name(builder.main),)
        return builder.take(builder.find(allowed, shape=shape(builder), domain=domain, is_strict=is_strict))

    return part


def mask(*, broadcasts: float = 0.4) -> Part:
    """A bool tensor that broadcasts to the first one."""
    return other(("bool",), mixes=1, numbers=0, broadcasts=broadcasts)


def indices(
    shape: Callable[[CallBuilder], Sequence[int]],
    bound: Callable[[CallBuilder], int],
    *,
    dtypes: Sequence[str] = ("int64",),
) -> Part:
    """Integers in [0, bound), with repetitions. Always a new argument: nothing else is sure to stay in the range."""

    def part(builder: CallBuilder) -> Ref:
        high = bound(builder)
        size = shape(builder)
        if high <= 0 and math.prod(size):
            raise Unfit
        return builder.take(
            builder.add(dtypes, shape=size, domain=f"index:{max(1, high)}", layouts=("contiguous", "offset", "gapped"))
        )

    return part


def several(dtypes: Sequence[str], *, low: int = 2, high: int = 3, kind: str = "list", mixes: float = 0.1) -> Part:
    """A list of tensors of the first one's shape, the first among them (perhaps twice)."""

    def part(builder: CallBuilder) -> Items:
        first = builder.take(builder.find(dtypes))
        rest = []
        for _ in range(builder.draw.integer(low - 1, high - 1)):
            allowed = dtypes if builder.draw.chance(mixes) else (dtype_name(builder.main),)
            rest.append(builder.take(builder.find(allowed, shape=builder.main.shape)))
        return Items((first, *rest), kind)

    return part


def draw_partner(draw: Draw, shape: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """A shape that broadcasts with this one: mostly a smaller one, now and then one that makes the result larger."""
    if draw.chance(0.8):
        return draw_broadcastable(draw, shape)
    partner = tuple(draw.choice(sizes) if size == 1 else size for size in draw_broadcastable(draw, shape))
    grows = len(partner) == len(shape) < 5 and math.prod((*shape, *partner)) < 4096 and draw.chance(0.5)
    return (draw.choice((2, 1, 3)), *partner) if grows else partner


# ---------------------------------------------------------------------------------------------------------- numbers


def number(*options: Any) -> Part:
    """A Python number: one of the options, or one that suits the first tensor; an argument or a computed number at times."""

    def part(builder: CallBuilder) -> Operand:
        return builder.draw.choice(options) if options else a_number(builder)

    return part


def a_number(builder: CallBuilder) -> Operand:
    """A number that does not change the first tensor's dtype."""
    draw, scene, main = builder.draw, builder.scene, builder.main
    wants_float = main.is_floating_point() or main.is_complex()
    if draw.chance(0.25):
        known = [n for n, v in scene.scalars.items() if isinstance(v, float) == wants_float and not isinstance(v, bool)]
        if known:
            return Ref(draw.choice(known))
        if draw.chance(0.3):
            return Ref(scene.add_argument(draw.choice((2.5, 0.75, -1.25)) if wants_float else draw.choice((2, 3, 5))))
    return scene.number(main)


def a_divisor(builder: CallBuilder) -> Operand:
    """A divisor: not 0, and not -1, since the smallest integer of a dtype cannot be divided by it."""
    wants_float = builder.main.is_floating_point() or builder.main.is_complex()
    options = (2.0, 0.1, 3, -0.5) if wants_float else (2, 3, 7, 10)
    return builder.draw.choice(options if wants_float or builder.main.dtype is torch.uint8 else (*options, -2, -3))


def integer(low: int, high: int) -> Part:
    return lambda builder: builder.draw.integer(low, high)


def optional(part: PartLike, chance: float = 0.4) -> Part:
    """The part, or nothing."""
    return lambda builder: draw_part(builder, part) if builder.draw.chance(chance) else OMIT


def flag(chance: float = 0.3) -> Part:
    """True now and then, or left out."""
    return lambda builder: True if builder.draw.chance(chance) else OMIT


def either(*values: Any) -> Part:
    """One of the values, each given; the first by default."""
    return lambda builder: builder.draw.choice(values)


def maybe_dtype(*names: str, chance: float = 0.15) -> Part:
    """A dtype keyword, seldom."""
    return lambda builder: Expr(f"torch.{builder.draw.choice(names)}") if builder.draw.chance(chance) else OMIT


# ------------------------------------------------------------------------------------------------------- dimensions


def draw_dim(draw: Draw, rank: int) -> int:
    """A dimension, counted from the end at times; of a 0-d tensor 0 or -1."""
    dim = draw.integer(0, max(0, rank - 1))
    return dim - max(1, rank) if draw.chance(0.35) else dim


def dim(*, least: int = 0, most: int = 4096, grows: int = 0) -> Part:
    """A dimension of the first tensor, of `least` to `most` elements; `grows`: of a result with more dimensions."""

    def part(builder: CallBuilder) -> int:
        main = builder.main
        if grows:
            return draw_dim(builder.draw, main.dim() + grows)
        fitting = [i for i, size in enumerate(main.shape) if least <= size <= most]
        if not main.dim():
            return builder.draw.choice((0, -1))
        if not fitting:
            raise Unfit
        chosen = builder.draw.choice(fitting)
        return chosen - main.dim() if builder.draw.chance(0.35) else chosen

    return part


def dims(*, low: int = 1, high: int = 3, kinds: Sequence[str] = ("tuple", "list")) -> Part:
    """Several dimensions of the first tensor, in any order, each once."""

    def part(builder: CallBuilder) -> Items:
        rank = builder.main.dim()
        if rank < low:
            raise Unfit
        chosen = draw_dims(builder.draw, rank, builder.draw.integer(low, min(high, rank)))
        signed = tuple(d - rank if builder.draw.chance(0.3) else d for d in chosen)
        return Items(signed, builder.draw.choice(kinds))

    return part


def draw_dims(draw: Draw, rank: int, count: int) -> tuple[int, ...]:
    """`count` different dimensions in drawn order."""
    left = list(range(rank))
    return tuple(left.pop(draw.integer(0, len(left) - 1)) for _ in range(count))


def ints(*values: int, kind: str = "tuple") -> Items:
    return Items(values, kind)


def size_of(dim_arg: int, tensor: torch.Tensor) -> int:
    """Size along a dimension as it was drawn."""
    return tensor.shape[dim_arg] if tensor.dim() else 1


def random_size(builder: CallBuilder) -> int:
    """A size of the program's pool, or another."""
    return builder.draw.choice(builder.scene.sizes) if builder.draw.chance(0.7) else draw_size(builder.draw)


# --------------------------------------------------------------------------------------------------- built contents


def add_values(builder: CallBuilder, shape: Sequence[int], dtype: str, values: Sequence[Any]) -> Ref:
    """A new argument with these elements."""
    spec: dict[str, Any] = {"$": "tensor", "shape": list(shape), "dtype": dtype}
    spec["fill"] = {"kind": "values", "values": list(values)}
    if is_inexact(dtype) and builder.may_require_grad and builder.draw.chance(0.35):
        spec["requires_grad"] = True
    return builder.take(builder.scene.add_argument(spec))


def add_distinct(builder: CallBuilder, count: int, bound: int) -> Ref:
    """`count` different indices below `bound` in drawn order."""
    if count > bound:
        raise Unfit
    start, step = builder.draw.integer(0, max(0, bound - 1)), _coprime_step(builder.draw, bound)
    return add_values(builder, (count,), "int64", [(start + i * step) % bound for i in range(count)])


def add_distinct_along(builder: CallBuilder, shape: Sequence[int], along: int, bound: int) -> Ref:
    """Indices of this shape, those along one dimension all different: what a scatter without accumulation is defined for."""
    if not shape:
        return add_values(builder, (), "int64", [builder.draw.integer(0, bound - 1)])
    if shape[along] > bound:
        raise Unfit
    start, step = builder.draw.integer(0, max(0, bound - 1)), _coprime_step(builder.draw, bound)
    values = []
    for flat in range(math.prod(shape)):
        place, rest = [], flat
        for size in reversed(shape):
            place.append(rest % size)
            rest //= size
        place.reverse()
        values.append((start + step * place[along] + sum(place) - place[along]) % bound)
    return add_values(builder, shape, "int64", values)


def _coprime_step(draw: Draw, bound: int) -> int:
    steps = [step for step in range(1, max(2, bound)) if math.gcd(step, bound) == 1] or [1]
    return draw.choice(steps)


def matrix(*, batch: int = 1, is_symmetric: bool = False, dtypes: Sequence[str] = ("float32", "float64")) -> Part:
    """A well-conditioned (diagonally dominant) square matrix, or a batch of them."""

    def part(builder: CallBuilder) -> Ref:
        draw = builder.draw
        n = draw.choice((3, 2, 4, 1, 5))
        lead = (draw.choice((2, 1, 3)),) if batch and draw.chance(0.35) else ()
        seed = draw.integer(0, 1000)
        values: list[float] = []
        for number_of_matrix in range(math.prod(lead)):
            for i in range(n):
                for j in range(n):
                    low, high = (min(i, j), max(i, j)) if is_symmetric else (i, j)
                    wave = ((low * 37 + high * 101 + seed * 7 + number_of_matrix * 53) % 31) / 31 - 0.5
                    values.append(round(wave, 4) + (n + 1 if i == j else 0))
        return add_values(builder, (*lead, n, n), draw.choice(dtypes), values)

    return part
