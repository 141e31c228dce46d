"""Both partitioners: values, what crosses, what runs where."""

from __future__ import annotations

import inspect
import operator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._functorch import partitioners as torch_partitioners
from torch.utils.checkpoint import CheckpointPolicy

from refimpl.aot.errors import UnsplittableJointGraph
from refimpl.aot.partition import default_partition, min_cut_rematerialization_partition, partition_options, saved_bytes
from refimpl.tests.partition.joint_graphs import (
    PARTITIONERS,
    PROGRAMS,
    assert_same_values,
    calls,
    joint_of,
    saved_names,
    saved_nodes,
    split,
    x,
)

aten = torch.ops.aten


@pytest.mark.parametrize("name", ["default_partition", "min_cut_rematerialization_partition"])
def test_parameters_are_upstreams(name: str) -> None:
    ours = inspect.signature({p.__name__: p for p in PARTITIONERS}[name]).parameters
    theirs = inspect.signature(getattr(torch_partitioners, name)).parameters
    assert [(p.name, p.kind, p.default) for p in theirs.values()] == [
        (p.name, p.kind, p.default) for p in list(ours.values())[: len(theirs)]
    ]


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_conventions_of_inputs_and_outputs(partitioner: Any) -> None:
    joint = joint_of(lambda a, b: (a.view(-1) * b.view(-1)).sin(), x(3, 5), x(3, 5), symbolic=True)
    forward, backward = graphs = split(joint, partitioner)
    assert [n.name for n in forward.graph.find_nodes(op="placeholder")] == ["primals_1", "primals_2"]
    kinds = [isinstance(n.meta["val"], torch.Tensor) for n in saved_nodes(graphs, joint.outputs)]
    assert kinds == sorted(kinds, reverse=True), "tensors are saved before numbers"
    received = [n.name for n in backward.graph.find_nodes(op="placeholder")]
    numbers = kinds.count(False)
    assert numbers
    names = saved_names(graphs, joint)
    assert received == [*names[-numbers:], *names[:-numbers], "tangents_1"], "numbers come before tensors"


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_the_joint_graph_is_left_as_it_is(partitioner: Any) -> None:
    joint = joint_of(*_with("dropout"))
    before = str(joint.module.graph), [dict(n.meta) for n in joint.module.graph.nodes]
    split(joint, partitioner)
    assert (str(joint.module.graph), [dict(n.meta) for n in joint.module.graph.nodes]) == before


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_nodes_keep_their_names_their_order_and_their_meta(partitioner: Any) -> None:
    joint = joint_of(*_with("gelu mlp"))
    for node in joint.module.graph.nodes:
        node.meta["stack_trace"] = f"where {node.name} is from"
    position = {node.name: i for i, node in enumerate(joint.module.graph.nodes)}
    forward, backward = split(joint, partitioner)
    for node in [*forward.graph.nodes, *backward.graph.nodes]:
        if node.op != "output":
            original = joint.node(node.name)
            assert node.meta["stack_trace"] == f"where {node.name} is from"
            assert node.meta["val"] is original.meta["val"]
    order = [position[n.name] for n in forward.graph.nodes]
    assert order == sorted(order)


def test_default_saves_what_the_backward_reads() -> None:
    joint = joint_of(*_with("cosines"))
    assert saved_names(split(joint, default_partition), joint) == ["primals_1", "cos", "cos_1"]


def test_default_saves_items_of_an_op_with_several_results() -> None:
    joint = joint_of(*_with("layer norm"))
    forward, backward = split(joint, default_partition)
    assert len(_outputs(forward)) == 6
    assert len(backward.graph.find_nodes(op="placeholder")) == 6


def test_min_cut_saves_one_tensor_where_one_will_do() -> None:
    for name, saved in (("cosines", ["primals_1"]), ("sums", ["add_2"])):
        joint = joint_of(*_with(name))
        assert saved_names(split(joint), joint) == saved


def test_min_cut_does_not_recompute_what_is_dear() -> None:
    joint = joint_of(lambda a, w: ((a @ w).sin() @ w).sin(), x(), x())
    _, backward = split(joint)
    in_forward = [n.name for n in calls(joint.module, aten.mm)][:2]
    assert not set(in_forward) & {n.name for n in calls(backward, aten.mm)}


@pytest.mark.parametrize(("length", "saved"), [(3, "primals_1"), (100, "add_99")])
def test_min_cut_recomputes_a_chain_only_as_long_as_it_is_cheap(length: int, saved: str) -> None:
    def chain(a):
        b = a
        for _ in range(length):
            b = b + 1
        return b.sin() * a  # the backward reads both ends

    joint = joint_of(chain, x())
    assert saved_names(split(joint), joint)[-1] == saved


