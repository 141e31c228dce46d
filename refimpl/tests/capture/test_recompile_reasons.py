"""Tests of the reason that is given for a recompile: which fact of an input is another one than at the capture."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import refimpl
from refimpl.capture.config import config
from refimpl.capture.public.errors import RecompileError

Tensor = torch.Tensor
FACTS: dict[str, tuple[Any, Any, str]] = {
    "size": (torch.ones(3, 4), torch.ones(5, 4), "tensor 'x' size mismatch at index 0. expected 3, actual 5"),
    "second size": (torch.ones(3, 4), torch.ones(3, 5), "tensor 'x' size mismatch at index 1. expected 4, actual 5"),
    "stride": (torch.ones(3, 4), torch.ones(4, 3).t(), "tensor 'x' stride mismatch at index 0. expected 4, actual 1"),
    "rank": (torch.ones(3, 4), torch.ones(3), "tensor 'x' rank mismatch. expected 2, actual 1"),
    "dtype": (
        torch.ones(3), torch.ones(3, dtype=torch.int64),
        "tensor 'x' dtype mismatch. expected torch.float32, actual torch.int64",
    ),
    "gradient": (
        torch.ones(3), torch.ones(3, requires_grad=True),
        "tensor 'x' requires_grad mismatch. expected False, actual True",
    ),
    "class": (torch.ones(3), torch.nn.Parameter(torch.ones(3)), "expected type of 'x' to be <class 'torch.Tensor'>"),
    "no tensor": (torch.ones(3), 3, "expected type of 'x' to be a tensor type, but found <class 'int'>"),
    "number": (3, 4, "EQUALS L['x'] 3"),
}  # fmt: skip


def doubled(x: Any) -> Any:
    return x * 2


def reason_of(function: Any, *calls: Any, **options: Any) -> str:
    """The last reason that a watcher is told."""
    told: list[Any] = []
    compiled = refimpl.optimize("eager", guard_fail_fn=told.append, **options)(function)
    for call in calls:
        compiled(call)
    return told[-1].reason


@pytest.mark.parametrize("name", FACTS)
def test_the_reason_says_what_differs(name: str) -> None:
    before, after, expected = FACTS[name]
    assert expected in reason_of(doubled, before, after, dynamic=False)
    compiled = refimpl.compile(doubled, backend="eager", dynamic=False)
    compiled(before)
    with config.patch(error_on_recompile=True), pytest.raises(RecompileError) as raised:
        compiled(after)
    assert expected in str(raised.value)


def test_a_size_that_the_program_has_made_a_number() -> None:
    def program(x: Tensor) -> Tensor:
        return x + 1 if int(x.shape[0]) in {10: True} else x - 1

    reason = reason_of(program, torch.ones(10, 11), torch.ones(9, 11), dynamic=True)
    assert "tensor 'x' size mismatch at index 0. expected 10, actual 9" in reason


def test_a_relation_between_sizes() -> None:
    def program(x: Tensor) -> Tensor:
        return x + 1 if x.shape[0] > 5 else x - 1

    assert reason_of(program, torch.ones(10), torch.ones(3), dynamic=True).endswith("L['x'].size()[0]")


def test_a_watcher_that_fails_does_not_end_the_program() -> None:
    def failing(told: Any) -> None:
        raise ValueError(told)

    compiled = refimpl.optimize("eager", guard_fail_fn=failing)(doubled)
    compiled(torch.ones(2))
    assert compiled(torch.ones(2, dtype=torch.int64)).tolist() == [2, 2]
