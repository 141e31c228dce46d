"""What `show` prints: a run in a few tables, or all that is known of single cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console

from oracle.records import Record
from oracle.verdict import Status
from results import tables
from results.junit import details
from results.render import TextTable, number, one_line, ratio, seconds, shorten, show, show_lines, show_text, visible
from results.schema import flatten
from results.store import LATEST, RunInfo, Store

FAILURES_SHOWN = 30


# Which facts of the environment stand in the one line, and what to call them: the first path that is there.
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
        values = (_at(run.environment, path) for path in paths)
        value = next((value for value in values if isinstance(value, str | int) and value), None)
        if value is not None:
            facts.append(f"{name} {shorten(str(value), 60)}")
    return one_line(
        f"run {run.run_id} ({run.state}, {run.recorded} of {run.planned} cases, {run.started_at}): {', '.join(facts)}"
    )


def _at(data: Any, path: Sequence[str | int]) -> Any:
    for key in path:
        if isinstance(key, int):
            data = data[key] if isinstance(data, list) and key < len(data) else None
        else:
            data = data.get(key) if isinstance(data, Mapping) else None
    return data


def is_match(case_id: str, glob: str) -> bool:
    """A case id itself, or a glob: ids hold brackets ("inductor[mode=...]"), which a glob would read as a set."""
    return case_id == glob or fnmatchcase(case_id, glob)


def show_run(
    store: Store,
    run_id: str = LATEST,
    *,
    console: Console,
    limit: int | None = FAILURES_SHOWN,
    match: str = "*",
    with_speed: bool = False,
) -> None:
    """Print a run: its line, then the tables of `summary_tables` over the cases whose id matches the glob.

    `with_speed` adds the speed of every timed case.
    """
    run = store.run(run_id)
    records = [r for r in store.records(run.run_id, with_missing=True) if is_match(r.case_id, match)]
    show_text(console, run_line(run))
    show_lines(console, [""])
    shown = summary_tables(records, limit=limit)
    if with_speed:
        shown.append(_speed_of_cases(tables.frame(records), limit))
    show(console, shown)


def summary_tables(records: Sequence[Record], *, limit: int | None = FAILURES_SHOWN) -> list[TextTable]:
    """Pass rates per suite and subject, first wrong rungs, failures, speed. At most `limit` rows of the long ones.

    `records` come from `Store.records(run, with_missing=True)`.
    """
    table = tables.frame(records)
    shown = [_pass_rates(table)]
    rungs = tables.first_wrong_rung(table)
    if len(rungs) and table["subject"].nunique() > 1:
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
        shown.append(_limited("first wrong rung", columns, rows, limit))
    shown.append(_failures(table, limit))
    speed = tables.speed_summary(table)
    if len(speed):
        shown.append(_speed(speed))
    return shown


def _pass_rates(table: Any) -> TextTable:
    rates = tables.pass_rates(table)
    words = [status.value for status in Status if status.value in rates.columns]
    rows = []
    for row in rates.to_dict("records"):
        percent = row["pass_percent"]
        is_known = row["comparable"] > 0
        counts = [str(row[word]) if row[word] else "." for word in words]
        rows.append((row["suite"], row["subject"], str(row["cases"]), _percent(percent) if is_known else "-", *counts))
    return TextTable(
        title="pass rates",
        columns=("suite", "subject", "cases", "pass %", *words),
        rows=tuple(rows),
        right=frozenset(range(2, 4 + len(words))),
        note="pass % is of the rows in which eager could be compared with",
    )


def _percent(value: float) -> str:
    # 99.96 must not read as 100: a hundred percent means that nothing failed.
    return "100" if value == 100 else f"{min(value, 99.9):.1f}"


def _failures(table: Any, limit: int | None) -> TextTable:
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


def _speed(speed: Any) -> TextTable:
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
        note="geomean of eager / subject over the passing rows, not clipped, 95 % interval; median compile times; "
        "memory: eager's peak / the subject's",
    )


def _speed_of_cases(table: Any, limit: int | None) -> TextTable:
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
) -> TextTable:
    shown = rows if limit is None else rows[:limit]
    note = f"{len(rows) - len(shown)} more (--all)" if len(shown) < len(rows) else ""
    title = f"{title} ({len(rows)})"
    return TextTable(title=title, columns=columns, rows=tuple(shown), right=right, prose=prose, note=note)


# ------------------------------------------------------------------------------------------------------- single cases


def case_text(record: Record, program: Mapping[str, Any]) -> str:
    """Everything on one case: verdict, measurements, how to run it again, the program's source and calls."""
    row = flatten(record)
    verdict, m = record.verdict, record.measurements
    head = one_line(record.case_id)
    found = details(record) if verdict.symptom else verdict.status.value
    lines = [f"explained: {reason}" for reason in verdict.explained]
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
