"""The checker of these tests, fed with wrong answers: each kind of difference is noticed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from refimpl.aot_entry_points import aot_module_simplified
from refimpl.tests.agreement import assert_agrees
from refimpl.tests.corpus import compare
from refimpl.tests.corpus.mutation import TWO, in_place
from refimpl.tests.corpus.views import siblings


def _wrong(change: Any) -> Any:
    """A backend whose first result is changed."""

    def backend(graph_module: Any, example_inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            outs = list(graph_module(*args))
            outs[0] = change(outs[0])
            return outs

        return run

    return backend


@pytest.mark.parametrize("program", [in_place, siblings], ids=lambda p: p.__name__)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_wrong_value_is_noticed(program: Any, requires_grad: bool) -> None:
    def one_element(out: torch.Tensor) -> torch.Tensor:
        out = out.clone()
        out.view(-1)[0] += 1
        return out

    make = lambda: TWO(requires_grad)  # noqa: E731
    assert_agrees(program, make, backend=_wrong(lambda out: out))
    if program is in_place:  # of siblings the first output is a view that nobody takes: it is made again from the base
        with pytest.raises(AssertionError):
            assert_agrees(program, make, backend=_wrong(one_element))


def test_a_wrong_gradient_is_noticed() -> None:
    def program(x: Any, y: Any) -> Any:
        return x.sin() * y

    compiled = []

    def backend(graph_module: Any, example_inputs: Any) -> Any:
        compiled.append(graph_module)
        if len(compiled) % 2:  # forward, then backward
            return graph_module
        return lambda *args: [None if g is None else g * 1.01 for g in graph_module(*args)]

    with pytest.raises(AssertionError, match="gradients"):
        assert_agrees(program, lambda: TWO(True), backend=backend)


def test_options_of_upstream_that_are_not_honoured_are_refused() -> None:
    class Double(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return (x * 2,)

    aot_module_simplified(Double(), (torch.ones(3),), lambda gm, _: gm, ignore_shape_env=False)
    with pytest.raises(NotImplementedError, match="ignore_shape_env"):
        aot_module_simplified(Double(), (torch.ones(3),), lambda gm, _: gm, ignore_shape_env=True)


WRONG: dict[str, tuple[Any, Any]] = {
    "structure": (lambda x, y: (x + y,), lambda x, y: [x + y]),
    "results": (lambda x, y: x + y, lambda x, y: x + y * 1.001),
    "arguments": (lambda x, y: x.mul_(2).sum(), lambda x, y: (x * 2).sum()),
    "layouts": (lambda x, y: (x * y).t(), lambda x, y: (x * y).t().contiguous()),
    "flags": (lambda x, y: x * y, lambda x, y: x.detach() * y.detach()),
    "gradients": (lambda x, y: x * y, lambda x, y: x * y.detach()),
    "after_write": (lambda x, y: [r := x * 1, r.view(-1)], lambda x, y: [x * 1, (x * 1).view(-1)]),
    "random_state": (lambda x, y: x + y, lambda x, y: (torch.rand(1), x + y)[1]),
}


@pytest.mark.parametrize("part", WRONG)
def test_a_difference_in_each_part_of_what_is_seen_is_noticed(part: str) -> None:
    right, wrong = WRONG[part]
    compare.assert_agrees(right, right, lambda: TWO(True))
    with pytest.raises(AssertionError, match=part):
        compare.assert_agrees(right, wrong, lambda: TWO(True), parts=[part])
