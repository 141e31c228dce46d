"""Adds the error sums of a run's records in the database, and keeps the result with the run.

`results.bias` finds systematic errors in these sums. To add them, the database parses a text of each record, which takes longer
than all else that a comparison reads. So they are added once, when a run ends, and kept in the table of facts about the database.
Records are only ever added, so kept sums hold as long as the run has as many records as they are the sums of.
"""

from __future__ import annotations

import json
from typing import Any, Final, TypeAlias

import sqlalchemy as sa

from oracle.verdict import BiasSum, Status
from results.bias import BiasKey, add_sum
from results.schema import CASES, ERROR_SUMS, META, RECORDS, RUNS

Sums: TypeAlias = tuple[dict[BiasKey, BiasSum], dict[BiasKey, int]]
"""The sums over cases that are no findings, and of how many cases."""

_FINDINGS: Final = tuple(status.value for status in Status if status.is_finding)
# `extra` as the database's functions take it, and a field of the first error sum.
_AS_JSON: Final = {"sqlite": "records.extra", "postgresql": "CAST(records.extra AS jsonb)"}
_FIRST_SUM: Final = {
    "sqlite": "json_extract(simple, '$.verdict.bias[0].{field}')",
    "postgresql": "(simple #>> '{{verdict,bias,0,{field}}}')",
}
_NUMBERS: Final = {"eps": "double precision", "tensors": "bigint", "weight": "bigint"} | dict.fromkeys(
    ("subject", "eager", "variance"), "double precision"
)
# Whether `extra` has a single error sum, in one reading of its text: NaN and infinity, which Python writes, are no JSON.
_IS_SIMPLE: Final = {
    "sqlite": "CASE WHEN json_valid(records.extra) THEN json_array_length(records.extra, '$.verdict.bias') = 1 ELSE 0 END",
    # PostgreSQL refuses to read \\u0000, too.
    "postgresql": "CASE WHEN strpos(records.extra, 'NaN') = 0 AND strpos(records.extra, 'Infinity') = 0"
    " AND strpos(records.extra, '\\u0000') = 0"
    " THEN jsonb_array_length(CAST(records.extra AS jsonb) #> '{verdict,bias}') = 1 ELSE 1 = 0 END",
}
_HAS_BIAS: Final = {
    "sqlite": "instr(records.extra, '\"bias\"') > 0",
    "postgresql": "strpos(records.extra, '\"bias\"') > 0",
}


def sums_of_run(connection: sa.Connection, run_id: str, *, recorded: int) -> Sums:
    """The sums of a run that has so many records: the kept ones, if they are of as many."""
    number = connection.execute(sa.select(RUNS.c.run).where(RUNS.c.run_id == run_id)).scalar()
    kept = connection.execute(sa.select(META.c.value).where(META.c.key == f"{ERROR_SUMS}{number}")).scalar()
    return _read(kept, run_id, recorded) or added_sums(connection, CASES.c.run == number)


def _read(kept: str | None, run_id: str, recorded: int) -> Sums | None:
    """Kept sums; None if they are of other records, or damaged."""
    try:
        read = json.loads(kept or "{}")
        if (read.get("run"), read.get("records")) != (run_id, recorded):
            return None
        sums, cases = {}, {}
        for key, count, *fields in read["sums"]:
            sums[tuple(key)] = BiasSum(dtype=key[-1], **dict(zip(_NUMBERS, fields, strict=True)))
            cases[tuple(key)] = count
    except (ValueError, TypeError, LookupError, AttributeError):
        return None
    return sums, cases


def keep_sums(connection: sa.Connection, run: int) -> None:
    """Add the sums of a run, and keep them. For a run that is complete."""
    run_id, recorded = connection.execute(
        sa.select(RUNS.c.run_id, sa.select(sa.func.count()).where(RECORDS.c.run == run).scalar_subquery()).where(
            RUNS.c.run == run
        )
    ).one()
    sums, cases = added_sums(connection, CASES.c.run == run)
    rows = [(key, cases[key], *(getattr(one, field) for field in _NUMBERS)) for key, one in sums.items()]
    value = json.dumps({"run": run_id, "records": recorded, "sums": rows})
    connection.execute(sa.delete(META).where(META.c.key == f"{ERROR_SUMS}{run}"))
    connection.execute(sa.insert(META), [{"key": f"{ERROR_SUMS}{run}", "value": value}])


def added_sums(connection: sa.Connection, *conditions: sa.ColumnElement[bool]) -> Sums:
    """The sums of the cases that meet these conditions on CASES.

    The database adds the sums of the records that have one; the few with several, or with a NaN, are read.
    """
    sums: dict[BiasKey, BiasSum] = {}
    cases: dict[BiasKey, int] = {}
    labels = (CASES.c.suite, CASES.c.group, CASES.c.subject, CASES.c.device)
    joined = sa.join(CASES, RECORDS, sa.and_(RECORDS.c.run == CASES.c.run, RECORDS.c.ordinal == CASES.c.ordinal))
    name = connection.dialect.name
    wanted = (*conditions, RECORDS.c.status.not_in(_FINDINGS), sa.text(_HAS_BIAS[name]))
    # Read once in a query of its own (which OFFSET keeps apart), as every function that is given a text parses it.
    simple = sa.literal_column(f"CASE WHEN {_IS_SIMPLE[name]} THEN {_AS_JSON[name]} END").label("simple")
    rows = sa.select(*labels, simple).select_from(joined).where(*wanted).offset(0).subquery()
    key = (*(rows.c[label.key] for label in labels), sa.literal_column(_FIRST_SUM[name].format(field="dtype")))
    numbers = {field: f"CAST({_FIRST_SUM[name].format(field=field)} AS {kind})" for field, kind in _NUMBERS.items()}
    added = [sa.literal_column(f"{'min' if field == 'eps' else 'sum'}({text})") for field, text in numbers.items()]
    has_others = False
    for row in connection.execute(sa.select(*key, sa.func.count(), *added).select_from(rows).group_by(*key)):
        *found, count, eps, tensors, weight, subject, eager, variance = tuple(row)
        if found[-1] is None:
            has_others = True
            continue
        sums[tuple(found)] = BiasSum(
            dtype=found[-1],
            eps=eps,
            tensors=int(tensors),
            weight=int(weight),
            subject=subject,
            eager=eager,
            variance=variance,
        )
        cases[tuple(found)] = count
    if has_others:
        others = sa.select(*labels, RECORDS.c.extra).select_from(joined).where(*wanted)
        for row in connection.execute(others.where(sa.text(f"NOT ({_IS_SIMPLE[name]})"))):
            _add_record(sums, cases, tuple(row))
    return sums, cases


def _add_record(sums: dict[BiasKey, BiasSum], cases: dict[BiasKey, int], row: tuple[Any, ...]) -> None:
    """Add the sums of one record, read as Python does."""
    *labels, extra = row
    for one in json.loads(extra).get("verdict", {}).get("bias", ()):
        add_sum(sums, cases, (*labels, one["dtype"]), BiasSum(**one))
