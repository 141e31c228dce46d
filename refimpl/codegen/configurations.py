"""Block sizes and numbers of warps that a kernel may be launched with.

A kernel's source is valid for all of its configurations: block sizes are constexpr arguments of a launch. They affect results
only by the order of summation.

Counterpart: torch/_inductor/runtime/triton_heuristics.py pointwise, reduction, persistent_reduction
Differs: each kernel carries its list of configurations. The first is launched unless autotuning has measured a faster one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

PERSISTENT = 1024
"""The longest reduction whose whole row is loaded as one block (a persistent reduction)."""

WIDEST_ROWS = 4096
"""The longest rows that are loaded as one block if the same kernel reduces columns as well."""

MOST_VALUES = 8192
"""The most values in a block."""

_BLOCK = 1024
_FULL_GPU = 132  # number of programs that the default configuration aims for: about one per multiprocessor


@dataclass(frozen=True, slots=True)
class Configuration:
    """Block sizes by the names of their constants, and launch options."""

    blocks: tuple[tuple[str, int], ...]
    num_warps: int
    num_stages: int = 1

    @property
    def constants(self) -> dict[str, int]:
        return dict(self.blocks)


def configuration(num_warps: int | None = None, **blocks: int) -> Configuration:
    """A configuration with these block sizes. Without `num_warps` the number of values in a block determines it."""
    values = 1
    for block in blocks.values():
        values *= block
    return Configuration(tuple(blocks.items()), warps_for(values) if num_warps is None else num_warps)


def warps_for(values: int) -> int:
    """The number of warps for a block of that many values."""
    return 8 if values >= 4096 else 4 if values >= 512 else 2 if values >= 128 else 1


def pointwise_configurations(points: int) -> list[Configuration]:
    """For pointwise kernels with one block dimension."""
    all_of_them = power_of_two(points)
    default = filling(min(_BLOCK, all_of_them), points, least=256)
    others = (min(block, all_of_them) for block in (256, 512, _BLOCK, 2048))
    return [configuration(XBLOCK=default), *(configuration(XBLOCK=block) for block in others)]


def filling(block: int, points: int, *, least: int) -> int:
    """A block size, halved until there are enough programs for a GPU, or until it is `least`."""
    while block > least and -(-points // block) < _FULL_GPU:
        block //= 2
    return block


def tiled_configurations() -> list[Configuration]:
    """For pointwise kernels with two block dimensions, each of which is contiguous in some access."""
    return [configuration(YBLOCK=y, XBLOCK=x) for y, x in ((32, 32), (64, 64), (16, 64), (64, 16), (16, 16))]


def persistent_configurations(kept: int, reduced: int, *, is_kept_innermost: bool) -> list[Configuration]:
    """For reductions whose rows are one block each. `is_kept_innermost`: some buffer is contiguous along the kept axes."""
    width, rows = power_of_two(reduced), power_of_two(kept)
    fewest = min(16, MOST_VALUES // width) if is_kept_innermost else 1
    default = filling(min(max(fewest, 2048 // width), rows), kept, least=max(fewest, 512 // width))
    made = [configuration(XBLOCK=default, RBLOCK=width)]
    for block in (1, 2, 8, 32):
        if block <= rows and block * width <= MOST_VALUES:
            made.append(configuration(XBLOCK=block, RBLOCK=width))
            made.append(configuration(2 * warps_for(block * width), XBLOCK=block, RBLOCK=width))
    return made


def looped_configurations(kept: int, reduced: int, *, is_kept_innermost: bool) -> list[Configuration]:
    """For reductions that loop over their rows in blocks. `is_kept_innermost`: some buffer is contiguous along the kept axes."""
    rows, length = power_of_two(kept), power_of_two(reduced)
    along_rows = [(1, 2048), (1, 4096), (1, 1024), (2, 1024), (4, 512)]
    across_rows = [(64, 32), (64, 16), (32, 64), (128, 16), (16, 128)]
    pairs = across_rows if is_kept_innermost else along_rows
    return [configuration(XBLOCK=min(x, rows), RBLOCK=min(r, length)) for x, r in pairs]


def carrying_configurations(rows: int, width: int) -> list[Configuration]:
    """For kernels that reduce rows and columns: a program loops over its rows in blocks of whole rows and accumulates a result
    per column."""
    length, most = power_of_two(width), power_of_two(rows)
    default = max(1, 2048 // length)
    blocks = [min(block, most) for block in (default, 2 * default, max(default // 2, 1), 4 * default)]
    made = [configuration(XBLOCK=block, RBLOCK=length) for block in blocks if block * length <= MOST_VALUES]
    wide = [configuration(2 * one.num_warps, **one.constants) for one in made if one.num_warps < 16]
    return [*made, *wide]


_LEAST_DOT = 16  # smallest block size that tl.dot takes
# By itemsize: block sizes of rows, columns and depth, warps and stages. They spill at most a few bytes of registers.
_DOT_BLOCKS: dict[int, tuple[tuple[int, int, int, int, int], ...]] = {
    2: (
        (128, 128, 64, 8, 3), (128, 64, 64, 4, 3), (64, 128, 64, 4, 3), (64, 64, 64, 4, 4), (32, 64, 128, 4, 3),
        (64, 32, 128, 4, 3),
    ),
    4: (
        (64, 64, 32, 8, 3), (128, 64, 32, 8, 3), (64, 128, 32, 8, 3), (32, 64, 32, 4, 3), (64, 32, 32, 4, 3),
        (32, 32, 32, 4, 3),
    ),
    8: ((64, 64, 16, 8, 2), (32, 64, 16, 4, 2), (64, 32, 16, 4, 2), (32, 32, 16, 4, 2)),
}  # fmt: skip
# By itemsize, for symbolic sizes: how many values of an operand a thread computes addresses for.
_PLACES_OF_A_THREAD = {2: 8, 4: 4, 8: 4}


def contraction_configurations(
    rows: int,
    columns: int,
    depth: int,
    batch: int,
    itemsize: int,
    *,
    is_guarded: bool = False,
    is_symbolic: bool = False,
) -> list[Configuration]:
    """For tiles of a matrix product. The default is the first configuration with enough programs for a GPU, or else the one with
    the most. Guarded operands (`is_guarded`) have masks of their own, and symbolic sizes (`is_symbolic`) more index arithmetic.
    Both take registers that products of float32 need."""

    def made(blocks: tuple[int, int, int, int, int]) -> Configuration:
        lengths = [
            max(_LEAST_DOT, min(block, power_of_two(size)))
            for block, size in zip(blocks, (rows, columns, depth), strict=False)
        ]
        if (is_guarded or is_symbolic) and itemsize == 4:
            lengths[2] = _LEAST_DOT
        warps = min(blocks[3], max(1, lengths[0] * lengths[1] // 256))
        if is_symbolic:
            most = 32 * _PLACES_OF_A_THREAD[itemsize]
            warps = min(8, max(warps, max(lengths[:2]) * lengths[2] // most))
            while lengths[2] > _LEAST_DOT and max(lengths[:2]) * lengths[2] > warps * most:
                lengths[2] //= 2
        return Configuration(tuple(zip(("MBLOCK", "NBLOCK", "KBLOCK"), lengths, strict=True)), warps, blocks[4])

    def programs(configuration: Configuration) -> int:
        lengths = configuration.constants
        return batch * -(-rows // lengths["MBLOCK"]) * -(-columns // lengths["NBLOCK"])

    candidates = [made(blocks) for blocks in _DOT_BLOCKS[itemsize]]
    default = next((one for one in candidates if programs(one) >= _FULL_GPU), max(candidates, key=programs))
    return [default, *candidates]


# By itemsize, then by the widest head: blocks of queries and of keys, warps and stages.
_ATTENTION_BLOCKS: dict[int, dict[int, list[tuple[int, int, int, int]]]] = {
    2: {64: [(128, 64, 8, 2), (128, 64, 4, 2), (64, 64, 4, 2), (64, 32, 4, 3)],
        128: [(128, 64, 8, 2), (64, 64, 8, 2), (64, 32, 4, 2)],
        256: [(64, 32, 8, 1), (32, 32, 4, 1)]},
    4: {64: [(32, 32, 4, 1), (64, 32, 8, 1)],
        128: [(32, 32, 8, 1), (32, 16, 4, 1), (16, 32, 4, 1)],
        256: [(32, 16, 8, 1), (16, 16, 4, 1)]},
    8: {64: [(32, 32, 4, 1), (16, 16, 4, 1)],
        128: [(16, 16, 4, 1), (32, 16, 4, 1)],
        256: [(16, 16, 4, 1)]},
}  # fmt: skip


def attention_configurations(
    queries: int, keys: int, key_width: int, value_width: int, itemsize: int, *, is_forward: bool
) -> list[Configuration]:
    """For attention kernels whose heads are padded to `key_width` and `value_width`. Backward kernels hold twice as much in
    registers: they take the blocks for heads twice as wide, of at most 64 rows."""
    width = max(key_width, value_width) * (1 if is_forward else 2)
    candidates = _ATTENTION_BLOCKS[itemsize][min((known for known in (64, 128, 256) if known >= width), default=256)]
    made = []
    for rows, columns, warps, stages in candidates:
        if rows > 64 and not is_forward:
            continue
        lengths = [
            max(_LEAST_DOT, min(block, power_of_two(size))) for block, size in ((rows, queries), (columns, keys))
        ]
        blocks = {"MBLOCK": lengths[0], "NBLOCK": lengths[1], "DBLOCK": key_width, "EBLOCK": value_width}
        made.append(Configuration(tuple(blocks.items()), warps, stages))
    return list(dict.fromkeys(made))


def allowed(
    candidates: Iterable[Configuration], is_allowed: Callable[[dict[str, int]], bool]
) -> tuple[Configuration, ...]:
    """The configurations that a kernel's source is valid for, without duplicates. The first is the default."""
    return tuple(dict.fromkeys(made for made in candidates if is_allowed(made.constants)))


def power_of_two(value: int) -> int:
    """The least power of two that is not smaller."""
    return 1 << max(value - 1, 0).bit_length()
