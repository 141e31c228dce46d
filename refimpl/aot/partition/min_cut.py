"""Save what is cheapest in all: bytes that cross, and the price of what the backward runs once more.

Counterpart: torch/_functorch/partitioners.py min_cut_rematerialization_partition, solve_min_cut, choose_saved_values_set
Differs: recomputing has a price per op (see rules) and is one more kind of edge of the cut, where upstream forbids it by
heuristics. Views are always made again from the memory they lie in, and memory counts once. A memory budget scales the prices.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from refimpl.aot.compile_utils import equivalent_nodes
from refimpl.aot.joint.sides import GIVEN_WITH, read_joint
from refimpl.aot.partition.budget import solve_within
from refimpl.aot.partition.cut_problem import CutProblem
from refimpl.aot.partition.options import budget_of_graph, current_options
from refimpl.aot.partition.rules import OpKind, kind_of
from refimpl.aot.partition.split import plan_split, without_derived_numbers, write_graphs
from refimpl.aot.partition.verify import verify_partition


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

    compiler: accepted and not used, one set of rules serves all; static_lifetime_input_indices: inputs that live as long
    as the compiled function, saving them costs nothing; recomputable_ops: packets or overloads that may run twice, in place
    of the rules.
    Conventions of inputs and outputs are those of `default_partition`.
    """
    options = current_options()
    graph = joint_module.graph
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
    """A heavy op that the backward repeats is a checkpoint of the user's: merging would undo it. Constants that autograd gives
    with other incoming gradients are not the same."""
    if earlier.meta.get(GIVEN_WITH) != later.meta.get(GIVEN_WITH):
        return False
    is_late = later.meta.get("partitioner_tag") == "is_backward"
    is_early = earlier.meta.get("partitioner_tag") != "is_backward"
    return not (is_early and is_late) or kind_of(later.target) not in (OpKind.HEAVY, OpKind.OTHER)
