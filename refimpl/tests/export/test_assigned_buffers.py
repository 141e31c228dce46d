"""Buffers that `forward` assigns to: they hold the new value afterwards, and values read earlier do not change."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from refimpl.errors import UnsupportedByRefimpl
from refimpl.export import export
from refimpl.tests.export.forms import STRICT, TABLES, decomposed


class Buffers(nn.Module):
    """Two buffers, and a function that is forward."""

    first: torch.Tensor
    second: torch.Tensor

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.register_buffer("first", torch.arange(3.0))
        self.register_buffer("second", torch.ones(3))
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def counted(self: Buffers, x: torch.Tensor) -> Any:
    self.first = self.first + 1
    return x * self.first


def swapped(self: Buffers, x: torch.Tensor) -> Any:
    self.first, self.second = self.second, self.first
    return x + self.first * 2 + self.second


def old_is_returned(self: Buffers, x: torch.Tensor) -> Any:
    old, view = self.first, self.first[1:]
    self.first = self.first + x.detach()
    return old, self.first, view, old + 0


def written_and_assigned(self: Buffers, x: torch.Tensor) -> Any:
    self.first.add_(1)
    self.first = self.first * 2
    return self.first + x


def kept_for_backward(self: Buffers, x: torch.Tensor) -> Any:
    y = torch.maximum(self.first, x) * self.second
    self.first = self.first + x.detach().sum()
    self.second = self.second + 1
    return y * self.first * self.second


def with_history(self: Buffers, x: torch.Tensor) -> Any:
    y = x * self.first
    self.first = self.first + x
    return y * self.first


def read_in_branch(self: Buffers, x: torch.Tensor) -> Any:
    before = self.first
    y = torch.cond(x.sum() > 0, lambda x: x * before, lambda x: x - before, (x,))
    self.first = self.first + x.detach()
    return y * self.first


FUNCTIONS = [counted, old_is_returned, written_and_assigned, kept_for_backward, with_history, read_in_branch, swapped]


@pytest.mark.fractional
@STRICT
@TABLES
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_calls_after_each_other_are_those_of_the_module(function: Any, table: str, strict: bool) -> None:
    module = Buffers(function)
    if strict and function is swapped:
        with pytest.raises(UnsupportedByRefimpl, match="does not compute"):
            export(module, (torch.randn(3),), strict=True)
        return
    program = export(copy.deepcopy(module), (torch.randn(3, requires_grad=True),), strict=strict)
    runnable = decomposed(program, table).module()
    for _ in range(1 if function is with_history else 2):
        x = torch.randn(3, requires_grad=function is not read_in_branch)  # torch's own cond has no gradient here
        same = x.detach().clone().requires_grad_(x.requires_grad)
        actual, expected = _leaves(runnable(x)), _leaves(module(same))
        torch.testing.assert_close(actual, expected)
        _backward(actual)
        _backward(expected)
        torch.testing.assert_close(x.grad, same.grad)
        for name, buffer in module.named_buffers():
            torch.testing.assert_close(runnable.get_buffer(name), buffer)
            assert runnable.get_buffer(name).requires_grad == buffer.requires_grad


def _leaves(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


def _backward(values: list[torch.Tensor]) -> None:
    with_history = [value.sum() for value in values if value.requires_grad]
    if with_history:
        torch.stack(with_history).sum().backward()


def test_a_counter_that_is_only_counted_up_is_not_copied() -> None:
    with torch.no_grad():
        program = export(Buffers(counted), (torch.ones(3),))
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert targets == [torch.ops.aten.add.Tensor, torch.ops.aten.mul.Tensor, torch.ops.aten.copy_.default]
