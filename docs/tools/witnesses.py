"""Counts for each subject how many verdicts each witness of the judge decides, and over how many elements.

    python -m oracle.cli sweep --suite opinfo --subject refimpl.triton --db triton.db
    python docs/tools/witnesses.py triton.db decomp.db

writes results/data/cpu-torch-2.13.0/judge-witnesses.csv from the newest run of each database, which docs/judge.md quotes. A
witness decides a verdict of `pass` if it accepts an element that no other witness does: without it, the case would be a finding.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from results.store import Store

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "results" / "data" / "cpu-torch-2.13.0" / "judge-witnesses.csv"
_FIELDS: tuple[str, ...] = ("subject", "witness", "verdicts", "elements")
_AGREE = ("pass", "pass_due_to_skip")


def count(verdicts: Iterable[tuple[str, str, tuple[tuple[str, int], ...]]]) -> list[dict[str, str]]:
    """Rows of the table. Each verdict is a subject, a status word, and the witnesses with their numbers of elements."""
    of_verdicts: dict[str, Counter[str]] = defaultdict(Counter)
    of_elements: dict[str, Counter[str]] = defaultdict(Counter)
    for subject, status, witnesses in verdicts:
        of_verdicts[subject]["all"] += 1
        if status not in _AGREE:
            of_verdicts[subject]["findings"] += 1
            continue
        if status == "pass_due_to_skip":
            of_verdicts[subject]["pass_due_to_skip"] += 1
        for name, elements in witnesses:
            of_verdicts[subject][name] += 1
            of_elements[subject][name] += elements
    return [
        dict(zip(_FIELDS, (subject, name, str(number), str(of_elements[subject][name])), strict=True))
        for subject, counter in sorted(of_verdicts.items())
        for name, number in counter.most_common()
    ]


def main(databases: list[str]) -> int:
    found = []
    for database in databases:
        with Store.open(database, create=False, read_only=True) as store:
            found += [
                (record.subject, record.verdict.status.value, record.verdict.witnesses) for record in store.records()
            ]
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, _FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(count(found))
    print(f"{TABLE.relative_to(ROOT)}: {len(found)} verdicts")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
