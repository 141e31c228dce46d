"""The order in which a sweep runs its cases, so that a run that ends early has judged an even share of every suite.

The plan lists suite after suite. In that order a limit of time (`--time`) would keep the later suites from ever running. So the
groups of all suites take turns, and each suite advances by the same share of its cases. Under a limit of time the groups of a
suite that were judged longest ago come first, so that several nights together reach all. The plan itself, by which tables and
comparisons list cases, stays as it is. The order depends on the plan and on earlier runs only, so a resumed run keeps to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from oracle.records import PlannedCase

NEVER: Final = 0  # in place of the number of the run that judged a case last
_NONE: Final[Mapping[str, int]] = MappingProxyType({})


def running_order(cases: Sequence[PlannedCase], judged: Mapping[str, int] = _NONE) -> list[PlannedCase]:
    """The cases in the order in which they run. `judged`: number of the last run that has a record of a case, from 1, by its id.

    Groups stay together, since a worker runs the cases of one group after another. Every suite begins at once, so that one with a
    single group runs in the shortest night too.
    """
    suites: dict[str, dict[str, list[PlannedCase]]] = {}
    for case in cases:
        suites.setdefault(case.suite, {}).setdefault(case.group, []).append(case)
    placed: list[tuple[float, int, list[PlannedCase]]] = []
    for number, groups in enumerate(suites.values()):
        oldest_first = sorted(groups.values(), key=lambda group: _last_judged(group, judged))  # stable
        done, total = 0, sum(map(len, oldest_first))
        for group in oldest_first:
            placed.append((done / total, number, group))
            done += len(group)
    placed.sort(key=lambda place: place[:2])
    return [case for _, _, group in placed for case in group]


def _last_judged(group: Sequence[PlannedCase], judged: Mapping[str, int]) -> int:
    """The number of the run that judged the case of a group that has waited longest."""
    return min(judged.get(case.case_id, NEVER) for case in group)
