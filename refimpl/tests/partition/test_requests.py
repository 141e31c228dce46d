"""What users ask of the minimum cut: recomputation tags and memory budgets."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._functorch import config as functorch_config
from torch.utils.checkpoint import CheckpointPolicy

from refimpl.aot.partition import partition_options, saved_bytes
from refimpl.errors import BadParameter
from refimpl.tests.partition.joint_graphs import (
    PARTITIONERS,
    Joint,
    assert_same_values,
    calls,
    joint_of,
    saved_names,
    split,
)

aten = torch.ops.aten


def layers(a, *weights):
    for weight in weights:
        a = F.layer_norm(F.gelu(a @ weight) + a, [8]).softmax(-1) * a
    return a


@pytest.fixture(scope="module")
def deep() -> Joint:
    return joint_of(layers, torch.randn(16, 8), *[torch.randn(8, 8) for _ in range(6)])


def tagged(policy: CheckpointPolicy, *ops: Any, **more: Any) -> Joint:
    """Two matrix products with elementwise ops after each; calls of `ops` before the tangent have the policy."""
    joint = joint_of(lambda a, w: (((a @ w).sin() @ w).sin() * 2).exp(), torch.randn(4, 4), torch.randn(4, 4))
    nodes = [n for op in ops for n in joint.calls(op) if not _waits(n)]
    assert nodes
    for node in nodes:
        node.meta.update({"recompute": policy, **more})
    return joint


def _waits(node: torch.fx.Node) -> bool:
    return node.name.startswith("tangents") or any(_waits(n) for n in node.all_input_nodes)


@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize("policy", [CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE])
def test_what_is_tagged_for_recomputation_is_recomputed_however_dear(
    policy: CheckpointPolicy, partitioner: Any
) -> None:
    joint = tagged(policy, aten.mm, aten.sin, aten.mul, aten.exp)
    graphs = split(joint, partitioner)
    assert len(calls(graphs[1], aten.mm)) == 2 + 4, "two forward products again, beside four of the gradients"
    assert [n for n in saved_names(graphs, joint) if not n.startswith("primals")] == []
    assert_same_values(joint, graphs)


def test_what_is_tagged_to_be_saved_is_not_recomputed() -> None:
    free = tagged(CheckpointPolicy.MUST_RECOMPUTE, aten.mm)
    assert len(calls(split(free)[1], aten.sin)) > 0
    for policy in (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE):
        joint = tagged(policy, aten.sin, aten.mm)
        with partition_options(memory_budget=0.0):
            graphs = split(joint)
        assert {n.name for n in calls(graphs[1], aten.sin)} & {"sin", "sin_1"} == set()
        assert_same_values(joint, graphs)


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_what_passes_between_two_checkpointed_regions_is_saved(partitioner: Any) -> None:
    joint = tagged(CheckpointPolicy.PREFER_RECOMPUTE, aten.mm, aten.sin, aten.mul, aten.exp, ac_graph_id=1)
    first = {"mm", "sin"}
    for node in joint.module.graph.nodes:
        if "ac_graph_id" in node.meta and node.name not in first:
            node.meta["ac_graph_id"] = 2
    graphs = split(joint, partitioner)
    assert "sin" in saved_names(graphs, joint)
    assert_same_values(joint, graphs)


def test_a_result_with_a_backward_hook_is_saved() -> None:
    joint = tagged(CheckpointPolicy.PREFER_RECOMPUTE, aten.mm, aten.sin)
    last = joint.node("sin_1")
    assert "sin_1" not in saved_names(split(joint), joint)
    last.meta["has_backward_hook"] = True
    for partitioner in PARTITIONERS:
        assert "sin_1" not in {n.name for n in calls(split(joint, partitioner)[1], aten.sin)}


def test_bytes_fall_with_the_budget(deep: Joint) -> None:
    kept: list[int] = []
    for budget in (1.0, 0.8, 0.6, 0.4, 0.2, 0.0):
        with partition_options(memory_budget=budget):
            graphs = split(deep, static_lifetime_input_indices=range(1, 7))
        assert_same_values(deep, graphs)
        kept.append(saved_bytes(graphs[0], deep.outputs).kept)
    assert kept == sorted(kept, reverse=True)
    assert kept[-1] == 0, "all of it can be made again from the inputs"
    most, least = kept[0], kept[-1]
    for budget, found in zip((1.0, 0.8, 0.6, 0.4, 0.2, 0.0), kept, strict=True):
        assert found <= least + budget * (most - least)
    assert len(set(kept)) >= 4, "layers that are alike change side one by one"


def test_settings_of_torch_hold_outside_of_a_block(deep: Joint) -> None:
    with partition_options(memory_budget=0.3):
        expected = saved_names(split(deep), deep)
    usual = saved_names(split(deep), deep)
    with functorch_config.patch(activation_memory_budget=0.3):
        assert saved_names(split(deep), deep) == expected != usual
        with partition_options(memory_budget=1.0):
            assert saved_names(split(deep), deep) == usual
    twice = joint_of(lambda a: a.sin() * a.sin(), torch.randn(4))
    counts = []
    for merges in (True, False):
        with functorch_config.patch(cse=merges):
            counts.append(len(calls(split(twice)[0], aten.sin)))
    assert counts == [1, 2]


def test_what_is_run_again_falls_with_a_larger_budget(deep: Joint) -> None:
    again: list[int] = []
    for budget in (0.0, 0.3, 0.6, 1.0):
        with partition_options(memory_budget=budget):
            forward, backward = split(deep, static_lifetime_input_indices=range(1, 7))
        in_forward = {n.name for n in forward.graph.nodes if n.op == "call_function"}
        again.append(sum(n.name in in_forward for n in backward.graph.nodes if n.op == "call_function"))
    assert again == sorted(set(again), reverse=True)


def test_budgets_of_the_program(deep: Joint) -> None:
    by_meta = by_region = []
    with partition_options(memory_budget=0.3):
        by_option = saved_names(split(deep), deep)
    node = deep.node("primals_1")
    try:
        node.meta["memory_budget"] = 0.3
        by_meta = saved_names(split(deep), deep)
        del node.meta["memory_budget"]
        node.meta["custom"] = {"_region_activation_memory_budget": 0.3}
        by_region = saved_names(split(deep), deep)
        deep.node("mm").meta["memory_budget"] = 0.4
        with pytest.raises(BadParameter, match="conflicting budgets"):
            split(deep)
    finally:
        for name in ("primals_1", "mm"):
            deep.node(name).meta.pop("memory_budget", None)
            deep.node(name).meta.pop("custom", None)
    assert by_option == by_meta == by_region != saved_names(split(deep), deep)


@pytest.mark.parametrize("budget", [-0.1, 1.1])
def test_budgets_outside_of_the_range_are_refused(budget: float) -> None:
    with pytest.raises(BadParameter, match="expected: a number from 0 to 1"), partition_options(memory_budget=budget):
        pass
