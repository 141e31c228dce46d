"""Queries over a whole run, which count and filter in the database and not in Python.

SQL, and no data frame library that reads the whole run: what `show` and `compare` print is a few counts and the rows that differ,
and a database has an index for them. The remaining rows are narrow.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import sqlalchemy as sa

from oracle.verdict import Status, Verdict
from results.bias import BiasFinding, findings_of_sums
from results.error_sums import added_sums, sums_of_run
from results.groups import FindingGroup, GroupRow, group_rows
from results.schema import CASES, RECORDS, RUNS
from results.store import COMPLETE, SAME_CASE, RunInfo, Store, absent_verdict

FINDINGS: Final = tuple(status.value for status in Status if status.is_finding)
BLOCK: Final = 5000  # rows that are fetched at once
_MOST_RUNS: Final = 30  # of the past that are asked who judged a case last
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
    if not _SPECIAL.search(glob):
        return CASES.c.case_id == glob
    return sa.or_(CASES.c.case_id == glob, CASES.c.case_id.regexp_match(_regex(glob)))


_SPECIAL: Final = re.compile(r"[*?\[]")


def literal_prefix(glob: str) -> str:
    """The beginning that all ids have that equal or match the glob, as far as it is ASCII."""
    found = re.match(r"[^*?\[\x7f-\U0010ffff]*", glob)
    return found[0] if found else ""


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
    return CASES.c.run == _run_number(run), case_filter(glob)


def _run_number(run: RunInfo) -> sa.ScalarSelect[int]:
    return sa.select(RUNS.c.run).where(RUNS.c.run_id == run.run_id).scalar_subquery()


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


def finding_groups(
    store: Store, run: RunInfo, glob: Cases = "*", *, is_wanted: Callable[[int], bool] | None = None
) -> list[FindingGroup]:
    """The findings of a run in groups, as `results.groups.group_findings`, row by row. `is_wanted`: of these places only."""
    return group_rows(
        row if is_wanted is None or is_wanted(row.position) else row._replace(is_finding=False)
        for row in _rows_of_wrong_programs(store, run, glob)
    )


def _rows_of_wrong_programs(store: Store, run: RunInfo, glob: Cases) -> Iterator[GroupRow]:
    """All cases of programs with a finding, those of one name together."""
    programs = sa.select(CASES.c.suite, CASES.c.name)
    planned = planned_in(run, glob)
    wrong = programs.join_from(RECORDS, CASES, SAME_CASE).where(
        RECORDS.c.run == _run_number(run), RECORDS.c.status.in_(FINDINGS), *planned
    )
    if run.state == COMPLETE and run.planned != run.recorded:
        absent_ones = programs.join_from(CASES, RECORDS, SAME_CASE, isouter=True)
        wrong = wrong.union(absent_ones.where(*planned, RECORDS.c.status.is_(None)))
    columns = (CASES.c.suite, CASES.c.group, CASES.c.name, CASES.c.subject, CASES.c.dtype, CASES.c.direction)
    query = (
        sa.select(*columns, RECORDS.c.status, RECORDS.c.symptom, CASES.c.case_id, CASES.c.ordinal)
        .join_from(CASES, RECORDS, SAME_CASE, isouter=True)
        .where(*planned, sa.tuple_(CASES.c.suite, CASES.c.name).in_(wrong))
        .order_by(CASES.c.name, CASES.c.ordinal)
    )
    absent = absent_verdict(run.state)
    are_findings = {status.value: status.is_finding for status in Status}
    with store.reading() as connection:
        for block in connection.execution_options(yield_per=BLOCK).execute(query).partitions():
            for suite, group, name, subject, dtype, direction, status, symptom, case_id, ordinal in block:
                if status is None:
                    status, symptom = absent.status.value, absent.symptom
                labels = (suite, group, name, subject, dtype, direction)
                yield GroupRow(*labels, status, symptom, case_id, ordinal, are_findings[status])


def known_issues(store: Store, run: RunInfo, glob: Cases = "*") -> dict[str, int]:
    """How many cases differ as the ledger says, by the id of the issue; "" for those that name none."""
    query = (
        sa.select(RECORDS.c.issue, sa.func.count())
        .join_from(RECORDS, CASES, SAME_CASE)
        .where(RECORDS.c.run == _run_number(run), RECORDS.c.status == Status.KNOWN.value, *planned_in(run, glob))
        .group_by(RECORDS.c.issue)
    )
    with store.reading() as connection:
        return {row[0]: row[1] for row in connection.execute(query)}


def unexpected_passes(store: Store, run: RunInfo, glob: Cases = "*") -> list[tuple[str, str, str]]:
    """Case id, issue and symptom of the cases that agree although the ledger says that they differ, in planned order."""
    found = read_columns(
        store,
        run,
        ("case_id", "issue", "symptom", "status"),
        RECORDS.c.run == _run_number(run),
        RECORDS.c.status == Status.XPASS.value,
        *planned_in(run, glob),
    )
    return list(zip(found["case_id"], found["issue"], found["symptom"], strict=True))


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


def bias_findings(store: Store, run: RunInfo, glob: Cases = "*") -> list[BiasFinding]:
    """The systematic errors of a run, as `results.bias.find_bias`."""
    with store.reading() as connection:
        if isinstance(glob, str) and glob == "*":
            sums = sums_of_run(connection, run.run_id, recorded=run.recorded)
        else:
            sums = added_sums(connection, *planned_in(run, glob))
    return findings_of_sums(*sums)


def notable_verdicts(store: Store, run: RunInfo) -> Iterator[tuple[str, Verdict]]:
    """Case id and verdict (status, symptom, issue and reruns) of the cases that do not just pass, in planned order."""
    is_notable = sa.or_(RECORDS.c.status.is_(None), RECORDS.c.status != Status.PASS.value)
    return ((case_id, verdict) for _, case_id, verdict in _verdicts(store, run, is_notable))


def passing_of(store: Store, run: RunInfo, case_ids: Sequence[str]) -> Iterator[tuple[str, Verdict]]:
    """The same of those of these cases that pass."""
    for first in range(0, len(case_ids), MOST_PARAMETERS):
        some = CASES.c.case_id.in_(case_ids[first : first + MOST_PARAMETERS])
        for _, case_id, verdict in _verdicts(store, run, some):
            if verdict.status is Status.PASS:  # with a condition, SQLite would read all passing records of the run
                yield case_id, verdict


def last_judged(store: Store, run_id: str, case_ids: Iterable[str]) -> dict[str, int]:
    """The number of the newest run before this one that has a record of each of these cases; those without one are left out."""
    wanted, found = set(case_ids), dict[str, int]()
    with store.reading() as connection:
        this = sa.select(RUNS.c.run).where(RUNS.c.run_id == run_id).scalar_subquery()
        earlier = sa.select(RUNS.c.run).where(RUNS.c.run < this).order_by(RUNS.c.run.desc()).limit(_MOST_RUNS)
        numbers: Sequence[int] = connection.execute(earlier).scalars().all()
        for run in numbers:
            recorded = sa.select(CASES.c.case_id).join_from(CASES, RECORDS, SAME_CASE).where(CASES.c.run == run)
            of_run = wanted.intersection(connection.execute(recorded).scalars())
            found |= dict.fromkeys(of_run, run)
            wanted -= of_run
            if not wanted:
                break
    return found


def flaky_places(store: Store, run: RunInfo) -> set[int]:
    """The planned places of the findings that were run again and did not fail each time."""
    return {place for place, _, verdict in _rerun(store, run) if verdict.is_flaky}


def rerun_findings(store: Store, run: RunInfo, match: Cases = "*") -> tuple[int, list[tuple[str, Verdict]]]:
    """How many findings were run again, and case id and verdict of those that did not fail each time, in planned order."""
    count, flaky = 0, []
    for _, case_id, verdict in _rerun(store, run, match):
        count += 1
        if verdict.is_flaky:
            flaky.append((case_id, verdict))
    return count, flaky


_HAS_RERUNS = RECORDS.c.extra.contains('"reruns"')
# A record's further fields, where they hold the verdicts of the case's later runs.
RERUNS = sa.case((_HAS_RERUNS, RECORDS.c.extra), else_="")


def _rerun(store: Store, run: RunInfo, match: Cases = "*") -> Iterator[tuple[int, str, Verdict]]:
    """Place, case id and verdict of the findings that were run again, in planned order."""
    query = (
        sa.select(*_VERDICT)
        .join_from(RECORDS, CASES, SAME_CASE)
        .where(RECORDS.c.run == _run_number(run), RECORDS.c.status.in_(FINDINGS), _HAS_RERUNS, case_filter(match))
        .order_by(RECORDS.c.ordinal)
    )
    return (found for found in _verdicts_of(store, run, query) if found[2].reruns)


_VERDICT: Final = (CASES.c.ordinal, CASES.c.case_id, RECORDS.c.status, RECORDS.c.symptom, RECORDS.c.issue, RERUNS)


def _verdicts(store: Store, run: RunInfo, *conditions: sa.ColumnElement[bool]) -> Iterator[tuple[int, str, Verdict]]:
    query = (
        sa.select(*_VERDICT)
        .join_from(CASES, RECORDS, SAME_CASE, isouter=True)
        .where(*planned_in(run), *conditions)
        .order_by(CASES.c.ordinal)
    )
    return _verdicts_of(store, run, query)


def _verdicts_of(store: Store, run: RunInfo, query: sa.Executable) -> Iterator[tuple[int, str, Verdict]]:
    absent = absent_verdict(run.state)
    with store.reading() as connection:
        for block in connection.execution_options(yield_per=BLOCK).execute(query).partitions():
            for ordinal, case_id, status, symptom, issue, extra in map(tuple, block):
                if status is None:
                    yield ordinal, case_id, absent
                    continue
                reruns = json.loads(extra).get("verdict", {}).get("reruns", ()) if extra else ()
                yield (
                    ordinal,
                    case_id,
                    Verdict(status=Status(status), symptom=symptom, issue=issue, reruns=tuple(reruns)),
                )
