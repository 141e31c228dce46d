"""Make a data frame of records, and tables of it: pass rates, failures, speed, first wrong rungs.

A frame has one row per planned case. Use `Store.records(run, with_missing=True)`, so that a case without a record counts as
`missing` in a complete run, and as `not_run` in one that was stopped.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pandas as pd

from oracle.records import Record
from oracle.verdict import Status
from results.ladder import LADDER, ladder_of, rung_of
from results.outcomes import AGREES, NOT_COMPARABLE, OUTCOMES, outcome_of
from results.schema import FLAT_COLUMNS, flatten
from results.statistics import Estimate, geomean, geomean_estimate

DTYPES: Final = {"text": "object", "int": "Int64", "float": "float64", "texts": "object", "ints": "object"}


def frame(records: Iterable[Record]) -> pd.DataFrame:
    """One row per record. The columns are results.schema.FLAT_COLUMNS (see their `meaning`) and three more.

    These are `run_id`, and `is_finding` and `is_silent` of the status.
    Integers are Int64 with NA if unknown, floats float64 with NaN, lists are tuples or None.
    """
    records = list(records)
    rows = [flatten(record) for record in records]
    statuses = [record.verdict.status for record in records]
    data = {
        column.name: pd.Series([row[column.name] for row in rows], dtype=DTYPES[column.kind]) for column in FLAT_COLUMNS
    }
    data["run_id"] = pd.Series([record.run_id for record in records], dtype="object")
    data["is_finding"] = pd.Series([status.is_finding for status in statuses], dtype="bool")
    data["is_silent"] = pd.Series([status.is_silent for status in statuses], dtype="bool")
    return pd.DataFrame(data)


def pass_rates(table: pd.DataFrame) -> pd.DataFrame:
    """One row per suite and subject: `cases`, their outcomes, `pass_percent`, then the count of each status that occurs.

    Every case is one of `passed`, `known` (differs as the ledger says), `new` (a finding), `not_compared` (nothing could be
    judged) and `not_run`. `pass_percent` is the share of the first three, `comparable`, and NaN if there are none. Statuses are
    in the order of `Status`.
    """
    return rates_of(status_counts(table))


def status_counts(table: pd.DataFrame) -> pd.DataFrame:
    """One row per suite, subject and status that occurs, with the number of `cases`."""
    counts = Counter(zip(table["suite"], table["subject"], table["status"], strict=True))
    rows = [(*key, cases) for key, cases in sorted(counts.items())]
    return pd.DataFrame(rows, columns=["suite", "subject", "status", "cases"])


def rates_of(status_counts: pd.DataFrame) -> pd.DataFrame:
    """`pass_rates` of counts."""
    counts = status_counts.pivot_table(
        index=["suite", "subject"], columns="status", values="cases", aggfunc="sum", fill_value=0
    ).astype(int)
    occurring = [status for status in Status if status.value in counts.columns]
    rates = pd.DataFrame(index=counts.index)
    rates["cases"] = counts.sum(axis=1)
    for outcome in OUTCOMES:
        words = [status.value for status in occurring if outcome_of(status) == outcome]
        rates[outcome] = counts[words].sum(axis=1).astype(int)  # the sum of no columns is a float
    rates["comparable"] = rates["passed"] + rates["known"] + rates["new"]
    percent = 100.0 * rates["passed"] / rates["comparable"].astype("float64")
    rates["pass_percent"] = percent.where(rates["comparable"] > 0)
    for status in occurring:
        rates[status.value] = counts[status.value]
    return rates.reset_index().rename_axis(columns=None)


_FAILURE_COLUMNS: Final = (
    "case_id",
    "status",
    "symptom",
    "stage",
    "worst_where",
    "worst_index",
    "worst_eager",
    "worst_subject",
    "worst_truth",
    "worst_eager_error",
    "worst_subject_error",
    "worst_allowed_error",
    "worst_ulp",
    "repro",
)


def failures(table: pd.DataFrame) -> pd.DataFrame:
    """The findings, with the worst element and both errors; silent ones first, then in planned order."""
    found = _where(table, table["is_finding"]).sort_values("is_silent", ascending=False, kind="stable")
    return found.loc[:, list(_FAILURE_COLUMNS)].reset_index(drop=True)


def _where(table: pd.DataFrame, is_wanted: Any) -> pd.DataFrame:
    return table.loc[is_wanted]


_SPEED_COLUMNS: Final = (
    "case_id",
    "eager_s",
    "subject_s",
    "speedup",
    "speedup_low",
    "speedup_high",
    "compile_cold_s",
    "compile_warm_s",
    "compression_ratio",
    "graph_breaks",
    "recompiles",
)


def timed(table: pd.DataFrame) -> pd.DataFrame:
    """The rows whose speed counts: passing ones with a positive finite speedup."""
    speedup = table["speedup"]
    return _where(table, (table["status"] == Status.PASS.value) & (speedup > 0) & (speedup < math.inf))


def speed(table: pd.DataFrame) -> pd.DataFrame:
    """One row per passing case that was timed, the slowest first.

    `compression_ratio` is eager's peak memory divided by the subject's, as in PyTorch's benchmarks: above 1 is less memory.
    """
    rows = timed(table).copy()
    rows["compression_ratio"] = _compression_ratio(rows)
    return rows.sort_values("speedup", kind="stable").loc[:, list(_SPEED_COLUMNS)].reset_index(drop=True)


def speed_summary(table: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:
    """One row per suite and subject: geomean of speedups with its interval, compile times, memory, breaks, recompiles.

    `speedup*`, `slower` and `compression_ratio` are those of the passing timed rows (`timed`); medians of compile times and sums
    of `graph_breaks` and `recompiles` are over all passing rows that have them.
    """
    rows = []
    for suite, subject, of_subject in _groups(table, "suite", "subject", sort=True):
        passing = _where(of_subject, of_subject["status"] == Status.PASS.value)
        fast = timed(of_subject)
        if fast.empty and passing["compile_cold_s"].isna().all():
            continue
        estimate = geomean_estimate(fast["speedup"].tolist(), seed=seed) if len(fast) else Estimate(value=math.nan)
        ratios = _compression_ratio(fast).dropna()
        rows.append(
            {
                "suite": suite,
                "subject": subject,
                "timed": len(fast),
                "speedup": estimate.value,
                "speedup_low": math.nan if estimate.low is None else estimate.low,
                "speedup_high": math.nan if estimate.high is None else estimate.high,
                "slower": int((fast["speedup_high"] < 1).sum()),
                "compile_cold_s": passing["compile_cold_s"].median(),
                "compile_warm_s": passing["compile_warm_s"].median(),
                "compression_ratio": geomean(ratios.tolist()),
                "graph_breaks": int(passing["graph_breaks"].sum()),
                "recompiles": int(passing["recompiles"].sum()),
            }
        )
    columns = (
        "suite subject timed speedup speedup_low speedup_high slower "
        "compile_cold_s compile_warm_s compression_ratio graph_breaks recompiles"
    )
    return pd.DataFrame(rows, columns=columns.split())


def _groups(table: pd.DataFrame, first: str, second: str, *, sort: bool) -> Iterator[tuple[str, str, pd.DataFrame]]:
    keys: Any
    for keys, group in table.groupby([first, second], sort=sort):
        yield keys[0], keys[1], group


def _compression_ratio(rows: pd.DataFrame) -> pd.Series:
    eager = rows["eager_peak_memory"].astype("float64")
    subject = rows["peak_memory"].astype("float64")
    return (eager / subject).where((eager > 0) & (subject > 0))


def first_wrong_rung(table: pd.DataFrame) -> pd.DataFrame:
    """For each program that fails on the ladder, the lowest rung that fails, which is the stage to debug first.

    Columns: suite, name, dtype, `first_wrong` (subject), status, symptom, `agrees_below` (highest lower rung that
    passes; empty when none ran), `not_run_below` (lower rungs without a usable row, so that the stage may be earlier),
    `also_wrong` (higher rungs that fail too).
    """
    on_ladder = table.assign(
        rung=[rung_of(subject) for subject in table["subject"]],
        program=[f"{name} {ladder_of(subject)}" for name, subject in zip(table["name"], table["subject"], strict=True)],
    )
    on_ladder = _where(on_ladder, on_ladder["rung"].notna())
    rows: list[dict[str, Any]] = []
    # A rung that did not run or could not be compared is no evidence.
    unusable = [status.value for status in (*NOT_COMPARABLE, Status.MISSING)]
    for suite, _, of_program in _groups(
        _where(on_ladder, ~on_ladder["status"].isin(unusable)), "suite", "program", sort=False
    ):
        by_rung = of_program.sort_values("rung", kind="stable")
        wrong = _where(by_rung, by_rung["is_finding"])
        if wrong.empty:
            continue
        first = wrong.iloc[0]
        below = _where(by_rung, by_rung["rung"] < first["rung"])
        ran_below = {int(rung) for rung in below["rung"]}
        below = _where(below, below["status"].isin([status.value for status in AGREES]))
        rows.append(
            {
                "suite": suite,
                "name": first["name"],
                "dtype": first["dtype"],
                "first_wrong": first["subject"],
                "status": first["status"],
                "symptom": first["symptom"],
                "agrees_below": "" if below.empty else below.iloc[-1]["subject"],
                "not_run_below": _not_run_below(first["subject"], int(first["rung"]), ran_below),
                "also_wrong": ", ".join(wrong.iloc[1:]["subject"]),
            }
        )
    columns = "suite name dtype first_wrong status symptom agrees_below not_run_below also_wrong"
    return pd.DataFrame(rows, columns=columns.split())


def _not_run_below(subject: str, rung: int, ran_below: set[int]) -> str:
    ladder = ladder_of(subject)
    if ladder:
        return ladder if rung > 1 and 1 not in ran_below else ""
    return ", ".join(LADDER[i] for i in range(1, rung) if i not in ran_below)
