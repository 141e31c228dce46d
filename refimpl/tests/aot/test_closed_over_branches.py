"""Gradients of tensors that a branch of torch.cond closes over: parameters of the module, globals, results before the branch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import refimpl

Tensor = torch.Tensor
X = torch.arange(6.0).reshape(2, 3) - 1


class OneBranch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("offset", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda a: self.linear(a) + self.offset, lambda a: a * 2, (x,))


class BothBranches(OneBranch):
    def forward(self, x: Tensor) -> Tensor:
        scaled = self.linear.weight * 2
        return torch.cond(x.sum() > 0, lambda a: a @ scaled, lambda a: (a - self.linear.bias) * self.offset, (x,))


class Nested(OneBranch):
    def forward(self, x: Tensor) -> Tensor:
        def large(a: Tensor) -> Tensor:
            return torch.cond(a.max() > 3, lambda b: self.linear(b), lambda b: b * self.linear.bias, (a,))

        return torch.cond(x.sum() > 0, large, lambda a: a - self.linear.bias, (x,))


class Checkpointed(OneBranch):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(lambda a: OneBranch.forward(self, a.sin()), x, use_reentrant=False)


def gradients(program: Callable[[Tensor], Tensor], x: Tensor, leaves: list[Tensor]) -> list[Any]:
    x = x.clone().requires_grad_()
    for leaf in leaves:
        leaf.grad = None
    result = program(x)
    result.square().sum().backward()
    return [result.detach(), x.grad, *(leaf.grad for leaf in leaves)]


def assert_as_eager(program: Any, compiled: Any, leaves: list[Tensor]) -> None:
    for x in (X, -X, X.clamp(max=2), X * 2):
        expected = gradients(program, x, leaves)
        found = gradients(compiled, x, leaves)
        for one, other in zip(found, expected, strict=True):
            # A graph has a gradient for each of its inputs: zeros where eager, which ran the other branch, has none.
            torch.testing.assert_close(one, torch.zeros_like(one) if other is None and one is not None else other)


@pytest.mark.fractional
@pytest.mark.parametrize("partition", ["default", "min_cut"])
@pytest.mark.parametrize("made", [OneBranch, BothBranches, Nested, Checkpointed])
def test_parameters_of_the_module_get_their_gradients(made: type[OneBranch], partition: Any) -> None:
    torch.manual_seed(0)
    module = made()
    compiled = refimpl.compile_aot(module, partition=partition)
    assert_as_eager(module, compiled, list(module.parameters()))
    with torch.no_grad():
        module.linear.weight.add_(1)
        module.get_buffer("offset").add_(1)
    module.linear.bias = nn.Parameter(torch.tensor([3.0, 2.0, 1.0]))
    assert_as_eager(module, compiled, list(module.parameters()))


def test_globals_get_their_gradients_and_are_read_anew() -> None:
    weight, offset = torch.tensor([1.0, 2.0, 3.0], requires_grad=True), torch.ones(3)

    def program(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda a: a * weight + offset, lambda a: a - weight, (x,))

    compiled = refimpl.compile_aot(program)
    assert_as_eager(program, compiled, [weight])
    with torch.no_grad():
        weight.mul_(2)
        offset.mul_(2)
    assert_as_eager(program, compiled, [weight])


def test_a_global_that_a_loop_closes_over_is_an_input() -> None:
    offset = torch.ones(3)

    def program(x: Tensor) -> Tensor:
        return torch.while_loop(lambda a: a.sum() < 20, lambda a: (a.abs() + offset,), (x,))[0]

    compiled = refimpl.compile_aot(program)
    torch.testing.assert_close(compiled(X), program(X))
    offset.mul_(2)
    torch.testing.assert_close(compiled(X), program(X))


class CheckpointedLayer(OneBranch):
    def forward(self, x: Tensor) -> Tensor:
        found = checkpoint(lambda a: self.linear(a.sin()).exp() * self.offset, x, use_reentrant=False)
        assert isinstance(found, Tensor)
        return found


class Loss(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (self.inner(x).square().sum(),)


@pytest.mark.parametrize("made", [OneBranch, BothBranches, Nested, CheckpointedLayer])
def test_an_exported_joint_graph_has_the_gradients_of_parameters(made: type[OneBranch]) -> None:
    """The backward runs a branch, or what a checkpoint keeps, again, when the module has its own parameters back."""
    torch.manual_seed(0)
    module = Loss(made())
    graph, signature = refimpl.aot_export_module(module, [X], trace_joint=True, output_loss_index=0)
    assert signature.backward_signature is not None
    names = signature.backward_signature.gradients_to_parameters
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1)
    for x in (X, -X, X * 2):
        module.zero_grad()
        module(x)[0].backward()
        with torch.no_grad():
            results = graph(*module.parameters(), *module.buffers(), x)
        found = dict(zip([node.name for node in graph.graph.output_node().args[0]], results, strict=True))  # type: ignore[union-attr]
        for output, name in names.items():
            expected = module.get_parameter(name).grad
            torch.testing.assert_close(found[output], torch.zeros_like(found[output]) if expected is None else expected)
