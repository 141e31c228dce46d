"""Measures localisation on known issues of the ledger: the first wrong rung, step, value and culprit, and what they took.

    python -m benchmarks.measurements.localisation [--count 40] [--seed 0] [--only TEXT,TEXT...] [--minimise] [--csv FILE]

The issues are drawn at random, as many of each rung as their share allows. `rung` is right if it is that of the ledger; `culprit`
is right if the ledger's pattern for findings names it, and open if the ledger names none. With `--minimise` each program is also
minimised within 30 seconds. Issues whose program agrees on this machine are listed as such.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from benchmarks.measurements.frame import options_of, shown
from fuzz.reduce.minimise import minimise
from oracle.errors import TorchOracleError
from oracle.known.ledger import KnownIssue, load_ledger
from oracle.localisation.culprit import cpu_seconds
from oracle.localisation.ladder import LADDER
from oracle.localisation.report import Localisation
from oracle.localisation.search import localise_program
from oracle.program.build import instantiate
from oracle.subjects.registry import resolve

_MINIMISE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The result on one issue."""

    issue: str
    rung: str  # of the ledger
    found: str  # the first wrong rung; "agrees" if no run differs
    rung_is: str  # "right", "wrong" or ""
    culprit: str
    culprit_is: str  # "right", "wrong", "not found" or "open"
    step: str
    value: str
    trials: int
    cpu_s: float
    wall_s: float
    before: int = 0  # statements, with --minimise
    after: int = 0
    minimise_s: float = 0.0
    where: str = ""  # what the ledger says, in words


def drawn(issues: Sequence[KnownIssue], count: int, seed: int) -> list[KnownIssue]:
    """Issues at random, of each rung in turn."""
    by_rung: dict[str, list[KnownIssue]] = {}
    for issue in issues:
        by_rung.setdefault(issue.subject, []).append(issue)
    generator = random.Random(seed)
    for members in by_rung.values():
        generator.shuffle(members)
    found: list[KnownIssue] = []
    while len(found) < count and any(by_rung.values()):
        found += [members.pop() for members in by_rung.values() if members]
    return found[:count]


def measured(issue: KnownIssue, *, minimises: bool) -> Row:
    """One issue, localised and perhaps minimised on the highest rung of its ladder that shows it."""
    started, cpu = time.monotonic(), cpu_seconds()
    subject = resolve("inductor" if issue.subject in LADDER else issue.subject)
    found = localise_program(lambda: instantiate(issue.program), subject, name=issue.id, runs=1)
    if not found.shown and issue.subject in LADDER[:-1]:  # Inductor draws other random numbers
        subject = resolve(issue.subject)
        found = localise_program(lambda: instantiate(issue.program), subject, name=issue.id, runs=1)
    wall_s, cpu_s = time.monotonic() - started, cpu_seconds() - cpu
    before = after = 0
    minimise_s = 0.0
    if minimises and found.shown:
        smaller = minimise(issue.program, subject, verdict=found.verdict, budget_s=_MINIMISE_S)
        before, after, minimise_s = smaller.before.statements, smaller.after.statements, smaller.seconds
    return Row(
        issue=issue.id,
        rung=issue.subject,
        found=found.first_wrong or "agrees",
        rung_is="" if not found.shown else "right" if found.first_wrong.startswith(issue.subject) else "wrong",
        culprit=found.culprit.text,
        culprit_is=_culprit_is(issue, found),
        step="" if found.step is None else found.step.name,
        value="" if found.value is None else found.value.describe(),
        trials=len(found.culprit.trials),
        cpu_s=round(cpu_s, 1),
        wall_s=round(wall_s, 1),
        before=before,
        after=after,
        minimise_s=round(minimise_s, 1),
        where=issue.where,
    )


def _culprit_is(issue: KnownIssue, found: Localisation) -> str:
    globs = () if issue.finding is None else issue.finding.culprits
    if not found.shown:
        return ""
    if not found.culprit.text:
        return "not found"
    if not globs or globs == ("*",):
        return "open"
    return "right" if any(fnmatchcase(found.culprit.text, glob) for glob in globs) else "wrong"


def rows(issues: Sequence[KnownIssue], *, minimises: bool) -> Iterator[Row]:
    """Yield a row for each issue, as soon as it is measured."""
    for issue in issues:
        try:
            yield measured(issue, minimises=minimises)
        except TorchOracleError as error:
            sys.stderr.write(f"{issue.id}: {error}\n")


def named(issues: Sequence[KnownIssue], names: str) -> list[KnownIssue]:
    """The issues whose id contains one of these names, which commas separate; all issues for ""."""
    return [issue for issue in issues if any(name in issue.id for name in names.split(","))]


def main() -> None:
    """Measure, print a line for each issue, and write the table."""
    parser = options_of(__doc__, only=True)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minimise", action="store_true")
    asked = parser.parse_args()
    issues = drawn(named(load_ledger().issues, asked.only), asked.count, asked.seed)
    shown(rows(issues, minimises=asked.minimise), asked.csv)


if __name__ == "__main__":
    main()
