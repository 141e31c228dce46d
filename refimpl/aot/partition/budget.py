"""Saving less than is cheapest, down to a memory budget.

Counterpart: the knapsack of torch/_functorch/partitioners.py choose_saved_values_set,
torch/_functorch/_activation_checkpointing/knapsack.py
Differs: one factor on all prices of recomputation. Of the choices that save as little, the cut at that factor is the one that
recomputes least (a Lagrange multiplier), and bytes only fall with it, so that a smaller budget never saves more.
"""

from __future__ import annotations

from refimpl.aot.partition.cut_problem import CutProblem
from refimpl.aot.partition.split import plan_split

# Factors, as powers of two: at the first everything that may be recomputed is, at the last hardly anything.
_FIRST, _LAST = -24.0, 12.0
_STEPS = 14


def solve_within(problem: CutProblem, budget: float) -> frozenset[int]:
    """What to save so that its bytes are at most `budget` of the way from the least possible to what is saved by default."""
    default = problem.solve()
    least = problem.solve_scaled(2.0**_FIRST)
    most_bytes, least_bytes = _crossing(problem, default), _crossing(problem, least)
    if budget == 1 or most_bytes <= least_bytes:
        return default
    allowed = least_bytes + budget * (most_bytes - least_bytes)
    best, low, high = least, _FIRST, _LAST
    for _ in range(_STEPS):
        middle = (low + high) / 2
        choice = problem.solve_scaled(2.0**middle)
        if _crossing(problem, choice) <= allowed:
            best, low = choice, middle
        else:
            high = middle
    return best


def _crossing(problem: CutProblem, saved: frozenset[int]) -> float:
    return problem.bytes_of(plan_split(problem.joint, saved).saved)
