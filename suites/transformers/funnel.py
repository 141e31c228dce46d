"""`python -m suites.transformers.funnel --db FILE --output FOLDER`: how far every architecture gets, and why no further.

It writes `transformers.csv`, a line for each architecture, dtype and mode; `transformers.md`, the funnel (how many architectures
reach each step) and those that stop, with the reason; and `transformers-owners.txt`, a pattern and an owner for each
architecture, for `torch-oracle triage --owners`. `--db` may be given several times: it uses the newest run of each, and if two
have the same case, that of the later one. `--earlier` adds the rows of an earlier `transformers.csv`
for programs that no run has.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from oracle.errors import UsageError
from oracle.records import Record
from oracle.verdict import Status
from results.files import write_atomically
from results.store import Store
from suites.text_tables import csv_text, markdown_table
from suites.transformers import NAME
from suites.transformers.catalog import architectures, family_of

# A description of each step. An architecture that stops at a step has not passed it.
STEPS: Mapping[str, str] = {
    "build": "a shrunk configuration gives a model",
    "eager": "the model runs in eager on inputs that were derived",
    "capture": "torch.compile captures at least one graph",
    "compile": "the backend compiles",
    "run": "the compiled model returns",
    "compare": "its results were compared with those of eager, which repeat themselves",
    "agree": "they agree; a known issue that differs as it should counts too",
}
DONE = "agree"
COLUMNS = ("architecture", "family", "dtype", "mode", "stops at", "status", "why", "graphs", "graph breaks", "seconds")
_STAGE = re.compile(r"\bin (load|eager again|eager|subject|truth|loud noise|noise|other kernels|judge)\b")
_OF_CAPTURE = re.compile(
    r"torch\._dynamo\.exc\.(?!BackendCompilerFailed)|torch/_dynamo/(symbolic_convert|variables|guards)"
)
_OF_BACKEND = re.compile(r"BackendCompilerFailed|LoweringException|InductorError|torch/_functorch|torch/_inductor")
_LONGEST = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """How far one program got. `stop` is the step that it has not done; "" if it did all."""

    architecture: str
    dtype: str
    mode: str
    stop: str
    status: str
    why: str
    graphs: int | None = None
    graph_breaks: int | None = None
    seconds: float | None = None

    @property
    def key(self) -> tuple[bool, bool, str, str]:
        """What it is a row of; rows are sorted by it."""
        return self.dtype != "float32", self.mode != "eval", self.architecture, self.dtype

    def cells(self) -> list[str]:
        seconds = "" if self.seconds is None else f"{self.seconds:.1f}"
        counts = ["" if count is None else str(count) for count in (self.graphs, self.graph_breaks)]
        words = [
            self.architecture,
            family_of(self.architecture),
            self.dtype,
            self.mode,
            self.stop,
            self.status,
            self.why,
        ]
        return [*words, *counts, seconds]


def row_of_cells(cells: Mapping[str, str]) -> Row:
    """The row of one line of a table that this command wrote, by column."""
    counts = [int(cells[name]) if cells[name] else None for name in ("graphs", "graph breaks")]
    return Row(
        architecture=cells["architecture"], dtype=cells["dtype"], mode=cells["mode"], stop=cells["stops at"],
        status=cells["status"], why=cells["why"], graphs=counts[0], graph_breaks=counts[1],
        seconds=float(cells["seconds"]) if cells["seconds"] else None,
    )  # fmt: skip


def row_of(record: Record) -> Row:
    """The row of one record of the suite."""
    stop = stop_of(record)
    made = record.measurements
    return Row(
        architecture=record.group, dtype=record.dtype, mode=record.name.rpartition("/")[2], stop=stop,
        status=record.verdict.status.value, why=_reason(record) if stop else "",
        graphs=made.graphs, graph_breaks=made.graph_breaks, seconds=made.wall_s,
    )  # fmt: skip


def stop_of(record: Record) -> str:
    """The step at which a case stops; "" if it agrees."""
    status = record.verdict.status
    match status:
        case Status.PASS | Status.KNOWN | Status.XPASS:
            return "capture" if record.measurements.graphs == 0 else ""
        case Status.PASS_DUE_TO_SKIP:
            return "capture" if record.measurements.graphs == 0 else "compare"
        case Status.MODEL_FAIL_TO_LOAD:
            return "build"
        case Status.EAGER_FAIL_TO_RUN:
            return "build" if "CannotBuildError" in record.verdict.symptom else "eager"
        case Status.EAGER_TWO_RUNS_DIFFER:
            return "compare"
        case Status.FAIL_TO_RUN | Status.FAIL_EXPORT:
            text = record.verdict.symptom + record.traceback
            return "compile" if _OF_BACKEND.search(text) else "capture" if _OF_CAPTURE.search(text) else "run"
        case Status.TIMEOUT | Status.CRASH | Status.OOM:
            return _stop_of_stage(record.verdict.symptom)
        case Status.MISSING | Status.NOT_RUN:
            return "build"
        case _:
            return DONE


def _stop_of_stage(symptom: str) -> str:
    """The step in which a case was when its process ended."""
    found = _STAGE.search(symptom)
    match found[1] if found else "":
        case "load":
            return "build"
        case "eager" | "eager again":
            return "eager"
        case "subject":
            return "compile"
        case _:
            return "compare"


def _reason(record: Record) -> str:
    text = " ".join((record.verdict.symptom or record.verdict.status.value).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def funnel(rows: Sequence[Row]) -> dict[str, int]:
    """Step -> how many rows have done it."""
    order = list(STEPS)
    return {
        step: sum(not row.stop or order.index(row.stop) > position for row in rows)
        for position, step in enumerate(order)
    }


def markdown(rows: Sequence[Row], *, environment: str) -> str:
    """The text of `transformers.md`."""
    kinds = list(dict.fromkeys((row.dtype, row.mode) for row in rows))
    funnels = {kind: funnel([row for row in rows if (row.dtype, row.mode) == kind]) for kind in kinds}
    head = ["step", "what it is", *(f"{mode}, {dtype}" for dtype, mode in kinds)]
    listed = ["listed", "programs that ran", *(str(sum((r.dtype, r.mode) == kind for r in rows)) for kind in kinds)]
    lines = [
        "# Architectures of transformers",
        "",
        f"* versions: {environment}",
        "* `aot_eager` against eager, two calls on other values; random weights, shrunk configurations",
        "",
        *markdown_table(
            head,
            [listed, *([step, text, *(str(funnels[kind][step]) for kind in kinds)] for step, text in STEPS.items())],
        ),
    ]
    for step in STEPS:
        stopped = [row for row in rows if row.stop == step]
        if stopped:
            lines += ["", f"## Stop at {step}: {len(stopped)}", "", *_reasons(stopped)]
    return "\n".join(lines) + "\n"


def _reasons(rows: Sequence[Row]) -> list[str]:
    """A line for each row that stops, those with equal reasons together."""
    modes = Counter((row.architecture, row.why) for row in rows)
    seen: set[tuple[str, str]] = set()
    cells = []
    for row in rows:
        key = (row.architecture, row.why)
        if key not in seen:
            seen.add(key)
            which = f"{row.mode}, {row.dtype}" if modes[key] == 1 else f"{modes[key]} programs"
            cells.append([row.architecture, which, row.status, _escaped(row.why)])
    return markdown_table(["architecture", "program", "status", "why"], cells)


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;")


def owners_text() -> str:
    """Lines `pattern owner` for every architecture: the owner is the folder of transformers that defines it."""
    lines = [f"{NAME}/{name}/* @transformers/{family_of(name)}" for name in architectures()]
    return "\n".join(["# made by python -m suites.transformers.funnel", *lines]) + "\n"


def _newest(paths: Sequence[Path]) -> tuple[list[Record], str]:
    records: dict[str, Record] = {}
    environment: Mapping[str, Any] = {}
    for path in paths:
        with Store.open(path, create=False, read_only=True) as store:
            environment = store.environment()
            records |= {record.case_id: record for record in store.records() if record.suite == NAME}
    worker = environment.get("worker", {})
    versions = f"torch {worker.get('torch', '?')}, Python {environment.get('python', '?')}"
    versions += f", transformers {version('transformers')}"
    return list(records.values()), versions


def _earlier(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise UsageError(
                seen=f"{path} with the columns {', '.join(reader.fieldnames or ['(none)'])}",
                expected="a transformers.csv that this command wrote",
                do="name the table of an earlier run, or leave --earlier out",
            )
        return [row_of_cells(line) for line in reader]


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `python -m`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--db", type=Path, action="append", required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--date", default="", help="when the runs were made")
    parser.add_argument("--earlier", type=Path, help="a transformers.csv, for programs that no run has")
    options = parser.parse_args(arguments)
    records, versions = _newest(options.db)
    rows = {row.key: row for row in _earlier(options.earlier)} if options.earlier else {}
    rows |= {row.key: row for row in (row_of(one) for one in records if not one.verdict.status.is_absent)}
    rows = dict(sorted(rows.items()))
    environment = f"{versions}, {options.date}" if options.date else versions
    write_atomically(options.output / "transformers.csv", csv_text(COLUMNS, [row.cells() for row in rows.values()]))
    write_atomically(options.output / "transformers.md", markdown(list(rows.values()), environment=environment))
    write_atomically(options.output / "transformers-owners.txt", owners_text())


if __name__ == "__main__":
    main()
