"""The second step of the default sweep: runs programs with findings on the lower rungs too. Does not import torch.

The default sweep runs most programs on one rung of the ladder (dynamo, aot_eager, aot_eager_decomp_partition, inductor). That
shows that something is wrong, but not where. So when all planned cases have run, each program with a new finding gets a case on
every lower rung that it has not run on, which completes the table of first wrong rungs.

The further cases are added to the run's plan (`Store.plan_further`) before the first of them starts. They depend only on the
records, so a run that is interrupted at any time plans the same cases when it is resumed. Known issues need none, since the
ledger names their rung.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from oracle.records import PlannedCase, Record
from oracle.verdict import Status
from results.ladder import LADDER, ladder_of, rung_of
from results.outcomes import NOT_COMPARABLE

LOWER_RUNGS = LADDER[1:-1]  # without eager, which is the ground truth, and without the highest
_SAYS_NOTHING = NOT_COMPARABLE | {Status.MISSING}  # these statuses do not depend on the subject


def cases_below(planned: Sequence[PlannedCase], records: Iterable[Record]) -> list[PlannedCase]:
    """Cases on lower rungs for programs with findings, without those already planned: by program, lowest rung first.

    Subjects that are not on the ladder, such as `export`, have no lower rungs.
    """
    have = {case.case_id for case in planned}
    by_id = {case.case_id: case for case in planned}
    further: dict[str, PlannedCase] = {}
    for record in records:
        status, rung = record.verdict.status, rung_of(record.subject)
        if rung is None or ladder_of(record.subject) or not status.is_finding or status in _SAYS_NOTHING:
            continue
        case = by_id[record.case_id]
        for subject in LADDER[1:rung]:
            case_id = f"{case.suite}/{case.name}@{subject}"
            if case_id not in have:
                further[case_id] = replace(case, case_id=case_id, subject=subject)
    return list(further.values())
