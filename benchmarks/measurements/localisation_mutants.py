"""Measures localisation on planted bugs: what is named for each mutant of `fuzz.mutants`, beside what was planted.

    python -m benchmarks.measurements.localisation_mutants [--only TEXT] [--csv FILE]

Each row is the localisation of the mutant's trigger, a program of a line or two. A mutant is a backend without parts to leave
out. It is named by the operator at which the first wrong value or gradient appears, by the call without which the program is
right, or by the function that raised. A mutant that does not end takes as long as the limit of time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.measurements.frame import options_of, shown
from fuzz.mutants import MUTANTS, Mutant
from oracle.localisation.search import localise_program
from oracle.program.build import instantiate
from oracle.subjects.registry import resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What was planted, and what was named."""

    mutant: str
    stage: str
    bug: str
    status: str
    rung: str  # the first wrong rung; "agrees" if the program does not show the bug
    value: str  # the first wrong value or gradient
    culprit: str
    died: str  # questions whose process died or took too long, and how
    wall_s: float


def measured(mutant: Mutant) -> Row:
    """The localisation of the mutant's trigger."""
    program = mutant.program(mutant.trigger)
    started = time.monotonic()
    found = localise_program(lambda: instantiate(program), resolve(mutant.subject), name=mutant.name, runs=1)
    return Row(
        mutant=mutant.name,
        stage=mutant.stage,
        bug=mutant.bug,
        status=found.verdict.status.value,
        rung="mutant" if found.first_wrong == mutant.subject else found.first_wrong or "agrees",
        value="" if found.value is None else found.value.describe(),
        culprit=found.culprit.text,
        died="; ".join(found.unanswered),
        wall_s=round(time.monotonic() - started, 1),
    )


def main() -> None:
    """Measure, print a line for each mutant, and write the table."""
    asked = options_of(__doc__, only=True).parse_args()
    shown((measured(mutant) for mutant in MUTANTS.values() if asked.only in mutant.name), asked.csv)


if __name__ == "__main__":
    main()
