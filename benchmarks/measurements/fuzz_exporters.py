"""Compares campaigns on exporters: `python -m benchmarks.measurements.fuzz_exporters CORPUS ... --output FOLDER`.

Each corpus belongs to one subject. It writes `export-fuzz.md` (statuses and refusals by subject) and `export-fuzz.csv`: a row for
each bucket, with the verdicts of the other subjects on its reduced program. `--notes` (columns `bucket`, `cause`, `whose`) adds a
reviewer's notes on each finding.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measurements.frame import read_notes, write_rows
from fuzz.campaign.corpus import read_json
from fuzz.judge.refusal import REFUSED, refusal_of
from fuzz.program.structure import FuzzProgram
from fuzz.triage.localise import judge_here
from oracle.subjects.registry import resolve
from oracle.subjects.spec import SubjectSpec
from oracle.verdict import Verdict
from results.files import write_atomically

Judge = Callable[[FuzzProgram, SubjectSpec], Verdict]


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """The campaign of a corpus on one subject."""

    subject: str
    statuses: Mapping[str, int]
    refused: Mapping[str, int]
    buckets: Sequence[Mapping[str, Any]]

    @property
    def programs(self) -> int:
        return sum(self.statuses.values())


def read_campaign(corpus: Path) -> Campaign:
    """The campaign of a directory. Raises UsageError for a file that is missing or of another version."""
    state = read_json(corpus / "state.json")
    return Campaign(
        subject=state["identity"]["subject"],
        statuses=state["statuses"],
        refused=state["refused"],
        buckets=[read_json(path) for path in sorted((corpus / "findings").glob("*.json"))],
    )


def rows(
    campaigns: Sequence[Campaign], notes: Mapping[str, Mapping[str, str]], *, judge_on: Judge = judge_here
) -> list[dict[str, Any]]:
    """A row for each bucket, by subject and status; `others` has the statuses of the other subjects on the reduced program."""
    table = []
    for campaign in campaigns:
        others = [resolve(other.subject) for other in campaigns if other.subject != campaign.subject]
        for bucket in sorted(campaign.buckets, key=lambda bucket: (bucket["status"], bucket["key"])):
            program = FuzzProgram.from_json(bucket["program"])
            note = notes.get(bucket["key"], {})
            table.append(
                {
                    "subject": campaign.subject,
                    "bucket": bucket["key"],
                    "status": bucket["status"],
                    "kind": bucket["kind"],
                    "programs": bucket["count"],
                    "others": "; ".join(f"{spec.name}: {_word(judge_on(program, spec), spec)}" for spec in others),
                    "cause": note.get("cause", ""),
                    "whose": note.get("whose", "not looked at"),
                    "symptom": bucket["verdict"]["symptom"],
                    "source": bucket["source"].removeprefix("import torch").strip(),
                    "calls": json.dumps(bucket["program"]["calls"]),
                }
            )
    return table


def _word(verdict: Verdict, spec: SubjectSpec) -> str:
    return REFUSED if refusal_of(verdict, spec) else verdict.status.value


def markdown(campaigns: Sequence[Campaign], table: Sequence[Mapping[str, Any]], *, environment: str) -> str:
    """The text of `export-fuzz.md`."""
    statuses = list(dict.fromkeys(status for campaign in campaigns for status in campaign.statuses))
    silent = [status for status in statuses if status not in ("pass", REFUSED)]
    lines = ["# Random programs on exporters", "", f"* {environment}", ""]
    lines += _table(
        ["subject", "programs", "pass", REFUSED, *silent, "buckets"],
        [
            [
                campaign.subject,
                campaign.programs,
                *(campaign.statuses.get(status, 0) for status in ("pass", REFUSED, *silent)),
                len(campaign.buckets),
            ]
            for campaign in campaigns
        ],
    )
    for campaign in campaigns:
        lines += ["", f"Refused by `{campaign.subject}`:", ""]
        reasons = sorted(campaign.refused.items(), key=lambda item: -item[1])
        lines += _table(["programs", "reason"], [[number, reason] for reason, number in reasons])
        lines += ["", f"Findings on `{campaign.subject}`, by cause:", ""]
        causes: dict[tuple[str, str], list[int]] = {}
        for row in table:
            if row["subject"] == campaign.subject:
                counts = causes.setdefault((row["cause"] or row["kind"], row["whose"]), [0, 0])
                counts[0] += 1
                counts[1] += row["programs"]
        lines += _table(
            ["cause", "whose", "buckets", "programs"], [[*key, *counts] for key, counts in sorted(causes.items())]
        )
    return "\n".join(lines) + "\n"


def _table(head: Sequence[str], body: Sequence[Sequence[object]]) -> list[str]:
    lines = [[str(cell).replace("|", "\\|") for cell in row] for row in body]
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `python -m`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--notes", type=Path)
    parser.add_argument("--environment", default="", help="versions, seed and date, for the head of the table")
    options = parser.parse_args(arguments)
    campaigns = [read_campaign(corpus) for corpus in options.corpus]
    table = rows(campaigns, read_notes(options.notes))
    write_rows(table, options.output / "export-fuzz.csv")
    write_atomically(options.output / "export-fuzz.md", markdown(campaigns, table, environment=options.environment))


if __name__ == "__main__":
    main()
