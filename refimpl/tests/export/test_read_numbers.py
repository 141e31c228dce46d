"""Numbers that are read from tensors (`x.item()`, sizes of `x.nonzero()`) in exported programs, compared with eager."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import sym_and, sym_or
from torch.nn import functional as F

from refimpl.export import Dim, export
from refimpl.tests.export.forms import STRICT
from refimpl.tests.export.modules import asserting, asserting_of_a_tensor

Function = Callable[..., Any]


class Running(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.function(x, y)


@dataclass(frozen=True)
class Case:
    """A program, numbers that it runs with, and numbers that break what it asserts."""

    function: Function
    good: Sequence[Any]
    bad: Sequence[Any] = ()


def checked_slice(x: Any, y: Any) -> Any:
    n = x.item()
    torch._check(n >= 2)
    torch._check(n <= 4)
    return y[:n]


def all_of(x: Any, y: Any) -> Any:
    u, v = x.tolist()
    torch._check(sym_and(u >= 1, v >= 2, u + v <= y.shape[0]))
    return y[: u + v], y[u:]


def one_of(x: Any, y: Any) -> Any:
    u, v = x.tolist()
    torch._check(sym_or(u == 1, v == 2))
    return y * u + v


def assigned(x: Any, y: Any) -> Any:
    z = y.clone()
    z[: x.item()] = 7
    return z


def assigned_one(x: Any, y: Any) -> Any:
    z = y.clone()
    z[x.item()] = 7
    return z


def equal_to_a_size(x: Any, y: Any) -> Any:
    n = x.item()
    torch._check(n >= 0)
    torch._check(n == y.shape[0])
    return torch.ones(n) + y


def half_of_a_size(x: Any, y: Any) -> Any:
    n = x.item()
    torch._check(n * 2 == y.shape[0] - 1)
    return y[1:].view(n, 2)


def of_all_values(x: Any, y: Any) -> Any:
    torch._check_tensor_all(x > 1)
    return y * 2


def a_named_check(x: Any, y: Any) -> Any:
    n = x.item()
    torch._check_value(n > 1)
    torch._check_index(n < 5)
    return y[:n]


def even(x: Any, y: Any) -> Any:
    n = x.item()
    torch._check(n % 2 == 0)
    return torch.ones(n).view(2, n // 2)


def layers(x: Any, y: Any) -> Any:
    z = torch.ones(x.item(), 4)
    return F.layer_norm(z, (4,)), F.softmax(z, -1), F.linear(z, torch.ones(2, 4))


def masked(x: Any, y: Any) -> Any:
    z = y[y > x]
    return torch.cat([z, z]).view(2, -1), z.shape[0]


def of_equal_counts(x: Any, y: Any) -> Any:
    a, b = x.nonzero().squeeze(1), (y > 2).nonzero().squeeze(1)
    torch._check(a.size(0) == b.size(0))
    return a + b


CASES = {
    "a checked slice": Case(checked_slice, (3, 2), (1, 5)),
    "sym_and": Case(all_of, ([1, 2], [1, 4]), ([0, 2], [3, 4])),
    "sym_or": Case(one_of, ([1, 2], [1, 4], [3, 2]), ([0, 3],)),
    "an assert": Case(asserting, (3, 5), (1,)),
    "a slice assigned": Case(assigned, (3, 2, 0)),
    "an element assigned": Case(assigned_one, (3, 2)),
    "a size of another tensor": Case(equal_to_a_size, (5,), (4,)),
    "half of a size": Case(half_of_a_size, (2,), (3,)),
    "a check of all values": Case(of_all_values, ([2, 3], [4, 5]), ([1, 3],)),
    "checks of other errors": Case(a_named_check, (2, 4), (1, 5)),
    "an empty softmax": Case(lambda x, y: torch.ones(x.item(), 2).softmax(0), (2, 0)),
    "a multiple": Case(even, (4, 6), (5,)),
    "layers": Case(layers, (2, 3)),
    "a mask": Case(masked, (1, 2)),
    "two counts": Case(of_equal_counts, ([1, 0, 1], [0, 1, 1]), ([1, 0, 0],)),
    "largest and smallest": Case(lambda x, y: (max(x.item(), 3), min(x.item(), 10, 4)), (4, 2)),
    "a size of at least 3": Case(lambda x, y: torch.ones(max(x.item(), 3)), (4, 2)),
    "a predicate": Case(lambda x, y: torch.cond(x.item() > 3, lambda y: y + 1, lambda y: y - 1, (y,)), (4, 1)),
    "a count as predicate": Case(
        lambda x, y: torch.cond(x.nonzero().shape[0] > 1, lambda y: y + 1, lambda y: y - 1, (y,)), ([1, 1], [0, 1])
    ),
    "nonzero reshaped": Case(lambda x, y: x.nonzero().reshape(-1) * 2, ([1, 0, 2], [0, 0, 0])),
    "split": Case(lambda x, y: torch.split(y, x.tolist()), ([1, 2, 2], [2, 3, 0])),
    "repeated": Case(lambda x, y: y[:3].repeat_interleave(x), ([1, 2, 3], [2, 0, 2])),
    "padded": Case(lambda x, y: F.pad(y, (0, x.item())), (4, 2)),
    "a product": Case(lambda x, y: torch.ones(x.item(), 3) @ torch.ones(3, 2), (2, 1)),
    "squeezed": Case(lambda x, y: (torch.ones(x.item(), 1, 2).squeeze(1), torch.ones(x.item(), 2).flatten()), (2, 3)),
    "expanded": Case(lambda x, y: torch.ones(x.item()).unsqueeze(0).expand(3, -1), (2, 3)),
    "unique": Case(lambda x, y: x.unique(return_counts=True), ([1, 1, 2], [1, 1, 1])),
    "a tensor of numbers": Case(
        lambda x, y: (torch.tensor(x.item()), torch.tensor([[x.item(), 2.5]]), torch.tensor([x.item() > 3, True])),
        (2, 4),
    ),
    "a range": Case(lambda x, y: (torch.arange(x.item()), torch.arange(0, x.item(), 2)), (4, 5)),
}


@pytest.mark.fractional
@STRICT
@pytest.mark.parametrize("name", CASES)
def test_programs_run_as_in_eager(name: str, strict: bool) -> None:
    case, y = CASES[name], torch.arange(5.0)
    module = Running(case.function)
    program = export(module, (torch.tensor(case.good[0]), y), strict=strict)
    for runnable in (program.module(), program.run_decompositions().module()):
        for numbers in case.good:
            given = torch.tensor(numbers), y
            torch.testing.assert_close(runnable(*given), module(*given))
        for numbers in case.bad:
            with pytest.raises(RuntimeError):
                runnable(torch.tensor(numbers), y)


def test_a_power_of_a_read_number_is_a_float() -> None:
    module = Running(
        lambda x, y: (y * math.pow(min(x.item(), 10), 3), torch.ones(2, dtype=torch.int64) * math.pow(x.item(), 2))
    )
    runnable = export(module, (torch.tensor(5), torch.ones(2))).module()
    for number in (4, 12):
        given = torch.tensor(number), torch.ones(2)
        torch.testing.assert_close(runnable(*given), module(*given))


def test_an_assertion_of_a_tensor_is_one_of_the_graph() -> None:
    program = export(Running(asserting_of_a_tensor), (torch.tensor(3), torch.ones(2)), strict=True)
    assert torch.ops.aten._assert_async.msg in [node.target for node in program.graph.nodes]
    for runnable in (program.module(), program.run_decompositions().module()):
        torch.testing.assert_close(runnable(torch.tensor(3), torch.ones(2)), torch.ones(2) + 1)
        with pytest.raises(RuntimeError, match="too small"):
            runnable(torch.tensor(1), torch.ones(2))


def test_extremes_of_tensors_are_operators_without_strict() -> None:
    def extremes(x: torch.Tensor, y: torch.Tensor) -> Any:
        return max(x, x + 1), min(x, 3), max([x, x - 1])

    program = export(Running(extremes), (torch.tensor(4), torch.ones(1)))
    for value in (4, 2):
        actual = program.module()(torch.tensor(value), torch.ones(1))
        assert [int(number) for number in actual] == [value + 1, min(value, 3), value]
    assert max(3, 4) == 4  # the functions are Python's again
    with pytest.raises(RuntimeError, match="Boolean value of Tensor with more than one value is ambiguous"):  # as eager
        export(Running(lambda x, y: max(y, y + 1)), (torch.tensor(4), torch.ones(2)))


def test_a_number_that_is_asserted_to_be_known_binds_no_symbol() -> None:
    class Asserting(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
            m, n, k = x.item(), y.item(), (x + 1).item()
            torch._check(m == 4)
            torch._check(n == z.shape[0])
            return m + n + z * k

    inputs = (torch.tensor(4), torch.tensor(5), torch.ones(5))
    program = export(Asserting(), inputs, dynamic_shapes=(None, None, {0: Dim.AUTO}))
    bound = [node.meta["unbacked_bindings"] for node in program.graph.nodes if "unbacked_bindings" in node.meta]
    assert [len(symbols) for symbols in bound] == [1]
    torch.testing.assert_close(program.module()(*inputs), Asserting()(*inputs))
    for wrong in ((torch.tensor(3), torch.tensor(5)), (torch.tensor(4), torch.tensor(4))):
        with pytest.raises(RuntimeError, match="Runtime assertion failed"):
            program.module()(*wrong, torch.ones(5))