def test_parameters_cost_nothing_to_save() -> None:
    def cast(a, w):
        return a @ w.double()

    joint = joint_of(cast, x(4, 16).double(), x(16, 16))
    graphs = split(joint, static_lifetime_input_indices=[1])
    assert saved_names(graphs, joint) == ["primals_1", "primals_2"], "the double copy is made again"
    halved = joint_of(lambda a, w: a @ w.half(), x(4, 16).half(), x(16, 16))
    assert saved_names(split(halved), halved) == ["primals_1", "_to_copy"], "without a word, the smaller one is saved"
    static = split(halved, static_lifetime_input_indices=[1])
    assert saved_names(static, halved) == ["primals_1", "primals_2"]


def test_recomputable_ops_replace_the_rules() -> None:
    joint = joint_of(lambda a: a * a * a, x())
    assert saved_names(split(joint, recomputable_ops=[]), joint) == ["primals_1", "mul"]
    assert saved_names(split(joint, recomputable_ops=[aten.mul]), joint) == ["primals_1"]


# ------------------------------------------------------------------------------------------------------- random and effects


class _RandomBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
        return a.sin()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return g * torch.rand(4, 4)


@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize("budget", [1.0, 0.0])
def test_random_ops_run_once_and_on_their_own_side(partitioner: Any, budget: float) -> None:
    def noisy(a):
        torch.rand(3)  # nobody reads it, but the generator moves on
        return _RandomBackward.apply((a + torch.rand_like(a)).sin().cos())

    joint = joint_of(noisy, x())
    with partition_options(memory_budget=budget):
        forward, backward = split(joint, partitioner)
    assert (len(calls(forward, aten.rand)), len(calls(forward, aten.rand_like))) == (1, 1)
    assert (len(calls(backward, aten.rand)), len(calls(backward, aten.rand_like))) == (1, 0)
    assert_same_values(joint, (forward, backward))


def test_a_random_op_tagged_for_recomputation_is_saved() -> None:
    joint = joint_of(lambda a, w: F.dropout(a @ w, 0.5).sin(), x(), x())
    for node in joint.module.graph.nodes:
        if node.op == "call_function":
            node.meta["recompute"] = CheckpointPolicy.PREFER_RECOMPUTE
    for partitioner in PARTITIONERS:
        graphs = split(joint, partitioner)
        assert calls(graphs[1], aten.native_dropout) == []
        assert_same_values(joint, graphs)


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_effects_stay_in_the_forward(partitioner: Any) -> None:
    def checked(a):
        aten._assert_async.msg(a.isfinite().all(), "not finite")
        return a.exp().sin()

    joint = joint_of(checked, x())
    forward, backward = split(joint, partitioner)
    assert len(calls(forward, aten._assert_async)) == 1
    assert calls(backward, aten._assert_async) == []


# ------------------------------------------------------------------------------------------------------------------ numbers


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_sizes_are_saved_not_tensors(partitioner: Any) -> None:
    joint = joint_of(lambda a: a.sum(1), x(5, 7), symbolic=True)
    graphs = split(joint, partitioner)
    assert [type(n.meta["val"]) for n in saved_nodes(graphs, joint.outputs)] == [torch.SymInt] * 2
    assert_same_values(joint, graphs)
    assert_same_values(joint, graphs, [x(3, 9)], [x(3)])


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_a_split_serves_other_sizes(partitioner: Any) -> None:
    def program(a, b):
        return torch.cat([a.expand(b.shape[0] + 2, a.shape[0]), b.sin()]) @ a

    joint = joint_of(program, x(5), x(3, 5), symbolic=True)
    graphs = split(joint, partitioner)
    assert_same_values(joint, graphs)
    assert_same_values(joint, graphs, [x(7), x(4, 7)], [x(10)])


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_the_backward_is_told_every_symbol_in_its_inputs(partitioner: Any) -> None:
    joint = joint_of(lambda a, b: (a.sin() * b.shape[0]).cos() + b.sum(), x(5, 6), x(7), symbolic=True)
    _, backward = split(joint, partitioner)
    placeholders = [n.meta["val"] for n in backward.graph.find_nodes(op="placeholder")]
    symbols = {
        str(s) for v in placeholders if isinstance(v, torch.Tensor) for s in v.shape if isinstance(s, torch.SymInt)
    }
    told = {str(v) for v in placeholders if isinstance(v, torch.SymInt)}
    recorded = {str(n.meta["val"]) for n in joint.module.graph.nodes if isinstance(n.meta.get("val"), torch.SymInt)}
    assert symbols & recorded <= told


def test_numbers_that_follow_from_symbols_are_calculated_where_they_are_needed() -> None:
    def program(a, b):
        return torch.cat([a.expand(b.shape[0] + 2, a.shape[0]), b]) @ a

    joint = joint_of(program, x(5), x(3, 5), symbolic=True)
    for partitioner, numbers in ((default_partition, 4), (min_cut_rematerialization_partition, 2)):
        graphs = split(joint, partitioner)
        saved = [n.meta["val"] for n in saved_nodes(graphs, joint.outputs)]
        assert sum(isinstance(value, torch.SymInt) for value in saved) == numbers
        assert_same_values(joint, graphs, [x(7), x(4, 7)], [x(10)])


