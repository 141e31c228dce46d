"""Conditions that fix a number which is known only at run time are asserted, though the trace takes them as known ever after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from refimpl.export import Dim, export
from refimpl.tests.export.forms import FORMS, STRICT, in_forms


class Asking(nn.Module):
    """Reads two numbers, and asks a condition of them."""

    def __init__(self, condition: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.condition = condition

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        n, m = x.item(), y.item()
        torch._check(self.condition(n, m))
        return x * n + y * m


CONDITIONS: dict[str, tuple[Callable[[Any, Any], Any], tuple[int, int], tuple[int, int]]] = {
    "a number": (lambda n, m: n == 5, (5, 2), (4, 2)),
    "another number": (lambda n, m: n == m, (3, 3), (3, 4)),
    "a sum": (lambda n, m: n + m == 7, (3, 4), (3, 5)),
    "a multiple": (lambda n, m: n == 2 * m, (4, 2), (5, 2)),
}


@pytest.mark.fractional
@STRICT
@in_forms("exported", "decomposed", "functional", "saved", "decomposed, saved", "exported again")
@pytest.mark.parametrize("name", CONDITIONS)
def test_a_condition_that_fixes_a_number_is_asserted(name: str, form: str, strict: bool) -> None:
    condition, good, bad = CONDITIONS[name]
    program = FORMS[form](export(Asking(condition), (torch.tensor(5), torch.tensor(5)), strict=strict))
    module = program.module()
    expected = torch.tensor(good[0] ** 2 + good[1] ** 2)
    torch.testing.assert_close(module(*map(torch.tensor, good)), expected)
    with pytest.raises(RuntimeError, match="Runtime assertion failed"):
        module(*map(torch.tensor, bad))


@pytest.mark.parametrize("table", [None, {}], ids=["default", "empty"])
def test_every_number_of_a_decomposed_graph_is_described(table: Any) -> None:
    class Unfolding(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x.unfold(0, 0, 2), x.permute(2, 0, 1).reshape(-1), x.unfold(1, 1, 2).flatten()

    sizes = dict.fromkeys(range(3), Dim.AUTO)
    program = export(Unfolding(), (torch.randn(4, 5, 6),), dynamic_shapes=(sizes,)).run_decompositions(table)
    assert [node.name for node in program.graph.nodes if "val" not in node.meta and node.op != "output"] == []
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(program.module()(x), Unfolding()(x))


def test_a_literal_is_a_clone_in_a_decomposed_graph() -> None:
    class Literal(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tensor(2.0).add_(x.sum()) + x

    program = export(Literal(), (torch.ones(3),)).run_decompositions()
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert torch.ops.aten.clone.default in targets
    assert torch.ops.aten.lift_fresh_copy.default not in targets
    module = program.module()
    assert [module(torch.ones(3)).tolist() for _ in range(2)] == [[6.0] * 3] * 2
