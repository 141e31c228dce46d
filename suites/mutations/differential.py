"""`python -m suites.mutations.differential --db FILE [--db FILE] --output FOLDER`: who is wrong on which program.

Beside eager stand torch's `aot_eager` and a subject of the reference implementation, each from the newest run of a database
that has it. Written are `mutations-themes.csv` (counts by theme), `mutations-symptoms.csv` (counts by kind of failure, with an
example), `mutations-programs.csv` (every program on which someone is wrong), and why torch is wrong:
`mutations-torch-buckets.csv` by kind of failure, `mutations-torch-causes.csv` by cause.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from oracle.errors import UsageError
from oracle.records import Record
from oracle.verdict import Status
from results.store import Store
from suites.mutations.buckets import bucket_of
from suites.mutations.torch_buckets import by_bucket, by_cause

TORCH, REFIMPL = "aot_eager", "refimpl.aot"
NEITHER, TORCH_WRONG, REFIMPL_WRONG, BOTH, NOT_COMPARED = (
    "neither",
    "torch wrong",
    "refimpl wrong",
    "both",
    "not compared",
)
CLASSES = (NEITHER, TORCH_WRONG, REFIMPL_WRONG, BOTH, NOT_COMPARED)
_NOTHING_COMPARED = (Status.EAGER_FAIL_TO_RUN, Status.EAGER_TWO_RUNS_DIFFER, Status.MODEL_FAIL_TO_LOAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One program on both."""

    name: str
    theme: str
    direction: str
    torch: Record
    refimpl: Record

    @property
    def kind(self) -> str:
        if self.torch.verdict.status in _NOTHING_COMPARED or self.refimpl.verdict.status in _NOTHING_COMPARED:
            return NOT_COMPARED
        wrong = (self.torch.verdict.status.is_finding, self.refimpl.verdict.status.is_finding)
        return {(False, False): NEITHER, (True, False): TORCH_WRONG, (False, True): REFIMPL_WRONG, (True, True): BOTH}[
            wrong
        ]


def rows_of(torch_records: Iterable[Record], refimpl_records: Iterable[Record]) -> list[Row]:
    """Programs that both have run, in the order of the first."""
    ours = {record.name: record for record in refimpl_records}
    return [
        Row(name=record.name, theme=record.group, direction=record.direction, torch=record, refimpl=ours[record.name])
        for record in torch_records
        if record.name in ours
    ]


def by_theme(rows: Sequence[Row]) -> list[dict[str, object]]:
    """Counts of each class, a line for each theme and one for all."""
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        for theme in (row.theme, "total"):
            counts.setdefault(theme, Counter())[row.kind] += 1
    order = [*(theme for theme in counts if theme != "total"), "total"]
    return [
        {"theme": theme, "programs": counts[theme].total(), **{kind: counts[theme][kind] for kind in CLASSES}}
        for theme in order
        if theme in counts
    ]


def by_symptom(rows: Sequence[Row]) -> list[dict[str, object]]:
    """Kinds of failure of either, the commonest first, with the first program that shows it."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for who, record in (("torch", row.torch), ("refimpl", row.refimpl)):
            if row.kind != NOT_COMPARED and record.verdict.status.is_finding:
                found.setdefault((who, bucket_of(record)), []).append(row.name)
    ordered = sorted(found.items(), key=lambda item: (item[0][0], -len(item[1]), item[0][1]))
    return [
        {"who": who, "programs": len(names), "symptom": bucket, "example": names[0]} for (who, bucket), names in ordered
    ]


def wrong_programs(rows: Sequence[Row]) -> list[dict[str, object]]:
    """Programs on which someone is wrong."""
    return [
        {
            "program": row.name,
            "direction": row.direction,
            "wrong": row.kind,
            "torch_status": row.torch.verdict.status.value,
            "torch_symptom": row.torch.verdict.symptom,
            "refimpl_status": row.refimpl.verdict.status.value,
            "refimpl_symptom": row.refimpl.verdict.symptom,
        }
        for row in rows
        if row.kind in (TORCH_WRONG, REFIMPL_WRONG, BOTH)
    ]


def records_of(databases: Sequence[str], subject: str) -> list[Record]:
    """Of the newest run that has the subject. Raises UsageError where none has."""
    for database in databases:
        with Store.open(database, create=False, read_only=True) as store:
            for info in sorted(store.runs(), key=lambda run: run.run_id, reverse=True):
                found = [r for r in store.records(info.run_id) if r.subject == subject and r.suite == "mutations"]
                if found:
                    return found
    raise UsageError(
        seen=f"{', '.join(databases)}: no record of suite mutations on {subject}",
        expected="a database of `torch-oracle sweep --suite mutations`",
        do=f"run it with --subject {subject}",
    )


def write_tables(folder: Path, tables: Mapping[str, Sequence[Mapping[str, object]]]) -> None:
    """One CSV a table, `mutations-NAME.csv`."""
    for name, lines in tables.items():
        with (folder / f"mutations-{name}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(lines[0]) if lines else [], lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--db", action="append", required=True, help="repeatable")
    parser.add_argument("--subject", default=REFIMPL)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    rows = rows_of(records_of(given.db, TORCH), records_of(given.db, given.subject))
    buckets = by_bucket((row.torch for row in rows if row.kind != NOT_COMPARED), TORCH)
    tables = {
        "themes": by_theme(rows),
        "symptoms": by_symptom(rows),
        "programs": wrong_programs(rows),
        "torch-buckets": buckets,
        "torch-causes": by_cause(buckets),
    }
    write_tables(given.output, tables)
    for line in tables["themes"]:
        sys.stdout.write("  ".join(f"{key}={value}" for key, value in line.items()) + "\n")


if __name__ == "__main__":
    main()
