"""The output of `torch-oracle show`: a run in a few tables, or single cases in full."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pandas as pd
from rich.cells import cell_len
from rich.console import Console

from oracle.known.ledger import load_ledger
from oracle.known.severity import Severity
from oracle.records import Record
from oracle.verdict import Status, Verdict
from results import bias, frames, queries, tables
from results.groups import SHOW_ALL, FindingGroup, cases_text, group_findings, groups_table
from results.junit import details
from results.outcomes import outcome_of
from results.render import (
    Part,
    TextTable,
    number,
    one_line,
    ratio,
    seconds,
    shorten,
    show,
    show_lines,
    show_text,
    visible,
)
from results.schema import fact_at, flatten
from results.store import LATEST, RunInfo, Store

GROUPS_SHOWN: Final = 20
FAILURES_SHOWN: Final = 30
# A run with at most so many cases and groups of findings is shown in detail.
_SMALL_RUN: Final = 100
_FEW_GROUPS: Final = 10


# Facts of the environment in the run's line: label and paths, of which the first existing one is used.
_FACTS: Final = (
    ("torch", (("worker", "torch"), ("versions", "torch"), ("torch",))),
    ("triton", (("versions", "triton"),)),
    ("CUDA", (("worker", "cuda"),)),
    ("Python", (("python",),)),
    ("on", (("worker", "devices", 0, "name"), ("cpu_model",), ("machine",), ("platform",))),
    ("cores", (("usable_cores",), ("cores",))),
    ("compiler", (("compiler",),)),
)


def run_line(run: RunInfo) -> str:
    """Run id, state and the main facts of its environment in one line."""
    facts = []
    for name, paths in _FACTS:
        values = (fact_at(run.environment, path) for path in paths)
        value = next((value for value in values if isinstance(value, str | int) and value), None)
        if value is not None:
            facts.append(f"{name} {shorten(str(value), 60)}")
    return one_line(
        f"run {run.run_id} ({run.state}, {run.recorded} of {run.planned} cases, {run.started_at}): {', '.join(facts)}"
    )


def show_run(
    store: Store,
    run_id: str = LATEST,
    *,
    console: Console,
    limit: int | None = GROUPS_SHOWN,
    match: str = "*",
    with_speed: bool = False,
) -> None:
    """Print a run: its line, then the `summary` of the cases whose id matches the glob.

    `with_speed` adds the speed of every timed case. Without a `limit` everything is printed.
    """
    run = store.run(run_id)
    show_text(console, run_line(run))
    show_lines(console, [""])
    shown = summary(queried(store, run, match, limit=limit), limit=limit)
    if with_speed:
        timed = frames.passing_rows(store, run, match, columns=frames.TIMED_BY_CASE)
        shown.append(_speed_ofcases_text(timed, FAILURES_SHOWN if limit is not None else None))
    show(console, shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """The cases of a run that a summary is about. Frames have columns of results.schema.FLAT_COLUMNS."""

    counts: pd.DataFrame  # results.tables.status_counts
    groups: Sequence[FindingGroup]
    known: Mapping[str, int]  # issue -> cases that differ as it says; "" for those that name none
    unexpected_passes: Sequence[tuple[str, str, str]]  # case id, issue and symptom
    passing: pd.DataFrame  # passing cases with a speed or a compile time
    bias: Sequence[bias.BiasFinding]
    rerun: int = 0  # number of findings that were run again
    flaky: Sequence[tuple[str, Verdict]] = ()  # those of them that did not fail each time, by case id
    # For details: cases that do not just pass, and all cases of programs with findings. Not read where none are shown.
    notable: pd.DataFrame = field(default_factory=pd.DataFrame)

    @property
    def cases(self) -> int:
        return int(self.counts["cases"].sum())


def queried(store: Store, run: RunInfo, match: queries.Cases = "*", *, limit: int | None = GROUPS_SHOWN) -> Selected:
    """The cases of a run whose ids match the glob, counted and filtered by the database, for a summary with this limit."""
    counts = frames.status_counts(store, run, match)
    groups = queries.finding_groups(store, run, match)
    is_in_detail = limit is None or _is_small(int(counts["cases"].sum()), groups)
    rerun, flaky = queries.rerun_findings(store, run, match)
    return Selected(
        counts=counts,
        groups=groups,
        known=queries.known_issues(store, run, match),
        unexpected_passes=queries.unexpected_passes(store, run, match),
        passing=frames.passing_rows(store, run, match),
        bias=queries.bias_findings(store, run, match),
        rerun=rerun,
        flaky=flaky,
        notable=frames.notable_rows(store, run, match, columns=queries.DETAILED) if is_in_detail else pd.DataFrame(),
    )


def selected(records: Sequence[Record]) -> Selected:
    """The same of records, which come from `Store.records(run, with_missing=True)`."""
    table = tables.frame(records)
    rerun = [(record.case_id, record.verdict) for record in records if record.verdict.reruns]
    passes = table.loc[table["status"] == Status.XPASS.value]
    return Selected(
        counts=tables.status_counts(table),
        groups=group_findings(table),
        known=Counter(table.loc[table["status"] == Status.KNOWN.value, "issue"]),
        unexpected_passes=[(row["case_id"], row["issue"], row["symptom"]) for row in passes.to_dict("records")],
        passing=table,
        bias=bias.find_bias(records),
        rerun=len(rerun),
        flaky=[(case_id, verdict) for case_id, verdict in rerun if verdict.is_flaky],
        notable=table,
    )


def summary(of: Selected, *, limit: int | None = GROUPS_SHOWN) -> list[Part]:
    """Summary of a run: the matrix of suites and subjects, new findings in groups, known issues, speed.

    It has at most `limit` groups. If a small selection has few findings, their rungs and cases follow; without a limit everything
    does.
    """
    shown = [*summary_of(of, limit=limit), *bias.tables_of(of.bias, limit=limit)]
    if limit is None or _is_small(of.cases, of.groups):
        shown += details_of(of, None if limit is None else FAILURES_SHOWN)
    if limit is None:
        shown += _rest_of(of)
    return shown


def _is_small(cases: int, groups: Sequence[FindingGroup]) -> bool:
    """Whether single findings are shown, too."""
    return cases <= _SMALL_RUN and len(groups) <= _FEW_GROUPS


def summary_of(of: Selected, *, limit: int | None) -> list[Part]:
    """The part of the summary that fits a screen: the matrix, new findings in groups, known issues, speed."""
    found = groups_table(of.groups, limit) if of.groups else "new findings: none"
    shown: list[Part] = [_matrix(of.counts), found, *_rerun(of.rerun, of.flaky, limit)]
    shown += [*_known(of.known), *_unexpected_passes(of.unexpected_passes, limit)]
    speed = tables.speed_summary(of.passing)
    return [*shown, _speed(speed)] if len(speed) else shown


def _rerun(rerun: int, flaky: Sequence[tuple[str, Verdict]], limit: int | None) -> list[Part]:
    """Findings that did not fail each time that they were run; one line if all did."""
    if not rerun:
        return []
    if not flaky:
        return [
            f"run again, each time in a fresh process: {cases_text(rerun)} of the findings, and all differ each time"
        ]
    rows = [
        (case_id, verdict.status.value, verdict.frequency.removeprefix("in "), ", ".join(verdict.reruns))
        for case_id, verdict in flaky
    ]
    note = f"{cases_text(rerun)} run again, each time in a fresh process: {rerun - len(flaky)} differ each time"
    columns = ("case", "status", "differs in", "run again")
    return [_limited("flaky findings", columns, rows, limit, note=note)]


def details_of(of: Selected, limit: int | None = None) -> list[TextTable]:
    """Tables of single findings: the first wrong rung of each program, and each failing case with its worst element."""
    table = of.notable
    shown = []
    rungs = tables.first_wrong_rung(table)
    if len(rungs) and of.counts["subject"].nunique() > 1:
        rows = [
            (
                f"{row['suite']}/{row['name']}",
                row["first_wrong"],
                row["status"],
                row["agrees_below"] or "-",
                row["not_run_below"] or "-",
                row["also_wrong"] or "-",
            )
            for row in rungs.to_dict("records")
        ]
        columns = ("program", "first wrong", "status", "agrees below", "not run below", "also wrong")
        note = "first wrong: the lowest stage of the compiler whose answer differs from eager's; the bug is there or in what "
        note += "was not run below it"
        shown.append(_limited("first wrong rung", columns, rows, limit, prose=frozenset({4, 5}), note=note))
    if table["is_finding"].any():
        shown.append(_failures(table, limit))
    return shown


# Column of the matrix -> column of tables.pass_rates, and an explanation.
_MATRIX: Final = {
    "pass": ("passed", ""),
    "known": ("known", "differs from eager as a known issue says"),
    "new": ("new", "differs from eager, and no known issue says so"),
    "not compared": ("not_compared", "eager itself fails or is not the same twice, or nothing was compiled"),
    "not run": ("not_run", "the run was stopped before"),
}
_ALWAYS: Final = ("pass", "new")


def _matrix(counts: pd.DataFrame) -> TextTable:
    rates = tables.rates_of(counts)
    columns = [name for name, (field, _) in _MATRIX.items() if name in _ALWAYS or rates[field].any()]
    rows = []
    for row in rates.to_dict("records"):
        shown = [str(row[_MATRIX[name][0]]) if row[_MATRIX[name][0]] else "." for name in columns]
        percent = _percent(row["pass_percent"]) if row["comparable"] else "-"
        rows.append((row["suite"], row["subject"], str(row["cases"]), *shown, percent))
    totals = [f"{int(rates[_MATRIX[name][0]].sum())} {name}" for name in columns]
    notes = [f"{name}: {_MATRIX[name][1]}" for name in columns if _MATRIX[name][1] and rates[_MATRIX[name][0]].any()]
    notes.append(f"pass %: of the cases that were compared ({' + '.join(c for c in columns if c in _COMPARED)})")
    return TextTable(
        title=f"{cases_text(int(rates['cases'].sum()))}: {', '.join(totals)}",
        columns=("suite", "subject", "cases", *columns, "pass %"),
        rows=tuple(rows),
        right=frozenset(range(2, 4 + len(columns))),
        note="\n".join(notes),
    )


_COMPARED: Final = ("pass", "known", "new")


def _statuses(counts: pd.DataFrame) -> TextTable:
    """Number of cases with each status, for each suite and subject."""
    rates = tables.rates_of(counts)
    words = [status.value for status in Status if status.value in rates.columns]
    rows = [
        (row["suite"], row["subject"], *(str(row[word]) if row[word] else "." for word in words))
        for row in rates.to_dict("records")
    ]
    right = frozenset(range(2, 2 + len(words)))
    return TextTable(title="statuses", columns=("suite", "subject", *words), rows=tuple(rows), right=right)


def _known(known: Mapping[str, int]) -> list[Part]:
    """One sentence on known issues: the numbers of cases and issues, and their severities."""
    if not known:
        return []
    ids = [issue for issue in known if issue]
    severity_of = {issue.id: issue.severity for issue in load_ledger().issues}
    counts = Counter(severity_of[issue] for issue in ids if issue in severity_of)
    words = [f"{counts[severity]} {severity.value}" for severity in Severity if counts[severity]]
    # Issues of the user's own ledger are only counted.
    which = f"{len(ids)} known issue{'s' if len(ids) != 1 else ''}" if ids else "known issues"
    severities = f" ({', '.join(words)})" if words else ""
    return [f"known: {cases_text(sum(known.values()))} of {which}{severities}; `torch-oracle issues` lists them"]


def _unexpected_passes(passes: Sequence[tuple[str, str, str]], limit: int | None) -> list[Part]:
    rows = [(case_id, issue or "-", shorten(symptom)) for case_id, issue, symptom in passes]
    if not rows:
        return []
    title = "agree with eager although a known issue says that they differ, so its entry can go"
    return [_limited(title, ("case", "issue", "what it says"), rows, limit, prose=frozenset({2}))]


def _rest_of(of: Selected) -> list[Part]:
    """Further tables: statuses, known cases, and cases that were not compared, each with its reason."""
    table = of.notable
    known = table.loc[table["status"] == Status.KNOWN.value].to_dict("records")
    words = [status.value for status in Status if outcome_of(status) == "not_compared"]
    skipped = table.loc[table["status"].isin(words)].to_dict("records")
    rows_of_known = [(r["case_id"], r["issue"] or "-", r["observed"] or "-", shorten(r["symptom"])) for r in known]
    rows_of_skipped = [(r["case_id"], r["status"], shorten(r["symptom"] or "-")) for r in skipped]
    columns = ("case", "issue", "status without it", "symptom")
    shown: list[Part] = [_statuses(of.counts)]
    if known:
        shown.append(_limited("known", columns, rows_of_known, None, prose=frozenset({3})))
    if skipped:
        shown.append(
            _limited("not compared", ("case", "status", "reason"), rows_of_skipped, None, prose=frozenset({2}))
        )
    return shown


def _percent(value: float) -> str:
    # 99.96 must not be rounded to 100, which means that nothing failed.
    return "100" if value == 100 else f"{min(value, 99.9):.1f}"


def _failures(table: pd.DataFrame, limit: int | None) -> TextTable:
    rows = []
    for row in tables.failures(table).to_dict("records"):
        worst = "-"
        if row["worst_where"] is not None:
            worst = (
                f"{row['worst_where']} {list(row['worst_index'])}: {row['worst_subject']}, eager {row['worst_eager']}"
            )
        errors = (number(row["worst_subject_error"]), number(row["worst_eager_error"]))
        rows.append((row["case_id"], row["status"], shorten(row["symptom"]), shorten(worst, 100), *errors))
    columns = ("case", "status", "symptom", "worst element", "error", "eager's error")
    return _limited("failures", columns, rows, limit, right=frozenset({4, 5}), prose=frozenset({2, 3}))


def _speed(speed: pd.DataFrame) -> TextTable:
    rows = [
        (
            row["suite"],
            row["subject"],
            str(row["timed"]),
            ratio(row["speedup"], row["speedup_low"], row["speedup_high"]),
            str(row["slower"]),
            seconds(row["compile_cold_s"]),
            seconds(row["compile_warm_s"]),
            ratio(row["compression_ratio"]),
            str(row["graph_breaks"]),
            str(row["recompiles"]),
        )
        for row in speed.to_dict("records")
    ]
    columns = (
        *("suite", "subject", "timed", "speedup", "slower", "compile cold", "compile warm"),
        *("memory", "graph breaks", "recompiles"),
    )
    return TextTable(
        title="speed",
        columns=columns,
        rows=tuple(rows),
        right=frozenset(range(2, len(columns))),
        note="speedup: eager's time / the subject's, geometric mean of the passing cases with its 95 % interval; below 1x the "
        "subject is slower\n"
        "slower: cases that are slower than eager for certain; compile cold, warm: median time of the first call, with an empty "
        "and a filled cache on disk\n"
        "memory: eager's peak / the subject's, above 1x the subject needs less",
    )


def _speed_ofcases_text(table: pd.DataFrame, limit: int | None) -> TextTable:
    rows = [
        (
            row["case_id"],
            ratio(row["speedup"], row["speedup_low"], row["speedup_high"]),
            *(seconds(row[name]) for name in ("eager_s", "subject_s", "compile_cold_s", "compile_warm_s")),
            ratio(row["compression_ratio"]),
        )
        for row in tables.speed(table).to_dict("records")
    ]
    columns = ("case", "speedup", "eager", "subject", "compile cold", "compile warm", "memory")
    return _limited("speed by case, slowest first", columns, rows, limit, right=frozenset(range(1, len(columns))))


def _limited(
    title: str,
    columns: tuple[str, ...],
    rows: list[tuple[str, ...]],
    limit: int | None,
    right: frozenset[int] = frozenset(),
    prose: frozenset[int] = frozenset(),
    note: str = "",
) -> TextTable:
    shown = rows if limit is None else rows[:limit]
    if len(shown) < len(rows):
        note = "\n".join(filter(None, (note, f"and {len(rows) - len(shown)} more; {SHOW_ALL} prints them")))
    title = f"{title} ({len(rows)})"
    return TextTable(title=title, columns=columns, rows=tuple(shown), right=right, prose=prose, note=note)


# ------------------------------------------------------------------------------------------------------- single cases


def case_text(record: Record, program: Mapping[str, Any]) -> str:
    """One case in full: verdict, measurements, command to run it again, the program's source and calls."""
    row = flatten(record)
    verdict, m = record.verdict, record.measurements
    head = one_line(record.case_id)
    found = details(record) if verdict.symptom else verdict.status.value
    lines = [f"explained: {reason}" for reason in verdict.explained]
    if verdict.reruns:
        lines.append(f"differs {verdict.frequency}; run again in a fresh process: {', '.join(verdict.reruns)}")
    compared = verdict.compared
    lines.append(
        f"compared: {compared.tensors} tensors, {compared.elements} elements, {compared.others} other values"
        + (
            f", {compared.unstable_elements} elements left out as unstable in eager"
            if compared.unstable_elements
            else ""
        )
    )
    if verdict.max_ulp is not None:
        lines.append(f"largest difference: {number(verdict.max_ulp)} ULP")
    if m.speedup is not None:
        lines.append(
            f"speed: {ratio(m.speedup, m.speedup_low, m.speedup_high)}, eager {seconds(m.eager_s)}, "
            f"subject {seconds(m.subject_s)} over {m.repeats} pairs"
        )
    known = {name: row[name] for name in ("wall_s", "compile_cold_s", "compile_warm_s") if row[name] is not None}
    lines += [f"{name.removesuffix('_s').replace('_', ' ')}: {seconds(value)}" for name, value in known.items()]
    counts = ("graphs", "graph_breaks", "recompiles", "peak_memory", "eager_peak_memory")
    lines += [f"{name.replace('_', ' ')}: {row[name]}" for name in counts if row[name] is not None]
    labels = ", ".join(filter(None, (record.dtype, record.direction, record.device, *record.tags)))
    lines.append(f"labels: {labels}; seed {record.seed}; started {record.started_at or 'never'}")
    if record.repro and not verdict.symptom:
        lines.append(f"repro: {record.repro}")
    rest = {key: value for key, value in program.items() if key not in ("source", "name", "format")}
    lines.append(f"program: {rest}")
    source = visible(program.get("source", "(no source)").rstrip("\n"))
    return "\n".join([head, "=" * cell_len(head), found, *map(one_line, lines), "", source, ""])
