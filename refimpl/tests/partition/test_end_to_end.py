"""What partitioners may keep as it is, and what they keep a copy of: eager mode's rules of writes before the backward (AO-45)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from refimpl.aot.partition import default_partition, min_cut_rematerialization_partition
from refimpl.aot_entry_points import aot_function, aot_module
from refimpl.tests.corpus.gradients import checkpointed
from refimpl.tests.partition.joint_graphs import calls
from refimpl.tests.partition.test_corpus import smallest

aten = torch.ops.aten


PARTITIONERS = [default_partition, min_cut_rematerialization_partition, smallest]


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_checkpoints_of_the_program_are_kept(partitioner: Any) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph_module: torch.fx.GraphModule, _: Any) -> torch.fx.GraphModule:
        graphs.append(graph_module)
        return graph_module

    compiled = aot_function(checkpointed, keep, partition_fn=partitioner)
    compiled(torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)).sum().backward()
    forward, backward = graphs
    assert len(calls(forward, aten.mm)) == 6
    assert len(calls(backward, aten.mm)) >= 12 + 3, "the first product of every block is made again"


def difference(x, w):
    y = x @ w
    return (y - x).abs(), y


def viewed_difference(x, w):
    y = x @ w
    return (y - x).abs(), y.t()


def difference_of_a_part(x, w):
    y = (x @ w).as_strided((3, 4), (4, 1), 4)
    return (y - x[1:]).abs(), y


def merged_differences(x, w):
    y = x @ w
    return (y - x).abs() * (y - x).cos(), y


@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize("program", [difference, viewed_difference, difference_of_a_part, merged_differences])
def test_results_that_eager_does_not_save_may_be_written_before_the_backward(program: Any, partitioner: Any) -> None:
    gradients = []
    for function in (program, aot_function(program, lambda graph, _: graph, partition_fn=partitioner)):
        torch.manual_seed(0)
        x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
        distance, y = function(x, w)
        y.detach().neg_()
        gradients.append(torch.autograd.grad(distance.sum(), [x, w]))
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize("program", [torch.sigmoid, torch.exp, lambda x: torch.softmax(x, -1)])
def test_results_that_eager_saves_are_saved_as_they_are(program: Any, partitioner: Any) -> None:
    x = torch.randn(4, 4, requires_grad=True)
    result = aot_function(program, lambda graph, _: graph, partition_fn=partitioner)(x)
    assert result.grad_fn.saved_tensors[0].data_ptr() == result.data_ptr()
    result.detach().neg_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(result.sum(), x)


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_intermediates_that_eager_does_not_save_may_be_written_before_the_backward(partitioner: Any) -> None:
    def program(y):
        return y.sigmoid() + 1, (y[1:] * 2).cos()

    gradients = []
    for function in (program, aot_function(program, lambda graph, _: graph, partition_fn=partitioner)):
        x = torch.linspace(-1, 1, 4).requires_grad_()
        y = x * 1
        first, second = function(y)
        y.detach().neg_()
        gradients.append(torch.autograd.grad(first.sum() + second.sum(), x))
    torch.testing.assert_close(gradients[1], gradients[0])


class Larger(torch.autograd.Function):
    """Nothing but its backward reads what it saves."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x > 0)
        return w.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (mask,) = ctx.saved_tensors
        return None, grad_outputs[0] * mask


def written_product(x, w):
    y = -(x * 2)
    y.mul_(w)
    return y


def product_of_computed(x, w):
    return (x.sigmoid() + 1) * (w * 3)


def product_of_parts(x, w):
    return x[1:].cos() * w[1:] + (x * 2)[:3] * w[:3].exp()


@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize("program", [written_product, product_of_computed, product_of_parts, Larger.apply])
def test_data_that_eager_does_not_save_may_be_written_before_the_backward(program: Any, partitioner: Any) -> None:
    gradients = []
    for function in (program, aot_function(program, lambda graph, _: graph, partition_fn=partitioner)):
        x, w = torch.linspace(-1, 1, 4), torch.linspace(1, 2, 4).requires_grad_()
        result = function(x, w)
        x.neg_()
        w.detach().neg_()
        gradients.append(torch.autograd.grad(result.sum(), w))
    torch.testing.assert_close(gradients[1], gradients[0])


class Replaced(torch.autograd.Function):
    """The gradient of its second argument is its first, as it is."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x)
        return x + w

    @staticmethod
    def backward(ctx, *_):
        return None, *ctx.saved_tensors


@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize("program", [torch.mul, Replaced.apply])
def test_data_that_eager_saves_are_saved_as_they_are(program: Any, partitioner: Any) -> None:
    x, w = torch.linspace(-1, 1, 4), torch.linspace(1, 2, 4).requires_grad_()
    result = aot_function(program, lambda graph, _: graph, partition_fn=partitioner)(x, w)
    assert [saved.data_ptr() for saved in result.grad_fn.saved_tensors] == [x.data_ptr()]
    x.neg_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(result.sum(), w)


@pytest.mark.parametrize("make", [torch.nn.Parameter, torch.Tensor.requires_grad_], ids=["parameter", "leaf"])
def test_of_leaves_that_require_a_gradient_no_copies_are_saved(make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = make(torch.linspace(-1, 1, 4))
    compiled = aot_function(
        lambda x: x.sigmoid() + 1, lambda graph, _: graph, partition_fn=min_cut_rematerialization_partition
    )
    result = compiled(x)
    assert [saved.data_ptr() for saved in result.grad_fn.saved_tensors] == [x.data_ptr()]


class Annealed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(1, 2, 4))
        self.register_buffer("scale", torch.linspace(-1, 1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[1:] * self.weight[1:] * (self.get_buffer("scale") * 2)[1:].cos()


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_buffers_that_eager_does_not_save_may_be_written_before_the_backward(partitioner: Any) -> None:
    gradients = []
    for is_compiled in (False, True):
        module = Annealed()
        call = aot_module(module, lambda graph, _: graph, partition_fn=partitioner) if is_compiled else module
        x = torch.linspace(-1, 1, 4).requires_grad_()
        result = call(x)
        module.get_buffer("scale").mul_(0.5)
        gradients.append(torch.autograd.grad(result.sum(), [x, module.weight]))
    torch.testing.assert_close(gradients[1], gradients[0])
