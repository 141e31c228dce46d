"""What each regression must be reported as, per subject, on torch 2.13, x86 CPU. Torch-free.

Known issues are held to what was measured of them (`oracle/known/seen.json`); programs that agree, and controls, must pass on
every rung. Subjects that trace once (export) are held to a program only where it was reported for them: what they do when the
program's surroundings change afterwards is theirs to document.
"""

from __future__ import annotations

from oracle.known.ledger import REGRESSIONS as SUITE
from oracle.known.ledger import load_ledger
from suites.regressions.table import REGRESSIONS, Regression

LADDER = ("dynamo", "aot_eager", "inductor")
MEASURED_WITH = "2.13"


def _expected(row: Regression) -> dict[str, str]:
    if row.kind == "untried":
        return {}
    if row.kind != "differs":
        return dict.fromkeys(LADDER, "pass")
    endings = load_ledger().seen.endings(f"{SUITE}/{row.name}", MEASURED_WITH)
    subjects = (
        *LADDER,
        row.first_wrong,
        *(name for name in endings if row.first_wrong.startswith("export") and name.startswith("export")),
    )
    # A program that ends in several ways promises nothing.
    return {
        subject: endings[subject][0].status.value
        for subject in dict.fromkeys(subjects)
        if len({ending.status for ending in endings.get(subject, ())}) == 1
    }


EXPECTED: dict[str, dict[str, str]] = {row.name: verdicts for row in REGRESSIONS if (verdicts := _expected(row))}
"""Program name -> subject -> status word. Programs nobody has measured are absent."""
