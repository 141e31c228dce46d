"""With which blocks and how many warps a kernel may be launched.

The text of a kernel holds for all of its configurations: blocks are constants of a launch. Results depend on them in the order of
summation only.

Counterpart: torch/_inductor/runtime/triton_heuristics.py pointwise, reduction, persistent_reduction
Differs: a list that a kernel carries, the first being what is launched unless something else has been measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

PERSISTENT = 1024
"""The longest reduction of which a whole row is in one block."""

WIDEST_ROWS = 4096
"""Rows of so many values are in one block where their columns are reduced in the same kernel."""

MOST_VALUES = 8192
"""Of a block."""

_BLOCK = 1024
_FULL_GPU = 132  # programs that the default tries to have


@dataclass(frozen=True, slots=True)
class Configuration:
    """Lengths of blocks by the names of their constants, and options of the launch."""

    blocks: tuple[tuple[str, int], ...]
    num_warps: int
    num_stages: int = 1

    @property
    def constants(self) -> dict[str, int]:
        return dict(self.blocks)


def configuration(num_warps: int | None = None, **blocks: int) -> Configuration:
    """With as many warps as so many values in a block take, unless a number is given."""
    values = 1
    for block in blocks.values():
        values *= block
    return Configuration(tuple(blocks.items()), warps_for(values) if num_warps is None else num_warps)


def warps_for(values: int) -> int:
    """How many warps share so many values."""
    return 8 if values >= 4096 else 4 if values >= 512 else 2 if values >= 128 else 1


def pointwise_configurations(points: int) -> list[Configuration]:
    """Of one run of points."""
    all_of_them = power_of_two(points)
    default = filling(min(_BLOCK, all_of_them), points, least=256)
    others = (min(block, all_of_them) for block in (256, 512, _BLOCK, 2048))
    return [configuration(XBLOCK=default), *(configuration(XBLOCK=block) for block in others)]


def filling(block: int, points: int, *, least: int) -> int:
    """A block of points, halved while its programs do not fill a GPU: less for each thread to do, and less to compile."""
    while block > least and -(-points // block) < _FULL_GPU:
        block //= 2
    return block


def tiled_configurations() -> list[Configuration]:
    """Of points in two dimensions, both of which lie side by side in some memory."""
    return [configuration(YBLOCK=y, XBLOCK=x) for y, x in ((32, 32), (64, 64), (16, 64), (64, 16), (16, 16))]


def persistent_configurations(kept: int, reduced: int, *, is_kept_innermost: bool) -> list[Configuration]:
    """Of rows that are in one block each; `is_kept_innermost` if there is memory where rows lie side by side."""
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
    """Of rows that are read in blocks; `is_kept_innermost` if there is memory where rows lie side by side."""
    rows, length = power_of_two(kept), power_of_two(reduced)
    along_rows = [(1, 2048), (1, 4096), (1, 1024), (2, 1024), (4, 512)]
    across_rows = [(64, 32), (64, 16), (32, 64), (128, 16), (16, 128)]
    pairs = across_rows if is_kept_innermost else along_rows
    return [configuration(XBLOCK=min(x, rows), RBLOCK=min(r, length)) for x, r in pairs]


def carrying_configurations(rows: int, width: int) -> list[Configuration]:
    """Of programs that go through so many rows, of which whole ones are in a block, and carry a result for each column."""
    length, most = power_of_two(width), power_of_two(rows)
    default = max(1, 2048 // length)
    blocks = [min(block, most) for block in (default, 2 * default, max(default // 2, 1), 4 * default)]
    made = [configuration(XBLOCK=block, RBLOCK=length) for block in blocks if block * length <= MOST_VALUES]
    wide = [configuration(2 * one.num_warps, **one.constants) for one in made if one.num_warps < 16]
    return [*made, *wide]


_LEAST_DOT = 16  # lengths of a block that tl.dot takes
# By the bytes of a value: blocks of rows, of columns and of what is added up, warps and stages. They fit in registers, all but
# a few bytes.
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
# Values of an operand that a thread computes places for, by the bytes of a value, where these are made of symbolic sizes.
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
    """Of tiles of a matrix product of values of so many bytes. The default is the first that gives enough programs, or the one
    that gives most. Guarded operands have masks of their own, which take registers that products of float32 need; so do places
    on several axes of symbolic sizes."""

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


# Blocks of queries and of keys, warps and stages, by the bytes of a value, for heads up to so many values wide.
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
    """Of blocks of queries and keys, whose heads are `key_width` and `value_width` wide with what is masked. Gradients hold twice
    as much, and have blocks as of heads twice as wide, of at most 64 rows."""
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
    """Those that a kernel's text holds for, each once, the first one being the default that the text was made for."""
    return tuple(dict.fromkeys(made for made in candidates if is_allowed(made.constants)))


def power_of_two(value: int) -> int:
    """The least one that is not below."""
    return 1 << max(value - 1, 0).bit_length()
