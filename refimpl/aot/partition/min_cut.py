"""The min-cut partitioner: it saves the values that minimise saved bytes plus the price of recomputation.

Counterpart: torch/_functorch/partitioners.py min_cut_rematerialization_partition, solve_min_cut,
  choose_saved_values_set; the knapsack of torch/_functorch/partitioners.py choose_saved_values_set,
  torch/_functorch/_activation_checkpointing/knapsack.py
Differs: recomputation has a price per op (see recomputation.py), which is the capacity of an edge, where upstream bans it by
heuristics. Views are always remade from their base, so that memory counts once. A memory budget scales the prices.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from refimpl.aot.partition.common_subexpressions import equivalent_nodes
from refimpl.aot.partition.cut_problem import CutProblem
from refimpl.aot.partition.default import split_as_recorded, writes_as_recorded
from refimpl.aot.partition.joint_graph import read_joint
from refimpl.aot.partition.recomputation import OpKind, budget_of_graph, current_options, kind_of
from refimpl.aot.partition.split import plan_split, without_derived_numbers, write_graphs
from refimpl.aot.partition.verify import verify_partition
from refimpl.trace.metadata import notes_of


def min_cut_rematerialization_partition(
    joint_module: torch.fx.GraphModule,
    _joint_inputs: Any,
    compiler: str = "inductor",
    *,
    num_fwd_outputs: int,
    static_lifetime_input_indices: Sequence[int] | None = None,
    recomputable_ops: Collection[Any] | None = None,
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """The forward and the backward graph of a joint graph whose first `num_fwd_outputs` outputs are the forward's.

    compiler: ignored; static_lifetime_input_indices: inputs that live as long as the compiled function, so that saving them costs
    nothing; recomputable_ops: packets or overloads that may be recomputed; None for all that recomputation.py allows.
    Conventions of inputs and outputs are those of `default_partition`.
    """
    options = current_options()
    graph = joint_module.graph
    if writes_as_recorded(graph):
        return split_as_recorded(joint_module, num_fwd_outputs)
    merges = equivalent_nodes(graph, _may_merge) if options.merges_common_subexpressions else {}
    joint = read_joint(joint_module, num_fwd_outputs, merges)
    problem = CutProblem(joint, options.prices, static_lifetime_input_indices or (), recomputable_ops)
    budget = budget_of_graph(graph, options.memory_budget)
    saved = problem.solve() if budget == 1 else solve_within(problem, budget)
    split = without_derived_numbers(joint, plan_split(joint, saved))
    forward, backward = write_graphs(joint, split, problem.exposed)
    if options.verifies:
        verify_partition(joint_module, forward, backward, num_fwd_outputs, merges=merges)
    return forward, backward


def _may_merge(earlier: torch.fx.Node, later: torch.fx.Node) -> bool:
    """Whether two equal calls may be merged.

    Not a heavy op of the forward with one of the backward: it is a checkpoint of the user's, which merging would undo. Nor
    constants that autograd produces for different tangents."""
    if notes_of(earlier).given_with != notes_of(later).given_with:
        return False
    is_late = later.meta.get("partitioner_tag") == "is_backward"
    is_early = earlier.meta.get("partitioner_tag") != "is_backward"
    return not (is_early and is_late) or kind_of(later.target) not in (OpKind.HEAVY, OpKind.OTHER)


# Memory budgets below 1. Upstream solves a knapsack problem; here one factor (a Lagrange multiplier) scales all prices of
# recomputation. The cut for a factor has the least recomputation among choices that save as few bytes. Saved bytes fall with the
# factor, so that a smaller budget never saves more.

# Exponents of factors: at the first, everything that may be recomputed is; at the last, hardly anything.
_FIRST, _LAST = -24.0, 12.0
_STEPS = 14


def solve_within(problem: CutProblem, budget: float) -> frozenset[int]:
    """What to save for a budget: its bytes are at most the share `budget` of the way from the least possible to the default."""
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
