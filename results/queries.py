"""Queries over a whole run, which count and filter in the database and not in Python.

SQL, and no data frame library that reads the whole run: what `show` and `compare` print is a few counts and the rows that differ,
and a database has an index for them. The remaining rows are narrow.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import sqlalchemy as sa

from oracle.verdict import BiasSum, Status, Verdict
from results.bias import BiasFinding, BiasKey, add_sum, findings_of_sums
from results.schema import CASES, RECORDS, RUNS
from results.store import COMPLETE, SAME_CASE, RunInfo, Store, absent_verdict

FINDINGS: Final = tuple(status.value for status in Status if status.is_finding)
BLOCK: Final = 5000  # rows that are fetched at once
MOST_PARAMETERS: Final = 500  # case ids in one query: databases limit the number of parameters

# Columns by which findings are grouped and listed.
NARROW: Final = (
    *("case_id", "suite", "group", "name", "subject", "dtype", "direction"),
    *("status", "symptom", "issue", "observed"),
)
# Columns of a finding in full, as `results.tables.failures` shows it.
DETAILED: Final = (
    *NARROW,
    *("stage", "worst_where", "worst_index", "worst_eager", "worst_subject", "worst_truth", "worst_eager_error"),
    *("worst_subject_error", "worst_allowed_error", "worst_ulp", "repro"),
)


Cases: TypeAlias = str | sa.ColumnElement[bool]
"""Which cases of a run: a glob of case ids, or a condition on CASES."""


def case_filter(glob: Cases) -> sa.ColumnElement[bool]:
    """Whether a case id equals the glob or matches it. Ids have brackets ("inductor[mode=...]"), which a glob takes for a set."""
    if not isinstance(glob, str):
        return glob
    if glob == "*":
        return sa.true()
    return sa.or_(CASES.c.case_id == glob, CASES.c.case_id.regexp_match(_regex(glob)))


def _regex(glob: str) -> str:
    """The glob as a regular expression that Python and PostgreSQL read alike, which that of `fnmatch.translate` is not."""
    # A set is closed by a bracket that is not its first character; else the bracket stands for itself.
    pieces = re.findall(r"\[!?.[^\]]*\]|.", glob, re.DOTALL)
    return f"(?s)^{''.join(map(_regex_of_piece, pieces))}\\Z"


def _regex_of_piece(piece: str) -> str:
    if len(piece) > 1:
        return fnmatch.translate(piece).removeprefix("(?s:").removesuffix(")\\Z")
    return {"*": ".*", "?": "."}.get(piece) or re.escape(piece)


def planned_in(run: RunInfo, glob: Cases = "*") -> tuple[sa.ColumnElement[bool], ...]:
    """Whether a row of CASES is of this run and its id matches the glob."""
    return (
        CASES.c.run == sa.select(RUNS.c.run).where(RUNS.c.run_id == run.run_id).scalar_subquery(),
        case_filter(glob),
    )


def _is_finding(run: RunInfo) -> sa.ColumnElement[bool]:
    is_finding = RECORDS.c.status.in_(FINDINGS)
    return sa.or_(is_finding, RECORDS.c.status.is_(None)) if run.state == COMPLETE else is_finding


def count_statuses(store: Store, run: RunInfo, glob: Cases = "*") -> list[tuple[str, str, str, int]]:
    """Suite, subject, status and the number of cases with it, sorted, for each status that occurs."""
    keys = (CASES.c.suite, CASES.c.subject, RECORDS.c.status)
    query = (
        sa.select(*keys, sa.func.count())
        .join_from(CASES, RECORDS, SAME_CASE, isouter=True)
        .where(*planned_in(run, glob))
        .group_by(*keys)
    )
    absent = absent_verdict(run.state).status.value
    with store.reading() as connection:
        rows = connection.execute(query).all()
    counts: Counter[tuple[str, str, str]] = Counter()
    for suite, subject, status, cases in rows:  # a case may have the status that one without a record has
        counts[suite, subject, status or absent] += cases
    return sorted((*key, cases) for key, cases in counts.items())


def notable_columns(
    store: Store, run: RunInfo, glob: Cases = "*", *, columns: Sequence[str] = NARROW
) -> dict[str, list[Any]]:
    """The cases that do not just pass, and all cases of programs with a finding, in planned order.

    Columns: `columns`, and `is_finding` and `is_silent` of the status. It is all that grouping of findings, the first wrong rungs
    and the tables of `show` need of a run's cases.
    """
    wrong = (
        sa.select(CASES.c.suite, CASES.c.name)
        .join_from(CASES, RECORDS, SAME_CASE, isouter=True)
        .where(*planned_in(run, glob), _is_finding(run))
    )
    is_notable = sa.or_(
        RECORDS.c.status.is_(None),
        RECORDS.c.status != Status.PASS.value,
        sa.tuple_(CASES.c.suite, CASES.c.name).in_(wrong),
    )
    found = read_columns(store, run, columns, *planned_in(run, glob), is_notable)
    by_word = {status.value: status for status in Status}
    statuses = [by_word[word] for word in found["status"]]
    found["is_finding"] = [status.is_finding for status in statuses]
    found["is_silent"] = [status.is_silent for status in statuses]
    return found


def read_columns(
    store: Store, run: RunInfo, columns: Sequence[str], *conditions: sa.ColumnElement[bool]
) -> dict[str, list[Any]]:
    """These columns of the planned cases that meet the conditions, in planned order.

    A case without a record has the status and symptom of `Store.records`. Equal texts of labels are one object: databases give a
    new one for each row.
    """
    same: dict[str, str] = {}
    query = (
        sa.select(*(_column(name) for name in columns), RECORDS.c.nan_columns)
        .join_from(CASES, RECORDS, SAME_CASE, isouter=True)
        .where(*conditions)
        .order_by(CASES.c.ordinal)
    )
    found: dict[str, list[Any]] = {name: [] for name in (*columns, "nan_columns")}
    with store.reading() as connection:
        for block in connection.execution_options(yield_per=BLOCK).execute(query).partitions():
            for (name, values), block_values in zip(found.items(), zip(*block, strict=True), strict=True):
                values.extend(map(same.setdefault, block_values, block_values) if name in _LABELS else block_values)
    for row, nans in enumerate(found.pop("nan_columns")):
        for name in nans or ():
            if name in found:
                found[name][row] = float("nan")
    absent = absent_verdict(run.state)
    for row, status in enumerate(found["status"]):
        if status is None:
            found["status"][row] = absent.status.value
            for name, value in (("symptom", absent.symptom), ("issue", ""), ("observed", ""), ("repro", "")):
                if name in found:
                    found[name][row] = value
    return found


_LABELS: Final = frozenset({"suite", "group", "subject", "dtype", "direction", "status", "issue", "observed"})


def _column(name: str) -> sa.ColumnElement[Any]:
    return CASES.c[name] if name in CASES.c else RECORDS.c[name]


# ------------------------------------------------------------------------------------------------- systematic errors

# Of each database: a field of the first error sum in `extra`, and whether there is a second one.
_FIRST_SUM: Final = {
    "sqlite": (
        "json_extract(records.extra, '$.verdict.bias[0].{field}')",
        "json_extract(records.extra, '$.verdict.bias[1]') IS NOT NULL",
    ),
    "postgresql": (
        "(CAST(records.extra AS jsonb) #>> '{{verdict,bias,0,{field}}}')",
        "CAST(records.extra AS jsonb) #> '{verdict,bias,1}' IS NOT NULL",
    ),
}
_NUMBERS: Final = {"eps": "double precision", "tensors": "bigint", "weight": "bigint"} | dict.fromkeys(
    ("subject", "eager", "variance"), "double precision"
)
_HAS_BIAS: Final = """{find}(records.extra, '"bias"') > 0"""
# What the databases' JSON cannot hold and Python's can.
_IS_CLEAN: Final = " AND ".join(f"{{find}}(records.extra, '{word}') = 0" for word in ("NaN", "Infinity", "\\u0000"))
_FIND: Final = {"sqlite": "instr", "postgresql": "strpos"}


def bias_findings(store: Store, run: RunInfo, glob: Cases = "*") -> list[BiasFinding]:
    """The systematic errors of a run, as `results.bias.find_bias`.

    The database adds the sums of the records that have one; the few with several, or with a NaN, are read.
    """
    sums: dict[BiasKey, BiasSum] = {}
    cases: dict[BiasKey, int] = {}
    labels = (CASES.c.suite, CASES.c.group, CASES.c.subject, CASES.c.device)
    joined = sa.join(CASES, RECORDS, SAME_CASE)
    conditions = (*planned_in(run, glob), RECORDS.c.status.not_in(FINDINGS))
    with store.reading() as connection:
        field, has_second = _FIRST_SUM[connection.dialect.name]
        find = _FIND[connection.dialect.name]
        has_bias, is_clean = _HAS_BIAS.format(find=find), _IS_CLEAN.format(find=find)
        # Only CASE keeps a database from parsing text as JSON that is not JSON.
        is_simple = f"CASE WHEN {has_bias} AND {is_clean} THEN NOT ({has_second}) ELSE 1 = 0 END"
        dtype = sa.literal_column(field.format(field="dtype"))
        numbers = {name: f"CAST({field.format(field=name)} AS {kind})" for name, kind in _NUMBERS.items()}
        added = [sa.literal_column(f"{'min' if name == 'eps' else 'sum'}({text})") for name, text in numbers.items()]
        query = (
            sa.select(*labels, dtype, sa.func.count(), *added)
            .select_from(joined)
            .where(*conditions, sa.text(is_simple))
            .group_by(*labels, dtype)
            .order_by(sa.func.min(CASES.c.ordinal))
        )
        for row in connection.execute(query):
            *key, count, eps, tensors, weight, subject, eager, variance = tuple(row)
            sums[tuple(key)] = BiasSum(
                dtype=key[-1],
                eps=eps,
                tensors=int(tensors),
                weight=int(weight),
                subject=subject,
                eager=eager,
                variance=variance,
            )
            cases[tuple(key)] = count
        others = sa.text(f"{has_bias} AND NOT ({is_simple})")
        for row in connection.execute(
            sa.select(*labels, RECORDS.c.extra).select_from(joined).where(*conditions, others)
        ):
            *labels_of_row, extra = tuple(row)
            for one in json.loads(extra).get("verdict", {}).get("bias", ()):
                add_sum(sums, cases, (*labels_of_row, one["dtype"]), BiasSum(**one))
    return findings_of_sums(sums, cases)


def notable_verdicts(store: Store, run: RunInfo) -> Iterator[tuple[str, Verdict]]:
    """Case id and verdict (status, symptom, issue and reruns) of the cases that do not just pass, in planned order."""
    return _verdicts(store, run, sa.or_(RECORDS.c.status.is_(None), RECORDS.c.status != Status.PASS.value))


def passing_of(store: Store, run: RunInfo, case_ids: Sequence[str]) -> Iterator[tuple[str, Verdict]]:
    """The same of those of these cases that pass."""
    for first in range(0, len(case_ids), MOST_PARAMETERS):
        some = CASES.c.case_id.in_(case_ids[first : first + MOST_PARAMETERS])
        yield from _verdicts(store, run, sa.and_(some, RECORDS.c.status == Status.PASS.value))


def rerun_findings(store: Store, run: RunInfo, match: Cases = "*") -> list[tuple[str, Verdict]]:
    """Case id and verdict of the findings that were run again, in planned order."""
    is_rerun = sa.and_(RECORDS.c.status.in_(FINDINGS), RECORDS.c.extra.contains('"reruns"'))
    found = _verdicts(store, run, sa.and_(case_filter(match), is_rerun))
    return [(case_id, verdict) for case_id, verdict in found if verdict.reruns]


def _verdicts(store: Store, run: RunInfo, condition: sa.ColumnElement[bool]) -> Iterator[tuple[str, Verdict]]:
    query = (
        sa.select(CASES.c.case_id, RECORDS.c.status, RECORDS.c.symptom, RECORDS.c.issue, RECORDS.c.extra)
        .join_from(CASES, RECORDS, SAME_CASE, isouter=True)
        .where(*planned_in(run), condition)
        .order_by(CASES.c.ordinal)
    )
    absent = absent_verdict(run.state)
    with store.reading() as connection:
        for block in connection.execution_options(yield_per=BLOCK).execute(query).partitions():
            for case_id, status, symptom, issue, extra in block:
                if status is None:
                    yield case_id, absent
                    continue
                reruns = json.loads(extra).get("verdict", {}).get("reruns", ()) if '"reruns"' in extra else ()
                yield case_id, Verdict(status=Status(status), symptom=symptom, issue=issue, reruns=tuple(reruns))
