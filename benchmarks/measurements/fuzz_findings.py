"""The findings of campaigns as a table: `python -m benchmarks.measurements.fuzz_findings CORPUS ... --csv FILE [--notes CSV]`.

There is a row for each bucket key of the corpora: symptom, first wrong rung, reduced program, and the worst element's error in
eager and compiled code against fp64. `--notes` (columns `bucket`, `real`, `new`, `note`) adds a reviewer's notes on each finding;
buckets without a note are marked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measurements.frame import options_of, read_notes, write_rows
from fuzz.campaign.corpus import read_json


def rows(corpora: Sequence[Path], notes: Mapping[str, Mapping[str, str]]) -> list[dict[str, Any]]:
    """One row per bucket, sorted by status and bucket. The counts of programs that corpora have of one bucket are added up."""
    found: dict[str, dict[str, Any]] = {}
    for corpus in corpora:
        for path in sorted((corpus / "findings").glob("*.json")):
            bucket = read_json(path)
            row = _row(bucket, notes.get(bucket["key"], {}))
            if row["bucket"] in found:
                row["programs"] += found[row["bucket"]]["programs"]
            found[row["bucket"]] = row
    return sorted(found.values(), key=lambda row: (row["status"], row["bucket"]))


def _row(bucket: Mapping[str, Any], note: Mapping[str, str]) -> dict[str, Any]:
    worst = bucket["verdict"].get("worst") or {}
    program = bucket["program"]
    return {
        "bucket": bucket["key"],
        "status": bucket["status"],
        "rung": bucket["rung"],
        "kind": bucket["kind"],
        "operators": " ".join(bucket["operators"]),
        "culprit": bucket["culprit"],
        "opinion": bucket["opinion"],
        "known_issue": bucket["known"],
        "programs": bucket["count"],
        "statements": len(program["statements"]),
        "seconds": round(bucket["seconds"], 1),
        "symptom": bucket["verdict"]["symptom"],
        "eager_error": worst.get("eager_error"),
        "compiled_error": worst.get("subject_error"),
        "allowed_error": worst.get("allowed_error"),
        "source": bucket["source"].removeprefix("import torch").strip(),
        "calls": json.dumps(program["calls"]),
        "config": json.dumps(program["config"]),
        "real": note.get("real", "not looked at"),
        "new": note.get("new", ""),
        "note": note.get("note", ""),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the table, and print how many rows are real and new."""
    parser = options_of(__doc__)
    parser.add_argument("corpus", type=Path, nargs="+")
    parser.add_argument("--notes", type=Path)
    options = parser.parse_args(arguments)
    table = rows(options.corpus, read_notes(options.notes))
    write_rows(table, options.csv)
    looked_at = [row for row in table if row["real"] != "not looked at"]
    real = [row for row in looked_at if row["real"] == "yes"]
    new = sum(row["new"] == "yes" for row in real)
    print(f"{len(table)} buckets, {len(looked_at)} looked at, {len(real)} real, {new} new")


if __name__ == "__main__":
    main()
