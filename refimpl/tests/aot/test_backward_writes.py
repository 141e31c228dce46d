"""A backward that writes to an input: the input has eager's value after each backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from refimpl.errors import UnsupportedByRefimpl
from refimpl.pipeline import compile_aot

Tensor = torch.Tensor
NAMESPACE = "refimpl_test_backward_writes"
TOTAL = torch.zeros(2)


@pytest.fixture(scope="module", autouse=True)
def operators() -> Iterator[None]:
    """The operator `twice(x, log)`; its backward adds the tangent's sum to `log`."""
    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    library.define("twice(Tensor x, Tensor log) -> Tensor")
    library.impl("twice", lambda x, log: x * 2, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::twice", lambda x, log: torch.empty_like(x), lib=library)

    def remember(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.log = inputs[1]

    def backward(ctx: Any, tangent: Tensor) -> Any:
        ctx.log.add_(tangent.sum())
        return tangent * 2, None

    torch.library.register_autograd(f"{NAMESPACE}::twice", backward, setup_context=remember, lib=library)
    yield
    library._destroy()


class Logged(torch.autograd.Function):
    """x * 2; the backward reads `log`, and writes to it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, log: Tensor) -> Tensor:
        ctx.log = log
        return x * 2

    @staticmethod
    def backward(ctx: Any, *tangents: Tensor) -> Any:
        (tangent,) = tangents
        before = ctx.log.sum()
        ctx.log.add_(tangent.sum())
        return tangent * before, None


class Counted(torch.autograd.Function):
    """x * 2; the backward writes to a tensor that only it uses."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *tangents: Tensor) -> Any:
        (tangent,) = tangents
        TOTAL.add_(1)
        return tangent * 2


def of_operator(x: Tensor, log: Tensor) -> Tensor:
    return getattr(torch.ops, NAMESPACE).twice(x, log).sin()


def of_a_hook(x: Tensor, log: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda tangent: tangent * log.add_(tangent.sum())[0])
    return y.sin()


def also_read_in_forward(x: Tensor, log: Tensor) -> Tensor:
    return Logged.apply(x, log).sin() * log.sin().sum()


def also_written_in_forward(x: Tensor, log: Tensor) -> Tensor:
    log.add_(1)
    return Logged.apply(x, log).sin()


def of_a_view(x: Tensor, log: Tensor) -> Tensor:
    return Logged.apply(x, log.chunk(2)[1]).sin()


def of_a_global(x: Tensor, log: Tensor) -> Tensor:
    return Counted.apply(x).sin() * log.sum()


def of_batch_norm(x: Tensor, log: Tensor) -> Tensor:
    """The forward runs again in the backward, and updates the running mean again."""

    def norm(x: Tensor) -> Tensor:
        return torch.nn.functional.batch_norm(x, log, torch.ones_like(log), training=True)

    return checkpoint(norm, x[:, None] * torch.ones(2), use_reentrant=False).sin()


def backwards(function: Callable[..., Tensor]) -> list[Tensor]:
    """Values after two calls before their backwards, and one call with two backwards."""
    TOTAL.zero_()
    x, log = torch.arange(3.0).requires_grad_(), torch.ones(2)
    first, second = function(x, log), function(x, log)
    first.sum().backward()
    second.sum().backward()
    third = function(x, log).sum()
    third.backward(retain_graph=True)
    third.backward()
    assert x.grad is not None
    return [x.grad, log, TOTAL.clone()]


@pytest.mark.parametrize(("partition", "dynamic"), [("default", True), ("min_cut", False)])
@pytest.mark.parametrize(
    "function",
    [
        of_operator,
        of_a_hook,
        also_read_in_forward,
        also_written_in_forward,
        of_a_view,
        of_a_global,
        of_batch_norm,
    ],
)
def test_every_backward_writes_to_the_input(function: Any, partition: Any, dynamic: bool) -> None:
    expected = backwards(function)
    torch.testing.assert_close(backwards(compile_aot(function, partition=partition, dynamic=dynamic)), expected)


def test_results_without_gradient_and_shared_memory_are_refused() -> None:
    """Eager runs only the backwards of results that get a gradient, and with them only their writes."""
    x, log = torch.ones(3, requires_grad=True), torch.ones(2)
    results = compile_aot(lambda x, log: (Logged.apply(x, log).sin(), x * 3))(x, log)
    with pytest.raises(UnsupportedByRefimpl, match="for some of the results"):
        results[1].sum().backward()
    with pytest.raises(UnsupportedByRefimpl, match="shares memory"):
        compile_aot(lambda x, log, part: Logged.apply(x, log).sin() * part)(x, log, log[1:])
