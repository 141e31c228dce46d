"""Finds what no version of torch-oracle writes in a database: a cell of another kind than its column, or broken JSON.

SQLite takes text for a column of numbers without a word, and JSON is text to every database. To look for such cells reads the
whole file, so nothing is looked for until a command fails over what it has read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

import sqlalchemy as sa

from results.schema import CASES, PROGRAMS, RECORDS, RUNS, JsonList

# Types of Python's values that a column may hold, with words for a reader, by the type of the column.
_INTEGER: Final = ((int,), "an integer")
_NUMBER: Final = ((int, float), "a number")
_TEXT: Final = ((str,), "text")
# Columns of text that hold JSON, with the type of the value; "" stands for none in `extra`.
_JSON: Final = {RUNS.c.environment: dict, RUNS.c.arguments: dict, PROGRAMS.c.program: dict, RECORDS.c.extra: dict}
_SHOWN: Final = 40  # characters of a cell
_BLOCK: Final = 2000


def find_damage(connection: sa.Connection) -> tuple[str, str] | None:
    """The first such cell: what it is and holds, and what was expected of it. None if all cells are as they are written."""
    for table in (RUNS, PROGRAMS, CASES, RECORDS):
        columns = list(table.columns)
        rows = connection.execution_options(yield_per=_BLOCK).exec_driver_sql(
            f"SELECT {', '.join(column.name for column in columns)} FROM {table.name}"
        )
        for row in rows:
            for column, value in _damaged(columns, row):
                places = zip(columns, row, strict=True)
                keys = ", ".join(f"{key.name} {str(at)[:_SHOWN]}" for key, at in places if key.primary_key)
                return f"column {column.name} of table {table.name} at {keys} holds {_shown(value)}", _expected(column)
    return None


def _damaged(columns: Iterable[sa.Column[Any]], row: Iterable[Any]) -> Iterator[tuple[sa.Column[Any], Any]]:
    for column, value in zip(columns, row, strict=True):
        if value is None:  # the database refuses it where it may not be
            continue
        kinds, _ = _kind(column)
        if not isinstance(value, kinds) or not _is_json(column, value):
            yield column, value


def _kind(column: sa.Column[Any]) -> tuple[tuple[type, ...], str]:
    if isinstance(column.type, sa.Integer):
        return _INTEGER
    return _NUMBER if isinstance(column.type, sa.Double) else _TEXT


def _is_json(column: sa.Column[Any], text: str) -> bool:
    """Whether a column of JSON holds JSON of its type. True for a column of any other text."""
    wanted = list if isinstance(column.type, JsonList) else _JSON.get(column)
    if wanted is None or not text:
        return True
    try:
        return isinstance(json.loads(text), wanted)
    except ValueError:
        return False


def _expected(column: sa.Column[Any]) -> str:
    if isinstance(column.type, JsonList) or column in _JSON:
        return f"JSON, a{' list' if isinstance(column.type, JsonList) else 'n object'}: {column.doc}"
    return f"{_kind(column)[1]}: {column.doc}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
