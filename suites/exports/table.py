"""`python -m suites.exports.table --db FILE [--db FILE] --output FOLDER`: tables of the suite's results.

It writes `export-models.csv`, a line for each model and subject, and `export-models.md`: counts by subject, failures by kind, and
on how many models the variants of export (strict or not, exported again, saved, ...) agree. It uses the newest run of each
database; if two have the same case, the later database wins.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oracle.judge.outside import OUTSIDE
from oracle.records import Record
from oracle.verdict import Status, Verdict
from results.files import write_atomically
from results.store import Store
from suites.exports.suite import EXAMPLE, INSIDE, LARGEST, SMALLEST
from suites.exports.suite import OUTSIDE as KINDS_OUTSIDE
from suites.text_tables import csv_text, markdown_table

EQUAL, ATTRIBUTES, DATA, NOT_RUN = "equal", "equal but for attributes", "reads data", "not run"
REFUSED = "refused"
_ATTRIBUTE = re.compile(r"^(?:call \d+: )?module\.")  # module state that forward has assigned
_READS_DATA = re.compile(
    r"[Dd]ata-dependent|annotating your code|DataDependent|data_dependent_read|guard_on_data|RC0008|RC0002"
    r"|depends on (its inputs|data)"
)
_NOT_COMPARABLE = (
    Status.EAGER_FAIL_TO_RUN,
    Status.EAGER_TWO_RUNS_DIFFER,
    Status.MODEL_FAIL_TO_LOAD,
    Status.MISSING,
    Status.NOT_RUN,
)
COLUMNS = ("model", "subject", *INSIDE, *KINDS_OUTSIDE, "symptom")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One model on one subject: a word for each kind of program, and the first symptom."""

    model: str
    subject: str
    words: Mapping[str, str]
    symptom: str

    def cells(self) -> list[str]:
        return [
            self.model,
            self.subject,
            *(self.words.get(kind, NOT_RUN) for kind in (*INSIDE, *KINDS_OUTSIDE)),
            self.symptom,
        ]


def word_of(verdict: Verdict, *, is_outside: bool) -> str:
    """The outcome of a program in a word or two. Attributes that forward assigns do not count as results, since export drops
    them.
    """
    symptoms = [verdict.symptom, *verdict.also]
    is_refused = any(f", {OUTSIDE}, is refused" in text for text in verdict.explained)
    if verdict.status in (Status.PASS, Status.PASS_DUE_TO_SKIP):
        return (REFUSED if is_refused else "no range") if is_outside else EQUAL
    if verdict.status in _NOT_COMPARABLE:
        return "no ground truth"
    if verdict.status is Status.FAIL_STATE and all(_ATTRIBUTE.match(text) for text in symptoms):
        return (REFUSED if is_refused else ATTRIBUTES) if is_outside else ATTRIBUTES
    if verdict.status is Status.FAIL_TO_RUN and _READS_DATA.search(verdict.symptom):
        return DATA
    return verdict.status.value


def rows_of(records: Iterable[Record]) -> list[Row]:
    """One row for each model and subject, in the order of the records."""
    found: dict[tuple[str, str], dict[str, Record]] = {}
    for record in records:
        kind = record.name.rpartition("/")[2]
        found.setdefault((record.group, record.subject), {})[kind] = record
    rows = []
    for (model, subject), kinds in found.items():
        words = {kind: word_of(kinds[kind].verdict, is_outside=kind not in INSIDE) for kind in kinds}
        symptoms = [kinds[kind].verdict.symptom for kind in kinds if kinds[kind].verdict.symptom]
        rows.append(Row(model=model, subject=subject, words=words, symptom=symptoms[0][:200] if symptoms else ""))
    return rows


def counts(rows: Sequence[Row]) -> list[list[str]]:
    """A line for each subject: models, and how many programs of each kind ended with which word."""
    lines = []
    for subject in dict.fromkeys(row.subject for row in rows):
        own = [row for row in rows if row.subject == subject]
        cells = [subject, str(len(own))]
        for kind in (*INSIDE, *KINDS_OUTSIDE):
            words = Counter(row.words[kind] for row in own if kind in row.words)
            cells.append(", ".join(f"{number} {word}" for word, number in words.most_common()) or NOT_RUN)
        lines.append(cells)
    return lines


def agreement(rows: Sequence[Row], subjects: Sequence[str]) -> tuple[int, int, list[str]]:
    """The number of models that all these subjects ran; on how many all are right, or all refuse; the names of the others."""
    by_model: dict[str, dict[str, str]] = {}
    for row in rows:
        if row.subject in subjects and "inside" in row.words:
            by_model.setdefault(row.model, {})[row.subject] = row.words["inside"]
    complete = {model: set(words.values()) for model, words in by_model.items() if len(words) == len(subjects)}
    others = [model for model, words in complete.items() if len(words) > 1]
    return len(complete), len(complete) - len(others), others


def markdown(rows: Sequence[Row], *, environment: str) -> str:
    """The text of `export-models.md`."""
    head = [
        "subject",
        "models",
        f"at {EXAMPLE}, {SMALLEST} and {LARGEST}",
        *(f"{kind} the range" for kind in KINDS_OUTSIDE),
    ]
    lines = [
        "# Exported models",
        "",
        f"* versions: {environment}",
        f"* one export of each model at batch {EXAMPLE}, `Dim('batch', min={SMALLEST}, max={LARGEST})`; eval, float32;",
        f"  then calls at {EXAMPLE}, {SMALLEST} and {LARGEST}, and in programs of their own at {LARGEST + 1} and {SMALLEST - 1}",
        "",
        *markdown_table(head, counts(rows)),
        "",
        f"\"{ATTRIBUTES}\": results of all calls are eager's; forward also assigns attributes of modules, which an exported",
        "program does not do.",
    ]  # fmt: skip
    for label, wanted in (("refimpl's ways", "refimpl."), ("all subjects", "")):
        subjects = [name for name in dict.fromkeys(row.subject for row in rows) if name.startswith(wanted)]
        if len(subjects) > 1:
            models, same, others = agreement(rows, subjects)
            text = f"{label} ({len(subjects)}) end alike on {same} of {models} models"
            lines += ["", text + (f"; not on {', '.join(others)}" if others else "") + "."]
    failing = [row for row in rows if row.symptom]
    lines += ["", "## What is not equal, or not refused", ""]
    lines += markdown_table(list(COLUMNS), [row.cells() for row in failing])
    return "\n".join(lines) + "\n"


def _newest(paths: Sequence[Path]) -> tuple[list[Record], str]:
    records: dict[str, Record] = {}
    environment: Mapping[str, Any] = {}
    for path in paths:
        with Store.open(path, create=False, read_only=True) as store:
            environment = store.environment()
            records |= {record.case_id: record for record in store.records() if record.suite == "exports"}
    worker = environment.get("worker", {})
    versions = f"torch {worker.get('torch', '?')}, Python {environment.get('python', '?')}"
    return list(records.values()), versions


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `python -m`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--db", type=Path, action="append", required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--date", default="", help="when the runs were made")
    options = parser.parse_args(arguments)
    records, versions = _newest(options.db)
    rows = rows_of(records)
    environment = f"{versions}, {options.date}" if options.date else versions
    write_atomically(options.output / "export-models.csv", csv_text(COLUMNS, [row.cells() for row in rows]))
    write_atomically(options.output / "export-models.md", markdown(rows, environment=environment))


if __name__ == "__main__":
    main()
