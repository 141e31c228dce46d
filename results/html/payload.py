"""The data inside the file: columns of codes and numbers as JSON, compressed, in base64.

Text that repeats is stored once: a `text` column is a list of distinct strings and, for each row, an index into it. The browser
unpacks a block with its own DecompressionStream. Base64 has no "<", so nothing in a block can end the element that holds it.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Iterable
from itertools import islice
from typing import Any

_DIGITS = 4  # significant digits of measurements: their noise is larger


def text_column(values: Iterable[str]) -> dict[str, Any]:
    """A column of text: `words`, in the order of first appearance, and a `codes` index for each row."""
    words: dict[str, int] = {}
    codes = [words.setdefault(value, len(words)) for value in values]
    return {"words": list(words), "codes": codes}


def number_column(values: Iterable[float | None]) -> list[float | None]:
    """A column of numbers with four significant digits; null for None, NaN and infinities, which JSON has no numbers for."""
    return [None if value is None or not math.isfinite(value) else _short(value) for value in values]


def _short(value: float) -> float | int:
    if isinstance(value, int):
        return value
    return float(f"{value:.{_DIGITS}g}")


def pack(data: Any) -> str:
    """JSON, gzip, base64. The same data always gives the same text."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=6, mtime=0)).decode("ascii")


def unpack(text: str) -> Any:
    """The inverse of `pack`."""
    return json.loads(gzip.decompress(base64.b64decode(text)))


def blocks(items: Iterable[Any], size: int) -> list[str]:
    """The items in packed lists of `size`. They may be made one after another, since only one list is in memory at once."""
    rest = iter(items)
    return [pack(block) for block in iter(lambda: list(islice(rest, size)), [])]
