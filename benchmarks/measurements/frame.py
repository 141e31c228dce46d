"""Shared by the commands that make tables: options, printing rows as they arrive, and writing a CSV file after each."""

from __future__ import annotations

import argparse
import csv
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd


def options_of(document: str | None, *, only: bool = False) -> argparse.ArgumentParser:
    """A parser with --csv, and with --only for tables with many names."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, help="the table, written after each row")
    if only:
        parser.add_argument("--only", default="", help="rows whose names contain this")
    return parser


def shown(rows: Iterable[Any], file: Path | None) -> pd.DataFrame:
    """Print and write rows, which are mappings or dataclasses, as they arrive. Returns the table."""
    found: list[Mapping[str, Any]] = []
    for row in rows:
        found.append(row if isinstance(row, Mapping) else asdict(row))
        print("  ".join(f"{key}={value}" for key, value in found[-1].items()), flush=True)
        write_rows(found, file)
    return pd.DataFrame(found)


def write_rows(rows: Iterable[Mapping[str, Any]], file: Path | None) -> None:
    """Write rows as CSV, if a file is given; integers stay integers beside empty cells."""
    if file is not None:
        pd.DataFrame(list(rows), dtype=object).to_csv(file, index=False)


def read_notes(file: Path | None) -> dict[str, dict[str, str]]:
    """The notes of a reviewer on findings, by bucket."""
    if file is None:
        return {}
    with file.open(newline="", encoding="utf-8") as opened:
        return {row["bucket"]: row for row in csv.DictReader(opened)}
