"""Sizes and shapes. A program has a small pool of sizes, so that its tensors fit one another: 0, 1, primes, vector widths."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fuzz.draw.choices import Draw

# sizes by reason: ordinary, degenerate, around the width of vector registers and of unrolled loops
PLAIN_SIZES = (2, 3, 4, 5, 7)
VECTOR_SIZES = (8, 15, 16, 17, 31, 32, 33, 64, 65)
MAX_RANK = 6


def draw_size(draw: Draw) -> int:
    """One size of a dimension."""
    kind = draw.weighted({"plain": 10, "vector": 4, "one": 2, "zero": 0.4})
    if kind == "plain":
        return draw.choice(PLAIN_SIZES)
    if kind == "vector":
        return draw.choice(VECTOR_SIZES)
    return 1 if kind == "one" else 0


def draw_pool(draw: Draw) -> tuple[int, ...]:
    """The sizes that one program works with."""
    return tuple(draw_size(draw) for _ in range(draw.integer(2, 4)))


def draw_rank(draw: Draw, *, at_least: int = 0, at_most: int = MAX_RANK) -> int:
    weights = {2: 8.0, 1: 5.0, 3: 4.0, 0: 1.5, 4: 2.0, 5: 0.6, 6: 0.4}
    allowed = {rank: weight for rank, weight in weights.items() if at_least <= rank <= at_most}
    return draw.weighted(allowed)


def draw_shape(draw: Draw, pool: Sequence[int], *, max_numel: int, rank: int | None = None) -> tuple[int, ...]:
    """A shape of sizes from the pool, or new ones, of at most `max_numel` elements."""
    rank = draw_rank(draw) if rank is None else rank
    shape: list[int] = []
    for _ in range(rank):
        size = draw.choice(pool) if pool and draw.chance(0.85) else draw_size(draw)
        shape.append(size if max(1, math.prod(shape)) * size <= max_numel else 1 + (size > 1))
    return tuple(shape) if math.prod(shape) <= max_numel else tuple(min(size, 2) for size in shape)


def draw_broadcastable(draw: Draw, shape: Sequence[int]) -> tuple[int, ...]:
    """A shape that broadcasts with this one without making it larger: dimensions dropped at the front, others 1."""
    start = draw.integer(0, len(shape)) if draw.chance(0.3) else 0
    return tuple(1 if draw.chance(0.25) else size for size in shape[start:])
