"""verify_partition finds every kind of fault: each test spoils a good partition in one way."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from refimpl.aot.errors import IllegalPartition
from refimpl.aot.partition import default_partition, min_cut_rematerialization_partition, verify_partition
from refimpl.tests.partition.joint_graphs import Graphs, Joint, calls, joint_of
from refimpl.trace.metadata import note

aten = torch.ops.aten


def program(a, w):
    hidden = F.dropout((a @ w).sin(), 0.5)
    return hidden @ w, hidden * a.shape[0]


@pytest.fixture(scope="module")
def joint() -> Joint:
    return joint_of(program, torch.randn(3, 3), torch.randn(3, 3), symbolic=True)


@pytest.fixture
def graphs(joint: Joint) -> Graphs:
    """A fresh one for every test to spoil."""
    return default_partition(joint.module, None, num_fwd_outputs=joint.outputs)


def named(module: torch.fx.GraphModule, name: str) -> Any:
    return next(node for node in module.graph.nodes if node.name == name)


def output_of(module: torch.fx.GraphModule) -> Any:
    return list(module.graph.nodes)[-1]


def returns(module: torch.fx.GraphModule, values: Any) -> None:
    output_of(module).args = (tuple(values),)


def problems(joint: Joint, graphs: Graphs) -> str:
    with pytest.raises(IllegalPartition) as caught:
        verify_partition(joint.module, *graphs, joint.outputs)
    return str(caught.value)


def test_good_partitions_pass(joint: Joint, graphs: Graphs) -> None:
    verify_partition(joint.module, *graphs, joint.outputs)
    min_cut = min_cut_rematerialization_partition(joint.module, None, num_fwd_outputs=joint.outputs)
    verify_partition(joint.module, *min_cut, joint.outputs)


def test_a_lost_forward_output(joint: Joint, graphs: Graphs) -> None:
    results = output_of(graphs[0]).args[0]
    returns(graphs[0], [results[1], *results[1:]])
    assert f"output 0 of the forward is {results[1].name}, but should be {results[0].name}" in problems(joint, graphs)


def test_a_lost_gradient(joint: Joint, graphs: Graphs) -> None:
    returns(graphs[1], output_of(graphs[1]).args[0][:-1])
    assert "the backward returns 1 values, but should return 2" in problems(joint, graphs)


def test_gradients_in_another_order(joint: Joint, graphs: Graphs) -> None:
    returns(graphs[1], reversed(output_of(graphs[1]).args[0]))
    assert "output 0 of the backward" in problems(joint, graphs)


def test_a_value_that_is_not_saved(joint: Joint, graphs: Graphs) -> None:
    results = output_of(graphs[0]).args[0]
    returns(graphs[0], [*results[:2], *results[3:]])
    assert "which the forward does not save" in problems(joint, graphs)


def test_a_value_that_is_saved_for_nobody(joint: Joint, graphs: Graphs) -> None:
    results = output_of(graphs[0]).args[0]
    returns(graphs[0], [*results[:2], named(graphs[0], "sin"), *results[2:]])
    assert "the forward saves sin, which the backward does not take" in problems(joint, graphs)


def test_a_value_that_is_saved_twice(joint: Joint, graphs: Graphs) -> None:
    results = output_of(graphs[0]).args[0]
    returns(graphs[0], [*results[:3], *results[2:]])
    assert "the forward saves a value twice" in problems(joint, graphs)


def test_numbers_between_tensors(joint: Joint, graphs: Graphs) -> None:
    results = output_of(graphs[0]).args[0]
    assert isinstance(results[-1].meta["val"], torch.SymInt)
    returns(graphs[0], [*results[:2], results[-1], *results[2:-1]])
    assert "saved numbers stand before saved tensors" in problems(joint, graphs)


def test_an_input_in_another_place(joint: Joint, graphs: Graphs) -> None:
    first, second = graphs[0].graph.find_nodes(op="placeholder")
    first.prepend(second)
    assert "inputs of the forward are ['primals_2', 'primals_1']" in problems(joint, graphs)


def test_a_tangent_in_the_forward(joint: Joint, graphs: Graphs) -> None:
    with graphs[0].graph.inserting_before(next(iter(graphs[0].graph.nodes))):
        graphs[0].graph.placeholder("tangents_1")
    assert "the forward computes tangents_1, which needs a tangent" in problems(joint, graphs)


def test_a_random_op_in_both(joint: Joint, graphs: Graphs) -> None:
    (dropout,) = calls(graphs[0], aten.native_dropout)
    backward = graphs[1].graph
    source = backward.find_nodes(op="placeholder")[-1]
    with backward.inserting_before(output_of(graphs[1])):
        backward.create_node("call_function", dropout.target, (source, 0.5, True), name=dropout.name)
    assert "the random op native_dropout (aten.native_dropout.default) runs 2 times" in problems(joint, graphs)


def test_a_random_op_in_neither() -> None:
    lonely = joint_of(lambda a: (torch.rand(3), a.sin())[1], torch.randn(3))
    forward, backward = default_partition(lonely.module, None, num_fwd_outputs=1)
    forward.graph.erase_node(calls(forward, aten.rand)[0])
    assert "runs 0 times, but should run once" in problems(lonely, (forward, backward))


def test_another_op(joint: Joint, graphs: Graphs) -> None:
    named(graphs[0], "sin").target = aten.cos.default
    assert "sin of the forward calls aten.cos.default, but should call aten.sin.default" in problems(joint, graphs)


def test_another_argument(joint: Joint, graphs: Graphs) -> None:
    named(graphs[0], "sin").args = (named(graphs[0], "primals_1"),)
    assert "sin of the forward reads [primals_1], but should read [mm]" in problems(joint, graphs)


def test_another_constant(joint: Joint, graphs: Graphs) -> None:
    (dropout,) = calls(graphs[0], aten.native_dropout)
    dropout.args = (dropout.args[0], 0.25, True)
    assert "native_dropout of the forward reads" in problems(joint, graphs)


def test_an_op_that_is_not_in_the_joint_graph(joint: Joint, graphs: Graphs) -> None:
    node = named(graphs[0], "sin")
    with graphs[0].graph.inserting_after(node):
        new = graphs[0].graph.call_function(aten.neg.default, (node,))
    assert f"{new.name} of the forward is not in the joint graph" in problems(joint, graphs)


def test_an_order_that_cannot_run(joint: Joint, graphs: Graphs) -> None:
    named(graphs[0], "mm").prepend(named(graphs[0], "sin"))
    assert "sin of the forward reads mm, which comes after it" in problems(joint, graphs)


@pytest.mark.parametrize("function", [lambda a: a.sin(), lambda a: a.t().sin()])
def test_a_mutated_input_that_is_saved_as_it_is(function: Any) -> None:
    joint = joint_of(function, torch.randn(3, 3))
    graphs = default_partition(joint.module, None, num_fwd_outputs=1)
    note(joint.node("primals_1"), is_mutated_input=True)
    assert "shares memory with primals_1, which is written to before the backward" in problems(joint, graphs)


def test_a_copy_of_another_value_as_a_gradient() -> None:
    joint = joint_of(
        lambda a, b: (torch.cummin(a, 0)[0], torch.cummin(b, 0)[0]), torch.ones(0), torch.ones(0), mutated=[0, 1]
    )
    graphs = default_partition(joint.module, None, num_fwd_outputs=2)
    first, second = output_of(graphs[1]).args[0]
    assert [first.name, second.name] == ["detach_saved", "detach_1_saved"]
    returns(graphs[1], [second, second])
    assert "output 0 of the backward is detach_1_saved, but should be detach" in problems(joint, graphs)


def test_all_faults_are_listed(joint: Joint, graphs: Graphs) -> None:
    named(graphs[0], "sin").target = aten.cos.default
    returns(graphs[1], output_of(graphs[1]).args[0][:-1])
    assert problems(joint, graphs).count("\n  - ") == 2


def test_items_are_checked_too(joint: Joint, graphs: Graphs) -> None:
    item: Any = next(n for n in graphs[0].graph.nodes if n.target is operator.getitem)
    item.args = (item.args[0], 1 - item.args[1])
    assert f"{item.name} of the forward reads" in problems(joint, graphs)
