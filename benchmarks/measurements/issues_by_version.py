"""Tells with which versions of torch the programs of known issues differ from eager.

    torch-oracle issues '*' --run --json > seen-2.12.jsonl       # by an interpreter that has torch 2.12
    python docs/tools/known_issues.py --measure seen-2.12.jsonl  # keeps them in oracle/known/seen.json
    python -m benchmarks.measurements.issues_by_version [--csv FILE]

A row is an entry of the ledger and its program, each on its first wrong rung. `change` says what the versions have in common: "in
all", "new in 2.12", "fixed in 2.13"; or that it is not known, since a version did not compare the program with eager.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from benchmarks.measurements.frame import options_of, shown
from oracle.known.ledger import KnownIssue, Ledger, load_ledger


def rows(ledger: Ledger) -> Iterator[dict[str, str]]:
    """A row for each issue: its id and rung, its program's statuses with each measured minor version, and the change."""
    for issue in ledger.issues:
        statuses = {minor: _statuses(ledger, issue, minor) for minor in ledger.seen.versions}
        yield {"issue": issue.id, "rung": issue.subject, **statuses, "change": _change(ledger, issue)}


def _statuses(ledger: Ledger, issue: KnownIssue, minor: str) -> str:
    """How the program ended with a version: "pass", "fail_grad"; several by "or"; "not measured"."""
    endings = ledger.seen.measured(issue.shown_by[0], minor).get(issue.subject, ())
    return " or ".join(dict.fromkeys(ending.status.value for ending in endings)) or "not measured"


def _change(ledger: Ledger, issue: KnownIssue) -> str:
    versions, shows = ledger.seen.versions, ledger.torch_versions(issue)
    if unknown := [minor for minor in versions if not ledger.is_measured(issue, minor)]:
        return f"not compared with {' and '.join(unknown)}"
    changes = [
        f"{'new' if after in shows else 'fixed'} in {after}"
        for before, after in pairwise(versions)
        if (before in shows) != (after in shows)
    ]
    return ", ".join(changes) or ("in all" if shows else "in none")


def main() -> None:
    """Print and write the rows, and count the changes."""
    asked = options_of(__doc__).parse_args()
    counts = Counter(shown(rows(load_ledger()), asked.csv)["change"])
    print("; ".join(f"{change}: {count}" for change, count in counts.most_common()))


if __name__ == "__main__":
    main()
