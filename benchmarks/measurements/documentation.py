"""The share of the public documentation's examples that refimpl runs right: `python -m benchmarks.measurements.documentation`.

The examples are the programs of refimpl/tests/documentation, one after each code example of a page. Each runs with refimpl and,
as a check of the programs themselves, with PyTorch. A row is an area of the documentation; the last is all of them.
`--examples FILE` also writes a row for each example.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measurements.frame import options_of, shown, write_rows
from refimpl.tests.documentation.example import Ending, Example, Names, ending_of, of_refimpl
from refimpl.tests.documentation.examples import EXAMPLES


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """Examples of one area. `refused`: an error where the page shows none; `pytorch_right`: with PyTorch's own entry points."""

    area: str
    pages: int
    examples: int
    right: int
    refused: int
    wrong: int
    right_percent: float
    pytorch_right: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One example. `why`: the first line of its error with refimpl."""

    area: str
    example: str
    page: str
    path: str
    entry: str
    refimpl: str
    pytorch: str
    why: str


def of_pytorch() -> Any:
    """`torch` with PyTorch's own entry points, whose private modules are loaded as they are named."""

    def find(name: str) -> Any:
        try:
            importlib.import_module(name)
        except ImportError:
            module, _, attribute = name.rpartition(".")
            return getattr(importlib.import_module(module), attribute)
        return Names(name, find)

    return Names("torch", find)


def rows_of(examples: Sequence[Example]) -> Iterator[Row]:
    """Run the examples with both."""
    ours, theirs = of_refimpl(), of_pytorch()
    for example in examples:
        ending, why = ending_of(example, ours)
        yield Row(
            area=example.area, example=example.name, page=example.page, path=example.path, entry=example.entry,
            refimpl=ending.value, pytorch=ending_of(example, theirs)[0].value, why=why,
        )  # fmt: skip


def areas_of(rows: Sequence[Row]) -> Iterator[Area]:
    """A row for each area, and one for all."""
    names = list(dict.fromkeys(row.area for row in rows))
    for name in [*names, "all"]:
        inside = [row for row in rows if name in ("all", row.area)]
        endings = Counter(row.refimpl for row in inside)
        yield Area(
            area=name,
            pages=len({row.path for row in inside}),
            examples=len(inside),
            right=endings[Ending.RIGHT.value],
            refused=endings[Ending.REFUSED.value],
            wrong=endings[Ending.WRONG.value],
            right_percent=round(100 * endings[Ending.RIGHT.value] / len(inside), 1),
            pytorch_right=sum(row.pytorch == Ending.RIGHT.value for row in inside),
        )


def main() -> None:
    parser: argparse.ArgumentParser = options_of(__doc__, only=True)
    parser.add_argument("--examples", type=Path, help="a table with a row for each example")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    rows = list(rows_of([example for example in EXAMPLES if options.only in str(example)]))
    write_rows([{name: getattr(row, name) for name in Row.__slots__} for row in rows], options.examples)
    shown(areas_of(rows), options.csv)


if __name__ == "__main__":
    main()
