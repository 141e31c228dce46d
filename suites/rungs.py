"""The second step of the default sweep: programs that turn out wrong run on the lower rungs too. Does not import torch.

The default sweep runs a program on few rungs of the ladder (dynamo, aot_eager, aot_eager_decomp_partition, inductor); most
on one. That is enough to see that something is wrong, and not to say where. So when all planned cases have run, each
program with a new finding on the ladder gets a case on every rung below that it has none on, and the table of first wrong
rungs is as complete as if all had run everywhere.

The further cases are planned in the same run (`Store.plan_further`) before the first of them starts. They follow from the
records alone, so a run that is interrupted before, while or after they are planned comes to the same cases when it is
resumed. Known issues need none: the ledger names their rung.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from oracle.records import PlannedCase, Record
from oracle.verdict import Status
from results.tables import LADDER, NOT_COMPARABLE, ladder_of, rung_of

LOWER_RUNGS = LADDER[1:-1]  # above eager, which is the ground truth, and below the highest
_SAYS_NOTHING = NOT_COMPARABLE | {Status.MISSING}  # of the subject: it would be the same on every rung


def cases_below(planned: Sequence[PlannedCase], records: Iterable[Record]) -> list[PlannedCase]:
    """Cases on lower rungs for programs with findings, as far as they are not planned: by program, from the lowest rung.

    Subjects beside the ladder, such as `export`, have no rung below.
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