# ------------------------------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: (a * b, a + 1),
        lambda a, b: ((a.t() @ b).sin(), a + 1),
        lambda a, b: (a.view(-1)[3:9].sin() * b.view(-1)[:6], a + 1),
        lambda a, b: (a.as_strided((2, 2), (4, 1), 1).exp().sin() * b[:2, :2], a + 1),
        lambda a, b: (torch.stack(a.unbind(1)[1:3]).cos() * b[:2], a + 1),
    ],
)
def test_mutated_inputs_are_saved_as_copies(partitioner: Any, function: Any) -> None:
    joint = joint_of(function, x(), x(), mutated=[0])
    for budget in (1.0, 0.0):
        with partition_options(memory_budget=budget):
            graphs = split(joint, partitioner)
        assert_same_values(joint, graphs)
        owner = [n.name for n in saved_nodes(graphs, joint.outputs)]
        assert "primals_1" not in owner


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_a_view_and_its_base_are_saved_once(partitioner: Any) -> None:
    def program(a, w):
        y = a @ w
        return y.sin() * y.t().exp() * y.view(2, 8).view(4, 4)

    joint = joint_of(program, x(), x())
    graphs = split(joint, partitioner)
    owners = [n.name for n in saved_nodes(graphs, joint.outputs) if n.name in ("mm", "t", "view", "view_1")]
    assert owners == ["mm"]
    assert_same_values(joint, graphs)


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_views_of_inputs_are_made_again(partitioner: Any) -> None:
    joint = joint_of(lambda a, w: (a @ w.t()).sin(), x(), x())
    assert "primals_2" in saved_names(split(joint, partitioner), joint)
    assert "t" not in saved_names(split(joint, partitioner), joint)


def test_saved_bytes_count_memory_once() -> None:
    def program(a, w):
        y = a @ w
        return y.sin() * y.t().exp()

    joint = joint_of(program, x(), x())
    forward, _ = split(joint)
    found = saved_bytes(forward, joint.outputs)
    assert (found.kept, found.inputs) == (64, 128)
    names = saved_names((forward, forward), joint)
    assert (found.tensors, found.returned) == (len(names), 64 * len(names))


def test_recomputed_values_are_made_where_they_are_read() -> None:
    def layers(a, *weights):
        for weight in weights:
            a = F.gelu(a @ weight)
        return a

    joint = joint_of(layers, x(), *[x() for _ in range(4)])
    _, backward = split(joint)
    nodes = list(backward.graph.nodes)
    position = {node: i for i, node in enumerate(nodes)}
    recomputed = calls(backward, aten.gelu)
    assert len(recomputed) == 3
    for node in recomputed:
        assert min(position[user] for user in node.users) - position[node] <= 3


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_items_follow_the_op_they_are_of(partitioner: Any) -> None:
    joint = joint_of(*_with("layer norm"))
    for module in split(joint, partitioner):
        nodes = list(module.graph.nodes)
        for i, node in enumerate(nodes):
            items = [u for u in node.users if u.target is operator.getitem]
            assert set(nodes[i + 1 : i + 1 + len(items)]) == set(items)


# ------------------------------------------------------------------------------------------------------------------- errors


def test_a_forward_output_that_needs_a_tangent_is_refused() -> None:
    joint = joint_of(*_with("cosines"))
    with pytest.raises(UnsplittableJointGraph, match="the forward output mul_2 needs a tangent"):
        default_partition(joint.module, None, num_fwd_outputs=2)


def test_a_value_that_can_neither_be_saved_nor_recomputed_is_named() -> None:
    graph = torch.fx.Graph()
    primal, tangent = graph.placeholder("primals_1"), graph.placeholder("tangents_1")
    pair = graph.call_function(aten.native_dropout.default, (primal, 0.5, True))
    out = graph.call_function(operator.getitem, (pair, 0))
    gradient = graph.call_function(torch.ops.aten.cat.default, (pair,))
    total = graph.call_function(aten.add.Tensor, (gradient, tangent))
    graph.output((out, total))
    for node in (primal, tangent, out, gradient, total):
        node.meta["val"] = torch.empty(4)
    pair.meta["val"] = (torch.empty(4), torch.empty(4))
    gradient.meta["partitioner_tag"] = "must_be_in_backward"
    with pytest.raises(UnsplittableJointGraph, match="native_dropout"):
        min_cut_rematerialization_partition(torch.fx.GraphModule({}, graph), None, num_fwd_outputs=1)


def _with(name: str) -> Any:
    function, primals = PROGRAMS[name]
    return function, *primals


def _outputs(module: torch.fx.GraphModule) -> Any:
    return list(module.graph.nodes)[-1].args[0]
